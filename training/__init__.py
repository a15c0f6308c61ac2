"""The model side: policy, inference engines, losses, batches, the trainer, storage.

No browser and no Prefect in here; of ``envs`` only the plain types in ``envs/types/`` are known.
"""
