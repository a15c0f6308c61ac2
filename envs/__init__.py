"""The web side of Rollwright: browsers, sites, tasks, observations, actions and rewards.

`open_env` opens an environment for one task; `list_tasks` says which there are. See
``docs/environments.md``. Inside: ``browser`` drives real Chromium pages, ``sites`` says where pages
come from and how an episode is reset and judged by the page itself, ``tasks`` reads task files,
``rewards`` turns facts into reward bundles, ``episodes`` plays and grades one attempt, and
``oracles`` holds scripted policies that prove a task can be solved from what the policy sees.
``types`` is shared with ``training``. Prefect, torch and anything of a model may not be imported
here.

The names below are imported when they are first used, so that ``import envs`` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envs.lazy import lazy_names

if TYPE_CHECKING:
    from envs.browser import BrowserPool, PoolOptions, WebSession, find_chromium
    from envs.env import WebEnv, open_env
    from envs.host import EnvHost, make_pool
    from envs.prompts import StepRenderer
    from envs.registry import list_tasks
    from envs.rewards.functions import Episode
    from envs.sites import LiveOptions, Site, StaticSite, make_site
    from envs.step_result import StepResult
    from envs.sync import SyncEnvHost, SyncWebEnv, open_env_sync
    from envs.tasks import load_tasks
    from envs.types import (
        Action,
        Answer,
        Back,
        BrowserError,
        CapacityError,
        Check,
        Clear,
        Click,
        CloseTab,
        ConfigError,
        Dialog,
        DoubleClick,
        Drag,
        Forward,
        Goto,
        Hover,
        NewTab,
        Observation,
        Press,
        Refresh,
        RollwrightError,
        Scroll,
        SeedRange,
        Select,
        Split,
        Submit,
        SwitchTab,
        TaskError,
        Terminate,
        TripleClick,
        Type,
        Upload,
        Wait,
        WebTask,
    )

_MODULES = {
    "envs.browser": ("BrowserPool", "PoolOptions", "WebSession", "find_chromium"),
    "envs.env": ("WebEnv", "open_env"),
    "envs.host": ("EnvHost", "make_pool"),
    "envs.prompts": ("StepRenderer",),
    "envs.registry": ("list_tasks",),
    "envs.rewards.functions": ("Episode",),
    "envs.sites": ("LiveOptions", "Site", "StaticSite", "make_site"),
    "envs.step_result": ("StepResult",),
    "envs.sync": ("SyncEnvHost", "SyncWebEnv", "open_env_sync"),
    "envs.tasks": ("load_tasks",),
}
"""Modules of the names that are not in `envs.types`."""

_ELSEWHERE = {name for names in _MODULES.values() for name in names}

__all__ = [
    "Action",
    "Answer",
    "Back",
    "BrowserError",
    "BrowserPool",
    "CapacityError",
    "Check",
    "Clear",
    "Click",
    "CloseTab",
    "ConfigError",
    "Dialog",
    "DoubleClick",
    "Drag",
    "EnvHost",
    "Episode",
    "Forward",
    "Goto",
    "Hover",
    "LiveOptions",
    "NewTab",
    "Observation",
    "PoolOptions",
    "Press",
    "Refresh",
    "RollwrightError",
    "Scroll",
    "SeedRange",
    "Select",
    "Site",
    "Split",
    "StaticSite",
    "StepRenderer",
    "StepResult",
    "Submit",
    "SwitchTab",
    "SyncEnvHost",
    "SyncWebEnv",
    "TaskError",
    "Terminate",
    "TripleClick",
    "Type",
    "Upload",
    "Wait",
    "WebEnv",
    "WebSession",
    "WebTask",
    "find_chromium",
    "list_tasks",
    "load_tasks",
    "make_pool",
    "make_site",
    "open_env",
    "open_env_sync",
]


_PLAIN = tuple(name for name in __all__ if name not in _ELSEWHERE)

__getattr__ = lazy_names(__name__, {**_MODULES, "envs.types": _PLAIN})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
