"""Deficit round robin: shares, debts, what a hung key costs, and how many visits it takes."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.browser.dispatcher import DeficitRoundRobin

QUANTUM, MAX_COST = 0.25, 1.0
COSTS = st.floats(0.01, MAX_COST)


def serve(turns: DeficitRoundRobin[str], cost: Callable[[str], float], slots: int, until: float) -> dict[str, float]:
    """Charged sums after ``until`` seconds of ``slots`` servers on keys that always have work and
    use what they are charged."""
    running: list[tuple[float, str, float]] = []
    charged: dict[str, float] = {}
    now = 0.0
    while now < until:
        while len(running) < slots and (key := turns.next()) is not None:
            seconds = cost(key)
            heapq.heappush(running, (now + seconds, key, seconds))
        now, key, seconds = heapq.heappop(running)
        turns.charge(key, seconds, more=True)
        charged[key] = turns.charged(key)
    for _, key, seconds in running:
        turns.charge(key, seconds, more=True)
        charged[key] = turns.charged(key)
    return charged


def drawn(costs: dict[str, list[float]]) -> Callable[[str], float]:
    """The costs of each key, over and over."""
    served = dict.fromkeys(costs, 0)

    def cost(key: str) -> float:
        served[key] += 1
        return costs[key][served[key] % len(costs[key])]

    return cost


def with_keys(keys: dict[str, list[float]]) -> DeficitRoundRobin[str]:
    """Turns that these keys wait for."""
    turns = DeficitRoundRobin[str](quantum=QUANTUM, most_cost=MAX_COST)
    for key in keys:
        turns.add(key)
    return turns


WORKLOADS = st.dictionaries(st.sampled_from("abcdefgh"), st.lists(COSTS, min_size=1, max_size=5), min_size=2)


@settings(max_examples=300, deadline=None)
@given(WORKLOADS)
def test_one_server_gives_equal_shares_within_a_quantum_and_a_cost(costs: dict[str, list[float]]) -> None:
    charged = serve(with_keys(costs), drawn(costs), 1, until=30.0)
    assert len(charged) == len(costs)
    assert max(charged.values()) - min(charged.values()) <= QUANTUM + MAX_COST + 1e-6


@settings(max_examples=300, deadline=None)
@given(WORKLOADS, st.integers(2, 6))
def test_several_servers_give_equal_shares_within_a_quantum_and_two_costs(
    costs: dict[str, list[float]], slots: int
) -> None:
    charged = serve(with_keys(costs), drawn(costs), slots, until=30.0)
    assert len(charged) == len(costs)
    assert max(charged.values()) - min(charged.values()) <= QUANTUM + 2 * MAX_COST + 1e-6


def test_long_operations_do_not_starve_short_ones() -> None:
    # The moment at which all keys that wait are in debt and the one that is owed is out: its credit
    # must not be lost.
    costs = {"short": [0.01], "long": [1.0], "longer": [0.995]}
    charged = serve(with_keys(costs), drawn(costs), 2, until=600.0)
    assert min(charged.values()) >= 399 and max(charged.values()) <= 401


@settings(max_examples=200, deadline=None)
@given(
    WORKLOADS,
    st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), COSTS), max_size=200),
)
def test_keys_that_come_and_go_do_not_disturb_the_others(
    costs: dict[str, list[float]], visitors: list[tuple[str, bool, float]]
) -> None:
    turns, cost = with_keys(costs), drawn(costs)
    for name, comes, seconds in visitors:
        turns.add(name) if comes else turns.withdraw(name)
        key = turns.next()
        assert key is not None
        turns.charge(key, seconds if key in "xyz" else cost(key), more=key in costs)
    for name in "xyz":
        turns.forget(name)
    charged = {key: turns.charged(key) for key in costs}
    assert max(charged.values()) - min(charged.values()) <= QUANTUM + MAX_COST + 1e-6


@settings(max_examples=100, deadline=None)
@given(WORKLOADS)
def test_a_hanging_key_does_not_change_the_share_of_the_others(costs: dict[str, list[float]]) -> None:
    hung = DeficitRoundRobin[str](quantum=QUANTUM, most_cost=MAX_COST)
    hung.add("hung")
    assert hung.next() == "hung"
    for key in costs:
        hung.add(key)
    charged = serve(hung, drawn(costs), 1, until=30.0)
    assert charged == serve(with_keys(costs), drawn(costs), 1, until=30.0)


def test_a_key_in_debt_waits_until_the_others_have_used_as_much() -> None:
    turns = DeficitRoundRobin[str](quantum=0.1, most_cost=1.0)
    turns.add("greedy")
    assert turns.next() == "greedy"
    turns.add("modest")
    turns.charge("greedy", 1.0, more=True)
    served = []
    while (key := turns.next()) == "modest":
        served.append(key)
        turns.charge("modest", 0.1, more=True)
    assert 8 <= len(served) <= 11


def test_an_idle_key_keeps_its_debt_but_no_credit() -> None:
    turns = DeficitRoundRobin[str](quantum=1.0, most_cost=10.0)
    turns.add("saver")
    assert turns.next() == "saver"
    turns.charge("saver", 0.001, more=False)  # 0.999 of credit that must not be kept
    for _ in range(50):
        turns.add("worker")
        assert turns.next() == "worker"
        turns.charge("worker", 1.0, more=False)
    turns.add("worker")
    turns.add("saver")
    served = []
    for _ in range(20):
        key = turns.next()
        assert key is not None
        served.append(key)
        turns.charge(key, 1.0, more=True)
    assert served.count("saver") in (9, 10, 11)


def test_one_operation_at_a_time_does_not_escape_its_debt() -> None:
    turns = DeficitRoundRobin[str](quantum=0.1, most_cost=10.0)
    seconds = {"long": 0.0, "short": 0.0}
    for _ in range(2000):
        for key in ("long", "short"):
            turns.add(key)
        key = turns.next()
        assert key is not None
        cost = 1.0 if key == "long" else 0.1
        seconds[key] += cost
        turns.charge(key, cost, more=False)
    assert abs(seconds["long"] - seconds["short"]) <= 10.1


def test_a_debt_is_bounded_so_a_key_alone_is_served_soon() -> None:
    turns = DeficitRoundRobin[str](quantum=0.1, most_cost=1.0)
    turns.add("a")
    assert turns.next() == "a"
    turns.charge("a", 1e9, more=True)
    turns.add("b")
    served = 0
    while turns.next() == "b":
        served += 1
        turns.charge("b", 0.1, more=True)
    assert served <= 11
    assert turns.charged("a") == 1e9


def test_visits_are_constant_per_turn_whatever_the_number_of_keys() -> None:
    class Key(str):
        looked_up = 0

        def __hash__(self) -> int:
            Key.looked_up += 1
            return super().__hash__()

    per_turn = []
    for keys in (10, 10_000):
        turns = DeficitRoundRobin[Key](quantum=QUANTUM, most_cost=MAX_COST)
        for number in range(keys):
            turns.add(Key(number))
        Key.looked_up = 0
        for _ in range(5 * keys):
            key = turns.next()
            assert key is not None
            turns.charge(key, QUANTUM * 2, more=True)
        per_turn.append(Key.looked_up / (5 * keys))
    assert max(per_turn) <= 8


def test_forgotten_and_withdrawn_keys_are_not_served() -> None:
    turns = with_keys({"a": [], "b": [], "c": []})
    assert turns.next() == "a"
    turns.forget("a")
    turns.charge("a", 1.0, more=True)  # it ends after it was forgotten
    turns.withdraw("b")
    assert (turns.next(), turns.next(), len(turns)) == ("c", None, 0)
    assert turns.charged("a") == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="quantum 2 must be"):
        DeficitRoundRobin[str](quantum=2, most_cost=1)
    turns = with_keys({"a": []})
    with pytest.raises(ValueError, match="only a key that next"):
        turns.charge("a", 1.0, more=False)
    turns.next()
    with pytest.raises(ValueError, match="no negative cost"):
        turns.charge("a", -1.0, more=False)
