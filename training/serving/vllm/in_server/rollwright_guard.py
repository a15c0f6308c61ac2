"""ASGI middleware for vLLM that requires the API key on every route but ``/health``.

vLLM's own check guards only the generation routes; without this one anybody who reaches the server
could change its weights.
"""

from __future__ import annotations

import os
import secrets

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Guard:
    """Refuses requests without ``Authorization: Bearer KEY``; KEY is the variable VLLM_API_KEY."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != "/health":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not secrets.compare_digest(given, self._expected):
                await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
                return
        await self._app(scope, receive, send)
