"""Two ranks of a trainer under torch's agent; one of them kills itself or the agent at a point.

They are started as `python -m torch.distributed.run` starts them, but forked from a process that
has imported the trainer's libraries, which saves most of the time. The rest is the trainer's own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch.distributed.run  # noqa: F401 - launcher.api is not complete without it
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import training.trainer.loop  # noqa: F401 - the ranks need it
from training.ledger.store import RunStore
from training.trainer.__main__ import main
from training.trainer.control.launch import free_port, group_environment
from training.trainer.control.link import OwnerLink
from training.trainer.spec import read_spec

FORKS = multiprocessing.get_context("forkserver")
PATHS = {"open": 0, "os.rename": 1}
"""Place of the path among the values of an event: the opened file, or the new name."""


@dataclass(frozen=True)
class Kill:
    """A SIGKILL just before an event of Python's audit hooks."""

    rank: int
    """Rank that has the event."""
    event: str
    """One of `PATHS`."""
    path: str
    """End of the event's path."""
    of_agent: bool = False
    """Kill torch's agent and not the rank."""
    after: str = ""
    """File of the run's folder that has to be there first. The thread of the event waits for it."""

    def arm(self, root: Path) -> None:
        """Kill at the event, if this process is the rank."""

        def hook(event: str, values: tuple[Any, ...]) -> None:
            if event == self.event and str(values[PATHS[event]]).endswith(self.path):
                while self.after and not (root / self.after).exists():
                    time.sleep(0.01)
                os.kill(os.getppid() if self.of_agent else os.getpid(), signal.SIGKILL)
                time.sleep(600)  # the rank's watchdog ends it

        if os.environ["RANK"] == str(self.rank):
            sys.addaudithook(hook)


def run_rank(root: Path, kill: Kill | None) -> None:
    """Run a rank as ``python -m training.trainer`` does."""
    if kill:
        kill.arm(root)
    sys.argv = ["training.trainer", "--run-dir", str(root)]
    code = 1
    try:
        code = main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os._exit(code)


def run_agent(root: Path, kill: Kill | None) -> None:
    """Run torch's agent, which starts the ranks."""
    os.setsid()
    log = os.open(root / "trainer/trainer.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    spec = read_spec(RunStore(root))
    os.environ.update(group_environment(spec))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=spec.trainer.processes,
        run_id="test",
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
        rdzv_configs={"rank": 0, "timeout": 300},
        max_restarts=0,
        start_method="fork",
        local_addr="127.0.0.1",
    )
    elastic_launch(config, run_rank)(root, kill)


class ForkedRanks:
    """Starts the ranks on this machine, and is their group."""

    host, name = "127.0.0.1", "the trainer"

    def __init__(self, kill: Kill | None = None) -> None:
        self._kill = kill
        self._agent: BaseProcess | None = None

    def rendezvous(self) -> str:
        return ""

    def start(self, run_dir: Path, link: OwnerLink) -> ForkedRanks:
        FORKS.set_forkserver_preload([__name__])
        self._agent = FORKS.Process(target=run_agent, args=(run_dir, self._kill))
        self._agent.start()
        return self

    @property
    def alive(self) -> bool:
        return self._agent is not None and self._agent.is_alive()

    def ended(self) -> str:
        return f"exit code {self._agent.exitcode}" if self._agent else "not started"

    def stop(self, timeout: float) -> None:
        if self._agent is not None:
            self._agent.terminate()
            self._agent.join(timeout)
            self._agent.kill()
            self._agent.join()
