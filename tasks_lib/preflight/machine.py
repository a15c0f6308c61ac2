"""Checks a machine before a run: browser, environments, storage, Prefect, ports, GPUs; where named, a Dask cluster and a vLLM server.

Every check is a function that gives findings. What one raises is a fault, one that hangs is left at its deadline, and the others go on.
Modules that take seconds to import are imported by the check that needs them.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import re
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from envs.types import ConfigError
from tasks_lib.preflight.chromium import check_chromium
from tasks_lib.preflight.findings import Finding, guarded
from tasks_lib.preflight.storage import check_storage
from training.ledger.store import describe_first_error
from training.serving.config import ServingConfig

PROJECT = Path(__file__).parents[2]
PACKAGES = ("torch", "transformers", "llamafactory", "deepspeed", "prefect", "distributed")
"""Of ``.venv``, whose versions are compared with what the project was tested with."""
SECONDS = 60.0
"""Longest time of a check."""
CLUSTER_SECONDS = 180.0
TIDY_SECONDS = 5.0
"""After Ctrl-C a check may take so long to remove what it made."""
ANSWER_SECONDS = 10.0
"""For a vLLM server's engine."""
SETUP = "run `make setup`"
REPORT = "if the reason does not say what to do, report it with this line"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """What to look at beside the machine itself."""

    storage: Path = Path("runs")
    storage_named: bool = False
    """The user named the storage, so that it must be there."""
    scheduler: str = ""
    """Address of a Dask scheduler; empty: none."""
    serving: ServingConfig | None = None
    """Has the address of a vLLM server and the variable of its key (`server_config`)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and what limits it."""

    name: str
    run: Callable[[], Iterable[Finding]]
    todo: str = REPORT
    """What to do about an exception that does not say it itself."""
    seconds: float | None = SECONDS
    """``None``: it has a deadline of its own, and runs in the main thread, where Ctrl-C ends what it started."""
    slow_is_fault: bool = True
    """Whether a check that is not over at its deadline is a fault; not where it only reads files, which a busy machine delays."""


def server_config(address: str, api_key: str) -> ServingConfig:
    """The part of a run's configuration that names a server of one's own.

    Args:
        api_key: Name of the environment variable that holds the server's key; empty: none.

    Raises:
        ConfigError: that is no server's address.
    """
    try:
        return ServingConfig.model_validate({"engine": "vllm", "address": [address], "api_key": api_key})
    except ValidationError as error:
        raise ConfigError(f"--server: {describe_first_error(error)}") from None


def machine_checks(options: MachineOptions) -> list[Check]:
    """All checks, in the order in which they are made."""
    storage = partial(check_storage, options.storage, named=options.storage_named)
    return [
        Check("Chromium", check_chromium, "run `make setup`, or set ROLLWRIGHT_CHROMIUM to an executable", None),
        Check("training environment", check_training_environment, SETUP, slow_is_fault=False),
        Check("serving environment", check_serving_environment, "run `make vllm`", slow_is_fault=False),
        Check("GPUs", check_gpus, "reinstall the driver or torch; without them training runs on the CPU"),
        Check("storage", storage, "see that its file system is mounted and answers (ls, dmesg)"),
        Check("Prefect", check_prefect, "correct PREFECT_API_URL, or unset it"),
        Check("ports", check_ports, "let this user listen on 127.0.0.1"),
        Check("Dask", partial(check_dask, options), "see that the scheduler and its workers answer", CLUSTER_SECONDS),
        Check("vLLM server", partial(check_server, options.serving), "start it as docs/serving.md says"),
    ]


def examine_machine(options: MachineOptions) -> Iterator[Finding]:
    """What is found, as it is found."""
    for check in machine_checks(options):
        yield from run_check(check)


def run_check(check: Check) -> list[Finding]:
    """The findings of one check, with a fault for its exception or if it is not over at its deadline."""
    if check.seconds is None:
        return list(guarded(check.name, check.run, check.todo))
    found: list[Finding] = []
    over = threading.Event()  # not ``join``: Python 3.11 takes a thread for ended when Ctrl-C interrupts it

    def work() -> None:
        try:
            for each in guarded(check.name, check.run, check.todo):
                found.append(each)  # one by one: those before the deadline count
        finally:
            over.set()

    # A thread that hangs must not keep the process from ending. Prefect keeps its settings in the context.
    thread = threading.Thread(target=copy_context().run, args=(work,), name=check.name, daemon=True)
    try:
        thread.start()  # it may have begun its work before this returns
        in_time = over.wait(check.seconds)
    except KeyboardInterrupt:
        over.wait(TIDY_SECONDS)
        raise
    if not in_time:
        if not check.slow_is_fault:
            busy = f"could not be looked at within {check.seconds:g} s"
            return [*found, Finding(check.name, busy, "look again when the machine is less busy", "skipped")]
        return [*found, Finding(check.name, f"did not end within {check.seconds:g} s", check.todo)]
    return found


def check_training_environment(
    constraints: Path = PROJECT / "constraints.txt", installed: Callable[[str], str] = importlib.metadata.version
) -> Iterator[Finding]:
    """The packages of this Python, which runs flows, workers and the trainer, are those of the constraints."""
    name, pinned = "training environment", pins(constraints)
    found = {package: _version(package, installed) for package in PACKAGES}
    wrong = [
        f"{package} {version or 'is missing'} where {pinned[package]} is pinned"
        for package, version in found.items()
        # A build's local version (2.13.0+cpu) is this machine's own choice.
        if package in pinned and version.partition("+")[0] != pinned[package]
    ]
    if wrong:
        yield Finding(name, f"{sys.prefix}: {', '.join(wrong)}", f"{SETUP}, and use .venv/bin/python")
        return
    versions = ", ".join(f"{package} {version}" for package, version in found.items())
    yield Finding(name, f"Python {platform.python_version()} at {sys.prefix}: {versions}", "", "ok")


