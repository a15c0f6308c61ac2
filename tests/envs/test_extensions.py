"""What people add without editing the project: the examples of the documentation, found by name and
used in a browser."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envs import Click, ConfigError, TaskError, WebTask, open_env_sync
from envs.actions.parsing.extensions import PARSERS, as_parsed
from envs.episodes import part_sources
from envs.rewards.functions import REWARDS, extra_sources, reward_source
from envs.sites import SITES, is_served, make_site
from envs.tasks.assembly.sources import ImportSource
from envs.tasks.imports import FORMATS, import_tasks
from envs.tasks.imports.base import ONE_SEED
from envs.types import Invalid, PartRole, RewardBundle, RewardPart, Split
from envs.types.actions import ACTIONS
from envs.types.extensions import Extensions, is_reference
from tasks_lib.config import RewardConfig, TrainConfig, WarmStartConfig
from tasks_lib.preflight.extensions import check_extensions
from tasks_lib.worker.reward_stage import RewardStage
from tests.builders import make_task
from tests.envs.rewards.played import trajectory

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DONE: dict[str, float | bool | str] = {"done": True, "raw_reward": 1.0}
TASK = make_task(horizon=10)


def examples(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The example of docs/extending.md as a module of the user's, with its folder of pages and its
    entry point."""
    folder = tmp_path_factory.mktemp("mine")
    (module,) = examples("extending.md")
    (folder / "my_extensions.py").write_text(module)
    (folder / "my_broken.py").write_text("import a_package_that_is_not_there")
    (folder / "my_pages").mkdir()
    (folder / "my_pages/index.html").write_text("<title>Mine</title><button>A</button><button>B</button>")
    (folder / "my_tasks.txt").write_text("Click B.\nClick A.\n")
    (points,) = examples("extending.md", "toml")
    installed = folder / "mine-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    groups = points.replace('[project.entry-points."', "[").replace('"]', "]").replace('"', "")
    (installed / "entry_points.txt").write_text(groups)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for name in ("my_extensions", "my_broken"):
        sys.modules.pop(name, None)


async def graded(settings: dict[str, Any], **episode: Any) -> RewardBundle:
    """The reward that a run with these settings gives a played episode."""
    rewards = RewardConfig(**settings)
    stage = RewardStage(
        rewards,
        lambda _: nullcontext(),  # type: ignore[arg-type]
        sources=[*part_sources(), *extra_sources(rewards.extra)],
        screenshot=lambda name: b"",
    )
    return (await stage.grade(TASK, trajectory(**episode))).reward


def test_own_site_importer_parser_and_reward_play_an_episode(mine: Path) -> None:
    first, second = (item.task for item in import_tasks("my_extensions:tasks", mine / "my_tasks.txt"))
    assert (first.instruction, second.task_id) == ("Click B.", "mine/1")
    with open_env_sync(first, parser="my_extensions:read", reward="my_extensions:short") as env:
        step = env.reset()
        assert [element.text for element in step.observation.elements] == ["A", "B"]
        step = env.step("It is the second one, number 2")
        assert step.observation.error is None and not step.done
        refused = env.step("I give up")
        assert refused.observation.error is not None and "names no action" in refused.observation.error
        ended = env.step({"type": "answer", "text": "done"})
    assert env.trajectory is not None
    assert [step.form for step in env.trajectory.steps] == ["custom", "none", "json"]
    assert env.trajectory.steps[0].action == Click(element=2)
    assert ended.reward == pytest.approx(1 / 3)


async def test_a_reward_takes_the_place_of_the_tasks_own_or_stands_beside_it(mine: Path) -> None:
    steps = len(trajectory().steps)
    assert steps > 1
    alone = await graded({"function": "my_extensions:short"}, page_facts={"done": True, "raw_reward": -1.0})
    assert alone.score == pytest.approx(1 / steps) and not alone.passed
    for name in ("my_extensions:short", "short"):
        beside = await graded({"extra": {name: 0.5}}, page_facts=DONE)
        assert beside.score == pytest.approx((1.0 + 0.5 / steps) / 1.5) and beside.passed
        assert [(part.name, part.role) for part in beside.parts] == [("page", "scored"), (name, "shaping")]
    assert (await graded({"extra": {"short": 0.0}}, page_facts=DONE)).parts[1:] == ()


