"""Check this machine before a run, or the folder of a run.

Of a machine: Chromium, the two environments, GPUs, storage, Prefect, ports; with --scheduler the
workers of a Dask cluster, with --server a vLLM server. What is written for it is removed again. Of
a run: every file reference and every hash; nothing is changed.

    python -m flows.doctor
    python -m flows.doctor --storage /shared/runs --scheduler tcp://10.0.0.5:8786 --server http://10.0.0.6:8000
    python -m flows.doctor --run runs/quickstart-seed0 --json

Prints a line for each finding, with what to do about a fault. Ends with 0 if there is no fault, 1
if there is one, 2 if the arguments are wrong or it is no run's folder, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from envs.types import ConfigError
from tasks_lib.preflight.findings import Finding, count_faults, findings_json
from tasks_lib.processes.startup_interrupt import STATUS, raise_on_interrupt


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="folder of a run, instead of this machine")
    parser.add_argument("--storage", type=Path, metavar="FOLDER", help="folder of all runs (default: runs)")
    parser.add_argument("--scheduler", default="", metavar="ADDRESS", help="Dask scheduler whose workers are checked")
    parser.add_argument("--server", default="", metavar="URL", help="vLLM server of your own, as http://HOST:PORT")
    parser.add_argument(
        "--api-key", default="", metavar="NAME", help="environment variable that holds the server's API key"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    options = parser.parse_args(arguments)
    if options.run and (options.storage or options.scheduler or options.server):
        parser.error("--run checks a folder alone; leave out --storage, --scheduler and --server")
    if options.api_key and not options.server:
        parser.error("--api-key is of a vLLM server; give its address with --server")
    findings: list[Finding] = []
    try:
        subject, checks = _of_run(options.run) if options.run else _of_machine(options)
        raise_on_interrupt()
        for finding in checks:
            findings.append(finding)
            if not options.json:
                print(finding, flush=True)
    except KeyboardInterrupt:
        print("interrupted: nothing was changed", file=sys.stderr)
        return STATUS
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    faults = count_faults(findings)
    if options.json:
        print(findings_json(subject, findings))
    else:
        print(f"{', '.join(subject.values())}: {faults or 'no'} fault{'s' * (faults != 1)}")
    return 1 if faults else 0


def _of_run(folder: Path) -> tuple[dict[str, str], Iterator[Finding]]:
    from tasks_lib.commands.doctor import examine  # takes seconds

    def checks() -> Iterator[Finding]:
        yield from examine(folder)

    return {"run": str(folder)}, checks()


def _of_machine(options: argparse.Namespace) -> tuple[dict[str, str], Iterator[Finding]]:
    from tasks_lib.preflight.machine import MachineOptions, examine_machine, server_config  # takes seconds

    given = MachineOptions(
        storage=options.storage or Path("runs"),
        storage_named=options.storage is not None,
        scheduler=options.scheduler,
        serving=server_config(options.server, options.api_key) if options.server else None,
    )
    return {"machine": platform.node()}, examine_machine(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
