"""Cluster specs: what is refused, what would be started where, and that it is started and ended."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import distributed
import psutil
import pytest
import yaml

from envs.types import ConfigError
from flows.train import train
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import PROJECT, TrainConfig, load_preset, merge, resolve
from tasks_lib.config.cluster_spec import ClusterSpec, load_cluster
from tasks_lib.processes.cluster_start import launches, started
from tasks_lib.processes.dask_clients import connect_client, run_on_workers, workers_offering
from tasks_lib.processes.kubernetes import manifests
from tasks_lib.processes.slurm import batch_script
from training.trainer.control.launch import free_port

SPECS = sorted((PROJECT / "deployments" / "clusters").glob("*.yaml"))
ROLLOUT = {"role": "rollout"}


def spec(**values: object) -> ClusterSpec:
    found: ClusterSpec = resolve(
        ClusterSpec, {"name": "mine", "start": "local", "storage": "/s", "groups": [ROLLOUT], **values}
    )
    return found


def test_a_worker_that_never_answers_holds_no_other_up() -> None:
    """A stand-in for a client, of whose workers one is stopped and one fails."""

    async def run(function: Any, value: int, *, workers: list[str], on_error: str) -> dict[str, Any]:
        assert on_error == "return"
        if workers == ["stopped"]:
            await asyncio.sleep(5)
        if workers == ["fails"]:
            raise OSError("gone")
        return {workers[0]: function(value)}

    client = cast(distributed.Client, SimpleNamespace(run=run, sync=lambda ask: asyncio.run(ask())))
    found = run_on_workers(client, str, 7, workers=["stopped", "fails", "well"], seconds=0.2)
    assert found["well"] == "7" and isinstance(found["fails"], OSError)
    assert isinstance(found["stopped"], TimeoutError) and str(found["stopped"]) == "no answer in 0.2 s"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_shipped_specs_give_valid_runs(path: Path) -> None:
    found = load_cluster(path)
    key = {"serving": {"api_key": "KEY"}} if found.group("serve") else {}
    config = resolve(TrainConfig, merge(load_preset("quickstart"), merge(found.settings(), key)))
    assert config.cluster.address == found.address and config.root == found.storage
    train = found.group("train")
    assert train is not None and config.trainer.nodes == train.size
    assert config.trainer.processes == train.size * train.processes


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"groups": [{"role": "train"}]}, "none has the role rollout"),
        ({"groups": [ROLLOUT, ROLLOUT]}, "more than one has the role rollout"),
        ({"start": "ssh"}, "scheduler: a cluster that is started by ssh needs its host"),
        ({"start": "ssh", "scheduler": "a"}, "rollout names no hosts, which ssh needs"),
        ({"groups": [{**ROLLOUT, "hosts": ["a"]}]}, "rollout names hosts, but local chooses machines"),
        ({"start": "shh"}, "start"),
        ({"groups": [{**ROLLOUT, "cpu": 4}]}, "cpu"),
        ({"name": "Two Words"}, "name"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec(**change)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    for content, said in (
        (None, "cannot be read"),
        ("a: [", "is no YAML"),
        ("- 1", "is no cluster spec"),
        ("name: x", "x.yaml is not valid"),
    ):
        path = tmp_path / "x.yaml"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigError, match=f"--cluster: .*x.yaml.*{said.removeprefix('x.yaml ')}"):
            load_cluster(path)


def test_what_is_set_overrules_the_spec() -> None:
    seen: list[TrainConfig] = []

    def check(config: TrainConfig) -> list[str]:
        seen.append(config)
        return []

    arguments = ["--preset", "quickstart", "--cluster", str(PROJECT / "deployments/clusters/one-machine.yaml")]
    for more in ([], ["--set", "root=/elsewhere"]):
        assert run_command(train, TrainConfig, check, [*arguments, *more, "--dry-run"]) == 0
    assert [config.root for config in seen] == [load_cluster(Path(arguments[-1])).storage, "/elsewhere"]
    assert seen[0].cluster == seen[1].cluster


def test_each_machine_gets_its_processes() -> None:
    found = load_cluster(PROJECT / "deployments" / "clusters" / "ssh.yaml")
    started_ = {launch.name: launch for launch in launches(found, ["--preset", "quickstart"])}
    roles = [name.partition("-")[0] for name in started_]
    assert {role: roles.count(role) for role in roles} == {"scheduler": 1, "rollout": 8, "train": 1, "serve": 8}
    assert started_["rollout-1-3"].host == "10.0.0.2" and started_["train-0"].host == "10.0.0.3"
    assert "--resources trainer=1" in " ".join(started_["train-0"].command)
    last = " ".join(started_["serve-0-7"].command)
    assert "--preset quickstart" in last and "serving.gpus=[[7]]" in last and last.endswith("--port 8007")
    assert found.servers()[-1] == "http://10.0.0.4:8007"


def offers(command: str) -> list[tuple[str, int, int]]:
    """Resource, units and threads of each ``dask worker`` in a text."""
    found = re.findall(r"dask worker[^\n]*?--nthreads (\d+)[^\n]*?--resources (\w+)=(\d+)", command)
    return sorted({(resource, int(units), int(threads)) for threads, resource, units in found})


def test_the_workers_of_every_launcher_offer_a_unit_for_each_place() -> None:
    """As many as ``rollout.concurrency``, and a thread more."""
    groups: list[object] = [ROLLOUT, {"role": "evaluate"}, {"role": "train"}]
    wanted = [("browser", 24, 25), ("evaluation", 24, 25), ("trainer", 1, 2)]
    hosts = [{**cast(dict[str, object], group), "hosts": ["h"]} for group in groups]
    processes = launches(spec(start="ssh", scheduler="h", groups=hosts), places=24)
    texts = {
        "ssh": "\n".join(" ".join(launch.command) for launch in processes),
        "local": "\n".join(" ".join(launch.command) for launch in launches(spec(groups=groups), places=24)),
        "slurm": batch_script(spec(start="slurm", groups=groups), [], places=24),
    }
    pods = yaml.safe_load_all(manifests(spec(start="kubernetes", claim="c", groups=groups), [], places=24))
    containers = [pod["spec"]["template"]["spec"]["containers"][0] for pod in pods if "template" in pod["spec"]]
    texts["kubernetes"] = "\n".join(" ".join(container["args"]) for container in containers)
    assert {name: offers(text) for name, text in texts.items()} == dict.fromkeys(texts, wanted)
    docker = (PROJECT / "docker" / "Dockerfile").read_text()
    assert re.search(r"browser=\$ROLLOUT_PLACES ", docker) and "--nthreads $((ROLLOUT_PLACES + 1))" in docker
    quickstart = resolve(TrainConfig, {"preset": "quickstart"}).rollout.concurrency
    assert f"ENV ROLLOUT_PLACES={quickstart}\n" in docker
    assert offers((PROJECT / "docs" / "scaling.md").read_text()) == [("browser", quickstart, quickstart + 1)]


def test_a_run_s_own_concurrency_is_what_its_workers_offer(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PROJECT / "deployments/clusters/one-machine.yaml")
    given = ["--preset", "quickstart", "--cluster", path, "--set", "rollout.concurrency=7", "--dry-run"]
    assert run_command(train, TrainConfig, lambda config: [], given) == 0
    assert ("browser", 7, 8) in offers(capsys.readouterr().out)


FAKE_SSH = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done
echo "$1" >> "$FAKE_HOSTS"
exec bash -c "$2"
"""


