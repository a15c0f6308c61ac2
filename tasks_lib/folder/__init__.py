"""A run's folder: what is frozen when it starts, its lock, metrics and repairs. Read and written in the flow's process.

Files that workers and the trainer write are in ``training.ledger.store``.
"""
