"""Sites that are made of a recipe: built once, launched and reset for each episode.

`recipe` reads and checks the file, `build` makes environment and state, `template` speaks to the
processes of `envs.sites.site_guest`, `front` leads requests to an episode's server, `site` is the
side that a session sees, and `check` compares two instances. See ``docs/site-recipes.md``.
"""