def _offers(process: psutil.Process, resource: str) -> bool:
    """Whether it is a ``dask worker`` with this resource, and not the shell or a process of the
    worker."""
    words = process.cmdline()
    return resource in words and "bash" not in words[0] and "ssh" not in words[0]


@pytest.mark.slow
@pytest.mark.dask
def test_machines_by_ssh_join_and_end_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text(FAKE_SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOSTS", str(tmp_path / "hosts"))
    here = ["127.0.0.1"]
    groups = [{**ROLLOUT, "hosts": here}, {"role": "train", "hosts": here}]
    found = spec(start="ssh", storage=str(tmp_path), scheduler="127.0.0.1", port=free_port(), groups=groups)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with started(found, launches(found, places=3)), connect_client(found.address) as client:
        assert [len(workers_offering(client, resource)) for resource in ("browser", "trainer")] == [1, 1]
        assert (tmp_path / "hosts").read_text().split() == ["127.0.0.1"] * 3
        first = set(workers_offering(client, "browser"))

        def meet(number: int) -> bool:  # inside, so that it is sent by value
            distributed.Event(f"place-{number}").set()
            return all(distributed.Event(f"place-{other}").wait(60) for other in range(3))

        playing = client.map(meet, range(3), resources={"browser": 1}, pure=False)
        assert client.gather(playing, direct=False) == [True] * 3, "all places are in use at once"
        running = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
        offering = [process for process in running if _offers(process, "browser=3")]
        nanny = min(offering, key=psutil.Process.create_time)  # a process that it has just forked looks the same
        for each in (*nanny.children(recursive=True), nanny):
            each.kill()
        deadline = time.monotonic() + 120
        while not set(workers_offering(client, "browser")) - first:
            assert time.monotonic() < deadline, "a process that ends is started again"
            time.sleep(0.2)
    left = {process.pid for process in psutil.Process().children(recursive=True)} - before
    assert not left, "what was started ends with the run"


@pytest.mark.slow
def test_a_process_that_ends_is_named_with_what_it_said(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = spec(storage=str(tmp_path), port=taken.getsockname()[1])
        with (
            pytest.raises(ConfigError, match=r"--cluster: scheduler of mine ended with status 1: .*failed to start"),
            started(found, launches(found)),
        ):
            pass


FAKES = {
    "scontrol": 'for n in 0 1; do echo "$3-$n"; done',
    "srun": 'echo "$@" >> "$CALLS"; exec sleep 5 > /dev/null',
    "curl": "exit 0",
}


def test_slurm_s_script_starts_each_machine_s_processes_and_the_run(tmp_path: Path) -> None:
    found = load_cluster(PROJECT / "deployments" / "clusters" / "slurm.yaml")
    found = found.model_copy(update={"account": "physics", "partition": "gpu", "hours": 5})
    script = batch_script(found, ["--set", "tasks.kinds=[click-test, click-link]", "--help"])
    for given in ("--account=physics", "--partition=gpu", "--time=5:00:00"):
        assert script.count(f"#SBATCH {given}\n") == 3, "of each component"
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    lists = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": f"g{number}" for number in range(3)}
    environment = {
        **os.environ,
        **lists,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "PREFECT_API_URL": "x",
    }
    done = subprocess.run(
        ["bash"], input=script, capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert done.returncode == 0 and "usage: python -m flows.train" in done.stdout, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1 + 2 * 8 + 2 + 8
    (second,) = (call for call in calls if "--name train-1 " in call)
    assert "--het-group=1 --nodes=1 --ntasks=1 --nodelist=g1-1 env " in second and " --host g1-1 " in second
    assert "tcp://$" not in second and "tasks.kinds=[click-test, click-link]" in next(
        each for each in calls if "flows.serve" in each
    )
    assert script.count("#SBATCH hetjob") == 2 and "#SBATCH --gpus-per-node=8" in script
    assert sys.executable.rsplit("/", 1)[0] in second


def test_slurm_is_not_started_by_the_run_itself() -> None:
    found = load_cluster(PROJECT / "deployments" / "clusters" / "slurm.yaml")
    with pytest.raises(ConfigError, match="add --dry-run, which prints a batch script"), started(found, []):
        pass
