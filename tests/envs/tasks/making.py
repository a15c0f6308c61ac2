"""Tasks and bad rows for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from envs.types import WebTask
from tests.builders import make_task

SITES = ("shop", "mail", "forum", "maps", "wiki")


def task(number: int, *, site: str | None = None, difficulty: int | None = None, **more: Any) -> WebTask:
    """A good task, different for each number."""
    site = site or SITES[number % len(SITES)]
    values: dict[str, Any] = {
        "kind": f"kind-{number % 7}",
        "path": f"/start/{number}",
        "instruction": f"Find item {number} — “größer” als 人, line\u2028separated\nand broken",
        "difficulty": difficulty or 1 + number % 9,
        "horizon": 10,
    }
    return make_task(f"{site}/kind-{number % 7}/{number}", **values | more)


def good_row(number: int) -> dict[str, Any]:
    """The row of a good task."""
    row = task(number).model_dump(mode="json")
    return {name: value for name, value in row.items() if value is not None}


Mutation = Callable[[Random, dict[str, Any]], tuple[bytes, str]]
REQUIRED = ("task_id", "site", "kind", "path", "difficulty", "horizon", "seeds")
TEXTS = ("task_id", "site", "kind", "path", "instruction")


def _bytes(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode()


def wrong_type(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice([*REQUIRED, "instruction", "needs_reading"])
    wrong: list[Any] = [[], 1.5, ["x"], [{}]]
    if field in TEXTS:
        wrong += [1, True, {}] + ([None] if field != "instruction" else [])
    elif field == "seeds":
        wrong += [None, 1, "train", True]
    elif field == "needs_reading":
        wrong += [None, 1, "true", {}]
    else:
        wrong += [None, "1", True, {}, float("nan")]
    return _bytes({**row, field: random.choice(wrong)}), field


def missing(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice(REQUIRED)
    return _bytes({name: value for name, value in row.items() if name != field}), field


def extra(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice(["x", "Difficulty", "task id", "seed", "größe", "schema"])
    return _bytes({**row, field: random.choice([None, 1, "x", {}, []])}), field


def out_of_range(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice(["difficulty", "horizon"])
    return _bytes({**row, field: random.choice([0, -1, -(10**30)])}), field


def bad_name(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice(["task_id", "site", "kind", "path"])
    return _bytes({**row, field: random.choice(["", " ", "\t\n"])}), field


def bad_seeds(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    split = random.choice(["train", "held_out", "validation", "demo"])
    seeds, field = random.choice(
        [
            ({split: {"start": 5, "stop": 5}}, f"seeds.{split}"),
            ({split: {"start": 9, "stop": 5}}, f"seeds.{split}"),
            ({split: {"start": -1, "stop": 5}}, f"seeds.{split}.start"),
            ({split: {"start": 0, "stop": 0}}, f"seeds.{split}.stop"),
            ({split: {"start": 0}}, f"seeds.{split}.stop"),
            ({split: {"start": 0, "stop": 5, "step": 1}}, f"seeds.{split}.step"),
            ({split: [0, 5]}, f"seeds.{split}"),
            ({split.upper(): {"start": 0, "stop": 5}}, f"seeds.{split.upper()}"),
            ({}, "seeds"),
        ]
    )
    return _bytes({**row, "seeds": seeds}), field


def overlap(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    first, second = random.sample(["train", "held_out", "validation", "demo"], 2)
    start = random.randrange(100)
    stop = start + random.randrange(1, 100)
    inside = random.randrange(start, stop)
    seeds = {
        first: {"start": start, "stop": stop},
        second: {"start": inside, "stop": inside + 1 + random.randrange(50)},
    }
    return _bytes({**row, "seeds": seeds}), f"seeds.{second}"


def bad_version(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    return _bytes({**row, "schema_version": random.choice([0, 2, -1, "1", True, 1.0, None, [1]])}), "schema_version"


def encoding(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    text = json.dumps(row, ensure_ascii=False)
    line = text.encode()
    place = random.randrange(1, len(line))
    return random.choice(
        [
            line[:place] + random.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8"]) + line[place:],
            json.dumps(row).encode("utf-16"),
            json.dumps({**row, "instruction": "größer"}, ensure_ascii=False).encode("latin-1"),
            line.replace(b"Find", b"Fi\x00nd"),
            line.replace(b"Find", b"\\ud800"),
        ]
    ), "line"


def truncated(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    line = _bytes(row)
    return line[: random.randrange(len(line))], "line"


def no_object(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    line = _bytes(row)
    values = [
        b"",
        b"  ",
        b"null",
        b"[]",
        b"1",
        b'"row"',
        b"[" + line + b"]",
        line + b"}",
        line + b" " + line,
        b"'" + line,
    ]
    return random.choice([*values, b"[" * 100_000, b"9" * 5_000, b"NaN", line.replace(b'"', b"'")]), "line"


def twice(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    field = random.choice(REQUIRED)
    return _bytes(row)[:-1] + b", " + _bytes({field: row[field]})[1:], field


def used_id(random: Random, row: dict[str, Any]) -> tuple[bytes, str]:
    return _bytes({**row, "task_id": task(0).task_id}), "task_id"


MUTATIONS: tuple[Mutation, ...] = (
    wrong_type,
    missing,
    extra,
    out_of_range,
    bad_name,
    bad_seeds,
    overlap,
    bad_version,
    encoding,
    truncated,
    no_object,
    twice,
    used_id,
)
