"""What lives in a Dask worker for as long as the worker does: sites, browsers and the inference engine.

``rollout_worker`` is the worker's plugin, ``event_loop`` its thread, ``requests`` what it is asked and answers, ``slots`` which
episodes share a slot, ``committing`` keeps finished groups, ``blocklist`` the walls that sites put up.
"""
