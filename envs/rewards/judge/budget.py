"""What a judge may still spend, counted by itself or, with a ledger, together with all judges of its run."""

from __future__ import annotations

import asyncio

from envs.rewards.judge.ledger import Ledger, Limits, Spent


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
        self.requests = 0
        """Sent so far by this judge."""
        self.tokens = 0
        """Paid so far by this judge."""

    async def claim(self) -> str | None:
        """Count a request that goes out next; why it must not, if nothing more may be sent.

        Raises:
            StorageError: it cannot be counted in the ledger, so it must not be sent either.
        """
        if self._ledger is None:
            refusal = self._limits.refusal(Spent(requests=self.requests, tokens=self.tokens))
        else:
            refusal = await asyncio.to_thread(self._ledger.claim, self._limits)
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
            # Not `to_thread`: a cancelled caller would take it out of the queue of a busy pool of threads.
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._ledger.pay, tokens))
