"""Schema of the tool ``step_browser`` for verl, which takes scalar parameters only."""

from __future__ import annotations

import json
from typing import Any

from envs.prompts import StepRenderer

NAME = "step_browser"


def flat_schema(shown: StepRenderer) -> dict[str, Any]:
    """Return the schema of ``step_browser``: with numbers ``x`` and ``y`` for points."""
    (tool,) = shown.tools()
    function = tool["function"]
    properties: dict[str, Any] = {}
    for name, schema in function["parameters"]["properties"].items():
        if schema["type"] != "array":
            properties[name] = schema
            continue
        for axis, side in (("x", "left"), ("y", "top")):
            properties[axis] = {"type": "number", "description": f"Point: 0 to 1000 from the {side} of the screenshot."}
    parameters = {**function["parameters"], "properties": properties}
    description = "Does one thing in the web browser and shows the page. The first call shows the page alone."
    return {"type": "function", "function": {"name": NAME, "description": description, "parameters": parameters}}


def action_text(parameters: Any) -> str:
    """Return the arguments of a call as the text of an action."""
    if isinstance(parameters, dict) and "x" in parameters and "y" in parameters:
        rest = {name: value for name, value in parameters.items() if name not in ("x", "y")}
        parameters = {**rest, "at": [parameters["x"], parameters["y"]]}
    return json.dumps(parameters, ensure_ascii=False)
