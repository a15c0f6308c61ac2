"""Command-line arguments of the flows.

This module imports configuration models only, not Prefect or torch, so that ``--help`` answers
within two seconds.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tasks_lib.batch.config import BatchConfig
    from tasks_lib.building.config import BuildTasksConfig
    from tasks_lib.config import EvaluateConfig, Flag, TrainConfig, WarmStartConfig
    from tasks_lib.config.promotion import PromoteConfig
    from tasks_lib.regrading.config import RegradeConfig
    from tasks_lib.simulation.config import SimulateConfig
    from tasks_lib.sweeps.config import SweepConfig

    Model: TypeAlias = type[
        TrainConfig
        | EvaluateConfig
        | WarmStartConfig
        | BuildTasksConfig
        | RegradeConfig
        | PromoteConfig
        | SweepConfig
        | SimulateConfig
        | BatchConfig
    ]

FLOWS = {
    "flows.train": "tasks_lib.config:TrainConfig",
    "flows.evaluate": "tasks_lib.config:EvaluateConfig",
    "flows.warm_start": "tasks_lib.config:WarmStartConfig",
    "flows.build_tasks": "tasks_lib.building.config:BuildTasksConfig",
    "flows.regrade": "tasks_lib.regrading.config:RegradeConfig",
    "flows.promote": "tasks_lib.config.promotion:PromoteConfig",
    "flows.sweep": "tasks_lib.sweeps.config:SweepConfig",
    "flows.simulate": "tasks_lib.simulation.config:SimulateConfig",
    "flows.batch": "tasks_lib.batch.config:BatchConfig",
}
"""Configuration class of each flow, by the flow's module."""


def model_of(flow: str) -> Model | None:
    """Return the configuration class of a flow, such as ``flows.train``; ``None`` if it is none."""
    if flow not in FLOWS:
        return None
    module, _, name = FLOWS[flow].partition(":")
    model: Model = getattr(importlib.import_module(module), name)
    return model


def argument_parser(model: Model, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a flow's command; ``description`` is the docstring of its module."""
    from tasks_lib.config import presets_of  # a second, which the help of other commands saves

    parser = argparse.ArgumentParser(
        prog=f"python -m {model.flow}", description=description, formatter_class=Paragraphs
    )
    # A flow without presets still accepts the option, to explain why it refuses the preset.
    has_presets = "preset" in model.model_fields
    presets = f"values of deployments/presets/NAME.yaml; there are: {', '.join(presets_of(model.model_fields))}"
    parser.add_argument("--preset", metavar="NAME", help=presets if has_presets else argparse.SUPPRESS)
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE", help="e.g. trainer.epochs=2"
    )
    flags: Mapping[str, Flag] = getattr(model, "FLAGS", {})
    for option, flag in flags.items():
        named = option.startswith("-")
        kept: dict[str, Any] = {"dest": "assignments"} if named else {}
        parser.add_argument(
            option,
            action=_Assignment,
            key=flag.key,
            nargs={"value": None, "list": "+", "switch": 0}[flag.kind] if named else "?",
            **kept,
            default=argparse.SUPPRESS,
            metavar=flag.metavar,
            help=flag.help,
        )
    parser.add_argument(
        "--dry-run",
        nargs="?",
        const="brief",
        choices=("brief", "full"),
        help="print what would be done, or refused, and the values that differ; full: all values",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="a cluster spec (docs/scaling.md): its processes are started, and end with the run"
        if model.flow == "flows.train"
        else argparse.SUPPRESS,
    )
    return parser


class _Assignment(argparse.Action):
    """Plain option for a key, which is kept as an assignment like those of ``--set``."""

    def __init__(self, *, key: str, **options: Any) -> None:
        super().__init__(**options)
        self._key = key

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        value = "true" if self.nargs == 0 else json.dumps(_split(values)) if isinstance(values, list) else values
        namespace.assignments = [*namespace.assignments, f"{self._key}={value}"]


def _split(values: Sequence[str]) -> list[str]:
    """Return the names of a list, which may also be separated by commas."""
    return [name for value in values for name in value.split(",") if name]


class Paragraphs(argparse.HelpFormatter):
    """Formatter that keeps the paragraphs of a docstring.

    Paragraphs are wrapped one by one; commands, which are indented, stay as they are.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(part if part[0].isspace() else fill(part, width, indent) for part in paragraphs)
