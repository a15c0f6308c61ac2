"""Control of the trainer process: start it, tell it of batches, notice that it hangs or dies.

``launch`` is used by the flow's process, ``node`` starts the processes of one machine, ``link``
carries the messages between flow and trainer, ``heartbeat`` says that a trainer is alive, and
``watchdog`` ends it when its flow is gone. Nothing here imports torch.
"""
