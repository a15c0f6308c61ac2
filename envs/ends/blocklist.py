"""Sites that showed a wall and are left alone for a while.

Pure functions over what was seen; the files are `tasks_lib.worker.blocklist`'s.

A wall (`envs.ends.BlockSign`, or what only the judge saw) blocks its site for some time. Seen again while it is blocked, it changes nothing:
many episodes meet the same wall at once. Seen again soon after, the site is blocked for twice as long as the last time, up to `MAX_TIMES` as
long as the first. "Soon" is as long as the last block was; then all is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from pydantic import Field

from envs.types import Record

MAX_TIMES = 16
"""Longest block, in lengths of the first one: four doublings. Eight days from the default of twelve hours (WebGym's expiry)."""


class WallSighting(Record):
    """An episode ended at a wall."""

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
    """When it was seen; seconds since 1970."""
    until: float
    """The site is blocked before."""
    times: int
    """How often in a row it was."""
    evidence: str = ""

    @property
    def remembered_until(self) -> float:
        """When nothing of it counts any more."""
        return self.until + (self.until - self.since)


def blocks(seen: Iterable[WallSighting], *, first: float) -> list[Block]:
    """The last block of each site and kind of wall, whether it is over or not, by site and wall.

    Args:
        seen: In any order.
        first: Seconds of a first block.
    """
    if first <= 0:
        raise ValueError(f"a block takes some time, not {first} s")

    def key(each: WallSighting) -> tuple[str, str]:
        return each.site, each.wall

    ordered = sorted(seen, key=lambda each: (*key(each), each.time, each.episode_id))
    return [_last(list(of_one), first) for _, of_one in groupby(ordered, key)]


def _last(seen: list[WallSighting], first: float) -> Block:
    """Of one site and wall, in the order of time."""
    block = _block(seen[0], 1, first)
    for each in seen[1:]:
        if each.time >= block.until:
            block = _block(each, block.times + 1 if each.time < block.remembered_until else 1, first)
    return block


def _block(seen: WallSighting, times: int, first: float) -> Block:
    length = first * min(2.0 ** (times - 1), MAX_TIMES)
    return Block(
        site=seen.site, wall=seen.wall, since=seen.time, until=seen.time + length, times=times, evidence=seen.evidence
    )


def blocked_sites(known: Iterable[Block], now: float) -> dict[str, Block]:
    """The sites that are blocked now, each with the block that lasts longest."""
    found: dict[str, Block] = {}
    for block in known:
        if block.until > now and (block.site not in found or block.until > found[block.site].until):
            found[block.site] = block
    return found
