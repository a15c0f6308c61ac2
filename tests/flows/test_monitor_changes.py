"""The two requests of the monitor that change a flow run, against a real Prefect server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

from envs.browser import find_chromium
from flows.promote import promote
from tasks_lib.config import PROJECT
from tasks_lib.config.parameters import parameters_of
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.folder.checkpoints import publish_base
from tasks_lib.processes import approval
from tasks_lib.processes.prefect_run import FOLDER_LABEL
from training.ledger.aliases import read_alias
from training.ledger.store import RunStore

from .services import PrefectServer, Services
from .test_approvals import FlowThread, paused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("prefect_api")]

TOKEN = "a-token-of-24-characters"


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """The folder of a run with one version."""
    store = RunStore(tmp_path / "runs" / "asked")
    publish_base(store, PROJECT / "datasets" / "policies" / "reader")
    (store.root / "config.json").write_text("{}")
    return store


@pytest.fixture
def address(server: PrefectServer, store: RunStore, tmp_path: Path) -> Iterator[str]:
    """Address of the monitor of that run, a process of its own that knows the server."""
    (tmp_path / "token").write_text(TOKEN)
    services = Services(tmp_path)
    command = ("python", "-m", "flows.monitor", "--run", str(store.root), "--port", "0")
    try:
        services.start("monitor", *command, "--token-file", str(tmp_path / "token"), environment=server.environment)
        services.wait_until("monitor", lambda: "shows" in services.log("monitor"))
        (begun,) = re.findall(r"(http://\S+) shows", services.log("monitor"))
        yield begun
    finally:
        services.stop_all()


@pytest.fixture
def page(address: str) -> Iterator[Page]:
    """The monitor in Chromium, which complains of nothing."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=str(find_chromium()))
        page, complaints = chromium.new_page(), list[str]()
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(f"{address}/?token={TOKEN}")
        yield page
        chromium.close()
        assert complaints == []


def running(server: PrefectServer, folder: Path, *, deployed: bool) -> str:
    """A flow run of a folder, in the state that a worker gives it; its id."""
    flow = server.api("flows/", name="train-by-hand")["id"]
    state = {"type": "RUNNING", "name": "Running"}
    if deployed:
        deployment = server.api("deployments/", name=f"d-{uuid4()}", flow_id=flow)["id"]
        run = server.api(f"deployments/{deployment}/create_flow_run", name="deployed", state=state)["id"]
    else:
        run = server.api("flow_runs/", name="terminal", flow_id=flow, state=state)["id"]
    server.api(f"flow_runs/{run}/labels", method="PATCH", **{FOLDER_LABEL: str(folder)})
    server.api(f"flow_runs/{run}/set_state", state=state, force=True)
    return str(run)


def state_of(server: PrefectServer, run: str) -> str:
    return str(server.api(f"flow_runs/{run}")["state_name"])


def test_an_approval_is_given_on_the_page_and_nowhere_else(
    server: PrefectServer, store: RunStore, address: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "POLL_SECONDS", 0.2)
    work = FlowThread(promote, parameters_of(PromoteConfig(run=str(store.root), alias="staging", approval=True)))
    run = str(paused(server, "asked@staging", work)["id"])
    path, form = f"/api/flow-runs/{run}/approve", {"approved": True, "by": "Eve"}
    given = {"authorization": f"Bearer {TOKEN}", "origin": address}
    refused: list[tuple[str, str, dict[str, str], int]] = [
        ("POST", path, {"origin": address}, 401),
        ("POST", path, given | {"authorization": f"Bearer {TOKEN}x"}, 401),
        ("POST", f"{path}?token={TOKEN}", {"origin": address}, 401),
        ("POST", path, {"authorization": f"Bearer {TOKEN}"}, 403),
        ("POST", path, given | {"origin": "https://evil.example"}, 403),
        ("POST", path, given | {"origin": "null"}, 403),
        ("POST", path, given | {"sec-fetch-site": "cross-site"}, 403),
        ("POST", path, given | {"sec-fetch-site": "same-site"}, 403),
        ("GET", path, given, 405),
        ("PUT", path, given, 405),
        ("POST", f"/api/flow-runs/{uuid4()}/approve", given, 404),
    ]
    with httpx.Client(base_url=address) as client:
        for method, where, headers, status in refused:
            body = {} if method == "GET" else {"json": form}
            assert client.request(method, where, headers=headers, **body).status_code == status, headers  # type: ignore[arg-type]
        for content in (b"", b"[]", b"{", b"x" * 20_001):
            assert client.post(path, headers=given, content=content).status_code in (400, 413)
        nameless = client.post(path, headers=given, json={"approved": True})
        assert nameless.status_code == 409 and "by" in nameless.json()["error"], "Prefect checks the form"
    assert state_of(server, run) == "Paused" and read_alias(store, "staging") is None
    page.wait_for_selector("#flow-runs form")
    assert "version 0 of asked is to be its alias staging" in page.inner_text("#flow-runs .question")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        found = Axe().run(page).response["violations"]
        assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], scheme
    page.focus("#flow-runs input[name=by]")
    page.keyboard.type("Ann")
    page.keyboard.press("Enter")
    work.join()
    alias = read_alias(store, "staging")
    assert alias is not None and (alias.version, alias.by) == (0, "Ann"), work.error


def test_cancel_is_for_deployed_runs_of_this_root_once_it_is_confirmed(
    server: PrefectServer, store: RunStore, address: str, page: Page
) -> None:
    run, terminal = (running(server, store.root, deployed=deployed) for deployed in (True, False))
    beside = running(server, store.root.parent.parent / "elsewhere" / "asked", deployed=True)
    given = {"authorization": f"Bearer {TOKEN}", "origin": address}
    for other, status in ((terminal, 409), (beside, 404)):
        assert httpx.post(f"{address}/api/flow-runs/{other}/cancel", headers=given).status_code == status
    approved = httpx.post(f"{address}/api/flow-runs/{run}/approve", headers=given, json={"approved": True, "by": "Eve"})
    assert approved.status_code == 409 and "does not wait for an approval" in approved.text
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.reload()
    page.wait_for_selector("#flow-runs li button")
    assert page.locator("#flow-runs li").count() == 1, "neither the one in a terminal nor that of another root"
    page.click("#flow-runs button")
    assert asked and state_of(server, run) == "Running"
    page.once("dialog", lambda dialog: dialog.accept())
    page.click("#flow-runs button")
    page.wait_for_selector("#flow-runs li:has-text('Cancelling')")
    assert [state_of(server, each) for each in (run, terminal, beside)] == ["Cancelling", "Running", "Running"]
