"""What is given to Docker, Kubernetes and SLURM to read: against Kubernetes' own schemas, against
each other, and as golden files."""

from __future__ import annotations

import json
import os
import re
import shlex
import uuid
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas import FlowRun
from prefect_docker.worker import DockerWorkerJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from envs.types import ConfigError
from flows.train import train
from tasks_lib.commands.command_line import run_command
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, load_preset, merge, parse_assignments, resolve
from tasks_lib.config.cluster_spec import VARIABLE, ClusterSpec, ambient_settings, load_cluster
from tasks_lib.preflight.flows import check_training
from tasks_lib.processes.cluster_start import started
from tasks_lib.processes.kubernetes import manifests
from tasks_lib.processes.slurm import batch_script

CLUSTERS = PROJECT / "deployments" / "clusters"
COMPOSE = yaml.safe_load((PROJECT / "docker" / "compose.yaml").read_text())
DOCKERFILE = (PROJECT / "docker" / "Dockerfile").read_text()
WORKERS = {"docker": DockerWorkerJobConfiguration, "kubernetes": KubernetesWorkerJobConfiguration}
TARGETS = set(re.findall(r"^FROM .* AS (\S+)$", DOCKERFILE, re.MULTILINE))
GIVEN = ["--preset", "quickstart", "--set", "tasks.kinds=[click-test, click-link]", "--set", "serving.dtype=bfloat16"]


def spec(name: str, **changed: Any) -> ClusterSpec:
    found = load_cluster(CLUSTERS / f"{name}.yaml")
    return ClusterSpec.model_validate(found.model_dump() | changed)


def documents(**changed: Any) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifests(spec("kubernetes", **changed), GIVEN)))


@pytest.mark.parametrize("version", ["1.25", "1.36"])
def test_manifests_are_what_kubernetes_takes(version: str) -> None:
    found = documents()
    assert [document["kind"] for document in found] == [
        *("Service", "Deployment") * 2,
        *("Deployment", "Deployment", "Service", "StatefulSet", "Job"),
    ]
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):  # the schemas do object
            kubernetes_validate.validate(document | {"spec": {**document["spec"], "replica": 1}}, version, strict=True)


