"""The trainer: one process group per run that turns batches into policy versions.

Batches and policies are files in the run's folder, which alone decides what is true
(docs/architecture.md); ``link`` only announces new files. A flow uses ``launch.TrainerProcess``,
which imports no torch; ``node`` runs one machine's share of a trainer on several machines. Inside
the process ``__main__`` holds the lock, watchdog and error report, ``loop`` waits for batches,
``update`` trains on one, and ``publish`` writes the results. LLaMA-Factory provides arguments,
template, model, collator and trainer class (``setup``, ``collate``, ``policy_trainer``), DeepSpeed
the engine.
"""
