"""Records of training: groups of episodes, the batches made of them, and the states of episodes.

``groups`` has the records that workers write, ``batches`` turns them into the rows of an update,
and ``states`` names the states of an episode and the events between them. Plain values: which file
holds a record is the business of `training.ledger`, which this package does not import.
"""
