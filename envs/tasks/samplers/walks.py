"""Samplers that walk through orders of rows. Their position is all that they remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from envs.ends import Bucket
from envs.tasks.index import BUCKETS, Rows, TaskIndex
from envs.tasks.samplers.base import Sampler, concatenate_rows
from envs.types import TaskError
from envs.types.near import near


class SequentialSampler(Sampler):
    """Draws the first ``limit`` rows in order, ``passes`` times. For tests and evaluations."""

    name = "sequential"

    def __init__(self, index: TaskIndex, *, limit: int | None = None, passes: int = 1) -> None:
        super().__init__(index)
        if (limit is not None and limit < 1) or passes < 1:
            raise TaskError(f"sequential sampler: limit {limit} and passes {passes} must be from 1")
        self.limit = min(limit or len(index), len(index))
        self.passes = passes

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments."""
        return {"limit": self.limit, "passes": self.passes}

    def _next(self, count: int) -> Rows:
        stop = min(self.drawn + count, self.limit * self.passes)
        return np.arange(self.drawn, max(stop, self.drawn), dtype=np.int64) % self.limit


class NoRepeatSampler(Sampler):
    """Draws every row once, in a random order, then every row again in another order.

    Each order keeps the sites' shares all along.
    """

    name = "no-repeat"

    def __init__(self, index: TaskIndex, seed: int = 0) -> None:
        super().__init__(index, seed)
        self._walk = _Walk(np.arange(len(index)), index.site_code, (seed, 0))

    def _next(self, count: int) -> Rows:
        return self._walk.rows(self.drawn, count)


class UniformSampler(Sampler):
    """Draws uniformly over subdomains (sites).

    ``balance="set"`` keeps the set's distribution over sites: each draw is stratified by difficulty
    bucket and site, has no row twice, and is independent of the draws before. ``balance="equal"``
    gives every site the same number, one each in turn (in a new order every round); a site goes
    through all its rows before one comes again.
    """

    name = "uniform"

    def __init__(self, index: TaskIndex, seed: int = 0, *, balance: Literal["set", "equal"] = "set") -> None:
        super().__init__(index, seed)
        if balance not in ("set", "equal"):
            raise TaskError(f"uniform sampler: balance {balance!r} must be set or equal")
        self.balance = balance
        self._walks: dict[int, _Walk] = {}

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments."""
        return {"seed": self.seed, "balance": self.balance}

    def _next(self, count: int) -> Rows:
        if self.balance == "set":
            return self.index.stratified(count, (self.seed, self.draws))
        sites = len(self.index.sites)
        rows: list[int] = []
        while len(rows) < count:
            turn, place = divmod(self.drawn + len(rows), sites)
            order = np.random.default_rng((self.seed, 1, turn)).permutation(sites)
            for site in order[place : place + count - len(rows)].tolist():
                rows.append(int(self._of_site(site).rows(turn, 1)[0]))
        return np.array(rows, dtype=np.int64)

    def _of_site(self, site: int) -> _Walk:
        if site not in self._walks:
            rows = np.flatnonzero(self.index.site_code == site)
            self._walks[site] = _Walk(rows, np.zeros(len(rows), dtype=np.int32), (self.seed, 2, site))
        return self._walks[site]


class RatioSampler(Sampler):
    """Draws difficulty buckets in a given ratio.

    After any number of rows each bucket has had its share to within a few rows (later draws make up
    for rounding). In a bucket every row comes once before one comes again, spread over sites.
    """

    name = "ratio"

    def __init__(self, index: TaskIndex, weights: Mapping[Bucket, float] | Mapping[str, float], seed: int = 0) -> None:
        super().__init__(index, seed)
        unknown = set(map(str, weights)) - set(map(str, BUCKETS))
        if unknown:
            raise TaskError(
                f"ratio sampler: no bucket {', '.join(sorted(unknown))}; {near(min(unknown), BUCKETS)}there are {', '.join(BUCKETS)}"
            )
        named = {str(bucket): float(weight) for bucket, weight in weights.items()}
        raw = np.array([named.get(str(bucket), 0.0) for bucket in BUCKETS])
        if not np.all(np.isfinite(raw)) or np.any(raw < 0) or raw.sum() <= 0:
            raise TaskError(f"ratio sampler: weights {named} must be from 0 and not all 0")
        for bucket, weight in zip(BUCKETS, raw, strict=True):
            if weight and not len(index.rows(bucket=bucket)):
                raise TaskError(f"ratio sampler: no task of bucket {bucket}, which has weight {weight:g}; give it 0")
        self.weights = raw / raw.sum()
        self.given = np.zeros(len(BUCKETS), dtype=np.int64)
        """Number of rows drawn of each bucket."""
        self._walks = {
            code: _Walk(rows, index.site_code[rows], (seed, 3, code))
            for code, bucket in enumerate(BUCKETS)
            if len(rows := index.rows(bucket=bucket))
        }

    def arguments(self) -> dict[str, Any]:
        """Return the sampler's arguments."""
        return {"seed": self.seed, "weights": self.weights.tolist()}

    def progress(self) -> dict[str, Any]:
        """Return the state, with the number of rows drawn of each bucket."""
        return {**super().progress(), "given": self.given.tolist()}

    def _restore(self, progress: Mapping[str, Any]) -> None:
        super()._restore(progress)
        given = progress["given"]
        if not isinstance(given, list) or len(given) != len(BUCKETS) or sum(given) != self.drawn:
            raise TaskError(
                f"state of a sampler: progress.given is {given!r}; expected {len(BUCKETS)} numbers, {self.drawn} in all"
            )
        self.given = np.array(given, dtype=np.int64)

    def _next(self, count: int) -> Rows:
        before = self.given.copy()
        turns = np.empty(count, dtype=np.int64)
        for place in range(count):
            # The bucket that is furthest behind its share comes next.
            code = int(np.argmax(self.weights * (self.drawn + place + 1) - self.given))
            turns[place] = code
            self.given[code] += 1
        rows = np.empty(count, dtype=np.int64)
        for code, walk in self._walks.items():
            mine = turns == code
            rows[mine] = walk.rows(int(before[code]), int(mine.sum()))
        return rows


class _Walk:
    """Rows in a random order, pass after pass, every group spread evenly over each pass."""

    def __init__(self, rows: npt.NDArray[np.int64], groups: npt.NDArray[np.int32], key: tuple[int, ...]) -> None:
        self._rows, self._groups, self._key = rows, groups, key
        self._sizes = np.bincount(groups) if len(groups) else np.empty(0, dtype=np.int64)
        self._pass = -1
        self._order = rows

    def rows(self, start: int, count: int) -> Rows:
        """Return ``count`` rows from the ``start``-th of the walk."""
        parts: list[Rows] = []
        while count > 0:
            number, place = divmod(start, len(self._rows))
            part = self._order_of(number)[place : place + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return concatenate_rows(parts)

    def _order_of(self, number: int) -> Rows:
        if number != self._pass:
            random = np.random.default_rng((*self._key, number))
            shuffled = random.permutation(len(self._rows))
            by_group = shuffled[np.argsort(self._groups[shuffled], kind="stable")]
            groups = self._groups[by_group]
            group_starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
            # The r-th of a group's s rows has the place (r + u) / s in the pass, with one u for
            # each group.
            offsets = random.random(len(self._sizes))
            places = (np.arange(len(groups)) - group_starts[groups] + offsets[groups]) / self._sizes[groups]
            self._order = self._rows[by_group[np.argsort(places, kind="stable")]]
            self._pass = number
        return self._order
