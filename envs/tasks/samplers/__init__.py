"""Samplers over a `TaskIndex`: they decide which tasks come next.

All are deterministic by their seed: each draw is the same on all machines. The state is a small
JSON object: a sampler made with the same arguments continues from it. A state of another set of
tasks or of other arguments is refused.
"""

from envs.tasks.samplers.base import Sampler
from envs.tasks.samplers.config import SamplerConfig, make_sampler
from envs.tasks.samplers.curriculum import CurriculumSampler
from envs.tasks.samplers.success import SuccessSampler
from envs.tasks.samplers.walks import NoRepeatSampler, RatioSampler, SequentialSampler, UniformSampler

__all__ = [
    "CurriculumSampler",
    "NoRepeatSampler",
    "RatioSampler",
    "Sampler",
    "SamplerConfig",
    "SequentialSampler",
    "SuccessSampler",
    "UniformSampler",
    "make_sampler",
]
