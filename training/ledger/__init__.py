"""The files of a run on shared storage, and the journal that counts its episodes.

``store`` names files and writes them atomically, ``blobs`` names the kinds of blobs,
``checkpoint_files`` checks checkpoints, and ``journal`` is the run's ledger in SQLite, which is
rebuilt from the files.
"""
