"""Serving with vLLM: servers in a separate Python environment, reached over HTTP.

``command`` and ``process`` start servers. ``client`` requests turns from one server, ``router``
spreads turns over servers, and ``engine`` is the `Engine` on top of both. ``publishing`` loads new
weights or, with ``adapters``, LoRA adapters; ``probe`` checks that they are served. ``supervisor``
keeps the servers alive, and ``service`` puts the parts together. Only vLLM imports the files of
``in_server``, in its own environment.
"""
