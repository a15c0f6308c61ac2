"""Hundreds of thousands of tasks in little memory, with stratified draws.

A row is kept as its JSON and made into a `WebTask` when it is asked for. `BLOCK` rows are
compressed together, since tasks of a set are much alike. Columns hold what draws need: difficulty,
bucket, site and kind. So 300,000 tasks take tens of megabytes whatever their rows carry, and the
files are not needed once they have been read.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from envs.ends import Bucket, bucket_of
from envs.tasks.rows import OnProblem, digest, refuse
from envs.tasks.stream import iter_tasks, json_row
from envs.types import Split, TaskError, WebTask
from envs.types.paths import AnyPath

BLOCK = 8
"""Rows compressed together. More take less memory but longer to read (8: some 20 microseconds)."""

Rows = npt.NDArray[np.int64]
"""Row numbers of an index, from 0."""

BUCKETS = tuple(Bucket)
"""Difficulty buckets in the order of the codes in `TaskIndex.bucket_code`."""

HARDEST = 2**31 - 1
"""Largest difficulty (and number of seeds) in a column. The task itself keeps a larger one."""

CHUNK = 64
"""Rows made into tasks at a time while an index of some rows is iterated."""


class TaskIndex:
    """Tasks by row number (from 0), with columns for draws. Immutable; see `open` and `build`."""

    def __init__(
        self,
        blocks: list[bytes],
        columns: npt.NDArray[np.int32],
        sites: list[str],
        kinds: list[str],
        ids: npt.NDArray[np.uint64],
    ) -> None:
        self._blocks = blocks
        self._places: Rows | None = None
        """Places of the rows in the blocks; ``None`` when they are in the blocks' order."""
        self._columns = columns
        self.difficulty, self.bucket_code, self.site_code, self.kind_code = columns[:4]
        self.sites, self.kinds = sites, kinds
        self._ids = ids
        self._by_id = np.argsort(ids, kind="stable").astype(np.int32)
        self.fingerprint = hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()
        """Digest of the task ids in their order. The state of a sampler fits one set only."""
        self._strata = _Strata(self.bucket_code.astype(np.int64) * max(len(sites), 1) + self.site_code)

    @classmethod
    def open(cls, paths: AnyPath | Iterable[AnyPath], on_problem: OnProblem = refuse) -> TaskIndex:
        """Read and check files (`iter_tasks`).

        Raises:
            TaskError: a problem in a file, unless ``on_problem`` handles it.
        """
        return cls.build(iter_tasks(paths, on_problem=on_problem))

    @classmethod
    def build(cls, tasks: Iterable[WebTask]) -> TaskIndex:
        """Build an index of tasks without checking them. Their ids must differ."""
        blocks: list[bytes] = []
        waiting: list[str] = []
        sites: dict[str, int] = {}
        kinds: dict[str, int] = {}
        columns, ids = array("i"), array("Q")
        for task in tasks:
            waiting.append(json_row(task))
            site = sites.setdefault(task.site, len(sites))
            kind = kinds.setdefault(task.kind, len(kinds))
            ranges = [task.seeds.get(split) for split in Split]
            seeds = [min(max(one.stop - one.start, 0), HARDEST) if one is not None else 0 for one in ranges]
            bucket = BUCKETS.index(bucket_of(task.difficulty))
            columns.extend((min(task.difficulty, HARDEST), bucket, site, kind, *seeds))
            ids.append(digest(task.task_id))
            if len(waiting) == BLOCK:
                blocks.append(_pack(waiting))
                waiting = []
        if waiting:
            blocks.append(_pack(waiting))
        if len(np.unique(ids)) < len(ids):
            raise TaskError("two tasks have the same id; give each one of its own (`iter_tasks` names the rows)")
        by_row = np.array(columns, np.int32).reshape(-1, 4 + len(Split))
        return cls(blocks, by_row.T.copy(), list(sites), list(kinds), np.array(ids, np.uint64))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: int) -> WebTask:
        return self.take((row,))[0]

    def __iter__(self) -> Iterator[WebTask]:
        if self._places is not None:
            for start in range(0, len(self), CHUNK):
                yield from self.take(range(start, min(start + CHUNK, len(self))))
            return
        for block in self._blocks:
            for line in _unpack(block):
                yield WebTask.model_validate_json(line, strict=True)

    def only(self, rows: Rows) -> TaskIndex:
        """Return an index of some rows, in the order given. It shares their text with this one."""
        columns = self._columns[:, rows]
        sites, columns[2] = _used(self.sites, columns[2])
        kinds, columns[3] = _used(self.kinds, columns[3])
        chosen = TaskIndex(self._blocks, columns, sites, kinds, self._ids[rows])
        chosen._places = rows if self._places is None else self._places[rows]
        return chosen

    def seeds_of(self, split: Split) -> npt.NDArray[np.int32]:
        """Return each row's number of page seeds in a split: int32 of shape (rows,)."""
        column: npt.NDArray[np.int32] = self._columns[4 + list(Split).index(split)]
        return column

    def take(self, rows: Sequence[int] | Rows) -> list[WebTask]:
        """Return the tasks of rows, in the order given.

        Raises:
            IndexError: there is no such row.
        """
        opened: dict[int, list[bytes]] = {}
        tasks = []
        for row in map(int, rows):
            if not 0 <= row < len(self):
                raise IndexError(f"row {row} of an index of {len(self)} tasks")
            place = row if self._places is None else int(self._places[row])
            if (number := place // BLOCK) not in opened:
                opened[number] = _unpack(self._blocks[number])
            tasks.append(WebTask.model_validate_json(opened[number][place % BLOCK], strict=True))
        return tasks

    def row_of(self, task_id: str) -> int:
        """Return the row number of a task.

        Raises:
            TaskError: it is not there.
        """
        wanted = np.uint64(digest(task_id))
        place = int(np.searchsorted(self._ids, wanted, sorter=self._by_id))
        if place == len(self) or self._ids[self._by_id[place]] != wanted:
            raise TaskError(f"no task {task_id!r} among the {len(self)} of this index")
        return int(self._by_id[place])

    def rows(self, *, site: str | None = None, bucket: Bucket | None = None, kind: str | None = None) -> Rows:
        """Return the rows of a site, bucket and kind, in order. An unknown name gives none."""
        chosen = np.ones(len(self), dtype=bool)
        for name, names, codes in (
            (site, self.sites, self.site_code),
            (kind, self.kinds, self.kind_code),
            (bucket, BUCKETS, self.bucket_code),
        ):
            if name is not None:
                chosen &= codes == (list(names).index(name) if name in names else -1)
        return np.flatnonzero(chosen)

    def stratified(self, count: int, seed: int | Sequence[int]) -> Rows:
        """Draw distinct rows at random, stratified by difficulty bucket and site.

        A stratum (bucket, site) with s of the n tasks gives floor or ceil of ``count * s / n``
        rows, and every row has the same chance ``count / n`` (systematic sampling with a random
        start, then a random subset of each stratum). The order is random.

        Raises:
            TaskError: there are fewer than ``count`` tasks.
        """
        return self._strata.draw(count, np.random.default_rng(seed))


class _Strata:
    """Rows sorted by stratum."""

    def __init__(self, codes: npt.NDArray[np.int64]) -> None:
        self.order = np.argsort(codes, kind="stable").astype(np.int32)
        starts = np.flatnonzero(np.diff(codes[self.order], prepend=-1))
        self.ends = np.append(starts[1:], len(codes)) if len(codes) else starts
        self.starts = starts

    def draw(self, count: int, random: np.random.Generator) -> Rows:
        total = len(self.order)
        if not 0 <= count <= total:
            raise TaskError(f"{count} distinct tasks are wanted of an index of {total}")
        if count == 0:
            return np.empty(0, dtype=np.int64)
        # Strata in random order: neighbours share the rounding, and it should not always be the
        # same ones.
        shuffled = random.permutation(len(self.starts))
        sizes = (self.ends - self.starts)[shuffled]
        start = int(random.integers(total))
        # Count the marks start/total, 1 + start/total, 2 + … below count * cumulated size / total.
        # Whole numbers keep it exact.
        below = -((start - np.cumsum(sizes) * count) // total)
        wanted = np.diff(below, prepend=0)
        firsts = self.starts[shuffled]
        once = wanted == 1  # most strata of a large set: all at the same time
        chosen = [self.order[firsts[once] + random.integers(sizes[once])]]
        for place in np.flatnonzero(wanted > 1).tolist():
            inside = random.choice(int(sizes[place]), int(wanted[place]), replace=False, shuffle=False)
            chosen.append(self.order[firsts[place] + inside])
        return random.permutation(np.concatenate(chosen)).astype(np.int64)


def _used(names: list[str], codes: npt.NDArray[np.int32]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Return the names that the codes use, and the codes renumbered to match them."""
    used, counted = np.unique(codes, return_inverse=True)
    return [names[code] for code in used.tolist()], counted.astype(np.int32)


def _pack(lines: list[str]) -> bytes:
    return zlib.compress("\n".join(lines).encode(), 1)


def _unpack(block: bytes) -> list[bytes]:
    return zlib.decompress(block).split(b"\n")
