"""``python -m benchmarks`` lists the benchmarks; ``NAME --json`` runs one; ``--write`` puts the figures into the table of README.md."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from pathlib import Path

import orjson

from benchmarks import NAMES, Figure

README = Path(__file__).with_name("README.md")
TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- /table -->)", re.DOTALL)


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 when a figure misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--all", action="store_true", help="run every benchmark")
    parser.add_argument("--write", action="store_true", help="put the figures into the table of benchmarks/README.md")
    options = parser.parse_args(arguments)
    if not (options.name or options.all):
        for name in NAMES:
            print(f"{name:12s} {(importlib.import_module(f'benchmarks.{name}').__doc__ or '').splitlines()[0]}")
        return 0
    figures: list[tuple[str, Figure]] = []
    for name in NAMES if options.all else (options.name,):
        for figure in importlib.import_module(f"benchmarks.{name}").run():
            figures.append((name, figure))
            print(_json(figure) if options.json else _text(figure), flush=True)
    print(f"load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", file=sys.stderr)
    if options.write:
        README.write_text(_with_rows(README.read_text(), figures))
    return int(any(figure.ok is False for _, figure in figures))


def _with_rows(page: str, figures: list[tuple[str, Figure]]) -> str:
    """The page with new rows for the benchmarks that ran; the rows of the others stay."""
    ran = {name for name, _ in figures}
    table = TABLE.search(page)
    assert table is not None, f"{README} has lost its markers"
    old = [line for line in table[0].splitlines() if line.startswith("| ") and line.split(" | ")[0][2:] not in ran]
    rows = [line for line in old if line.split(" | ")[0][2:] in NAMES] + [
        _row(name, figure) for name, figure in figures
    ]
    rows.sort(key=lambda line: NAMES.index(line.split(" | ")[0][2:]))
    head = ["| benchmark | figure | value | unit | target | met |", "|---|---|---|---|---|---|"]
    return TABLE.sub(lambda found: "\n".join([found[1].rstrip(), *head, *rows, found[2]]), page)


def _json(figure: Figure) -> str:
    values = {"name": figure.name, "value": figure.value, "unit": figure.unit, "target": figure.target, "ok": figure.ok}
    return orjson.dumps(values).decode()


def _text(figure: Figure) -> str:
    verdict = {True: "met", False: "MISSED", None: ""}[figure.ok]
    return f"{figure.name:44s} {figure.value:10.4g} {figure.unit:12s} {figure.target:10s} {verdict}"


def _row(benchmark: str, figure: Figure) -> str:
    verdict = {True: "yes", False: "**no**", None: ""}[figure.ok]
    return f"| {benchmark} | {figure.name} | {figure.value:.4g} | {figure.unit} | {figure.target} | {verdict} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
