"""Build steps of ``prefect.yaml``."""

from __future__ import annotations

from typing import Any

from envs.types import ConfigError
from tasks_lib.commands.arguments import model_of
from tasks_lib.config import load_preset
from tasks_lib.config.parameters import grouped, groups_of


def preset_parameters(flow: str, preset: str) -> dict[str, Any]:
    """Return the values of a preset for each parameter of a flow; empty for groups without values.

    Args:
        flow: Module of the flow, such as ``flows.train``.
        preset: Name of a file in ``deployments/presets``, without its suffix.
    """
    model = model_of(flow)
    if model is None:
        raise ConfigError(f"{flow} is no flow; it is the flow's module, such as flows.train")
    return {**{key: {} for key in groups_of(model)}, **grouped(model, load_preset(preset))}
