"""Serving with vLLM: servers in an environment of their own, reached over HTTP.

``command`` and ``process`` start servers, ``client`` asks them for turns, ``publishing`` gives them new weights, ``probe`` checks
that they serve them, ``supervisor`` keeps them alive, ``router`` spreads turns over them and ``engine`` is the `Engine` of it all.
The files of ``in_server`` are imported by vLLM alone, in its own environment.
"""
