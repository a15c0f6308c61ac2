"""Deficit round robin scheduling over keys that pay after use.

Keys with work wait in a ring. The key at its head is served while it has credit; when it has none
it gets one *quantum* and goes to the tail, so that a key which used much waits for as many rounds
as it takes the others to use as much. What something costs is known only when it is done, so credit
may fall below zero (Shreedhar and Varghese 1996, in the *surplus* form of Adiseshu et al. 1996,
which needs no cost in advance). There is no barrier: no key ever waits for another one to finish.

A key is *out* from being served until its cost is charged, and cannot be served meanwhile. The
rounds that pass are granted to it when it is back: else a key that is out for long would fall
behind by what it used and by what it missed. A key that has no work keeps its debt (else whoever
asks for one operation at a time would never pay) and gets the rounds that pass set against it, but
it keeps no credit.

What two keys that always have work were charged differs by at most ``quantum + most_cost`` when one
is out at a time, and by ``quantum + 2 * most_cost`` when several are. A step takes amortised
constant time: each visit of a key that is not served hands out a quantum, and over time no more
quanta are handed out than costs are charged, plus ``most_cost`` a key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Account:
    """The account of a key."""

    credit: float
    """Quanta granted minus costs charged, in the unit of the costs; bounded by ``most_cost`` on
    both sides."""
    round: int
    """Last round whose quantum the key has been granted."""
    charged: float = 0.0
    out: bool = False


class DeficitRoundRobin(Generic[K]):
    """Chooses among keys with work. Pure: it knows neither time nor tasks.

    Example::

        turns = DeficitRoundRobin[str](quantum=0.05, most_cost=1.0)
        turns.add("a")
        key = turns.next()
        turns.charge(key, seconds, more=True)
    """

    def __init__(self, *, quantum: float, most_cost: float) -> None:
        """
        Args:
            quantum: Cost that a key may use in a round; about the mean cost, so that one visit
                serves one operation.
            most_cost: Maximum that a key may owe or be owed, at least the usual cost of a service:
                it bounds how long a key is skipped.
        """
        if not 0 < quantum <= most_cost:
            raise ValueError(f"quantum {quantum} must be above 0 and at most most_cost {most_cost}")
        self._quantum = quantum
        self._most_cost = most_cost
        self._round = 0
        self._accounts: dict[K, _Account] = {}
        self._ring: OrderedDict[K, None] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys that wait for their turn."""
        return len(self._ring)

    def charged(self, key: K) -> float:
        """The sum of a key's costs; 0 of one that is not known."""
        account = self._accounts.get(key)
        return account.charged if account else 0.0

    def add(self, key: K) -> None:
        """The key has work from now on.

        Nothing changes if it waits already or is out.
        """
        account = self._accounts.setdefault(key, _Account(0.0, self._round))
        if not account.out and key not in self._ring:
            self._grant_missed(account, at_most=0.0)  # what was owed to it when its work ended is lost
            self._ring[key] = None

    def withdraw(self, key: K) -> None:
        """The key has no work any more. It keeps what it owes."""
        self._ring.pop(key, None)

    def next(self) -> K | None:
        """The key whose turn it is, which is then out until it is charged.

        Returns ``None`` if none waits.
        """
        while self._ring:
            key = next(iter(self._ring))
            account = self._accounts[key]
            if account.credit <= 0:
                account.credit += self._quantum
                account.round += 1
                self._round = max(self._round, account.round)
            if account.credit > 0:
                del self._ring[key]
                account.out = True
                return key
            self._ring.move_to_end(key)
        return None

    def charge(self, key: K, cost: float, *, more: bool) -> None:
        """Charge a key that ``next`` returned with the cost of its work.

        A key with ``more`` work goes on as long as it has credit. A key that was forgotten
        meanwhile is not charged.
        """
        account = self._accounts.get(key)
        if account is None:
            return
        if not account.out or cost < 0:
            raise ValueError(f"{key!r} cannot be charged {cost}: only a key that next() gave, and no negative cost")
        account.out = False
        account.charged += cost
        account.credit -= cost
        self._grant_missed(account, at_most=self._most_cost)
        if more:
            self._ring[key] = None
            if account.credit > 0:
                self._ring.move_to_end(key, last=False)

    def forget(self, key: K) -> None:
        """Drop a key and all that is known of it, wherever it is."""
        self._ring.pop(key, None)
        self._accounts.pop(key, None)

    def _grant_missed(self, account: _Account, *, at_most: float) -> None:
        """Grant the quanta of missed rounds, within the bounds of credit and debt."""
        missed, account.round = self._round - account.round, self._round
        account.credit = max(-self._most_cost, min(account.credit + missed * self._quantum, at_most))
