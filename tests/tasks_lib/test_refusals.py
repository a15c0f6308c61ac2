"""What is said of a configuration that cannot be: in our words, by key, with an example that works.
Every block of every model is tried."""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal

import pytest

from envs.bundled.generate import GeneratorSpec, generate
from envs.ends import FixedHorizon
from envs.sites import make_site
from envs.tasks.imports import import_tasks
from envs.types import ConfigError, TaskError
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.config import EvaluateConfig, TrainConfig, WarmStartConfig, merge, parse_assignments, resolve
from tasks_lib.config.shapes import Shape, assignment
from tasks_lib.regrading.config import RegradeConfig
from tests.tasks_lib.config_trees import MODELS, TREES, Path, walk
from training.settings import Settings

PYDANTICS = re.compile(
    r"Input should|union_tag|[Vv]alid (dictionary|list|integer|number|string|boolean|tuple)|instance of|Value error"
    r"|Field required|Extra inputs|discriminator|function-"
)


def tree_with(shape: Shape, path: Path, kinds: Path, value: Any) -> Any:
    """A tree that is valid, but for what ``value`` at ``path`` makes of it."""
    if not path:
        return value
    if shape.item is not None:
        return [tree_with(shape.item, path[1:], kinds[1:], value)]
    kind, key = str(kinds[0]), str(path[0])
    return {**shape.example(kind), key: tree_with(shape.kinds[kind].keys[key], path[1:], kinds[1:], value)}


def refusal(model: type[Settings], values: Any) -> list[str]:
    """The lines of what is said; none if the values are taken."""
    try:
        resolve(model, values)
    except ConfigError as error:
        first, *lines = str(error).splitlines()
        assert first == "the configuration is not valid:"
        assert not PYDANTICS.search(str(error)), error
        return [line.removeprefix("  ") for line in lines]
    return []


def dotted(path: Path) -> str:
    return ".".join(map(str, path))


PLACES = [
    pytest.param(name, path, kinds, shape, id=f"{name}:{dotted(path)}{''.join(f'-{kind}' for kind in kinds if kind)}")
    for name, tree in TREES.items()
    for path, kinds, shape in walk(tree)
]
BLOCKS = [place for place in PLACES if place.values[3].blocks]
VALUES = [place for place in PLACES if not place.values[3].blocks]


def check_example(name: str, line: str) -> None:
    """What a line gives as an example is taken, whatever else is not given."""
    if found := re.search(r"e\.g\. (--set .*)$", line):
        given = parse_assignments([shlex.split(found[1])[1]])
        assert refusal(MODELS[name], merge(TREES[name].example(), given)) == [], line


def test_the_walk_finds_the_blocks() -> None:
    found = {(place.values[0], dotted(place.values[1])) for place in BLOCKS}
    assert {
        ("train", "rollout.horizon"),
        ("train", "rollout.horizon.base"),
        ("train", "rollout.judge.models"),
        ("build_tasks", "sources"),
        ("build_tasks", "sources.0.decompose"),
        ("build_tasks", "writer.endpoint.models"),
        ("warm_start", "recipe.stages.0"),
        ("regrade", "judge"),
    } <= found


@pytest.mark.parametrize(("name", "path", "kinds", "shape"), BLOCKS)
def test_a_block_given_a_plain_value_says_what_it_takes(name: str, path: Path, kinds: Path, shape: Shape) -> None:
    key = dotted(path)
    for value in ("nonsense", 3, 2.5, True, [1], None, "x" * 500):
        lines = refusal(MODELS[name], tree_with(TREES[name], path, kinds, value))
        if value is None and shape.nullable:
            assert not lines
        elif not lines:
            assert shape.short, f"{key} takes {value!r}, and nothing says so"
        for line in lines:
            assert line.startswith(key), line
            assert "allowed: " in line and len(line.split("; ", 1)[0]) < 200, line
            check_example(name, line)
        if lines and lines[0].startswith(f"{key}: "):
            tags = [kind for kind in shape.blocks if kind]
            keys = {
                inner for block in shape.blocks.values() for inner, s in block.keys.items() if "const" not in s.schema
            }
            assert "e.g. --set " in lines[0] and all(re.search(rf"\b{word}\b", lines[0]) for word in {*keys, *tags}), (
                lines
            )


