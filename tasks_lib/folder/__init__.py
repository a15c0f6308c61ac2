"""A run's folder: frozen configuration and tasks, lock, metrics and repairs.

Read and written in the flow's process.

Files that workers and the trainer write are in ``training.ledger.store``.
"""
