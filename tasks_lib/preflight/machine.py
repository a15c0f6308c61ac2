"""Checks a machine before a run: browser, environments, storage, Prefect, ports and GPUs.

A Dask cluster and a vLLM server are checked too if they are named.

Every check is a function that yields findings. An exception of a check is a fault. A check that
hangs is left at its deadline, and the others go on. Modules that take seconds to import are
imported by the check that needs them.
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
from training.ledger.seal import describe_first_error
from training.serving.config import ServingConfig

PROJECT = Path(__file__).parents[2]
PACKAGES = ("torch", "transformers", "llamafactory", "deepspeed", "prefect", "distributed")
"""Packages of ``.venv`` whose versions are compared with the pinned ones."""
SECONDS = 60.0
"""Deadline of a check in seconds."""
CLUSTER_SECONDS = 180.0
TIDY_SECONDS = 5.0
"""Seconds that a check may take after Ctrl-C to remove its files."""
ANSWER_SECONDS = 10.0
"""Seconds that a vLLM server's engine may take to answer."""
SETUP = "run `make setup`"
REPORT = "if the reason does not say what to do, report it with this line"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOptions:
    """Parts to check beside the machine itself."""

    storage: Path = Path("runs")
    storage_named: bool = False
    """True if the user named the storage, so that it must exist."""
    scheduler: str = ""
    """Address of a Dask scheduler; empty: none."""
    serving: ServingConfig | None = None
    """Address of a vLLM server and the variable of its key (`server_config`); ``None``: none."""


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One check with its deadline."""

    name: str
    run: Callable[[], Iterable[Finding]]
    todo: str = REPORT
    """Advice for an exception that has none itself."""
    seconds: float | None = SECONDS
    """Deadline in seconds.

    ``None``: the check has a deadline of its own, and runs in the main thread, where Ctrl-C ends
    the processes that it started.
    """
    slow_is_fault: bool = True
    """True if a check that misses its deadline is a fault.

    False for checks that only read files, which a busy machine delays.
    """


def server_config(address: str, api_key: str) -> ServingConfig:
    """Return the part of a run's configuration that names the user's own server.

    Args:
        address: Address of the server.
        api_key: Name of the environment variable that holds the server's key; empty: none.

    Raises:
        ConfigError: the address is not valid.
    """
    try:
        return ServingConfig.model_validate({"engine": "vllm", "address": [address], "api_key": api_key})
    except ValidationError as error:
        raise ConfigError(f"--server: {describe_first_error(error)}") from None


def machine_checks(options: MachineOptions) -> list[MachineCheck]:
    """Return all checks, in the order in which they run."""
    storage = partial(check_storage, options.storage, named=options.storage_named)
    return [
        MachineCheck("Chromium", check_chromium, "run `make setup`, or set ROLLWRIGHT_CHROMIUM to an executable", None),
        MachineCheck("training environment", check_training_environment, SETUP, slow_is_fault=False),
        MachineCheck("serving environment", check_serving_environment, "run `make vllm`", slow_is_fault=False),
        MachineCheck("GPUs", check_gpus, "reinstall the driver or torch; without them training runs on the CPU"),
        MachineCheck("storage", storage, "see that its file system is mounted and answers (ls, dmesg)"),
        MachineCheck("Prefect", check_prefect, "correct PREFECT_API_URL, or unset it"),
        MachineCheck("ports", check_ports, "let this user listen on 127.0.0.1"),
        MachineCheck(
            "Dask", partial(check_dask, options), "see that the scheduler and its workers answer", CLUSTER_SECONDS
        ),
        MachineCheck("vLLM server", partial(check_server, options.serving), "start it as docs/serving.md says"),
    ]


def examine_machine(options: MachineOptions) -> Iterator[Finding]:
    """Run all checks and yield the findings."""
    for check in machine_checks(options):
        yield from run_check(check)


def run_check(check: MachineCheck) -> list[Finding]:
    """Return the findings of one check, with a fault for its exception or a missed deadline."""
    if check.seconds is None:
        return list(guarded(check.name, check.run, check.todo))
    findings: list[Finding] = []
    # Not ``join``: Python 3.11 takes a thread for ended when Ctrl-C interrupts it.
    over = threading.Event()

    def work() -> None:
        try:
            for finding in guarded(check.name, check.run, check.todo):
                findings.append(finding)  # one by one, because those before the deadline count
        finally:
            over.set()

    # A daemon, because a thread that hangs must not keep the process from ending. The context has
    # Prefect's settings.
    thread = threading.Thread(target=copy_context().run, args=(work,), name=check.name, daemon=True)
    try:
        thread.start()  # the check may begin before this returns
        in_time = over.wait(check.seconds)
    except KeyboardInterrupt:
        over.wait(TIDY_SECONDS)
        raise
    if not in_time:
        if not check.slow_is_fault:
            busy = f"could not be looked at within {check.seconds:g} s"
            return [*findings, Finding(check.name, busy, "look again when the machine is less busy", "skipped")]
        return [*findings, Finding(check.name, f"did not end within {check.seconds:g} s", check.todo)]
    return findings


def check_training_environment(
    constraints: Path = PROJECT / "constraints.txt", installed: Callable[[str], str] = importlib.metadata.version
) -> Iterator[Finding]:
    """MachineCheck that this Python has the pinned packages; it runs flows, workers and the
    trainer."""
    name, pinned = "training environment", pins(constraints)
    packages = {package: _version(package, installed) for package in PACKAGES}
    wrong = [
        f"{package} {version or 'is missing'} where {pinned[package]} is pinned"
        for package, version in packages.items()
        # A build's local version (2.13.0+cpu) is this machine's own choice.
        if package in pinned and version.partition("+")[0] != pinned[package]
    ]
    if wrong:
        yield Finding(name, f"{sys.prefix}: {', '.join(wrong)}", f"{SETUP}, and use .venv/bin/python")
        return
    versions = ", ".join(f"{package} {version}" for package, version in packages.items())
    yield Finding(name, f"Python {platform.python_version()} at {sys.prefix}: {versions}", "", "ok")


def check_serving_environment(python: Path | None = None, constraints: Path = PROJECT) -> Iterator[Finding]:
    """MachineCheck the environment of vLLM, if there is one.

    Args:
        python: Python of that environment; ``None``: where ``make vllm`` makes it.
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
    """MachineCheck the GPUs that torch can use.

    Args:
        devices: Folder of the device files.
        torch_version: Version of the installed torch; ``None``: it is looked up.
    """
    count = len(list(devices.glob("nvidia[0-9]*")))
    version = torch_version or _version("torch", importlib.metadata.version)
    if version.endswith("+cpu"):
        what = f"{count or 'no'} CUDA device{'s' * (count > 1)}, and torch {version} is a build for the CPU"
        todo = "install a CUDA build: `make setup` without UV_FIND_LINKS and PIP_FIND_LINKS" if count else ""
        yield Finding("GPUs", what, todo, "note")
        return
    import torch  # takes seconds

    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        reason = "; ".join(" ".join(str(warning.message).split()) for warning in messages)
        if count:
            todo = f"install a driver that knows CUDA {torch.version.cuda}, or let this user open the devices"
            yield Finding("GPUs", f"{count} CUDA devices, and torch can use none ({reason or 'no reason given'})", todo)
        else:
            yield Finding("GPUs", "no CUDA device: training runs on the CPU", "", "note")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        torch.ones(8, device=f"cuda:{index}").sum().item()  # the build has kernels for it
        yield Finding("GPUs", f"cuda:{index} {properties.name}, {properties.total_memory / 2**30:.0f} GiB", "", "ok")


