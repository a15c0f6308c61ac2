"""State of a Dask worker: sites, browsers and the inference engine.

It lives for as long as the worker does.

``rollout_worker`` is the worker's plugin, ``event_loop`` its thread, ``requests`` what it is asked and answers, ``slots`` which
episodes share a slot, ``committing`` keeps finished groups, ``blocklist`` the walls that sites put up.
"""
