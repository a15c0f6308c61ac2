"""Episode termination: horizons, repetition, blocked pages, broken sites.

It also decides which sites are not visited for a while after that. Pure functions of values. After
every step the session checks, in this order: the page's end and the policy's (``answer``,
``terminated``), `blocked`, `http_error` (walls answer with 503, too), `RepetitionDetector`, and
last the horizon. All of them are a `StopReason`.
"""

from envs.ends.blocked import blocked, http_error
from envs.ends.blocklist import Block, WallSighting, blocked_sites, blocks
from envs.ends.horizon import (
    Bucket,
    BucketedHorizon,
    FixedHorizon,
    HorizonPolicy,
    ScheduledHorizon,
    bucket_of,
    max_steps,
)
from envs.ends.repetition import REPEATS, RepetitionDetector, Sighting

__all__ = [
    "REPEATS",
    "Block",
    "Bucket",
    "BucketedHorizon",
    "FixedHorizon",
    "HorizonPolicy",
    "RepetitionDetector",
    "ScheduledHorizon",
    "Sighting",
    "WallSighting",
    "blocked",
    "blocked_sites",
    "blocks",
    "bucket_of",
    "http_error",
    "max_steps",
]