def check_prefect() -> Iterator[Finding]:
    """MachineCheck the API that a run would use.

    Raises:
        ConfigError: the API cannot be used, or a run's own server has no place for its database.
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
    """MachineCheck that a port of the loopback interface can be listened on and connected to.

    The configuration fixes no port.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_SECONDS)
        with socket.create_connection(server.getsockname()[:2], ANSWER_SECONDS), server.accept()[0]:
            pass
    yield Finding("ports", "127.0.0.1 can be listened on and reached; a run takes free ports, none is fixed", "", "ok")


def check_dask(options: MachineOptions) -> Iterator[Finding]:
    """MachineCheck the cluster at ``--scheduler``."""
    if not options.scheduler:
        yield Finding("Dask", "no --scheduler: a run starts workers of its own", "", "skipped")
        return
    from tasks_lib.preflight.storage import storage_place
    from tasks_lib.preflight.workers import check_cluster

    yield from check_cluster(options.scheduler, storage_place(options.storage, named=options.storage_named))


def check_server(config: ServingConfig | None) -> Iterator[Finding]:
    """MachineCheck the vLLM server at ``--server``: release, routes, name of the model. Changes
    nothing.

    Raises:
        ConfigError: a run cannot use the server, or the variable of its key is not set.
        EngineError: the server does not answer.
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
    """Return the versions that a constraint file pins, by the package's name."""
    return dict(re.findall(r"^([\w.-]+)==([\w.!-]+)", constraints.read_text(), re.MULTILINE))


def _version(package: str, installed: Callable[[str], str]) -> str:
    try:
        return installed(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
