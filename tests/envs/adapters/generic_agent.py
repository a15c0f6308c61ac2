"""AgentLab's generic agent: observations in, actions out, as JSON lines: ``… [MODEL]``.

MODEL is asked for at ``$OPENAI_BASE_URL``; without it a scripted model answers.

Run by the Python of ``.venv-frameworks/browsergym``, which has none of our packages. First it says
what BrowserGym's action set is; then it answers each observation with the agent's action and with
what BrowserGym's own functions made of the page.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import bgym
import numpy as np
from agentlab.agents import dynamic_prompting as dp
from agentlab.agents.generic_agent.generic_agent import GenericAgentArgs
from agentlab.agents.generic_agent.tmlr_config import BASE_FLAGS
from agentlab.llm.base_api import AbstractChatModel, BaseModelArgs
from agentlab.llm.chat_api import OpenAIModelArgs
from browsergym.core.action import functions
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.experiments.agent import DEFAULT_OBS_PREPROCESSOR

EVERY_SUBSET = ["chat", "infeas", "bid", "coord", "nav", "tab"]


class ScriptedModel(AbstractChatModel):  # type: ignore[misc]
    """Fills the text field that the prompt shows with the word of the task, then submits."""

    def __call__(self, messages: Any) -> dict[str, str]:
        prompt = str(messages)
        field = re.findall(r"\[(\d+)\] textbox '[^']*'(?: value='([^']*)')?", prompt)[0]
        (button,) = set(re.findall(r"\[(\d+)\] button 'Submit'", prompt))
        word = re.findall(r'Enter "(\w+)"', prompt)[0]
        action = f"click({button!r})" if field[1] == word else f"fill({field[0]!r}, {word!r})"
        return {"role": "assistant", "content": f"<think>As told.</think>\n<action>\n{action}\n</action>"}


@dataclass
class ScriptedModelArgs(BaseModelArgs):  # type: ignore[misc]
    """Makes the scripted model."""

    def make_model(self) -> ScriptedModel:
        return ScriptedModel()


def agent(name: str = "") -> Any:
    """The generic agent of a model with its published flags, HTML and marks as well."""
    flags = BASE_FLAGS
    flags.obs.use_html = flags.obs.use_screenshot = flags.obs.use_som = flags.obs.use_tabs = True
    flags.max_prompt_tokens = None  # counting them asks another host
    flags.action = dp.ActionFlags(action_set=bgym.HighLevelActionSetArgs(subsets=EVERY_SUBSET))
    served = {"temperature": 1.0, "max_new_tokens": 256}
    model = (
        OpenAIModelArgs(model_name=name, vision_support=True, **served)
        if name
        else ScriptedModelArgs(model_name="scripted", vision_support=True)
    )
    return GenericAgentArgs(chat_model_args=model, flags=flags).make_agent()


def main(name: str = "") -> None:
    """Answer each line of the standard input."""
    out, sys.stdout = sys.stdout, sys.stderr
    actions = HighLevelActionSet(subsets=EVERY_SUBSET)
    names = {
        name: [
            (parameter.name, None if parameter.default is parameter.empty else repr(parameter.default))
            for parameter in inspect.signature(getattr(functions, name)).parameters.values()
        ]
        for name in actions.action_set
    }
    examples = [example for action in actions.action_set.values() for example in action.examples]
    print(json.dumps({"names": names, "examples": examples}), file=out, flush=True)
    generic = agent(name)
    for line in sys.stdin:
        given = json.loads(line)
        pixels = np.frombuffer(base64.b64decode(given["screenshot"]["data"]), np.uint8)
        given["screenshot"] = pixels.reshape(given["screenshot"]["shape"]).copy()
        given["elapsed_time"], given["active_page_index"] = (
            np.asarray(given[name]) for name in ("elapsed_time", "active_page_index")
        )
        plain = DEFAULT_OBS_PREPROCESSOR(given)
        seen = generic.obs_preprocessor(given)
        action, info = generic.get_action(seen)
        actions.to_python_code(action)
        answer = {name: seen[name] for name in ("axtree_txt", "dom_txt", "pruned_html")}
        answer |= {"plain": plain["axtree_txt"], "action": action, "think": info.think}
        marked = int((seen["screenshot_som"] != given["screenshot"]).any(axis=2).sum())
        print(json.dumps({**answer, "marked_pixels": marked}), file=out, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
