"""The table of states, without a browser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.browser.process.states import JOURNAL_LENGTH, TRANSITIONS, ConnectionMachine, ConnectionState
from envs.types import BrowserError

S = ConnectionState


def machine_in(state: ConnectionState) -> ConnectionMachine:
    """A machine that went to ``state`` on the shortest way."""
    ways = {S.NEW: ()}
    while state not in ways:
        ways |= {
            after: (*way, after) for before, way in ways.items() for after in TRANSITIONS[before] if after not in ways
        }
    machine = ConnectionMachine()
    for step in ways[state]:
        machine.to(step)
    return machine


def test_there_are_eight_states_and_all_are_reachable() -> None:
    assert len(S) == 8 == len(TRANSITIONS)
    assert all(machine_in(state).state is state for state in S)


@pytest.mark.parametrize("before", S)
@pytest.mark.parametrize("after", S)
def test_only_the_table_is_allowed(before: ConnectionState, after: ConnectionState) -> None:
    machine = machine_in(before)
    if after is before or after in TRANSITIONS[before]:
        machine.to(after)
        assert machine.state is after
    else:
        with pytest.raises(BrowserError, match=f"cannot go from {before} to {after}"):
            machine.to(after)
        assert machine.state is before


def test_closed_is_the_end_and_can_always_be_reached() -> None:
    assert TRANSITIONS[S.CLOSED] == frozenset()
    assert all(S.CLOSED in TRANSITIONS[state] for state in S if state is not S.CLOSED)


def test_the_journal_tells_when_and_why() -> None:
    now = [10.0]
    machine = ConnectionMachine(clock=lambda: now[0])
    machine.to(S.CONNECTING, "opened")
    now[0] = 12.5
    machine.to(S.RECONNECTING, "refused")
    last = machine.journal[-1]
    assert (last.at, last.before, last.after, last.why) == (12.5, S.CONNECTING, S.RECONNECTING, "refused")
    now[0] = 13.0
    assert machine.seconds() == {"connecting": 2.5, "reconnecting": 0.5}


@given(st.integers(0, 2000))
def test_work_does_not_flood_the_journal(calls: int) -> None:
    machine = machine_in(S.READY)
    for _ in range(calls):
        machine.to(S.BUSY)
        machine.to(S.READY)
    assert len(machine.journal) == 3 <= JOURNAL_LENGTH