@pytest.mark.parametrize(("name", "path", "kinds", "shape"), [each for each in BLOCKS if each.values[3].kinds])
def test_keys_of_a_block_are_refused_by_their_whole_name(name: str, path: Path, kinds: Path, shape: Shape) -> None:
    model, tree, key = MODELS[name], TREES[name], dotted(path)

    def lines_of(value: Any) -> list[str]:
        lines = refusal(model, tree_with(tree, path, kinds, value))
        for line in lines:
            check_example(name, line)
        return lines

    for kind, block in shape.kinds.items():
        whole = shape.example(kind)
        assert lines_of(whole) == [], "the example of a block is valid"
        own = [each for each, inner in block.keys.items() if "const" not in inner.schema]
        (line,) = lines_of({**whole, "zzzz": 1})
        assert line.startswith(f"{key}.zzzz: no such key; {key}") and all(each in line for each in own)
        misspelt = f"{own[-1]}q"
        (line,) = lines_of({**whole, misspelt: 1})
        assert line.startswith(f"{key}.{misspelt}: no such key; did you mean {own[-1]}"), line
        for needed in block.required:
            (line,) = lines_of({each: value for each, value in whole.items() if each != needed})
            assert line.startswith(f"{key}.{needed}: required, and not given; allowed: "), line
    if shape.tag:
        first = next(iter(shape.kinds))
        (line,) = lines_of({shape.tag: f"{first}z"})
        assert line.startswith(f"{key}: there is no {shape.tag} '{first}z'; did you mean {first}? allowed: "), line
        (line,) = lines_of({})
        assert line.startswith(f"{key}: {shape.tag} is required, and not given; allowed: "), line


@pytest.mark.parametrize(("name", "path", "kinds", "shape"), VALUES)
def test_a_plain_key_says_what_is_allowed(name: str, path: Path, kinds: Path, shape: Shape) -> None:
    key, schema = dotted(path), shape.schema
    free = schema.get("additionalProperties") is True  # any tree, which its model reads itself
    bad: list[Any] = [5 if free else {"a": {"b": []}}]
    bad += [schema["minimum"] - 1] if "minimum" in schema else []
    bad += [schema["exclusiveMinimum"]] if "exclusiveMinimum" in schema else []
    bad += [schema["maximum"] + 1] if "maximum" in schema else []
    bad += [f"{schema['enum'][0]}x"] if "enum" in schema else []
    for value in bad:
        lines = refusal(MODELS[name], tree_with(TREES[name], path, kinds, value))
        if "const" in schema:  # the kind of a block, with which it is another
            continue
        assert lines and lines[0].startswith(key) and all("allowed: " in line for line in lines), lines
        for bound in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            assert bound not in schema or str(schema[bound]) in lines[0]
        if "enum" in schema:
            assert all(str(each) in lines[0] for each in schema["enum"])
    if "enum" in schema:
        (line,) = refusal(MODELS[name], tree_with(TREES[name], path, kinds, bad[-1]))
        assert f"did you mean {schema['enum'][0]}" in line


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("rollout.horizon=5", {"rollout": {"horizon": {"kind": "fixed", "train": 5, "test": 5}}}),
        ("rollout.horizon=bucketed", {"rollout": {"horizon": {"kind": "bucketed"}}}),
        ("tasks.sampler=curriculum", {"tasks": {"sampler": {"name": "curriculum"}}}),
        ("cluster=tcp://127.0.0.1:8786", {"cluster": {"address": "tcp://127.0.0.1:8786"}}),
        (
            "rollout.judge={base_url: 'http://h/v1', models: m}",
            {"rollout": {"judge": {"base_url": "http://h/v1", "models": {"default": "m"}}}},
        ),
    ],
)
def test_a_plain_value_with_one_meaning_is_taken(given: str, means: dict[str, Any]) -> None:
    config = resolve(TrainConfig, parse_assignments([given]))
    assert config == resolve(TrainConfig, means)
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


