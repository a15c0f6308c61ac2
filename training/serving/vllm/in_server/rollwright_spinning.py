"""Has vLLM's processes on the CPU spin without `sched_yield`; the import is enough.

They spin for a second after each message. On Linux 6.18 a process that does so by `sched_yield` was
not run again for up to two minutes, where two servers shared a core: they did not answer, and were
restarted. vLLM's other way (``time.sleep(0)``, for older Pythons) did not show this.
"""

from __future__ import annotations

from vllm.distributed import utils
from vllm.platforms import current_platform

if current_platform.is_cpu():
    utils.USE_SCHED_YIELD = False
