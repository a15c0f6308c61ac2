"""What a judge may still spend, counted by itself or, with a ledger, together with all judges of its run."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from envs.rewards.judge.ledger import DamagedLedger, Ledger, Limits, Spent


class Budget:
    """Requests and tokens of one judge, or of all that share its ledger.

    Requests are exact: each is counted before it is sent. Tokens are known only afterwards: nothing is sent once they are used up, and what is
    under way at that moment may still add to them.
    """

    def __init__(self, limits: Limits, ledger: Ledger | None = None) -> None:
        """
        Args:
            ledger: Shared with others, who have the same limits; ``None``: this judge is alone.
        """
        self._limits = limits
        self._ledger = ledger
        # Its own: who waits here for a lock keeps nobody else from a thread. One is enough, as there is one lock; it ends with this object.
        self._thread = ThreadPoolExecutor(1, "ledger")
        self.damage: DamagedLedger | None = None
        """Why nothing can be counted until somebody mends the ledger, as of the last request."""
        self.requests = 0
        """Sent so far by this judge."""
        self.tokens = 0
        """Paid so far by this judge."""

    async def claim(self) -> str | None:
        """Count a request that goes out next; why it must not, if nothing more may be sent.

        Raises:
            StorageError: it cannot be counted in the ledger, so it must not be sent either.
        """
        refusal = await self._asked()
        if refusal is None:
            self.requests += 1
        return refusal

    async def pay(self, tokens: int) -> None:
        """It has cost so many tokens. They are counted also when the caller is cancelled meanwhile.

        Raises:
            StorageError: they cannot be counted in the ledger.
        """
        self.tokens += tokens
        if self._ledger is not None and tokens:
            paying = asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.pay, tokens)
            try:
                await asyncio.shield(paying)
            except asyncio.CancelledError:
                await asyncio.wait([paying])  # a millisecond, and as long as anybody waits for the lock at most
                raise

    async def _asked(self) -> str | None:
        """The ledger's word, or our own; a request that may be sent is counted in the ledger."""
        if self._ledger is None:
            return self._limits.refusal(Spent(requests=self.requests, tokens=self.tokens))
        try:
            refusal = await asyncio.get_running_loop().run_in_executor(self._thread, self._ledger.claim, self._limits)
        except DamagedLedger as error:
            self.damage = error
            raise
        self.damage = None
        return refusal