def test_the_parts_of_the_manifests_find_each_other() -> None:
    found = documents()
    pods = [(each["metadata"]["name"], each["spec"]["template"]) for each in found if "template" in each["spec"]]
    for service in (each for each in found if each["kind"] == "Service"):
        chosen = [pod for _, pod in pods if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
        assert len(chosen) == 1, service
        open_ports = {port["containerPort"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} == open_ports
    for each in found:
        if "selector" in each["spec"] and "template" in each["spec"]:
            assert each["spec"]["selector"]["matchLabels"] == each["spec"]["template"]["metadata"]["labels"]
    containers = {name: pod["spec"]["containers"][0] for name, pod in pods}
    for container in containers.values():
        assert re.fullmatch(r".*/(\w+):cuda", container["image"])[1] in TARGETS  # type: ignore[index]
    services = {each["metadata"]["name"] for each in found if each["kind"] == "Service"}
    named = re.findall(r"(?:tcp|http)://(?:agents-serve-\d\.)?([a-z-]+)", yaml.safe_dump(containers))
    assert named and set(named) <= services
    gpus = {
        name: each.get("resources", {}).get("limits", {}).get("nvidia.com/gpu") for name, each in containers.items()
    }
    assert gpus["agents-train"] == 8 and gpus["agents-serve"] == 1 and gpus["agents-rollout"] is None


def test_the_job_trains_with_the_settings_of_the_spec() -> None:
    (job,) = (each for each in documents() if each["kind"] == "Job")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:3] == ["python", "-m", "flows.train"]
    values = [arguments[place + 1] for place, each in enumerate(arguments) if each == "--set"]
    config = resolve(TrainConfig, {"preset": "quickstart", **parse_assignments(values)})
    found = spec("kubernetes")
    assert (config.root, config.cluster.address, config.trainer.nodes) == (found.storage, found.address, 2)
    assert tuple(config.serving.address) == found.servers() and config.serving.api_key == found.api_key
    assert list(config.tasks.kinds) == ["click-test", "click-link"]


def test_a_prefect_server_of_one_s_own_is_not_started_again() -> None:
    found = documents(prefect="https://prefect.example.org/api")
    assert not [each for each in found if each["metadata"]["name"].endswith("prefect")]
    assert yaml.safe_dump(found).count("https://prefect.example.org/api") == 5


@pytest.mark.parametrize(("name", "suffix"), [("kubernetes", "yaml"), ("slurm", "sbatch")])
def test_renderings_are_the_golden_files(name: str, suffix: str) -> None:
    found = spec(name, project="/opt/rollwright")
    text = {"kubernetes": manifests, "slurm": batch_script}[name](found, GIVEN)
    path = Path(__file__).parent / "renderings" / f"{name}.{suffix}"
    if os.environ.get("ROLLWRIGHT_REWRITE"):
        path.write_text(text)
    assert text == path.read_text(), "look at the difference; ROLLWRIGHT_REWRITE=1 takes it over"


@pytest.mark.parametrize(("name", "first"), [("kubernetes", "---"), ("slurm", "#!/usr/bin/env bash")])
def test_what_a_dry_run_prints_can_be_submitted(
    name: str, first: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_VLLM_KEY", "of-the-servers")
    key = ["--set", "serving.api_key=ROLLWRIGHT_VLLM_KEY"] if name == "slurm" else []
    arguments = [*GIVEN, *key, "--cluster", str(CLUSTERS / f"{name}.yaml"), "--dry-run"]
    assert run_command(train, TrainConfig, check_training, arguments) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == first and "of-the-servers" not in printed
    rest = printed.split("\n# ", 1)[1]
    assert all(line.startswith("# ") for line in rest.splitlines()[1:]), "comments for who reads it"


def test_a_judge_is_served_for_the_run_and_its_key_is_written_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWRIGHT_VLLM_KEY", "of-the-servers")
    judge = {"role": "judge", "model": "/shared/models/judge of facts", "gpus": 2}
    groups = [*(group.model_dump() for group in spec("kubernetes").groups), judge]
    found = spec("kubernetes", groups=groups)
    text = manifests(found, GIVEN)
    named = [each for each in yaml.safe_load_all(text) if each["metadata"]["name"] == "agents-judge"]
    (each,) = (each for each in named if each["kind"] == "Deployment")
    kubernetes_validate.validate(each, "1.36", strict=True)
    words = shlex.split(each["spec"]["template"]["spec"]["containers"][0]["args"][-1])
    assert words[:2] == ["VLLM_API_KEY=${ROLLWRIGHT_VLLM_KEY}", "exec"]
    assert words[3:5] == ["serve", "/shared/models/judge of facts"] and words[-2:] == ["--tensor-parallel-size", "2"]
    assert "of-the-servers" not in text
    config = resolve(TrainConfig, merge(load_preset("quickstart"), found.settings()))
    judged = config.rollout.judge
    assert judged is not None and judged.base_url == "http://agents-judge:8100/v1" and judged.models.default == "judge"
    script = batch_script(spec("slurm", groups=[{"role": "rollout"}, judge], api_key="ROLLWRIGHT_VLLM_KEY"), GIVEN)
    assert "--set rollout.judge.models=judge" in script and "http://${JUDGE_0}:8100/v1" in script
    for wrong, said in (
        (judge | {"count": 2}, "one vLLM server on one machine"),
        (judge | {"model": ""}, "needs its checkpoint"),
    ):
        with pytest.raises(ValueError, match=said):
            spec("kubernetes", groups=[{"role": "rollout"}, wrong])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"claim": ""}, "claim: kubernetes needs"),
        ({"api_key": ""}, "api_key: vLLM servers of other machines need a key"),
    ],
)
def test_a_spec_that_kubernetes_cannot_run_is_refused(change: dict[str, str], said: str) -> None:
    values = load_cluster(CLUSTERS / "kubernetes.yaml").model_dump() | change
    with pytest.raises(ConfigError, match=said):
        resolve(ClusterSpec, values)


def test_kubernetes_is_not_started_by_the_run_itself() -> None:
    with pytest.raises(ConfigError, match="add --dry-run, which prints manifests"), started(spec("kubernetes"), []):
        pass


