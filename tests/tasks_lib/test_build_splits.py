"""A small generated set: each split that it shares out has tasks, or the build is refused with what
to set."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from envs.bundled.generate import GeneratorSpec, generate
from envs.tasks import save_tasks
from envs.types import ConfigError, TaskError
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.config import resolve
from tasks_lib.preflight.flows import check_build


def config_of(root: Path, *specs: dict[str, Any], others: tuple[dict[str, Any], ...] = ()) -> BuildTasksConfig:
    made = [{"kind": "generate", "name": f"made{number}", "spec": spec} for number, spec in enumerate(specs)]
    config: BuildTasksConfig = resolve(
        BuildTasksConfig, {"root": str(root), "run_id": "small", "sources": [*made, *others]}
    )
    return config


def splits_of(spec: dict[str, Any]) -> set[str]:
    """Counted from the tasks themselves."""
    return set(Counter(str(split) for task in generate(GeneratorSpec.model_validate(spec)) for split in task.seeds))


DEFAULT = {"train": 0.9, "validation": 0.05, "held_out": 0.05}


@pytest.mark.parametrize(
    ("count", "per_world", "splits"),
    [
        *product((1, 3, 12), (1, 6), (DEFAULT, {"train": 1}, {"train": 1, "held_out": 0}, {"train": 1, "held_out": 1})),
        (12, 1, {"held_out": 1, "train": 1e-6}),
    ],
)
def test_a_small_set_has_every_split_or_is_refused(
    tmp_path: Path, count: int, per_world: int, splits: dict[str, float]
) -> None:
    spec = {"count": count, "per_world": per_world, "splits": splits, "kinds": ["shop-open"]}
    missing = {split for split, share in splits.items() if share > 0} - splits_of(spec)
    config = config_of(tmp_path, spec)
    if not missing:
        assert check_build(config) == []
        return
    with pytest.raises(ConfigError, match=r"^source made0: no task of split ") as error:
        check_build(config)
    said = str(error.value)
    assert "\n" not in said and all(split in said for split in missing)
    assert not any(tmp_path.iterdir()), "before anything is written"
    # what it advises is enough
    if said.split(". For a set")[0].endswith("with per_world 1 each split gets some"):
        assert check_build(config_of(tmp_path, {**spec, "per_world": 1})) == []
    elif least := re.search(r"from a count of ([\d,]+) on", said):
        enough = {**spec, "per_world": 1, "count": int(least[1].replace(",", ""))}
        assert check_build(config_of(tmp_path, enough)) == []
    else:
        assert "more even shares" in said
    assert check_build(config_of(tmp_path, {**spec, "splits": {**splits, **dict.fromkeys(missing, 0)}})) == []


def test_generators_fill_the_splits_of_one_another(tmp_path: Path) -> None:
    both = {"count": 5, "kinds": ["shop-open"], "splits": {"train": 1, "held_out": 0.1}}
    held_out = {"count": 2, "kinds": ["shop-open"], "splits": {"held_out": 1}}
    assert check_build(config_of(tmp_path, both, held_out)) == []


def test_where_other_sources_may_fill_a_split_it_is_a_warning(tmp_path: Path) -> None:
    spec = {"count": 5, "kinds": ["shop-open"]}
    path = tmp_path / "own.jsonl"
    save_tasks(path, list(generate(GeneratorSpec(count=1, splits={"held_out": 1}))))  # type: ignore[dict-item]
    own = {"kind": "files", "name": "own", "paths": [str(path)]}
    (warning,) = check_build(config_of(tmp_path, spec, others=(own,)))
    assert warning.startswith("warning: source made0: no task of split validation, held_out: ")


def test_too_few_different_tasks_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    spec = {"count": 200, "kinds": ["shop-search"], "splits": {"held_out": 1}}
    with pytest.raises(TaskError) as error:
        list(generate(GeneratorSpec.model_validate(spec)))
    with pytest.raises(ConfigError, match=re.escape(f"source made0: {error.value}")):
        check_build(config_of(tmp_path, spec))
