"""Command line of the flows: presets, ``--set key=value``, ``--dry-run``.

Used as ``python -m flows.<name>``. Our own errors are one paragraph, printed once and without a
traceback.

Exit status: 0 for success, 1 for an error of the run, 2 for a command that was refused before
anything began, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import yaml
from prefect.logging.configuration import ensure_logging_setup
from prefect.logging.handlers import PrefectConsoleHandler

from envs.types import ConfigError, DiskError, RollwrightError
from tasks_lib.commands.arguments import argument_parser
from tasks_lib.commands.startup import STARTED
from tasks_lib.config import (
    TrainConfig,
    check_preset,
    load_preset,
    merge,
    parse_assignments,
    presets_of,
    resolve,
)
from tasks_lib.config.cluster_spec import ClusterSpec, ambient_settings, load_cluster
from tasks_lib.config.differences import NONE, differences
from tasks_lib.config.parameters import parameters_of
from tasks_lib.folder.derived import with_derived
from tasks_lib.folder.progress import clock_since
from tasks_lib.preflight.estimate import estimate
from tasks_lib.preflight.flows import reuse_check
from tasks_lib.processes.cluster_start import launches, started
from tasks_lib.processes.kubernetes import manifests
from tasks_lib.processes.own_server import api_url, ephemeral_server_pid
from tasks_lib.processes.prefect_api import check_api
from tasks_lib.processes.prefect_run import RUN_HERE, mark_cancelled
from tasks_lib.processes.retries import is_not_reported_by_flow
from tasks_lib.processes.server_watch import watched_server
from tasks_lib.processes.slurm import batch_script
from tasks_lib.processes.startup_interrupt import NOTHING_HAS_BEGUN, STATUS, raise_on_interrupt
from training.settings import Settings

if TYPE_CHECKING:
    from tasks_lib.commands.arguments import Model

WRITERS = {"slurm": batch_script, "kubernetes": manifests}
"""Functions that write the text to submit, for clusters that the command does not start itself."""

SERVERLESS = {"flows.simulate", "flows.batch", "flows.promote"}
"""Flows for which no Prefect server is started, because they need none: they have no Prefect tasks.

