"""``python -m benchmarks`` lists the benchmarks; ``NAME --json`` runs one, ``NAME --part PART`` a
part of it; ``env --against PATH`` compares with another checkout; ``--write`` puts the figures into
``results/`` and the table of README.md."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks import MODULES, NAMES, Figure, record

PAGES = Path("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled")
"""Whether Linux hands out memory 64 kB at a time (docs/scaling.md)."""


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 when a figure misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("--part", help="only this part (env and sites have parts)")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="compare with this other checkout, in turns (env can do that)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a figure")
    parser.add_argument("--all", action="store_true", help="run every benchmark")
    parser.add_argument("--write", action="store_true", help="put the figures into benchmarks/results and README.md")
    options = parser.parse_args(arguments)
    if not (options.name or options.all):
        for name in NAMES:
            print(f"{name:12s} {(_module(name).__doc__ or '').splitlines()[0]}")
        return 0
    figures = list[Figure]()
    for name in NAMES if options.all else (options.name,):
        ran = list[Figure]()
        for figure in _run(parser, name, options):
            ran.append(figure)
            print(_json(figure) if options.json else _text(figure), flush=True)
        if options.write:
            record.write(record.merge(record.read(name), ran, whole=not (options.part or options.against)))
        figures += ran
    print(f"load average at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {_pages()}", file=sys.stderr)
    return int(any(figure.ok is False for figure in figures))


def _module(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{MODULES.get(name, name)}")


def _pages() -> str:
    return f"pages of 64 kB: {PAGES.read_text().strip() if PAGES.exists() else 'unknown'}"


def _run(parser: argparse.ArgumentParser, name: str, options: argparse.Namespace) -> list[Figure]:
    benchmark, part = _module(name), options.part
    if options.against:
        if not hasattr(benchmark, "compare"):
            parser.error(f"{name} cannot be compared with another checkout")
        return list(benchmark.compare(options.against.resolve(strict=True)))
    if not part:
        return list(benchmark.run())
    if part not in (parts := getattr(benchmark, "PARTS", ())):
        parser.error(f"{name} has no part {part!r}; its parts: {', '.join(parts) or 'none'}")
    return list(benchmark.run((part,)))


def _json(figure: Figure) -> str:
    values = {"name": figure.name, "value": figure.value, "unit": figure.unit, "target": figure.target, "ok": figure.ok}
    return orjson.dumps(values).decode()


def _text(figure: Figure) -> str:
    verdict = {True: "met", False: "MISSED", None: ""}[figure.ok]
    return f"{figure.name:44s} {figure.value:10.4g} {figure.unit:12s} {figure.target:10s} {verdict}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
