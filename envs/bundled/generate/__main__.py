"""Write a set of generated tasks: ``python -m envs.bundled.generate OUT --count 100000``.

OUT is a ``.jsonl`` or ``.parquet`` file, or a folder, which gets a tree by difficulty
(docs/tasks.md). ``--check N`` has N of the tasks solved.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from envs.bundled.generate.check import checker
from envs.bundled.generate.generate import generate
from envs.bundled.generate.spec import GeneratorSpec
from envs.bundled.generate.splits import empty_splits, split_counts
from envs.ends import Bucket
from envs.tasks import TreeLayout, save_parquet, save_tasks, write_tree
from envs.types import RollwrightError, Split, TaskError, WebTask
from envs.types.near import near


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if it fails."""
    options = _options(arguments)
    given: dict[str, Any] = {
        name: getattr(options, name) for name in ("count", "seed", "sites", "kinds", "buckets", "per_world")
    }
    started = time.perf_counter()
    try:
        splits = {"splits": _shares(options.splits)} if options.splits else {}
        spec = GeneratorSpec.model_validate({**given, **splits})
        tasks = list(generate(spec, processes=options.processes))
        _write(options.out, tasks)
        print(f"{len(tasks)} tasks in {time.perf_counter() - started:.1f} s: {options.out}")
        counts = split_counts(tasks, spec)
        print(f"by split: {', '.join(f'{split} {count}' for split, count in counts.items())}")
        if warning := empty_splits(spec, counts):
            print(f"warning: {warning}", file=sys.stderr)
        if options.check:
            chosen = tasks[:: max(1, len(tasks) // options.check)][: options.check]
            asyncio.run(_check(chosen))
            print(f"{len(chosen)} of them were solved on their sites")
    except ValidationError as error:
        for details in error.errors():
            print(_refusal(str(details["loc"][0]), details), file=sys.stderr)
        return 1
    except RollwrightError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _refusal(option: str, error: ErrorDetails) -> str:
    """Format the refused value of an option as one line."""
    known: Iterable[str] = {"buckets": Bucket, "splits": Split}.get(option, ())
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"--{option.replace('_', '-')}: got {error['input']!r}; {near(error['input'], known)}{message}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m envs.bundled.generate", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sites", nargs="*", default=[])
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--buckets", nargs="*", default=[], help="difficulties: 1 2-3 4-6 7+")
    parser.add_argument("--splits", nargs="*", default=[], help="shares of the worlds: train=0.9 held_out=0.1")
    parser.add_argument("--per-world", type=int, default=6, help="most tasks of a template in a world")
    parser.add_argument("--processes", type=int, default=1, help="does not change the tasks")
    parser.add_argument("--check", type=int, default=0, help="solve so many of them")
    return parser.parse_args(arguments)


def _shares(given: Sequence[str]) -> dict[str, str]:
    """Split shares such as ``train=3``; their numbers are checked with the spec."""
    if wrong := [share for share in given if share.count("=") != 1]:
        raise TaskError(f"--splits: {wrong[0]!r} is no share; write train=0.9")
    return dict((share.split("=")[0], share.split("=")[1]) for share in given)


def _write(out: Path, tasks: list[WebTask]) -> None:
    if out.suffix == ".parquet":
        save_parquet(out, tasks)
    elif out.suffix == ".jsonl":
        save_tasks(out, tasks)
    elif out.suffix:
        raise TaskError(f"{out}: expected .jsonl, .parquet or a folder")
    else:
        write_tree(out, tasks, TreeLayout.JSONL)


async def _check(tasks: Sequence[WebTask]) -> None:
    async with checker() as check:
        for task in tasks:
            reward = await check.solve(task)
            if not (reward.passed and reward.score == 1.0):
                raise TaskError(f"{task.task_id} is not solved by its own solution: {reward.failed}")


if __name__ == "__main__":
    sys.exit(main())
