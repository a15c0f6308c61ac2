"""Turns go to the episode's server, new episodes to the least loaded one, none to one that
rests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.serving.vllm.router import FIRST_REST, MAX_REST, Router


def test_new_episodes_are_spread_and_stay() -> None:
    router = Router(3)
    homes = [router.choose(f"e{index}", 0) for index in range(6)]
    assert homes == [0, 1, 2, 0, 1, 2]
    assert [router.choose(f"e{index}", 0) for index in range(6)] == homes


def test_an_episode_that_left_makes_room() -> None:
    router = Router(2)
    router.choose("a", 0)
    router.choose("b", 0)
    router.leave("b")
    assert router.choose("c", 0) == 1


def test_between_equals_turns_under_way_decide() -> None:
    router = Router(2)
    router.begin(0)
    assert router.choose("a", 0) == 1


def test_a_failed_server_rests_longer_each_time_and_its_episodes_move() -> None:
    router = Router(1)
    now = 0.0
    for failures in range(8):
        router.begin(0)
        router.end(0, now, failed=True)
        rest = min(FIRST_REST * 2**failures, MAX_REST)
        assert router.choose("new", now + rest - 0.01) is None
        assert router.choose("new", now + rest) == 0
        now += rest
    router.begin(0)
    router.end(0, now, failed=False)
    router.begin(0)
    router.end(0, now, failed=True)
    assert router.choose("new", now + FIRST_REST) == 0

    router = Router(2)
    assert router.choose("a", 0) == 0
    router.begin(0)
    router.end(0, 0, failed=True)
    assert router.choose("a", FIRST_REST - 0.01) == 1
    assert router.choose("a", FIRST_REST) == 1  # it stays where it is now


def test_a_server_that_is_left_out_gets_no_turns_until_it_is_taken_back() -> None:
    router = Router(2)
    assert [router.choose(name, 0) for name in ("a", "b")] == [0, 1]
    router.leave_out({0})
    assert [router.choose(name, 0) for name in ("a", "b", "c")] == [1, 1, 1]
    router.leave_out({0, 1})
    assert router.choose("a", 0) is None
    router.leave_out({1})
    assert router.choose("d", 0) == 0, "the others are taken back"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), st.integers(1, 4))
def test_no_server_has_two_episodes_more_than_another(events: list[tuple[int, bool]], servers: int) -> None:
    """While nobody leaves."""
    router = Router(servers)
    homes: dict[int, int | None] = {}
    for episode, fails in events:
        home = router.choose(str(episode), 0)
        assert home is not None
        assert homes.setdefault(episode, home) == home
        router.begin(home)
        router.end(home, -1000, failed=fails)
    counts = [list(homes.values()).count(server) for server in range(servers)]
    assert max(counts) - min(counts) <= 1
