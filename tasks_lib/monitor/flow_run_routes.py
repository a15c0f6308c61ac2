"""Routes of flow runs: their list, and the two that change one: approve and cancel.

The gate (`PageGate`) lets a POST pass only with the token and from a page of this server. A flow
run can be changed only if its folder is under the root whose runs are shown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import orjson
from prefect.settings import PREFECT_API_URL
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tasks_lib.processes.flow_control import (
    ActiveFlowRun,
    FlowRunRefusal,
    active_flow_runs,
    approve_flow_run,
    cancel_flow_run,
)

MAX_FORM = 20_000
"""Bytes of an answer: a name, and a reason of 2,000 characters."""


@dataclass(frozen=True, slots=True)
class FlowRunRoutes:
    """Answers requests about the active flow runs of the runs under a root."""

    root: Path | None
    """``None`` if no folder is known: then there are none."""
    has_token: bool

    def routes(self) -> list[Route]:
        """Return the routes, for a Starlette application."""
        return [
            Route("/api/flow-runs", self._list),
            Route("/api/flow-runs/{id:uuid}/approve", self._approve, methods=["POST"]),
            Route("/api/flow-runs/{id:uuid}/cancel", self._cancel, methods=["POST"]),
        ]

    def _read_only(self) -> str | None:
        """Return why nothing can be approved or cancelled here, or ``None``."""
        if self.root is None:
            return "the folder of the run is not known (--run)"
        if not PREFECT_API_URL.value():
            return "PREFECT_API_URL names no Prefect server"
        return None if self.has_token else "to approve or cancel a flow run here, start this server with --token-file"

    async def _active(self) -> list[ActiveFlowRun]:
        known = self.root is not None and PREFECT_API_URL.value()
        return await active_flow_runs(self.root.resolve()) if self.root is not None and known else []

    async def _list(self, request: Request) -> Response:
        reason = self._read_only()
        try:
            runs = [asdict(run) for run in await self._active()]
        except httpx.HTTPError as error:
            runs, reason = [], f"Prefect's API does not answer ({type(error).__name__})"
        return _json({"read_only": reason, "runs": runs})

    async def _approve(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MAX_FORM:
                return _error(413, f"the answer has more than {MAX_FORM} bytes")
        try:
            form = orjson.loads(body)
        except orjson.JSONDecodeError:
            form = None
        if not isinstance(form, dict):
            return _error(400, 'the answer is no form; expected {"approved": true, "by": "NAME", "reason": ""}')
        return await self._change(request, form)

    async def _cancel(self, request: Request) -> Response:
        return await self._change(request, None)

    async def _change(self, request: Request, form: dict[str, Any] | None) -> Response:
        """Approve with a form, or cancel without one."""
        if (reason := self._read_only()) is not None:
            return _error(409, reason)
        flow_run: UUID = request.path_params["id"]
        try:
            here = {run.id: run for run in await self._active()}
            if flow_run not in here:
                return _error(404, f"there is no active flow run {flow_run} of a run under this root")
            if form is not None:
                if here[flow_run].question is None:
                    return _error(409, f"{here[flow_run].name} does not wait for an approval")
                await approve_flow_run(flow_run, form)
            elif not here[flow_run].deployed:
                return _error(409, f"{here[flow_run].name} runs in a terminal or a program: Ctrl-C there ends it")
            else:
                await cancel_flow_run(flow_run)
        except FlowRunRefusal as error:
            return _error(409, str(error))
        except httpx.HTTPError as error:
            return _error(502, f"Prefect's API does not do it ({type(error).__name__}); try again")
        return _json({"done": True})


def _error(status: int, sentence: str) -> Response:
    return _json({"error": sentence}, status)


def _json(value: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, headers={"Cache-Control": "no-store"}, media_type="application/json")
