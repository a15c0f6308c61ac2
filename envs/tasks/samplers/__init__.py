"""Samplers over a `TaskIndex`: they decide which tasks come next.

All are deterministic by their seed. Each draw is the same on all machines, and machine k of n takes
every n-th row of it (`shard_rows`), so the union over machines is the draw whatever n is. The state
is a small JSON object: a sampler made with the same arguments continues from it. A state of another
set of tasks or of other arguments is refused.
"""

from envs.tasks.samplers.base import Sampler, shard_rows
from envs.tasks.samplers.config import SamplerConfig, SamplerName, make_sampler
from envs.tasks.samplers.curriculum import CurriculumSampler
from envs.tasks.samplers.success import SuccessSampler
from envs.tasks.samplers.walks import NoRepeatSampler, RatioSampler, SequentialSampler, UniformSampler

__all__ = [
    "CurriculumSampler",
    "NoRepeatSampler",
    "RatioSampler",
    "Sampler",
    "SamplerConfig",
    "SamplerName",
    "SequentialSampler",
    "SuccessSampler",
    "UniformSampler",
    "make_sampler",
    "shard_rows",
]
