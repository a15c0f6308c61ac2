"""vLLM scheduler whose turns can begin again after a publication has cleared the caches.

vLLM 0.32 sends a worker no pixels of pictures that its prefix cache covers when a turn begins. Once
that cache is cleared the turn begins again, the pictures have to be encoded, and a worker with the
first model runner (the CPU's) ends with an error that ends the server. So workers get all pixels.
"""

from __future__ import annotations

from typing import Any

import rollwright_spinning  # type: ignore[import-not-found]  # noqa: F401
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler


def make_scheduler(vllm_config: VllmConfig, **arguments: Any) -> Scheduler:
    """Return the scheduler of vLLM's choice that keeps pixels (``--scheduler-cls``)."""
    kind = KeepingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else KeepingScheduler
    return kind(vllm_config=vllm_config, **arguments)


class _Keeping:
    """Adds what workers would have to ask for, and cannot."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for begun in output.scheduled_new_reqs:
            begun.mm_features = self.requests[begun.req_id].mm_features  # type: ignore[attr-defined]
        return output


class KeepingScheduler(_Keeping, Scheduler):  # type: ignore[misc]
    """`_Keeping` where a step is scheduled after the step before."""


class KeepingAsyncScheduler(_Keeping, AsyncScheduler):  # type: ignore[misc]
    """`_Keeping` where a step is scheduled during the step before."""