def test_sub_tasks_are_asked_for_in_a_word() -> None:
    def rules(value: Any) -> Any:
        source = {"kind": "files", "name": "mine", "paths": ["a"], "decompose": value}
        return resolve(BuildTasksConfig, {"sources": [source]}).sources[0].decompose

    assert rules(True) == rules({}) and rules(True) is not None
    assert rules(False) is None and rules(None) is None
    assert FixedHorizon(train=3, test=4) == FixedHorizon.model_validate({"train": 3, "test": 4})


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (
            TrainConfig,
            "rollout.device=iphone",
            [
                "rollout.device: got 'iphone'; allowed: a block of keys or null; keys: width, height, optional scale, mobile, user_agent; "
                """e.g. --set 'rollout.device={"width": 390, "height": 844}'"""
            ],
        ),
        (
            TrainConfig,
            "rollout.device={width: 390, height: 844, colour: 1}",
            ["rollout.device.colour: no such key; rollout.device has: width, height, scale, mobile, user_agent"],
        ),
        (
            TrainConfig,
            "rollout={browser_address: 'ws://h:1', browser_per_episode: true}",
            [
                "rollout.browser_address: an external browser cannot be started for each episode; "
                "choose browser_address or browser_per_episode"
            ],
        ),
        (
            TrainConfig,
            "rollout.horizon={kind: fixed, train: 5, test: 0}",
            [
                "rollout.horizon.test: got 0; allowed: integer >= 1; "
                """e.g. --set 'rollout.horizon={"kind": "fixed", "train": 15, "test": 30}'"""
            ],
        ),
        (
            TrainConfig,
            "rollout.horizon={kind: fixed, train: 5, test: 5, most: 9}",
            [
                "rollout.horizon.most: no such key; it is a key of kind bucketed; rollout.horizon of kind fixed has: kind, train, test"
            ],
        ),
        (
            TrainConfig,
            "tasks.sampler=curiculum",
            [
                "tasks.sampler.name: got 'curiculum'; did you mean curriculum? allowed: one of success, curriculum, uniform, ratio, "
                "sequential, no_repeat; e.g. --set tasks.sampler.name=curriculum"
            ],
        ),
        (
            TrainConfig,
            "horizon=5",
            [
                "horizon: no such key; did you mean rollout.horizon? the top level has: "
                + ", ".join(TrainConfig.model_fields)
            ],
        ),
        (
            TrainConfig,
            "rollout.repeats=1",
            ["rollout.repeats: one step is no repetition; allowed: 0, or 2 and more (got 1)"],
        ),
        (
            TrainConfig,
            "rollout.judge={base_url: 'http://h', models: m, votes: 2}",
            ["rollout.judge.votes: 2 is even; an odd number has a majority"],
        ),
        (
            TrainConfig,
            "tasks.sampler={name: ratio}",
            ["tasks.sampler: the sampler ratio needs weights, for example {1: 2, 2-3: 1, 4-6: 1}"],
        ),
        (
            TrainConfig,
            "tasks.sampler={name: ratio, weights: {9: 1, 1: x}}",
            [
                "tasks.sampler.weights.9: got '9'; allowed: one of 1, 2-3, 4-6, 7+",
                "tasks.sampler.weights.1: got 'x'; allowed: number",
            ],
        ),
        (
            TrainConfig,
            "tasks.kinds=click-test",
            [
                """tasks.kinds: got 'click-test'; allowed: a list, each string; e.g. --set 'tasks.kinds=["click-test"]'"""
            ],
        ),
        (
            WarmStartConfig,
            "recipe.stages=[{steps: 3, learning_rate: 1, phase_ends: [1, 2]}]",
            ["recipe.stages.0.phase_ends.2: required, and not given; allowed: number"],
        ),
        (RegradeConfig, "name=a", ["run: required, and not given; allowed: string"]),
    ],
)
def test_the_words(model: type[Settings], given: str, says: list[str]) -> None:
    assert refusal(model, parse_assignments([given])) == says


