"""Prints a command's purpose, or its ``--help``, before imports that take seconds."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tasks_lib.processes.startup_interrupt import exit_on_interrupt

STARTED = time.perf_counter()
"""Start of the command (``time.perf_counter``), from which the seconds of its lines count."""

FLOWS = Path(__file__).resolve().parents[2] / "flows"
HELP = ("-h", "--help")


def begin_command(arguments: Sequence[str]) -> None:
    """Begin ``python -m flows.NAME``.

    Args:
        arguments: Arguments of the interpreter (``sys.orig_argv``).
    """
    exit_on_interrupt()
    place = arguments.index("-m") + 1 if "-m" in arguments else len(arguments)
    module, options = "".join(arguments[place : place + 1]), arguments[place + 1 :]
    source = FLOWS / f"{module.removeprefix('flows.')}.py"
    if not module.startswith("flows.") or not source.is_file():
        return
    description = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
    if set(HELP) & set(options):
        _print_help(module, description)
    elif not {"--dry-run", "--json"} & set(options):
        print(f"{module}: {description.partition(chr(10))[0]}", file=sys.stderr, flush=True)


def _print_help(module: str, description: str) -> None:
    """Print the help of a flow and exit; other commands have parsers of their own."""
    from tasks_lib.commands.arguments import argument_parser, model_of

    model = model_of(module)
    if model is not None:
        argument_parser(model, description).print_help()
        sys.exit(0)
