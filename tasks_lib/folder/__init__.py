"""A run's folder: frozen configuration and tasks, lock, metrics and repairs.

The flow's process reads and writes it.

Files that workers and the trainer write are in ``training.ledger.store``.
"""
