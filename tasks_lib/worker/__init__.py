"""The Dask worker: plays episodes and grades them.

``rollout_worker`` is the worker's Dask plugin, which keeps its sites, browsers and inference engine
for as long as the worker lives, and ``event_loop`` its thread. ``requests`` has the requests and
reports.

``playing`` plays the episodes of a slot and stores finished groups, ``slots`` and ``permits``
decide which is played where and when, and ``blocklist`` records the walls of sites. ``attempt``
plays one episode: ``actors`` and ``teacher`` choose its actions, ``turns`` leads from a captured
page to an answer (a ``pipeline``), ``oversampling`` gives up slow episodes, and ``reward_stage``
grades. ``live`` writes the file that a task monitor shows. ``envs.episodes`` says how an episode
ends.
"""
