"""browser-use in a browser of ours: ``… INSTRUCTION CDP_URL BASE_URL``.

Run by the Python of ``.venv-frameworks/browser_use``, which has none of our packages. The last line
of its output is JSON: what it did, and its errors.
"""

from __future__ import annotations

import asyncio
import json
import sys

from browser_use import Agent, BrowserSession
from browser_use.llm import ChatOpenAI


async def main(instruction: str, cdp_url: str, base_url: str) -> None:
    """Carry out the instruction."""
    # What forces the form of an answer, or changes the distribution, is refused by the proxy.
    model = ChatOpenAI(
        model="policy",
        base_url=base_url,
        api_key="none",
        temperature=1.0,
        frequency_penalty=None,
        dont_force_structured_output=True,
        add_schema_to_system_prompt=True,
        max_retries=0,
    )
    session = BrowserSession(cdp_url=cdp_url)
    agent = Agent(instruction, llm=model, browser_session=session, use_judge=False, max_failures=1)
    history = await agent.run(max_steps=5)
    print(json.dumps({"actions": history.action_names(), "errors": history.errors()}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
