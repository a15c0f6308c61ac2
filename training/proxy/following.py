"""Engine over a vLLM server whose policy versions somebody else may publish."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from envs.types import ConfigError, EngineError
from training.policy.adapters import is_adapter
from training.serving.engine import EngineStatistics, Generation, GenerationRequest
from training.serving.vllm.client import ServerClient
from training.serving.vllm.publishing import prepare, publish

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer


class FollowingEngine:
    """`Engine` over one server; each turn is asked of the version that it has then.

    Args:
        client: Client of the server, which has a published version.
    """

    def __init__(self, client: ServerClient) -> None:
        self._client = client
        self._statistics = EngineStatistics()

    @classmethod
    async def connect(
        cls, address: str, checkpoint: Path, version: int, renderer: Renderer, api_key: str = ""
    ) -> FollowingEngine:
        """Return an engine. A server without a published version gets ``checkpoint`` as one.

        Raises:
            ConfigError: The server is not ours to use (`ServerClient.check`), or the checkpoint is
                an adapter.
            EngineError, PolicyError, StorageError: It does not answer, or refuses the checkpoint.
        """
        from training.policy.renderer import end_ids

        if is_adapter(checkpoint):
            raise ConfigError(f"{checkpoint} is an adapter: merge it, or leave out --server")
        client = ServerClient(
            address, api_key=api_key, banned=renderer.banned_ids, ends=end_ids(checkpoint, renderer.tokenizer)
        )
        engine = cls(client)
        try:
            await client.check()
            if await client.weight_version() is None:
                await prepare(client, checkpoint.resolve().parent)
                await engine.publish(version, checkpoint.resolve())
        except BaseException:
            await client.close()
            raise
        return engine

    @property
    def statistics(self) -> EngineStatistics:
        """Number of turns."""
        return EngineStatistics(turns=self._statistics.turns)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Generate one turn by the server's version; see `ServerClient.generate`."""
        version = await self._client.weight_version()
        if version is None:
            raise EngineError(f"{self._client.address} has lost its version (was it restarted?): start the proxy again")
        turn = await self._client.generate(request, version)
        self._statistics.turns += 1
        return turn

    async def publish(self, version: int, folder: Path, *, or_newer: bool = False) -> None:
        """Serve a checkpoint folder, which the server can read, as ``version``."""
        await publish([self._client], version, folder)

    def session(self, episode: str) -> AbstractAsyncContextManager[None]:
        """Return an empty context: there is one server."""
        return nullcontext()

    async def close(self) -> None:
        """Close the connections; the server keeps running."""
        await self._client.close()