def check_serving_environment(python: Path | None = None, constraints: Path = PROJECT) -> Iterator[Finding]:
    """The environment of vLLM, if there is one.

    Args:
        python: Of that environment; ``None``: where ``make vllm`` makes it.
        constraints: Folder of the constraint files.
    """
    from tasks_lib.processes import serving

    name, again = "serving environment", "run `make vllm`"
    python = python or serving.PYTHON
    if not python.exists():
        yield Finding(name, f"{python.parents[1]} is not there", f"for serving.engine=vllm {again}", "note")
        return
    builds = sorted(serving.vllm_builds(python))
    if not builds:
        yield Finding(name, f"{python.parents[1]} holds no vLLM", f"{again}: it was broken off")
        return
    build = builds[0]
    (folder,) = python.parents[1].glob(f"lib/python*/site-packages/{build}-*.dist-info")
    version = folder.name.removeprefix(f"{build}-").removesuffix(".dist-info").partition("+")[0]
    pinned = pins(constraints / f"constraints-vllm{'-cuda' if build == 'vllm' else ''}.txt")
    wanted = pinned.get(build.replace("_", "-"), version)
    if version != wanted:
        yield Finding(name, f"{build} {version} where {wanted} is pinned", again)
    else:
        yield Finding(name, f"{build} {version} at {python.parents[1]}", "", "ok")


def check_gpus(devices: Path = Path("/dev"), torch_version: str | None = None) -> Iterator[Finding]:
    """What torch can use.

    Args:
        devices: Folder of the device files.
        torch_version: Of the installed torch, if it is not to be looked up.
    """
    there = len(list(devices.glob("nvidia[0-9]*")))
    version = torch_version or _version("torch", importlib.metadata.version)
    if version.endswith("+cpu"):
        what = f"{there or 'no'} CUDA device{'s' * (there > 1)}, and torch {version} is a build for the CPU"
        todo = "install a CUDA build: `make setup` without UV_FIND_LINKS and PIP_FIND_LINKS" if there else ""
        yield Finding("GPUs", what, todo, "note")
        return
    import torch  # seconds

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = "; ".join(" ".join(str(each.message).split()) for each in said)
        if there:
            todo = f"install a driver that knows CUDA {torch.version.cuda}, or let this user open the devices"
            yield Finding("GPUs", f"{there} CUDA devices, and torch can use none ({reason or 'no reason given'})", todo)
        else:
            yield Finding("GPUs", "no CUDA device: training runs on the CPU", "", "note")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        torch.ones(8, device=f"cuda:{index}").sum().item()  # the build has kernels for it
        yield Finding("GPUs", f"cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB", "", "ok")


def check_prefect() -> Iterator[Finding]:
    """The API that a run would use.

    Raises:
        ConfigError: it is of no use, or a run's own server has no place for its database.
    """
    from prefect.settings import PREFECT_API_URL

    from tasks_lib.processes.prefect_api import check_api, check_home, without_password

    if version := check_api():
        address = without_password(str(PREFECT_API_URL.value()))
        yield Finding("Prefect", f"{address} answers: {version}", "", "ok")
    else:
        yield Finding(
            "Prefect", f"no PREFECT_API_URL: each run starts a server of its own, in {check_home()}", "", "ok"
        )


def check_ports() -> Iterator[Finding]:
    """A port of the loopback interface can be listened on and connected to. No port is fixed by the configuration."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_SECONDS)
        with socket.create_connection(server.getsockname()[:2], ANSWER_SECONDS), server.accept()[0]:
            pass
    yield Finding("ports", "127.0.0.1 can be listened on and reached; a run takes free ports, none is fixed", "", "ok")


def check_dask(options: MachineOptions) -> Iterator[Finding]:
    """The cluster at ``--scheduler``."""
    if not options.scheduler:
        yield Finding("Dask", "no --scheduler: a run starts workers of its own", "", "skipped")
        return
    from tasks_lib.preflight.storage import storage_place
    from tasks_lib.preflight.workers import check_cluster

    yield from check_cluster(options.scheduler, storage_place(options.storage, named=options.storage_named))


def check_server(config: ServingConfig | None) -> Iterator[Finding]:
    """The vLLM server at ``--server``: release, routes, name of the model. Nothing of it is changed.

    Raises:
        ConfigError: it is not what a run needs, or the variable of its key is not set.
        EngineError: it does not answer.
    """
    if config is None:
        yield Finding("vLLM server", "no --server: a run starts its own, or needs none", "", "skipped")
        return
    from tasks_lib.processes.serving import read_api_key

    yield Finding("vLLM server", asyncio.run(_ask_server(config.address[0], read_api_key(config))), "", "ok")


async def _ask_server(address: str, key: str) -> str:
    from training.serving.vllm.client import ServerClient

    client = ServerClient(address, api_key=key, ask_seconds=ANSWER_SECONDS)
    try:
        facts = await client.check()
        await client.check_alive(ANSWER_SECONDS)
        version = await client.weight_version()
    finally:
        await client.close()
    serves = "the weights that it was started with" if version is None else f"version {version} of a run"
    return f"{address} is vLLM {facts.release} with {facts.model}, {facts.max_model_len} tokens; it serves {serves}"


def pins(constraints: Path) -> dict[str, str]:
    """The versions that a constraint file fixes, by the package's name."""
    return dict(re.findall(r"^([\w.-]+)==([\w.!-]+)", constraints.read_text(), re.MULTILINE))


def _version(package: str, installed: Callable[[str], str]) -> str:
    try:
        return installed(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
