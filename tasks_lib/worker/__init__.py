"""The Dask worker: plays episodes and grades them.

``rollout_worker`` is the worker's Dask plugin; its docstring draws who runs. ``resources`` are the
sites, browsers and inference engine that it keeps, and ``event_loop`` its thread. ``requests`` has
the requests and reports, which ``rollout_service`` and ``grading_service`` carry out.

``slots`` and ``permits`` decide which episode is played where and when, ``group_committer`` stores
ended episodes and their groups, and ``blocklist`` records the walls of sites. ``attempt`` plays one
episode: ``actors`` and ``teacher`` choose its actions, ``turns`` leads from a captured page to an
answer (a ``pipeline``), ``oversampling`` gives up slow episodes, and ``reward_stage`` grades.
``live`` writes the file that a task monitor shows. ``envs.episodes`` says how an episode ends.
"""
