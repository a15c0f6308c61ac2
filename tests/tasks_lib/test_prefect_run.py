"""Work of the flow process that runs as a Prefect task."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import threading

import cloudpickle
import pytest
from prefect import Task

from tasks_lib.config import PROJECT
from tasks_lib.processes.prefect_run import FlowWork, describe_start


def test_work_that_holds_a_lock_travels_without_it() -> None:
    """Prefect sends the task around a submitted one to Dask's workers; a server's connection cannot
    be pickled."""
    lock = threading.RLock()
    with pytest.raises(TypeError, match="RLock"):
        cloudpickle.dumps(lambda: lock)
    work = FlowWork(lambda: lock)
    assert work() is lock
    cloudpickle.dumps(Task(work, name="evaluate"))
    copy = cloudpickle.loads(cloudpickle.dumps(work))
    with pytest.raises(AssertionError, match="sent to another process"):
        copy()


def test_the_runs_own_server_is_silent_about_a_killed_flow() -> None:
    """It ends in the middle of its work; what it cannot write then is of no use to the terminal."""
    program = """
import logging, flows
from prefect.logging.configuration import setup_logging
setup_logging()
logging.getLogger("prefect.server.services.task_run_recorder").error("Error flushing 1 events")
logging.getLogger("prefect.client").warning("a client warns")
"""
    left_out = ("PREFECT_API_URL", "PREFECT_SERVER_LOGGING_LEVEL")
    environment = {key: value for key, value in os.environ.items() if key not in left_out}
    said = subprocess.run([sys.executable, "-c", program], env=environment, cwd=PROJECT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "flushing" not in said.stderr and "a client warns" in said.stderr


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: {}[os.getuid()])
    assert describe_start()["by"] == f"user {os.getuid()}"
