"""State of a Dask worker: sites, browsers and the inference engine.

The state lives for as long as the worker does.

``rollout_worker`` is the worker's Dask plugin and ``event_loop`` its thread. ``requests`` has the
requests and reports. ``slots`` and ``permits`` decide which episode is played where and when,
``committing`` plays them and stores finished groups, and ``blocklist`` records the walls of sites.
"""
