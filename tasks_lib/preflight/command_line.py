"""Command line of the flows: presets, ``--set key=value``, ``--dry-run``.

``python -m flows.<name>``. Errors of ours are one paragraph, printed once and without a traceback.

Exit status: 0, 1 for what went wrong on the way, 2 for what was refused before anything began, 130 for Ctrl-C.
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
from tasks_lib.preflight.arguments import argument_parser
from tasks_lib.preflight.estimate import estimate
from tasks_lib.preflight.flows import reuse_check
from tasks_lib.preflight.startup import STARTED
from tasks_lib.processes.cluster_start import launches, started
from tasks_lib.processes.kubernetes import manifests
from tasks_lib.processes.prefect_api import check_api
from tasks_lib.processes.prefect_run import RUN_HERE, mark_cancelled
from tasks_lib.processes.retries import is_not_reported_by_flow
from tasks_lib.processes.server_watch import watched_server
from tasks_lib.processes.slurm import batch_script
from tasks_lib.processes.startup_interrupt import NOTHING_HAS_BEGUN, STATUS, raise_on_interrupt
from tasks_lib.rollouts.cluster import api_url, ephemeral_server_pid
from training.config import Settings

if TYPE_CHECKING:
    from tasks_lib.preflight.arguments import Model

WRITERS = {"slurm": batch_script, "kubernetes": manifests}
"""Write what is submitted, where a cluster is not started by the command itself."""

SERVERLESS = {"flows.simulate"}
"""Take a second, and keep no record: a server is not started for them; one that PREFECT_API_URL names still has their flow run."""


def run_command(flow: Callable[..., Any], model: Model, check: Callable[[Any], list[str]], arguments: list[str]) -> int:
    """Resolve the configuration, ``check`` what it names, and run the flow with it; the exit status."""
    parser = argument_parser(model, sys.modules[flow.__module__].__doc__)
    if not arguments and not model.bare:
        parser.print_help()
        print(f"error: nothing is given; {_beginning(model)}", file=sys.stderr)
        return 2
    options = parser.parse_args(arguments)
    needs: list[str] = []
    try:
        raise_on_interrupt()
        spec = load_cluster(options.cluster) if options.cluster else None
        config = _resolved(model, options, spec)
        processes = launches(spec, _as_given(options)) if spec else []
        needs = estimate(with_derived(config)) if isinstance(config, TrainConfig) and options.dry_run else []
        found = check(config)  # before a server is started
    except KeyboardInterrupt:
        print(NOTHING_HAS_BEGUN, file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print("".join(f"# {line}\n" for line in needs), end="")  # also of a checkpoint that is not there yet
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.dry_run:
        notes = [*config.plan().splitlines(), *found, *needs]
        values = _changed_values(config)
        if options.dry_run == "full":
            values += ["", *yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).splitlines()]
        if spec is not None and spec.start in WRITERS:
            # First, and the rest as comments: it is for sbatch or kubectl to read.
            print(WRITERS[spec.start](spec, _as_given(options)), end="")
            notes, values = [*notes, *values], []
        else:
            notes += [f"on {launch.host}, {launch.name}: {shlex.join(launch.whole_command)}" for launch in processes]
        print("".join(f"# {line}\n" for line in notes) + "".join(f"{line}\n" for line in values), end="")
        return 0
    try:
        if not check_api():
            if model.flow in SERVERLESS:
                with reuse_check(config, found), clock_since(STARTED):
                    flow.fn(**parameters_of(config))  # type: ignore[attr-defined]
                return 0
            _log_start("starting a Prefect server for this run (PREFECT_API_URL would name one of yours) …")
        api = api_url()  # before Prefect starts its server by itself, which Ctrl-C would end first
        with (
            hide_own_errors(),
            reuse_check(config, found),
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
    """Lines of YAML: the values that differ from the preset, or else from the defaults, with those as comments."""
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
    """A line as those of `RunProgress`, before there is one."""
    print(f"{time.perf_counter() - STARTED:6.1f} s  {message}", file=sys.stderr, flush=True)


def _as_given(options: argparse.Namespace) -> list[str]:
    """``--preset`` and ``--set`` as they were given."""
    preset = ["--preset", options.preset] if options.preset else []
    return [*preset, *(part for each in options.assignments for part in ("--set", each))]


def _beginning(model: Model) -> str:
    """How a command of this flow may begin, with a preset where it has some."""
    found = presets_of(model.model_fields) if "preset" in model.model_fields else []
    given = f"--preset {found[0]}" if found else "--set KEY=VALUE"
    return f"begin with: python -m {model.flow} {given}"


def _resolved(model: Model, options: argparse.Namespace, spec: ClusterSpec | None) -> Any:
    given = parse_assignments(options.assignments, model)
    if spec is None:
        given = merge(ambient_settings(model), given)
    else:
        if model is not TrainConfig:
            raise ConfigError(f"--cluster: {model.flow} has no use for it; it is an option of flows.train")
        given = merge(spec.settings(), given)
    if options.preset:
        check_preset(load_preset(options.preset, model.model_fields), model.flow, model.model_fields)
        given = merge({"preset": options.preset}, given)
    return resolve(model, given)


class _HideOwnErrors(logging.Filter):
    """Leaves out what Prefect says of a flow or task that ended with an error of ours, which whoever started it tells in a line."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # A task that failed is tried again, which is said here alone, but those of the flow's own process; on a disk that cannot be
        # written to nothing is tried again.
        once = RollwrightError if getattr(record, "task_name", None) in RUN_HERE else DiskError
        ours = isinstance(error, {"prefect.flow_runs": RollwrightError, "prefect.task_runs": once}.get(record.name, ()))
        return not ours and is_not_reported_by_flow(record)


@contextmanager
def hide_own_errors() -> Iterator[None]:
    """On the console only: in Prefect's own log of the flow run the error stands with its traceback."""
    ensure_logging_setup()  # which Prefect does itself when the first flow begins
    consoles = [each for each in logging.getLogger().handlers if isinstance(each, PrefectConsoleHandler)]
    quiet = _HideOwnErrors()
    for console in consoles:
        console.addFilter(quiet)
    try:
        yield
    finally:
        for console in consoles:
            console.removeFilter(quiet)
