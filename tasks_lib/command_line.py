"""``python -m flows.<name>``: presets, ``--set key=value``, ``--dry-run``; errors of ours in one paragraph, without a traceback."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import yaml

from envs.types import ConfigError, RollwrightError
from tasks_lib.build_config import BuildTasksConfig
from tasks_lib.cluster import api_url
from tasks_lib.config import (
    EvaluateConfig,
    TrainConfig,
    WarmStartConfig,
    merge,
    parse_assignments,
    resolve,
)
from tasks_lib.regrading import RegradeConfig
from tasks_lib.sweeps.config import SweepConfig


def run_command(
    flow: Callable[..., Any],
    model: type[TrainConfig | EvaluateConfig | WarmStartConfig | BuildTasksConfig | RegradeConfig | SweepConfig],
    arguments: list[str],
) -> int:
    """Resolve the configuration and run ``flow(config)``; the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m flows.{flow.__name__.replace('-', '_')}", description=flow.__doc__
    )
    parser.add_argument("--preset", help="deployments/presets/<name>.yaml")
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE", help="e.g. trainer.epochs=2"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the resolved configuration and what would be done"
    )
    options = parser.parse_args(arguments)
    try:
        preset = {"preset": options.preset} if options.preset else {}
        config = resolve(model, merge(preset, parse_assignments(options.assignments)))
        if options.dry_run:
            print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), end="")
            print("\n".join(f"# {line}" for line in config.plan().splitlines()))
            return 0
        api_url()  # before Prefect starts its server by itself, which Ctrl-C would end first
        flow(config)
    except KeyboardInterrupt:
        print("interrupted: what is whole is kept; start the same command again to go on", file=sys.stderr)
        return 130
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RollwrightError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0
