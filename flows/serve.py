"""Start one vLLM server of your own, as a run with the same configuration would start it.

It serves runs that name it in ``serving.address``, one at a time, until Ctrl-C.

    python -m flows.serve --preset quickstart --port 8000
    python -m flows.serve --preset quickstart --port 8000 --set serving.host=10.0.0.5 --set serving.api_key=POLICY_KEY

Ends with 2 for what is refused before it starts, 130 after Ctrl-C before that; then with vLLM's own
status.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from envs.types import RollwrightError
from tasks_lib.config import TrainConfig, check_preset, load_preset, merge, parse_assignments, resolve
from tasks_lib.processes.serving import own_server_command
from tasks_lib.processes.startup_interrupt import NOTHING_HAS_BEGUN, STATUS, raise_on_interrupt


def main(arguments: Sequence[str]) -> int:
    """The command; its exit status where vLLM does not take this process's place."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", metavar="NAME", help="as of flows.train")
    parser.add_argument(
        "--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE", help="as of flows.train"
    )
    parser.add_argument("--port", type=int, required=True, help="that it listens on")
    options = parser.parse_args(arguments)
    try:
        raise_on_interrupt()
        given = merge(parse_assignments(options.assignments, TrainConfig), {"serving": {"engine": "vllm"}})
        if options.preset:
            check_preset(load_preset(options.preset), TrainConfig.flow, TrainConfig.model_fields)
            given = merge({"preset": options.preset}, given)
        command = own_server_command(resolve(TrainConfig, given), options.port)
    except KeyboardInterrupt:
        print(NOTHING_HAS_BEGUN, file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"vLLM starts at {command.address}, which takes a minute or more", file=sys.stderr, flush=True)
    os.execve(command.argv[0], command.argv, command.environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
