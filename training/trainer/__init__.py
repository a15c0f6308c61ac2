"""The trainer: one process group that turns batches into policy versions.

It runs for a whole run; batches appear in the run's folder.

The folder is the truth (docs/architecture.md), ``link`` tells of what is new in it. ``launch.TrainerProcess`` is what a flow uses; it imports
no torch, nor does ``node``, a machine's share of a trainer that is spread over several. Inside the process:
``__main__`` guards (lock, watchdog, errors), ``loop`` waits for batches, ``update`` trains on one, ``publish`` writes the results.
LLaMA-Factory gives arguments, template, model, collator and trainer class (``setup``, ``collate``, ``policy_trainer``), DeepSpeed the engine.
"""
