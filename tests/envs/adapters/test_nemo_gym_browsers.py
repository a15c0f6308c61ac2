"""NeMo-Gym's ``interactive_browser`` server, with its remote-CDP backend, takes browsers from our
environment server."""

from __future__ import annotations

import asyncio
import json

import pytest

from envs import EnvHost
from envs.server import ClientRules
from envs.server.devtools import DevToolsFront
from envs.supply import DevToolsSupply
from tests.envs.server.serving import listening, served

from .own_environment import run_in
from .reference import CANARY

pytestmark = pytest.mark.frameworks

PLAY = """
import json, os, sys
from unittest.mock import MagicMock
from fastapi.testclient import TestClient
from nemo_gym.server_utils import ServerClient
from resources_servers.interactive_browser.app import InteractiveBrowserConfig, InteractiveBrowserResourcesServer
from resources_servers.interactive_browser.browser import register_session_provider
from envs.adapters.nemo_gym_browsers import SessionBrowsers

given = json.loads(sys.argv[1])
register_session_provider("rollwright", SessionBrowsers)
PARAMS = {"input": "x", "model": "m"}
RESPONSE = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [],
            "parallel_tool_calls": False, "tool_choice": "auto", "tools": []}

def server_of(provider):
    config = InteractiveBrowserConfig(host="127.0.0.1", port=1, entrypoint="", name="web",
                                      backend={"remote_cdp": {"session_provider": provider}})
    return InteractiveBrowserResourcesServer(config=config, server_client=MagicMock(spec=ServerClient)).setup_webserver()

def seeded(client, wanted):
    body = {"initial_url": given["page"], "verifier_metadata": {"dom_contains": wanted}}
    answer = client.post("/seed_session", json=body)
    assert answer.status_code == 200, answer.text

def verified(client):
    answer = client.post("/verify", json={"responses_create_params": PARAMS, "response": RESPONSE})
    assert answer.status_code == 200, answer.text
    return {name: answer.json().get(name) for name in ("reward", "failure_reason")}

def call(client, tool, **arguments):
    return client.post(f"/browser_{tool}", json=arguments).json()

out = {}
app = server_of({"rollwright": {"address": given["address"], "task": given["task"]}})
with TestClient(app) as first, TestClient(app) as second:
    seeded(first, "found: k=cookie")
    out["first"] = call(first, "observe")["observation"]
    call(first, "click", element_id=0)
    out["written"] = call(first, "navigate", url=given["page"])["observation"]
    seeded(second, "found: k=cookie")  # while the first one is open
    out["second"] = call(second, "observe")["observation"]
    out["outside"] = call(second, "navigate", url="http://127.0.0.1:9/")["error"]
    out["verified"] = [verified(first), verified(second)]
    seeded(first, "found: k=cookie")  # the next rollout of the same client
    out["again"] = call(first, "observe")["observation"]
    os.kill(given["chromium"], 9)
    out["killed"] = verified(first)
print(json.dumps(out))
"""


async def test_rollouts_take_browsers_of_their_own_and_give_them_back() -> None:
    async with (
        EnvHost(max_sessions=2) as host,
        DevToolsSupply(host) as supply,
        served(host, rules=ClientRules(allow_code=True), fronts=[DevToolsFront(supply).routes]) as server,
        listening(server) as address,
    ):
        async with host.open(CANARY) as env:
            page = (await env.reset()).observation.url
        given = {"address": address, "page": page, "chromium": host.pool.browser_pids()[0]}
        task = CANARY.model_dump(mode="json", exclude_defaults=True)
        out = await asyncio.to_thread(run_in, "nemo_gym", PLAY, json.dumps({**given, "task": task}))
        assert len(server.table) == 0 and not supply.leases, "every session was given back"
    assert "found: nothing" in out["first"] and "found: k=cookie,local,session,name" in out["written"]
    assert "found: nothing" in out["second"] and "found: nothing" in out["again"]
    assert "navigate failed" in out["outside"] and "may not be opened" in out["outside"]
    assert out["verified"] == [{"reward": 1.0, "failure_reason": None}, {"reward": 0.0, "failure_reason": None}]
    assert out["killed"]["failure_reason"], "a lost browser is no failure of the policy"
