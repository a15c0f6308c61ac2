"""The model side: policy (prompt, parse), inference engines, advantages, losses, batches, the trainer and the run's storage.

No browser and no Prefect in here; of ``envs`` only the plain types in ``envs/types/`` are known.
"""
