"""The files of a run on shared storage, and the journal that counts its episodes.

``paths`` names the files, ``store`` writes them atomically and reads them, ``blobs`` names the
kinds of blobs, ``checkpoint_files`` checks checkpoints and names those that are whole, and
``journal`` is the run's ledger in SQLite, which is rebuilt from the files.
"""
