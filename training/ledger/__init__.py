"""The files of a run on shared storage, and the journal that counts them.

``store`` names and writes them atomically, ``blobs`` are content-addressed, ``checkpoint_files`` says what a whole checkpoint is,
``states`` the trainer's states, ``journal`` the run's ledger in SQLite, which can be made again from the files.
"""
