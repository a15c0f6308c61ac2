"""How long a site is left alone after a wall, in simulated hours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.ends import Block, WallSighting, blocked_sites, blocks
from envs.ends.blocklist import MAX_TIMES


def seen(*hours: float, site: str = "shop", wall: str = "cloudflare") -> list[WallSighting]:
    return [WallSighting(site=site, wall=wall, time=hour) for hour in hours]


def only(*hours: float, first: float = 12) -> Block:
    (block,) = blocks(seen(*hours), first=first)
    return block


def told(block: Block) -> tuple[float, float, int]:
    return block.since, block.until, block.times


def test_a_wall_blocks_its_site_until_it_expires() -> None:
    block = only(100)
    assert told(block) == (100, 112, 1) and block.remembered_until == 124
    assert blocked_sites([block], 111.9) == {"shop": block}
    assert blocked_sites([block], 112) == {}


def test_seen_again_while_it_is_blocked_changes_nothing() -> None:
    assert told(only(100, 100, 101, 111.9)) == (100, 112, 1)


def test_seen_again_soon_after_it_is_blocked_for_twice_as_long() -> None:
    assert told(only(100, 112)) == (112, 136, 2)
    assert told(only(100, 123.9)) == (123.9, pytest.approx(147.9), 2)
    assert told(only(100, 112, 136)) == (136, 184, 3)
    assert told(only(100, 112, 130, 159.9)) == (pytest.approx(159.9), pytest.approx(207.9), 3), "24 h and 24 h more"


def test_after_a_quiet_time_all_is_forgotten() -> None:
    assert told(only(100, 124)) == (124, 136, 1)
    assert told(only(100, 112, 160)) == (160, 172, 1)


def test_it_never_takes_longer_than_sixteen_times_the_first() -> None:
    hours, at = [], 0.0
    for _ in range(9):
        hours.append(at)
        at = only(*hours, first=1).until
    assert only(*hours, first=1).until - hours[-1] == MAX_TIMES and only(*hours, first=1).times == 9


def test_sites_and_kinds_of_walls_are_apart() -> None:
    walls = [*seen(1), *seen(9, wall="judge"), *seen(2, site="mail")]
    known = blocks(walls, first=10)
    assert [(block.site, block.wall, block.until) for block in known] == [
        ("mail", "cloudflare", 12),
        ("shop", "cloudflare", 11),
        ("shop", "judge", 19),
    ]
    assert {site: block.wall for site, block in blocked_sites(known, 10).items()} == {
        "shop": "judge",
        "mail": "cloudflare",
    }
    assert blocked_sites(known, 15).keys() == {"shop"}
    with pytest.raises(ValueError, match="some time"):
        blocks(walls, first=0)


@given(st.lists(st.floats(0, 200), min_size=1, max_size=20), st.randoms())
def test_the_order_in_which_files_are_read_does_not_matter(hours: list[float], random: object) -> None:
    walls = seen(*hours)
    shuffled = list(walls)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    (block,) = blocks(walls, first=6)
    assert blocks(shuffled, first=6) == [block]
    assert block.since in hours and block.until - block.since <= 6 * MAX_TIMES + 1e-9, "but for rounding"
    assert max(hours) < block.until, "the newest wall is always within the block"
