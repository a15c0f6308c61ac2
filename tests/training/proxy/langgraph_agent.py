"""A LangGraph agent with our environment server as its tool: ``… SESSION BASE_URL``.

Run by the Python of ``.venv-frameworks/langgraph``, which has none of our packages. SESSION is the
address of an environment server's session. The last line of its output is JSON: roles of the
conversation.
"""

from __future__ import annotations

import json
import sys

import httpx
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


def main(session: str, base_url: str) -> None:
    """Carry out the session's task."""
    page = httpx.post(f"{session}/reset", json={"epoch": 1}, timeout=60).json()
    number = 0

    @tool
    def browser(action: str) -> str:
        """Act on the page, as in ``click [1]``; returns the page afterwards."""
        nonlocal number
        number += 1
        step = {"action": action, "epoch": 1, "step": number}
        answer = httpx.post(f"{session}/step", json=step, timeout=60).raise_for_status().json()
        return "The task has ended." if answer["done"] else str(answer["text"])

    model = ChatOpenAI(model="policy", base_url=base_url, api_key="none", temperature=1.0, max_retries=0)
    agent = create_agent(model, [browser], system_prompt="Use the browser to carry out the task.")
    state = agent.invoke({"messages": [{"role": "user", "content": page["text"]}]})
    print(json.dumps([message.type for message in state["messages"]]))


if __name__ == "__main__":
    main(*sys.argv[1:])
