"""Check the folder of a run: every file reference and every hash.

Nothing is changed.

    python -m flows.doctor --run runs/quickstart-seed0
    python -m flows.doctor --run runs/quickstart-seed0 --json

Prints a line for each fault, with what to do about it. Ends with 0 if there is none, 1 if there is one, 2 if it is no run's folder,
130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.types import ConfigError
from tasks_lib.preflight.doctor import examine, findings_json
from tasks_lib.processes.startup_interrupt import STATUS, raise_on_interrupt


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, metavar="FOLDER", help="folder of a run")
    parser.add_argument("--json", action="store_true", help="print one JSON document, for scripts")
    options = parser.parse_args(arguments)
    try:
        raise_on_interrupt()
        findings = examine(options.run)
    except KeyboardInterrupt:
        print("interrupted: nothing was changed", file=sys.stderr)
        return STATUS
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    faults = sum(each.severity == "fault" for each in findings)
    if options.json:
        print(findings_json(options.run, findings))
    else:
        for each in findings:
            print(each)
        print(f"{options.run}: {faults or 'no'} fault{'s' * (faults != 1)}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