async def test_a_class_may_give_parts_of_its_own(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        component = "whatever"

        async def parts(self, task: WebTask, evidence: object) -> list[RewardPart]:
            fine = RewardPart(name="fine", value=-0.2, weight=1, evidence="seen", role=PartRole.PENALTY)
            return [RewardPart(name="nice", value=0.5, weight=1, evidence="seen"), fine]

    module = ModuleType("my_parts")
    module.Two = Two  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_parts", module)
    found = await graded({"extra": {"my_parts:Two": 0.5}}, page_facts=DONE)
    assert found.score == pytest.approx((1.0 + 0.5 * 0.5) / 1.5 - 0.5 * 0.2)


async def test_a_reward_that_fails_ends_the_run(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_wrong")
    module.wrong = lambda episode: episode.nothing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_wrong", module)
    with pytest.raises(ExceptionGroup) as failed:
        await graded({"extra": {"my_wrong:wrong": 1.0}}, page_facts=DONE)
    assert failed.group_contains(ConfigError, match="my_wrong:wrong failed .* shop/lamp: AttributeError")


async def test_a_plain_reward_runs_in_a_thread_an_async_one_on_the_loop(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, threading.Thread] = {}

    def plain(_episode: object) -> float:
        threads["plain"] = threading.current_thread()
        return 1.0

    async def waiting(_episode: object) -> float:
        threads["waiting"] = threading.current_thread()
        return 1.0

    module = ModuleType("my_threads")
    vars(module).update(plain=plain, waiting=waiting)
    monkeypatch.setitem(sys.modules, "my_threads", module)
    await graded({"extra": {"my_threads:plain": 1.0, "my_threads:waiting": 1.0}}, page_facts=DONE)
    assert threads["plain"] is not threading.current_thread() is threads["waiting"]


KINDS: dict[str, tuple[Extensions[Any], str, str]] = {
    "reward": (REWARDS, "shrt", "did you mean short"),
    "site": (SITES, "miniwab", "did you mean miniwob"),
    "importer": (FORMATS, "webgim", "did you mean webgym"),
    "parser": (PARSERS, "defult", "did you mean default"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused_with_what_is_near(kind: str, mine: Path) -> None:
    names, slip, near = KINDS[kind]
    with pytest.raises(ConfigError) as refused:
        names.find(slip)
    assert near in str(refused.value) and "module:function" in str(refused.value) and names.group in str(refused.value)
    for reference, words in (
        ("my_extension:read", "my_extension cannot be imported on .*PYTHONPATH of this process and of every worker"),
        ("my_broken:read", "my_broken cannot be imported on .*a_package_that_is_not_there"),
        ("my_extensions:shrt", "my_extensions has no shrt; did you mean short"),
    ):
        with pytest.raises(ConfigError, match=words):
            names.find(reference)


def test_what_is_found_is_checked(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_odd")
    vars(module).update(
        number=3, site=dict, tasks=lambda path: ["a"], read=lambda text: 7, other=lambda: make_site("shop")
    )
    monkeypatch.setitem(sys.modules, "my_odd", module)
    with pytest.raises(ConfigError, match="expected a function of an episode"):
        reward_source("my_odd:number")
    with pytest.raises(ConfigError, match=r"made \{\}; expected an envs.Site, such as a StaticSite"):
        make_site("my_odd:site")
    with pytest.raises(ConfigError, match="its name is 'shop'"):
        make_site("my_odd:other")
    with pytest.raises(TaskError, match="item 1 is 'a'; expected a WebTask"):
        list(import_tasks("my_odd:tasks", mine))
    with pytest.raises(ConfigError, match="my_odd:read gave 7"):
        as_parsed("my_odd:read")("text", ACTIONS)
    with pytest.raises(ConfigError, match="expected a function of a text"):
        as_parsed("my_odd:number")
    assert as_parsed(lambda text: {"action": "click", "element": 2})("", ACTIONS).action == Click(element=2)
    assert isinstance(as_parsed(lambda text: {"type": "clik"})("", ACTIONS).action, Invalid)


def test_imported_tasks_are_checked_as_rows_are(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = mine / "twice"
    module = ModuleType("my_twice")
    task = TASK.model_copy(update={"instruction": "Buy.", "seeds": {Split.TRAIN: ONE_SEED}})
    module.tasks = lambda path: [task, task]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_twice", module)
    with pytest.raises(TaskError, match="'shop/lamp' is already used"):
        list(import_tasks("my_twice:tasks", twice))
    (item, _) = import_tasks("my_extensions:tasks", mine / "my_tasks.txt", split=Split.HELD_OUT)
    assert set(item.task.seeds) == {Split.HELD_OUT}
    assert ImportSource(name="mine", format="my_extensions:tasks", path="my_tasks.txt").format == "my_extensions:tasks"


@pytest.mark.parametrize(
    ("name", "served"),
    [("shop", True), ("my_extensions:site", True), ("shop.example:8443", False), ("shop.example", False)],
)
def test_hosts_with_ports_are_no_references(name: str, served: bool) -> None:
    assert is_served(name) == served and is_reference("localhost:8080") is False
    assert not is_served(name, {name: "http://127.0.0.1:1"})


def test_a_run_checks_the_names_before_it_starts(mine: Path) -> None:
    good = {
        "rewards": {"function": "my_extensions:short", "extra": {"short": 0.1}},
        "rollout": {"parser": "my_extensions:read"},
        "algorithm": {"advantages": "my_extensions:centred", "loss": "my_extensions:reinforce"},
    }
    check_extensions(TrainConfig.model_validate(good))
    for block, key, value in (
        ("rewards", "function", "nope:short"),
        ("rewards", "extra", {"nope:short": 1.0}),
        ("rollout", "parser", "nope:read"),
        ("algorithm", "advantages", "nope:centred"),
        ("algorithm", "loss", "nope:loss"),
    ):
        bad = TrainConfig.model_validate({**good, block: {key: value}})
        with pytest.raises(ConfigError, match=rf"^{block}\.{key}: .* nope cannot be imported"):
            check_extensions(bad)
        there = bad.model_copy(update={"cluster": bad.cluster.model_copy(update={"address": "tcp://127.0.0.1:9"})})
        if block != "algorithm":
            check_extensions(there)  # the workers have it, perhaps
    with pytest.raises(ConfigError, match=r"^rollout\.parser: .* nope cannot be imported"):
        check_extensions(WarmStartConfig.model_validate({"rollout": {"parser": "nope:read"}}))
    with pytest.raises(ValueError, match=r"task is built in: set rewards\.task"):
        RewardConfig(extra={"task": 2.0})
    with pytest.raises(ValueError, match="the weight of polite is -1"):
        RewardConfig(extra={"polite": -1})
