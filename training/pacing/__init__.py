"""When rollouts start and when they are trained on: pure decisions over counts and a clock that is
passed in.

``admission`` says how many groups may start, ``window`` which of them make up the next batch,
``concurrency`` how many to keep under way, ``staleness`` how old an episode is. ``simulate`` is a
discrete-event model of a run on the same functions. No I/O, no wall clock, no torch.
"""
