"""A worker's judge as a process of its own: ``python -m tests.envs.rewards_judge.spender URL LEDGER
EPISODES LIMITS``.

Says when it begins, and what it sent.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from envs.chat import Ledger
from envs.rewards.judge import Judge
from tests.envs.rewards_judge.fake_judge import config, episode


async def main(url: str, ledger: str, episodes: str, limits: str) -> None:
    async with Judge(config(url, concurrency=4, retries=0, **json.loads(limits)), Ledger(Path(ledger))) as judge:
        print("begins", flush=True)
        await asyncio.gather(*(judge.judge(episode(1)) for _ in range(int(episodes))))
        print(json.dumps({"requests": judge.requests, "tokens": judge.tokens}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