def test_a_flow_s_process_is_told_its_cluster_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert ambient_settings(TrainConfig) == {}
    monkeypatch.setenv(VARIABLE, "deployments/clusters/compose.yaml")
    found = spec("compose")
    assert ambient_settings(TrainConfig) == found.settings()
    assert ambient_settings(EvaluateConfig) == {"root": "/shared/runs", "cluster": {"address": "tcp://scheduler:8786"}}
    monkeypatch.setenv(VARIABLE, "deployments/clusters/one-machine.yaml")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: .* is started by local"):
        ambient_settings(TrainConfig)
    monkeypatch.setenv(VARIABLE, "nowhere.yaml")
    with pytest.raises(ConfigError, match=f"{VARIABLE}: .*nowhere.yaml cannot be read"):
        ambient_settings(TrainConfig)


def test_compose_names_services_images_and_specs_that_are_there() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        if build := service.get("build"):
            assert build["target"] in TARGETS
            assert service["image"] == f"rollwright/{build['target']}:${{VARIANT:-cpu}}"
        for each in service.get("volumes", []):
            assert each.split(":")[0] in COMPOSE["volumes"]
    for name in ("compose", "compose-vllm"):
        found = spec(name)
        assert found.scheduler in services
        assert {host for group in found.groups for host in group.hosts} <= set(services)
    for service in ("rollout", "trainer", "flows"):
        assert services[service]["environment"][VARIABLE] == "${ROLLWRIGHT_CLUSTER:-deployments/clusters/compose.yaml}"
        assert "ROLLWRIGHT_VLLM_KEY" in services[service]["environment"], "workers ask the servers"
    commands = {name: service["command"] for name, service in services.items() if "command" in service}
    words = commands["vllm"][-1].split()
    assert f"http://vllm:{words[words.index('--port') + 1]}" in spec("compose-vllm").servers()


@pytest.mark.parametrize("kind", ["docker", "kubernetes"])
async def test_prefect_s_workers_make_jobs_of_the_templates(kind: str) -> None:
    assert {path.stem for path in (PROJECT / "deployments" / "work-pools").iterdir()} == {"docker", "kubernetes"}
    template = json.loads((PROJECT / "deployments" / "work-pools" / f"{kind}.json").read_text())
    variables = template["variables"]["properties"]
    places = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert places == set(variables)
    assert {"command", "env", "labels", "name"} <= places, "Prefect fills these itself"
    assert variables["env"]["default"][VARIABLE].startswith("deployments/clusters/")
    assert (PROJECT / variables["env"]["default"][VARIABLE]).exists()
    # Nothing asks the server where it is named here; a deployment's own variables come over the
    # pool's.
    values = {"env": {"DO_NOT_TRACK": "0"}, "image": "another:1"}
    flow_run = FlowRun(id=uuid.uuid4(), name="Run 1", flow_id=uuid.uuid4())
    async with PrefectClient("http://127.0.0.1:9/api") as client:
        configuration = await WORKERS[kind].from_template_and_values(template, values, client=client)
    configuration.prepare_for_flow_run(flow_run)
    if kind == "docker":
        container, environment = configuration.model_dump(), configuration.env
        assert container["volumes"] == ["rollwright_shared:/shared"] and container["networks"] == ["rollwright_default"]
    else:
        pod = configuration.job_manifest["spec"]["template"]["spec"]
        assert (pod.pop("parallelism"), pod.pop("completions")) == (1, 1), "Prefect's worker wants them in this place"
        kubernetes_validate.validate(configuration.job_manifest, "1.36", strict=True)
        [container] = pod["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
    assert container["image"] == "another:1"
    assert environment == environment | variables["env"]["default"] | {"DO_NOT_TRACK": "0"}
    assert environment["PREFECT__FLOW_RUN_ID"] == str(flow_run.id)


def test_helm_values_are_of_the_pinned_prefect_and_find_each_other() -> None:
    server, worker = (
        yaml.safe_load((PROJECT / "deployments" / "helm" / f"{name}.yaml").read_text())
        for name in ("prefect-server", "prefect-worker")
    )
    pinned = re.search(r"^prefect==(\S+)$", (PROJECT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    for image in (server["global"]["prefect"]["image"], worker["worker"]["image"]):
        assert image["prefectTag"].startswith(f"{pinned[1]}-python3.11")
    api = worker["worker"]["selfHostedServerApiConfig"]["apiUrl"]
    assert api in {variable.get("value") for variable in _job_of(spec("kubernetes", prefect=api))["env"]}


def _job_of(found: ClusterSpec) -> dict[str, Any]:
    job = next(each for each in yaml.safe_load_all(manifests(found, GIVEN)) if each["kind"] == "Job")
    container: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]
    return container
