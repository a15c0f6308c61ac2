"""A child of ours ends when we are killed."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil


def test_a_child_ends_with_its_killed_parent():
    code = (
        "import subprocess, sys, time\n"
        "from tasks_lib.processes.orphans import end_with_parent\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "end_with_parent(child.pid)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