class Odd(Settings):
    """Types that no configuration has yet."""

    size: int | Literal["auto"] = 3
    place: tuple[int, str] | None = None


def test_a_key_of_several_types_is_told_once() -> None:
    assert refusal(Odd, {"size": 2.5}) == ["size: got 2.5; allowed: integer or auto"]
    assert refusal(Odd, {"place": "x"})[0].startswith("place: got 'x'; allowed: a list of 2")


def test_an_example_is_typed_as_the_shell_and_yaml_read_it() -> None:
    for key, value in [
        ("a.b", {"c": "yes"}),
        ("a", {"b": {"c": [1, "it's"]}}),
        ("a", "x: y"),
        ("a", "plain"),
        ("a", 3),
    ]:
        typed = shlex.split(assignment(key, value))
        tree: Any = value
        for part in reversed(key.split(".")):
            tree = {part: tree}
        assert typed[0] == "--set" and parse_assignments([typed[1]]) == tree


@pytest.mark.parametrize(
    ("model", "given", "says"),
    [
        (TrainConfig, {"grup_size": 4}, "grup_size: no such key; did you mean algorithm.group_size? "),
        (
            TrainConfig,
            {"trainer": {"grop_size": 4}},
            "trainer.grop_size: no such key; did you mean algorithm.group_size? ",
        ),
        (
            TrainConfig,
            {"algorithm": {"learning-rat": 1}},
            "algorithm.learning-rat: no such key; did you mean trainer.learning_rate? ",
        ),
        (EvaluateConfig, {"evaluation": {"episodes": 4}}, "evaluation: no such key; did you mean episodes? "),
        (EvaluateConfig, {"trainer": {"greedy": True}}, "trainer: no such key; did you mean greedy? "),
        (
            EvaluateConfig,
            {"policy": {"endpoint": {"address": "x"}}},
            "policy.endpoint: no such key; did you mean policy_endpoint? ",
        ),
        (EvaluateConfig, {"trainer": {"learning_rate": 1}}, "trainer: no such key; the top level has: "),
        (TrainConfig, {"judge": {"base_url": "x"}}, "judge: no such key; did you mean rollout.judge? "),
        (
            TrainConfig,
            {"preset": "quikstart"},
            "there is no preset 'quikstart'; did you mean quickstart? the presets are: quickstart, qwen3-vl-2b-1gpu",
        ),
        (WarmStartConfig, {"preset": "Redaer"}, "there is no preset 'Redaer'; did you mean reader? "),
        (
            BuildTasksConfig,
            {"sources": [{"kind": "import", "name": "a", "format": "webarna", "path": "x"}]},
            "sources.0.format: there is no format 'webarna'; did you mean webarena or webarena-lite or ",
        ),
    ],
)
def test_names_that_are_near_are_offered_across_blocks_and_for_presets(model: Any, given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(model, given)
    assert says in str(refused.value)


def test_sites_formats_and_templates_that_are_near_are_offered() -> None:
    for refuse, says in (
        (lambda: make_site("miniwbo"), "Did you mean miniwob? "),
        (lambda: import_tasks("webarna", "x"), "did you mean webarena or "),
        (lambda: list(generate(GeneratorSpec(count=1, kinds=("directory-cty",)))), "did you mean directory-city"),
    ):
        with pytest.raises(TaskError, match=re.escape(says)):
            refuse()
