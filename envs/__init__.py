"""The web side of Rollwright: browsers, sites, tasks, observations, actions and rewards.

``browser`` drives real Chromium pages, ``sites`` says where pages come from and how an episode is reset and judged by
the page itself, ``tasks`` reads task files, ``rewards`` turns facts into reward bundles, and ``oracles`` holds scripted
policies that prove a task can be solved from what the policy sees. ``types`` is shared with ``training``. Prefect,
torch and anything of a model may not be imported here.
"""
