"""Control of the trainer process: start it, tell it of batches, notice that it hangs or dies.

``launch`` is used by the flow's process, ``node`` starts the ranks of one machine of several,
``processes`` starts and ends the processes of either, ``link`` carries the messages between flow
and trainer, and ``heartbeat`` says that a trainer makes progress. Nothing here imports torch.
"""
