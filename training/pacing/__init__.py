"""Decides when rollouts start and when they are trained on.

Pure functions of counts and of a clock that is passed in. ``admission`` gives the number of groups
that may start, ``window`` the groups of the next batch, ``concurrency`` the number of episodes to
keep under way, ``staleness`` the age of an episode. ``simulate`` is a discrete-event model of a run
on the same functions. No I/O, no wall clock, no torch.
"""
