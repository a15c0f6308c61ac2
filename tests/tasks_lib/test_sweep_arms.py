"""The arms of a sweep: which there are, how they are named, and what is refused before anything
starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import ConfigError
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import PRESETS, resolve
from tasks_lib.config.differences import comparable_settings
from tasks_lib.preflight.flows import check_sweep
from tasks_lib.sweeps.arms import MAX_ARMS, MAX_NAME, Arm, make_arms, with_known_names
from tasks_lib.sweeps.config import SweepConfig

NAME = re.compile(r"^[A-Za-z0-9._-]+$")
SHOP_JUDGE = {"base_url": "http://127.0.0.1:1/v1", "models": {"default": "m"}}


def sweep(**values: Any) -> SweepConfig:
    config: SweepConfig = resolve(SweepConfig, {"run_id": "s", **values})
    return config


def names(**values: Any) -> list[str]:
    return [arm.run_id for arm in sweep(**values).all_arms()]


# --------------------------------------------------------------------------------------------------
# which there are


def test_a_grid_is_every_combination_laid_over_the_base() -> None:
    base = {"preset": "quickstart", "algorithm": {"std_epsilon": 0.5}}
    arms = sweep(base=base, grid={"seed": [3, 0], "algorithm.group_size": [4, 8]}, root="somewhere").all_arms()
    assert [(arm.run_id, arm.config.algorithm.group_size, arm.config.seed) for arm in arms] == [
        ("s-group_size4-seed3", 4, 3),
        ("s-group_size4-seed0", 4, 0),
        ("s-group_size8-seed3", 8, 3),
        ("s-group_size8-seed0", 8, 0),
    ]
    for arm in arms:
        assert arm.config.run_id == arm.run_id and arm.config.run_dir == Path("somewhere").resolve() / arm.run_id
        assert (arm.config.algorithm.std_epsilon, arm.config.iterations, arm.config.preset) == (0.5, 20, "quickstart")
    assert arms[0].description == "algorithm.group_size=4, seed=3"


def test_the_order_of_the_keys_decides_nothing() -> None:
    one = sweep(grid={"seed": [0, 1], "iterations": [2, 3]}).all_arms()
    other = sweep(grid={"iterations": [2, 3], "seed": [0, 1]}).all_arms()
    assert one == other


def test_listed_arms_may_be_nested_and_are_combined_with_a_grid() -> None:
    arms = sweep(
        grid={"seed": [0, 1]},
        arms=[{"algorithm": {"name": "filtered_bc"}, "trainer.epochs": 2}, {"rollout.attempts": 1}, {}],
    ).all_arms()
    assert [(arm.run_id, arm.description) for arm in arms] == [
        ("s-namefiltered_bc-epochs2-seed0", "algorithm.name=filtered_bc, trainer.epochs=2, seed=0"),
        ("s-namefiltered_bc-epochs2-seed1", "algorithm.name=filtered_bc, trainer.epochs=2, seed=1"),
        ("s-attempts1-seed0", "rollout.attempts=1, seed=0"),
        ("s-attempts1-seed1", "rollout.attempts=1, seed=1"),
        ("s-seed0", "seed=0"),
        ("s-seed1", "seed=1"),
    ]
    assert {arm.config.algorithm.name for arm in arms[:2]} == {"filtered_bc"}


def test_a_nested_grid_is_the_same_as_a_dotted_one() -> None:
    assert names(grid={"algorithm": {"group_size": [4, 8]}}) == names(grid={"algorithm.group_size": [4, 8]})


def test_an_arm_may_be_the_base_as_it_is() -> None:
    assert names(arms=[{}, {"seed": 1}]) == ["s-base", "s-seed1"]


def test_mappings_are_laid_over_the_base_mapping_by_mapping() -> None:
    judge = {"rollout": {"judge": {**SHOP_JUDGE, "budget_requests": 9}}}
    without, other = sweep(base=judge, grid={"rollout.judge": [None, {"base_url": "http://127.0.0.1:2/v1"}]}).all_arms()
    assert without.config.rollout.judge is None and without.run_id == "s-judgenull"
    assert other.config.rollout.judge is not None
    assert (other.config.rollout.judge.base_url, other.config.rollout.judge.budget_requests) == (
        "http://127.0.0.1:2/v1",
        9,
    )


def test_a_mapping_that_is_one_keys_value_keeps_the_dots_of_its_own_keys() -> None:
    sites = {"shop.example": "http://127.0.0.1:1"}
    (arm,) = sweep(arms=[{"tasks": {"addresses": sites}}]).all_arms()
    assert arm.config.tasks.addresses == sites and list(arm.values) == ["tasks.addresses"]


# ----------------------------------------------------------------------------
# names


def test_names_are_short_safe_and_tell_the_values_apart() -> None:
    kinds = [["click-link", "enter-text"], ["click-link", "enter-text", "click-tab"]]
    first, second = names(grid={"tasks.kinds": kinds})
    assert (
        first.startswith("s-kindsclick-link-ente-") and second.startswith("s-kindsclick-link-ente-") and first != second
    )
    assert names(grid={"trainer.learning_rate": [0.0003, 1e-5], "rollout.signals": [True]}) == [
        "s-signalstrue-learning_rate0.0003",
        "s-signalstrue-learning_rate1e-05",
    ]
    assert names(grid={"rewards.concurrency": [2], "rollout.concurrency": [3]}) == [
        "s-rewards.concurrency2-rollout.concurrency3"
    ]


def test_arms_that_would_share_a_name_have_names_of_their_own() -> None:
    found = names(arms=[{"rollout.concurrency": 4}, {"rewards.concurrency": 4}])
    assert len(set(found)) == 2 and all(re.fullmatch(r"s-concurrency4-[0-9a-f]{8}", name) for name in found)


def test_the_names_of_arms_stay_when_arms_are_added() -> None:
    few = names(grid={"seed": [0], "algorithm.group_size": [4]})
    assert set(few) < set(names(grid={"seed": [0, 1], "algorithm.group_size": [2, 4]}))


texts = st.text(max_size=40)
values = st.one_of(
    st.lists(texts, min_size=1, max_size=3).map(lambda kinds: ("tasks.kinds", kinds)),
    texts.map(lambda path: ("tasks.file", path)),
    st.integers(0, 2**31 - 1).map(lambda seed: ("seed", seed)),
    st.floats(0.001, 5).map(lambda temperature: ("policy.temperature", temperature)),
    st.booleans().map(lambda signals: ("rollout.signals", signals)),
    st.dictionaries(texts.filter(bool), st.just("http://127.0.0.1:1"), max_size=2).map(
        lambda found: ("tasks.addresses", found)
    ),
)


@given(st.lists(st.lists(values, max_size=5).map(dict), min_size=1, max_size=6))
def test_arms_have_safe_distinct_repeatable_names_or_are_refused(arms: list[dict[str, Any]]) -> None:
    try:
        found = make_arms("s" * 90, "runs", {}, {}, arms)
    except ConfigError as error:
        assert "come to the same configuration" in str(error)
        configurations = [str(resolve_arm(arm)) for arm in arms]
        assert len(set(configurations)) < len(configurations)
        return
    run_ids = [arm.run_id for arm in found]
    assert len(set(run_ids)) == len(arms)
    assert all(NAME.fullmatch(name) and len(name) <= MAX_NAME + 10 for name in run_ids)
    assert [arm.run_id for arm in make_arms("s" * 90, "runs", {}, {}, arms)] == run_ids


def resolve_arm(arm: dict[str, Any]) -> dict[str, Any]:
    """One arm alone, without its name."""
    (only,) = make_arms("x", "runs", {}, {}, [arm])
    return only.config.model_dump(mode="json", exclude={"run_id"})


def test_an_arm_keeps_its_first_name_and_names_are_unique() -> None:
    def begun(arms: tuple[Arm, ...]) -> dict[str, dict[str, Any]]:
        return {arm.run_id: comparable_settings(arm.config.model_dump(mode="json")) for arm in arms}

    budgets = [{"rollout": {"judge": {**SHOP_JUDGE, "budget_requests": most}}} for most in (5, 9)]
    before = sweep(arms=[{**given, "policy.temperature": 1} for given in budgets]).all_arms()
    now = sweep(arms=[{**given, "policy.temperature": 1.0} for given in budgets]).all_arms()
    kept = with_known_names(now, begun(before))
    assert len({arm.run_id for arm in kept}) == 2 and {arm.run_id for arm in kept} & {arm.run_id for arm in before}
    assert [arm.config.run_id for arm in kept] == [arm.run_id for arm in kept]
    assert with_known_names(before, begun(before)) == before and with_known_names(now, {}) == now


# ----------------------------------------------------------------------------
# what is refused


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"grid": {"algorithm.grup_size": [4, 8], "seed": [1]}},
         r"arm s-grup_size4-seed1 \(algorithm\.grup_size=4, seed=1\): algorithm\.grup_size: no such key; did you mean group_size\? algorithm has: "),
        ({"grid": {"algorithm.group_size": [8, 1]}}, r"arm s-group_size1 .*algorithm\.group_size: .*allowed: integer >= 2 and <= 64"),
        ({"base": {"iterations": 0}, "grid": {"seed": [0]}}, r"arm s-seed0 .*iterations: .*>= 1"),
        ({"base": {"preset": "quickstrat"}, "grid": {"seed": [0]}}, r"there is no preset 'quickstrat'"),
        ({"grid": {"rewards.performance": [1]}}, r"arm s-performance1 .*needs rollout\.signals=true"),
        ({}, r"nothing to sweep: give grid"),
        ({"grid": {"seed": []}}, r"grid\.seed: the list is empty"),
        ({"grid": {"seed": 3}}, r"grid\.seed: a list of values is needed, such as \[3\]; got 3"),
        ({"grid": {"seed": [0, 0]}}, r"two arms come to the same configuration: s-seed0-\w+ \(seed=0\) and s-seed0-\w+ \(seed=0\)"),
        ({"arms": [{}, {"seed": 0}]}, r"two arms come to the same configuration: s-base \(the base as it is\) and s-seed0"),
        ({"grid": {"policy.temperature": [1, 1.0]}}, r"two arms come to the same configuration"),
        ({"grid": {"seed": list(range(MAX_ARMS + 1))}}, rf"{MAX_ARMS + 1} arms are more than the {MAX_ARMS}"),
        ({"grid": {"seed": list(range(100)), "iterations": list(range(1, 100))}}, "9900 arms are more"),
        ({"grid": {"seed": [0]}, "arms": [{"trainer.epochs": 1}, {"seed": 1}]}, r"arms\[1\]\.seed: grid has this key too"),
        ({"arms": [{"rollout.judge": None, "rollout": {"judge.style": "x"}}]}, r"rollout\.judge\.style is inside rollout\.judge"),
        ({"grid": {"rollout.judge": [None]}, "arms": [{"rollout.judge.style": "x"}]}, r"rollout\.judge\.style is inside rollout\.judge"),
        ({"arms": [{"trainer.epochs": 1, "trainer": {"epochs": 2}}]}, r"arms\[0\]\.trainer\.epochs is given twice"),
        ({"grid": {"trainer..epochs": [1]}}, r"grid: 'trainer\.\.epochs' is no key"),
        ({"grid": {"run_id": ["a"]}}, r"grid\.run_id: the sweep gives each arm its own"),
        ({"grid": {"evaluation.split": ["held_out", "validation"]}},
         r"grid\.evaluation\.split: arms that are not measured alike cannot be compared; set base\.evaluation\.split instead"),
        ({"arms": [{"evaluation": {"episodes": 9}}, {}]}, r"arms\[0\]\.evaluation\.episodes: arms that are not measured alike"),
        ({"grid": {"evaluation": [{"episodes": 9}, {}]}}, r"grid\.evaluation: .* set base\.evaluation instead, for all of them"),
        ({"base": {"root": "x"}, "grid": {"seed": [0]}}, r"base\.root: the sweep gives each arm its own"),
        ({"grid": {"seed": [0]}, "parallel": 2}, r"parallel: 2 arms at a time need a deployment"),
        ({"grid": {"seed": [0]}, "deployment": "evaluate/default"}, r"deployment: .*matching \^\(train/"),
        ({"grid": {"seed": [0]}, "gird": 1}, r"gird: no such key; did you mean grid\? the top level has: run_id"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_one_error_that_names_it(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as found:
        sweep(**given)
    assert len(str(found.value).splitlines()) == 2, "the head and one line"


# ----------------------------------------------------------------------------
# the whole of it


def test_a_sweep_is_named_after_its_preset_or_its_bases() -> None:
    assert resolve(SweepConfig, {"preset": "quickstart-seeds"}).run_id == "quickstart-seeds"
    assert resolve(SweepConfig, {"base": {"preset": "quickstart"}, "grid": {"seed": [0]}}).run_id == "sweep-quickstart"
    assert resolve(SweepConfig, {"grid": {"seed": [0]}}).run_id == "sweep-custom"
    assert (PRESETS / "quickstart-seeds.yaml").exists()


def test_a_configuration_that_was_written_down_is_the_same_again() -> None:
    config = sweep(
        preset="quickstart-seeds", grid={"algorithm.group_size": [4]}, deployment="train/quickstart", parallel=3
    )
    again = resolve(SweepConfig, config.model_dump(mode="json"))
    assert again == config and again.all_arms() == config.all_arms() and len(config.all_arms()) == 3


def test_a_dry_run_shows_the_configuration_and_a_line_for_each_arm(capsys: pytest.CaptureFixture[str]) -> None:
    def flow(_config: SweepConfig) -> None:
        raise AssertionError("a dry run starts nothing")

    grid = 'grid={"seed": [0, 1], "algorithm.group_size": [4, 8]}'
    arguments = ["--set", "base.preset=quickstart", "--set", grid, "--set", "run_id=mine", "--dry-run"]
    assert run_command(flow, SweepConfig, check_sweep, arguments) == 0
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("run_id: mine") for line in said)
    assert any(line.startswith("base.preset: quickstart") for line in said)
    comments = [line for line in said if line.startswith("#")]
    assert comments[0].startswith("# would train 4 arms in this process, one after the other, and compare them in ")
    assert comments[1:5] == [
        "# mine-group_size4-seed0: algorithm.group_size=4, seed=0",
        "# mine-group_size4-seed1: algorithm.group_size=4, seed=1",
        "# mine-group_size8-seed0: algorithm.group_size=8, seed=0",
        "# mine-group_size8-seed1: algorithm.group_size=8, seed=1",
    ]
