"""One episode, in a Dask worker: see the page, answer, act, end, be graded.

``play`` is the episode, ``actors`` who decides, ``turns`` the way from a captured page to an answer
(a ``pipeline``), ``reward_stage`` its grading; ``live`` is the file that shows it while it goes on.
How it ends is in ``envs.episodes``.
"""
