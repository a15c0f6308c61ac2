"""Blocklist of sites that blocked the agent, shared by a run's workers.

Workers write the walls that they saw to shared storage, and the sampler of groups leaves those
sites out.

``run_dir/blocklist/`` has one small file for each wall that was seen. A file is written once and
never changed, so any number of workers may write at once. `envs.ends.blocklist` computes the
blocks from the files. Files that no longer count are deleted at the next draw.

A wall that only the judge saw is the opinion of a model. On a site that we serve ourselves it is a
mistake and is not recorded (`ours`). On any other site it counts when a second episode has it
within the length of a block.
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
from tasks_lib.worker.live import worker_name
from training.ledger.seal import describe_first_error
from training.ledger.store import BACKUP, RunStore, atomic_write_bytes, move_aside_advice, read_json, write_json

HOUR = 3600.0
ONCE_IN = 60.0
"""Seconds in which a worker records the same wall of a site once.

All episodes of a shard may meet it. Walls that only the judge saw are recorded for each episode,
because they are counted.
"""


class Blocklist:
    """The blocklist of one run. Holds no state, so any process may make its own."""

    def __init__(self, store: RunStore, ours: Collection[str] = ()) -> None:
        """
        Args:
            ours: Names of sites that we serve ourselves; walls that the judge sees there are
                ignored.
        """
        self._store = store
        self._ours = ours
        self.folder = store.blocklist_path

    def record_wall(self, task: WebTask, episode: Trajectory, now: float | None = None) -> None:
        """Record the wall that an episode ended at."""
        if episode.wall == JUDGED_WALL and task.site in self._ours:
            return
        now = time.time() if now is None else now
        sighting = WallSighting(
            site=task.site,
            wall=episode.wall,
            time=now,
            evidence=episode.error or episode.reward.abstained or "",
            episode_id=episode.episode_id,
        )
        episode_id = sighting.episode_id if sighting.wall == JUDGED_WALL else ""
        key = hashlib.sha256(f"{sighting.site}\0{sighting.wall}\0{episode_id}".encode()).hexdigest()[:16]
        path = self.folder / f"{key}-{int(now // ONCE_IN)}-{worker_name()}.json"
        if not path.exists():
            atomic_write_bytes(path, sighting.model_dump_json().encode())

    def read_walls(self) -> dict[Path, WallSighting]:
        """Read the walls that workers recorded, by file.

        Raises:
            StorageError: a file is no entry of a blocklist.
        """
        sightings: dict[Path, WallSighting] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                sightings[path] = WallSighting.model_validate_json(path.read_bytes())
            except FileNotFoundError:
                continue  # deleted meanwhile: it no longer counted
            except ValidationError as error:
                raise StorageError(
                    f"{path} is no entry of a blocklist ({describe_first_error(error)}); {move_aside_advice(path)} and start the same "
                    f"command again: only this one sight of a wall does not count then"
                ) from error
        return sightings

    def left_out(self, phase: str, sites: Collection[str], hours: float, now: float | None = None) -> frozenset[str]:
        """Return the sites that are blocked when the groups of a phase are first drawn.

        The sites are written down, so that a later draw of the same phase leaves out the same ones.

        Args:
            phase: Name of the phase whose groups are drawn.
            sites: Names of the tasks' sites.
            hours: Length of a first block; 0 leaves no site out.

        Raises:
            SiteError: all of the sites are blocked.
            StorageError: a file of the blocklist, or the record of the phase, cannot be read.
        """
        if not hours:
            return frozenset()
        if (known := self.was_left_out(phase)) is not None:
            return known
        now = time.time() if now is None else now
        sightings = self.read_walls()
        all_blocks = blocks(_confirmed(sightings.values(), hours * HOUR), first=hours * HOUR)
        blocked = {site: block for site, block in blocked_sites(all_blocks, now).items() if site in sites}
        if blocked and len(blocked) == len(set(sites)):
            raise SiteError(_all_blocked(blocked, self.folder, now))
        self._forget(sightings, all_blocks, now, hours * HOUR)
        write_json(self._store.left_out_path(phase), {"sites": sorted(blocked)}, sealed=True)
        return frozenset(blocked)

    def was_left_out(self, phase: str) -> frozenset[str] | None:
        """Return the sites that were left out of a phase; ``None`` if it was not drawn yet."""
        path = self._store.left_out_path(phase)
        if not path.exists():
            return None
        document = read_json(path)
        sites = document.get("sites") if isinstance(document, dict) else None
        if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
            # A guess would draw other groups under the names of those that were drawn before.
            raise StorageError(f"{path} is damaged: it is no list of sites; {BACKUP}")
        return frozenset(sites)

    def _forget(
        self, sightings: dict[Path, WallSighting], all_blocks: Sequence[Block], now: float, window: float
    ) -> None:
        """Delete the files of walls that no longer count or were not confirmed in time."""
        until = {(block.site, block.wall): block.remembered_until for block in all_blocks}
        for path, sighting in sightings.items():
            if until.get((sighting.site, sighting.wall), sighting.time + window) <= now:
                path.unlink(missing_ok=True)


def _confirmed(sightings: Iterable[WallSighting], window: float) -> list[WallSighting]:
    """Drop walls that only the judge saw and no other episode had in the ``window`` before.

    The window is in seconds.
    """
    confirmed: list[WallSighting] = []
    judged: dict[str, list[WallSighting]] = {}
    for sighting in sorted(sightings, key=lambda sighting: (sighting.time, sighting.episode_id)):
        if sighting.wall == JUDGED_WALL:
            earlier = judged.setdefault(sighting.site, [])
            others = [other for other in earlier if other.episode_id != sighting.episode_id]
            earlier.append(sighting)
            if not any(sighting.time - other.time <= window for other in others):
                continue
        confirmed.append(sighting)
    return confirmed


def _all_blocked(blocked: dict[str, Block], folder: Path, now: float) -> str:
    first = min(blocked.values(), key=lambda block: block.until)
    names = ", ".join(f"{site} ({block.wall}, until {_clock(block.until)})" for site, block in sorted(blocked.items()))
    return (
        f"every site of the tasks is blocked: {names}. The first to be free again is {first.site}, in {(first.until - now) / HOUR:.1f} h: "
        f"start the run again then, or, if the walls are gone, move {folder} to {folder.name}.old and start it now"
    )


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
