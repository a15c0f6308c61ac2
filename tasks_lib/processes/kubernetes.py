"""Writes the Kubernetes manifests of a cluster spec: services, and the Job that trains.

They are plain Deployments, StatefulSets and Services: no operator needs to be installed. Kinds and
fields are those of Kubernetes 1.25 and later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from tasks_lib.config.cluster_spec import JUDGE_PORT, SERVE_PORT, ClusterSpec, NodeGroup, run_settings
from tasks_lib.processes.cluster_start import RESOURCES, judge_command
from tasks_lib.processes.dask_clients import worker_options

Manifest = dict[str, Any]

HEALTH_PORT = 8790
"""Port of a Dask process's health page, which says whether its event loop still turns."""
PREFECT_PORT = 4200
UID = 1000
"""User of the images (docker/Dockerfile)."""
RUN_RESTARTS = 20
"""Retries of the run's Job, after which Kubernetes gives it up."""


def manifests(spec: ClusterSpec, arguments: Sequence[str], places: int = 1) -> str:
    """Return the manifests for ``kubectl apply``, one YAML document each.

    Args:
        arguments: ``--preset`` and ``--set`` of the run.
        places: Episodes that a worker plays at once (``rollout.concurrency`` of the run).
    """
    pods = _Pods(spec)
    documents = pods.prefect() if not spec.prefect else []
    documents += pods.scheduler() + pods.workers(places) + pods.servers(arguments) + pods.judge()
    run = ["python", "-m", "flows.train", *arguments, *run_settings(spec)]
    documents.append(pods.job("run", "orchestrator", run))
    return yaml.dump_all(documents, Dumper=_WithoutReferences, sort_keys=False, explicit_start=True)


