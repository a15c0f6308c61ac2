"""NeMo-Gym's rollout collection, with its simple agent and model server.

Run by the Python of ``.venv-frameworks/nemo_gym``. All servers run in this process; NeMo-Gym's own
command starts a process for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

HOST = "127.0.0.1"
SERVERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "rollwright": ("resources_servers", "rollwright", {"domain": "agent", "max_sessions": 4}),
    "agent": (
        "responses_api_agents",
        "simple_agent",
        {
            "max_steps": 8,
            "resources_server": {"type": "resources_servers", "name": "rollwright"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        },
    ),
    "model": ("responses_api_models", "openai_model", {"openai_api_key": "none", "openai_model": "policy"}),
    "relay": (
        "environment_servers",
        "legacy_agent",
        {"agent_server": {"type": "responses_api_agents", "name": "agent"}},
    ),
}
"""Kind, type and options of each server, as in a configuration of NeMo-Gym."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def configure(model: str) -> dict[str, dict[str, Any]]:
    """Give NeMo-Gym its configuration, as its command gives it to the servers that it starts; the
    options of each server."""
    options = {
        name: {**given, "host": HOST, "port": free_port(), "entrypoint": "app.py"}
        for name, (_, _, given) in SERVERS.items()
    }
    options["model"] |= {"openai_base_url": model, "openai_default_headers": {}}
    whole: dict[str, Any] = {name: {kind: {of: options[name]}} for name, (kind, of, _) in SERVERS.items()}
    whole["head_server"] = {"host": HOST, "port": free_port()}
    os.environ["NEMO_GYM_CONFIG_DICT"] = OmegaConf.to_yaml(OmegaConf.create(whole))
    return options


async def collect(model: str, tasks: list[tuple[str, int | None]], folder: str) -> None:
    """Collect two rollouts of each task and seed.

    Args:
        model: Address of an endpoint.
        folder: Folder of ``rows.jsonl`` and of what NeMo-Gym writes.
    """
    options = configure(model)
    import uvicorn
    from environment_servers.legacy_agent.app import LegacyAgentEnvironmentServer, LegacyAgentEnvironmentServerConfig
    from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
    from nemo_gym.server_utils import HeadServer, ServerClient
    from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig
    from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig

    from envs.adapters.nemo_gym import WebResourcesServer, dataset_rows
    from envs.adapters.nemo_gym_types import WebResourcesServerConfig

    rows = [row for task, seed in tasks for row in dataset_rows([task], [seed])]
    Path(folder, "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    HeadServer.run_webserver()
    kinds = {
        "rollwright": (WebResourcesServer, WebResourcesServerConfig),
        "agent": (SimpleAgent, SimpleAgentConfig),
        "model": (SimpleModelServer, SimpleModelServerConfig),
        "relay": (LegacyAgentEnvironmentServer, LegacyAgentEnvironmentServerConfig),
    }
    running = []
    for name, (server, config) in kinds.items():
        made = server(config=config(name=name, **options[name]), server_client=ServerClient.load_from_global_config())
        of = uvicorn.Config(made.setup_webserver(), host=HOST, port=options[name]["port"], log_level="warning")
        running.append(uvicorn.Server(of))
    serving = [asyncio.create_task(server.serve()) for server in running]
    while not all(server.started for server in running):
        await asyncio.sleep(0.02)
    paths = {"input_jsonl_fpath": f"{folder}/rows.jsonl", "output_jsonl_fpath": f"{folder}/out.jsonl"}
    await RolloutCollectionHelper().run_from_config(RolloutCollectionConfig(agent_name="agent", num_repeats=2, **paths))
    for server in running:
        server.should_exit = True
    await asyncio.gather(*serving)


def main(model: str, tasks: str, folder: str) -> None:
    """Collect, and end this process."""
    asyncio.run(collect(model, json.loads(tasks), folder))
    print("null", flush=True)
    os._exit(0)  # NeMo-Gym's head server has no end
