"""The model side: policy, inference engines, losses, batches, the trainer, storage.

It knows no browser and no Prefect; of ``envs`` it imports only the plain types in ``envs/types/``.
"""
