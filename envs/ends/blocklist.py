"""Sites that showed a wall and are not visited for a while.

Pure functions over sightings; the files belong to `tasks_lib.worker.blocklist`. A wall
(`envs.ends.BlockSign`, or one that only the judge saw) blocks its site for some time. Further
sightings while it is blocked change nothing: many episodes meet the same wall at once. A sighting
soon after the block doubles its length, up to `MAX_TIMES` times the first. "Soon" is as long as the
last block was; after that all is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pydantic import Field

from envs.types import Record

MAX_TIMES = 16
"""Longest block, in lengths of the first one: four doublings. Eight days from the default of twelve
hours (WebGym's expiry).
"""


class WallSighting(Record):
    """End of an episode at a wall."""

    site: str = Field(min_length=1)
    wall: str = Field(min_length=1)
    """Kind of the wall: the name of a sign, or ``judge``."""
    time: float = Field(ge=0)
    """Seconds since 1970."""
    evidence: str = ""
    episode_id: str = ""


class Block(Record):
    """A site and a kind of wall, for as long as it is remembered."""

    site: str
    wall: str
    since: float
    """Time of the sighting, in seconds since 1970."""
    until: float
    """End of the block, in seconds since 1970."""
    times: int
    """Number of blocks in a row."""
    evidence: str = ""

    @property
    def remembered_until(self) -> float:
        """Time from which the block has no effect any more."""
        return self.until + (self.until - self.since)


def blocks(seen: Iterable[WallSighting], *, first: float) -> list[Block]:
    """Return the last block of each site and kind of wall.

    Blocks that are over are included; the order is by site and wall.

    Args:
        seen: Sightings in any order.
        first: Length of a first block, in seconds.
    """
    if first <= 0:
        raise ValueError(f"a block takes some time, not {first} s")

    def key(sighting: WallSighting) -> tuple[str, str]:
        return sighting.site, sighting.wall

    ordered = sorted(seen, key=lambda sighting: (*key(sighting), sighting.time, sighting.episode_id))
    return [_last_block(list(of_one), first) for _, of_one in groupby(ordered, key)]


def _last_block(seen: list[WallSighting], first: float) -> Block:
    """Return the last block of one site and wall. The sightings are in order of time."""
    block = _make_block(seen[0], 1, first)
    for sighting in seen[1:]:
        if sighting.time >= block.until:
            block = _make_block(sighting, block.times + 1 if sighting.time < block.remembered_until else 1, first)
    return block


def _make_block(seen: WallSighting, times: int, first: float) -> Block:
    length = first * min(2.0 ** (times - 1), MAX_TIMES)
    return Block(
        site=seen.site, wall=seen.wall, since=seen.time, until=seen.time + length, times=times, evidence=seen.evidence
    )


def blocked_sites(known: Iterable[Block], now: float) -> dict[str, Block]:
    """Return the sites that are blocked now, each with the block that lasts longest."""
    longest: dict[str, Block] = {}
    for block in known:
        if block.until > now and (block.site not in longest or block.until > longest[block.site].until):
            longest[block.site] = block
    return longest
