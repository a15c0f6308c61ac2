"""Blocklist of sites that blocked the agent, shared by a run's workers.

On shared storage: workers write what walls they saw, and the sampler of groups leaves those sites
out.

``run_dir/blocklist/`` has one small file for each wall that was seen, written once and never changed, so any number of workers may write at once.
What is blocked follows from them (`envs.ends.blocklist`). Files of which nothing counts any more are deleted at the next draw.

A wall that only the judge saw is the word of a model. On a site that we serve ourselves it is a mistake and is not written down (`ours`); on any
other it counts when a second episode has it within the length of a block.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from envs.ends import Block, WallSighting, blocked_sites, blocks
from envs.episodes import JUDGED_WALL
from envs.types import SiteError, StorageError, Trajectory, WebTask
from tasks_lib.episode.live import worker_name
from training.ledger.store import (
    BACKUP,
    RunStore,
    atomic_write_bytes,
    describe_first_error,
    move_aside_advice,
    read_json,
    write_json,
)

HOUR = 3600.0
ONCE_IN = 60.0
"""Seconds in which a worker writes down the same wall of a site once: all episodes of a shard may meet it. Walls that only the judge saw are written
down for each episode, because they are counted."""


class Blocklist:
    """The blocklist of one run. Holds no state, so any process may make its own."""

    def __init__(self, store: RunStore, ours: Collection[str] = ()) -> None:
        """
        Args:
            ours: Names of sites that we serve ourselves: what the judge takes for a wall is none there.
        """
        self._store = store
        self._ours = ours
        self.folder = store.blocklist_path

    def record_wall(self, task: WebTask, episode: Trajectory, now: float | None = None) -> None:
        """Write down the wall that an episode ended at."""
        if episode.wall == JUDGED_WALL and task.site in self._ours:
            return
        now = time.time() if now is None else now
        seen = WallSighting(
            site=task.site,
            wall=episode.wall,
            time=now,
            evidence=episode.error or episode.reward.abstained or "",
            episode_id=episode.episode_id,
        )
        whose = seen.episode_id if seen.wall == JUDGED_WALL else ""
        what = hashlib.sha256(f"{seen.site}\0{seen.wall}\0{whose}".encode()).hexdigest()[:16]
        path = self.folder / f"{what}-{int(now // ONCE_IN)}-{worker_name()}.json"
        if not path.exists():
            atomic_write_bytes(path, seen.model_dump_json().encode())

    def read_walls(self) -> dict[Path, WallSighting]:
        """What workers wrote, by file.

        Raises:
            StorageError: a file is none of ours.
        """
        found: dict[Path, WallSighting] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                found[path] = WallSighting.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                continue  # deleted meanwhile: nothing of it counted
            except ValidationError as error:
                raise StorageError(
                    f"{path} is no entry of a blocklist ({describe_first_error(error)}); {move_aside_advice(path)} and start the same "
                    f"command again: only this one sight of a wall does not count then"
                ) from error
        return found

    def left_out(self, phase: str, sites: Collection[str], hours: float, now: float | None = None) -> frozenset[str]:
        """Sites that are blocked when the groups of a phase are drawn for the first time; the same ones whenever they are drawn again.

        Args:
            phase: Whose groups are drawn.
            sites: Of the tasks.
            hours: Of a first block; 0: nothing is left out.

        Raises:
            SiteError: all of them are blocked.
            StorageError: a file of the list, or what was left out of the phase before, cannot be read.
        """
        if not hours:
            return frozenset()
        if (known := self.was_left_out(phase)) is not None:
            return known
        now = time.time() if now is None else now
        seen = self.read_walls()
        listed = blocks(_confirmed(seen.values(), hours * HOUR), first=hours * HOUR)
        blocked = {site: block for site, block in blocked_sites(listed, now).items() if site in sites}
        if blocked and len(blocked) == len(set(sites)):
            raise SiteError(_all_blocked(blocked, self.folder, now))
        self._forget(seen, listed, now, hours * HOUR)
        write_json(self._store.left_out_path(phase), {"sites": sorted(blocked)}, sealed=True)
        return frozenset(blocked)

    def was_left_out(self, phase: str) -> frozenset[str] | None:
        """Sites that were left out of a phase; ``None`` if it was not drawn yet."""
        path = self._store.left_out_path(phase)
        if not path.exists():
            return None
        document = read_json(path)
        sites = document.get("sites") if isinstance(document, dict) else document  # a list in older runs
        if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
            # Other sites would give other groups under the names of those that were drawn.
            raise StorageError(f"{path} is damaged: it is no list of sites; {BACKUP}")
        return frozenset(sites)

    def _forget(self, seen: dict[Path, WallSighting], known: Sequence[Block], now: float, window: float) -> None:
        """Delete the files of walls that are forgotten, and of those that nobody confirmed in time."""
        until = {(block.site, block.wall): block.remembered_until for block in known}
        for path, each in seen.items():
            if until.get((each.site, each.wall), each.time + window) <= now:
                path.unlink(missing_ok=True)


def _confirmed(seen: Iterable[WallSighting], window: float) -> list[WallSighting]:
    """Without walls that only the judge saw, unless another episode had the same one at most ``window`` seconds before."""
    found: list[WallSighting] = []
    judged: dict[str, list[WallSighting]] = {}
    for each in sorted(seen, key=lambda each: (each.time, each.episode_id)):
        if each.wall == JUDGED_WALL:
            before = judged.setdefault(each.site, [])
            others = [other for other in before if other.episode_id != each.episode_id]
            before.append(each)
            if not any(each.time - other.time <= window for other in others):
                continue
        found.append(each)
    return found


def _all_blocked(blocked: dict[str, Block], folder: Path, now: float) -> str:
    first = min(blocked.values(), key=lambda block: block.until)
    names = ", ".join(f"{site} ({block.wall}, until {_clock(block.until)})" for site, block in sorted(blocked.items()))
    return (
        f"every site of the tasks is blocked: {names}. The first to be free again is {first.site}, in {(first.until - now) / HOUR:.1f} h: "
        f"start the run again then, or, if the walls are gone, move {folder} to {folder.name}.old and start it now"
    )


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