A server that PREFECT_API_URL names still records their flow run.
"""


def run_command(flow: Callable[..., Any], model: Model, check: Callable[[Any], list[str]], arguments: list[str]) -> int:
    """Resolve the configuration, ``check`` it, run the flow with it, and return the exit status."""
    parser = argument_parser(model, sys.modules[flow.__module__].__doc__)
    if not arguments and not model.bare:
        parser.print_help()
        print(f"error: nothing is given; {_first_command(model)}", file=sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    needs: list[str] = []
    try:
        raise_on_interrupt()
        spec = load_cluster(options.cluster) if options.cluster else None
        config = _resolved(model, options, spec)
        processes = launches(spec, _as_given(options), config.rollout.concurrency) if spec else []
        needs = estimate(with_derived(config)) if isinstance(config, TrainConfig) and options.dry_run else []
        notes = check(config)  # before a server is started
    except KeyboardInterrupt:
        print(NOTHING_HAS_BEGUN, file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        # Printed although the command is refused: the checkpoint may be missing only for now.
        print("".join(f"# {line}\n" for line in needs), end="")
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        comments = [*config.plan().splitlines(), *notes, *needs]
        values = _changed_values(config)
        if options.dry_run == "full":
            values += ["", *yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).splitlines()]
        if spec is not None and spec.start in WRITERS:
            # The text for sbatch or kubectl comes first, and the rest as comments.
            print(WRITERS[spec.start](spec, _as_given(options), config.rollout.concurrency), end="")
            comments, values = [*comments, *values], []
        else:
            comments += [f"on {launch.host}, {launch.name}: {shlex.join(launch.whole_command)}" for launch in processes]
        print("".join(f"# {line}\n" for line in comments) + "".join(f"{line}\n" for line in values), end="")
        return 0
    try:
        if not check_api():
            if model.flow in SERVERLESS:
                with reuse_check(config, notes), clock_since(STARTED):
                    flow.fn(**parameters_of(config))  # type: ignore[attr-defined]
                return 0
            _log_start("starting a Prefect server for this run (PREFECT_API_URL would name one of yours) …")
        api = api_url()  # before Prefect starts a server by itself, which Ctrl-C would end first
        with (
            hide_own_errors(),
            reuse_check(config, notes),
            watched_server(api, ephemeral_server_pid()),
            clock_since(STARTED),
            started(spec, processes) if spec else nullcontext(),
        ):
            try:
                flow(**parameters_of(config))
            except KeyboardInterrupt:
                mark_cancelled()
                raise
    except KeyboardInterrupt:
        print("interrupted: what is whole is kept; start the same command again to go on", file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def _changed_values(config: Settings) -> list[str]:
    """Return YAML lines of the values that differ from the preset, or without one the defaults.

    The values of the preset or the defaults are comments.
    """
    values = config.model_dump(mode="json")
    preset = {"preset": values["preset"]} if values.get("preset") else {}
    where = f"the preset {values['preset']}" if preset else "the defaults"
    try:
        base = resolve(type(config), preset).model_dump(mode="json")
    except ConfigError:  # a flow that has keys without a default
        needed = {
            name: getattr(config, name) for name, field in type(config).model_fields.items() if field.is_required()
        }
        defaults = type(config).model_construct(**needed).model_dump(mode="json")
        base = {name: value for name, value in defaults.items() if name not in needed}
    changed = [
        f"{key}: {now}  # {'no default' if then == NONE else then}" for key, now, then in differences(values, base)
    ]
    values_changed = f"{len(changed)} value{'s' * (len(changed) != 1)}"
    return [f"# {values_changed} other than {where}; --dry-run full prints them all", *changed]


def _log_start(message: str) -> None:
    """Print a line in the form of `RunProgress`, before a run has one."""
    print(f"{time.perf_counter() - STARTED:6.1f} s  {message}", file=sys.stderr, flush=True)


def _as_given(options: argparse.Namespace) -> list[str]:
    """Return the ``--preset`` and ``--set`` options as they were given."""
    preset = ["--preset", options.preset] if options.preset else []
    return [*preset, *(part for assignment in options.assignments for part in ("--set", assignment))]


def _first_command(model: Model) -> str:
    """Suggest a command of this flow, with a preset if it has some."""
    presets = presets_of(model.model_fields) if "preset" in model.model_fields else []
    option = f"--preset {presets[0]}" if presets else "--set KEY=VALUE"
    return f"begin with: python -m {model.flow} {option}"


def _resolved(model: Model, options: argparse.Namespace, spec: ClusterSpec | None) -> Any:
    values = parse_assignments(options.assignments, model)
    if spec is None:
        values = merge(ambient_settings(model), values)
    else:
        if model is not TrainConfig:
            raise ConfigError(f"--cluster: {model.flow} has no use for it; it is an option of flows.train")
        values = merge(spec.settings(), values)
    if options.preset:
        check_preset(load_preset(options.preset, model.model_fields), model.flow, model.model_fields)
        values = merge({"preset": options.preset}, values)
    return resolve(model, values)


class _HideOwnErrors(logging.Filter):
    """Drops Prefect's records of flows and tasks that ended with our own error.

    The command itself prints such an error in a line.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A failed task of a worker is retried, which only this record tells. Tasks of the flow's
        # own process, and those that cannot write to the disk, are not retried.
        not_retried = RollwrightError if getattr(record, "task_name", None) in RUN_HERE else DiskError
        ours = isinstance(
            error, {"prefect.flow_runs": RollwrightError, "prefect.task_runs": not_retried}.get(record.name, ())
        )
        return not ours and is_not_reported_by_flow(record)


@contextmanager
def hide_own_errors() -> Iterator[None]:
    """Hide our own errors on the console only.

    Prefect's log of the flow run still has the error with its traceback.
    """
    ensure_logging_setup()  # Prefect itself does this only when the first flow begins
    consoles = [handler for handler in logging.getLogger().handlers if isinstance(handler, PrefectConsoleHandler)]
    quiet = _HideOwnErrors()
    for console in consoles:
        console.addFilter(quiet)
    try:
        yield
    finally:
        for console in consoles:
            console.removeFilter(quiet)
