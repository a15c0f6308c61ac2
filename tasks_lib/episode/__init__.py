"""One episode, in a Dask worker: see the page, answer, act, end, be graded.

``play`` plays the episode. ``actors`` and ``teacher`` choose its actions. ``turns`` leads from a
captured page to an answer (a ``pipeline``). ``oversampling`` gives up slow episodes,
``reward_stage`` grades, and ``live`` writes the file that a task monitor shows. ``envs.episodes``
says how an episode ends.
"""