class _WithoutReferences(yaml.SafeDumper):
    """Writes labels out in each place, without YAML references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Pods:
    """Builds the manifests of one spec; all names begin with the spec's."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.environment = [
            {"name": "PREFECT_API_URL", "value": spec.prefect or f"http://{spec.name}-prefect:{PREFECT_PORT}/api"}
        ]

    def prefect(self) -> list[Manifest]:
        """Return a Prefect server with its database in the pod.

        A restart forgets the history, which no run needs.
        """
        command = ["prefect", "server", "start", "--host", "0.0.0.0"]
        probes = _probes(PREFECT_PORT, "/api/health")
        return [
            self._service("prefect", PREFECT_PORT),
            self._workload(
                "Deployment", "prefect", "orchestrator", command, 1, {"ports": _ports(PREFECT_PORT), **probes}
            ),
        ]

    def scheduler(self) -> list[Manifest]:
        command = ["dask", "scheduler", "--port", str(self.spec.port), "--dashboard-address", f":{HEALTH_PORT}"]
        container_fields = {"ports": _ports(self.spec.port), **_probes(HEALTH_PORT, "/health")}
        return [
            self._service("scheduler", self.spec.port),
            self._workload("Deployment", "scheduler", "orchestrator", command, 1, container_fields),
        ]

    def workers(self, places: int) -> list[Manifest]:
        """Return the Dask workers: one pod for each process that plays, one for each training
        machine."""
        workers = []
        for role, resource in RESOURCES.items():
            group = self.spec.group(role)
            if group is None:
                continue
            image, share, units = ("trainer", 1, 1) if role == "train" else ("rollout", group.processes, places)
            command = ["dask", "worker", self.spec.address, "--dashboard-address", f":{HEALTH_PORT}"]
            command += worker_options(resource, units)
            container_fields = {"resources": _resources(group, share), **_probes(HEALTH_PORT, "/health")}
            workers.append(self._workload("Deployment", role, image, command, group.size * share, container_fields))
        return workers

    def servers(self, arguments: Sequence[str]) -> list[Manifest]:
        """Return the vLLM servers.

        Each has its own name, because requests and weights go to one of them.
        """
        group = self.spec.group("serve")
        if group is None:
            return []
        storage = self.spec.storage
        settings = [f"root={storage}", f"serving.media_root={storage}", "serving.host=$(POD_IP)"]
        settings.append(f"serving.api_key={self.spec.api_key}")
        share = group.gpus // group.processes
        settings += (
            [f"serving.gpus=[{list(range(share))}]".replace(" ", ""), f"serving.tensor_parallel={share}"]
            if share
            else []
        )
        command = [
            "python",
            "-m",
            "flows.serve",
            *arguments,
            *(part for setting in settings for part in ("--set", setting)),
        ]
        command += ["--port", str(SERVE_PORT)]
        container_fields = {
            "ports": _ports(SERVE_PORT),
            "resources": _resources(group, group.processes),
            **_probes(SERVE_PORT, "/health", start_minutes=30),
        }
        servers = self._workload(
            "StatefulSet", "serve", "vllm", command, group.size * group.processes, container_fields
        )
        servers["spec"]["serviceName"] = f"{self.spec.name}-serve"
        servers["spec"]["podManagementPolicy"] = "Parallel"
        return [self._service("serve", SERVE_PORT, headless=True), servers]

    def judge(self) -> list[Manifest]:
        """Return the judge's vLLM server."""
        group = self.spec.group("judge")
        if group is None:
            return []
        command = judge_command(self.spec, "0.0.0.0", "/opt/rollwright/.venv-vllm/bin")
        container_fields = {
            "ports": _ports(JUDGE_PORT),
            "resources": _resources(group, 1),
            **_probes(JUDGE_PORT, "/health", start_minutes=30),
        }
        return [
            self._service("judge", JUDGE_PORT),
            self._workload("Deployment", "judge", "vllm", command, 1, container_fields),
        ]

    def job(self, role: str, image: str, command: Sequence[str]) -> Manifest:
        """Return a Job.

        Its pod is started again until workers and servers are there, and where it was lost; then
        the run goes on.
        """
        pod = self._pod(role, image, command, {})
        pod["spec"]["restartPolicy"] = "OnFailure"
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(role),
            "spec": {"backoffLimit": RUN_RESTARTS, "template": pod},
        }

    def _workload(
        self, kind: str, role: str, image: str, command: Sequence[str], replicas: int, container_fields: Manifest
    ) -> Manifest:
        metadata = self._metadata(role)
        return {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": metadata,
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": metadata["labels"]},
                "template": self._pod(role, image, command, container_fields),
            },
        }

    def _pod(self, role: str, image: str, command: Sequence[str], container_fields: Manifest) -> Manifest:
        environment: list[Manifest] = [*self.environment]
        if self.spec.api_key and role != "prefect":
            secret = {"name": f"{self.spec.name}-serving", "key": "api-key"}
            environment.append({"name": self.spec.api_key, "valueFrom": {"secretKeyRef": secret}})
        if role == "serve":
            environment.append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
        container = {
            "name": role,
            "image": self.spec.images.format(target=image),
            "args": list(command),
            "env": environment,
            "volumeMounts": [
                {"name": "storage", "mountPath": self.spec.storage},
                {"name": "memory", "mountPath": "/dev/shm"},  # for Chromium, gloo and NCCL
            ],
            **container_fields,
        }
        return {
            "metadata": {"labels": self._metadata(role)["labels"]},
            "spec": {
                "securityContext": {"runAsNonRoot": True, "runAsUser": UID, "fsGroup": UID},
                "containers": [container],
                "volumes": [
                    {"name": "storage", "persistentVolumeClaim": {"claimName": self.spec.claim}},
                    {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
                ],
            },
        }

    def _service(self, role: str, port: int, *, headless: bool = False) -> Manifest:
        metadata = self._metadata(role)
        ports = [{"name": "main", "port": port, "targetPort": port}]
        spec: Manifest = {"selector": metadata["labels"], "ports": ports}
        if headless:
            # Servers that are not ready yet need names too: the run waits for them.
            spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    def _metadata(self, role: str) -> Manifest:
        labels = {"app.kubernetes.io/name": "rollwright", "app.kubernetes.io/instance": self.spec.name}
        return {"name": f"{self.spec.name}-{role}", "labels": {**labels, "app.kubernetes.io/component": role}}


def _ports(port: int) -> list[Manifest]:
    return [{"containerPort": port}]


def _resources(group: NodeGroup, share: int) -> Manifest:
    """Return the resource requests of one of the processes that share a machine."""
    requests: Manifest = {"cpu": f"{1000 * group.cpus // share}m", "memory": f"{1024 * group.memory_gb // share}Mi"}
    if gpus := group.gpus // share:
        requests["nvidia.com/gpu"] = gpus
    return {"requests": requests, "limits": {key: requests[key] for key in requests if key != "cpu"}}


def _probes(port: int, path: str, start_minutes: int = 5) -> Manifest:
    get = {"httpGet": {"path": path, "port": port}, "timeoutSeconds": 8, "periodSeconds": 10}
    return {
        "startupProbe": {**get, "failureThreshold": 6 * start_minutes},
        "livenessProbe": {**get, "failureThreshold": 6},
        "readinessProbe": get,
    }
