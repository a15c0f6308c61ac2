"""Real Chromium for episodes: pools of browsers, a context for each session, every call with a deadline.

``BrowserPool`` owns processes, contexts and the way out; ``WebSession`` is what an episode speaks to (reset, step), and ``episode`` does what it
is asked. ``connection``, ``states`` and ``cdp`` are the way to a browser that may go away; ``dispatcher`` shares the machine fairly over
environments. Nothing here knows a site, a task file, a reward or a policy: those come through the ``Site`` protocol and ``WebTask``.
"""

from envs.browser.chromium import find_chromium
from envs.browser.context import Device
from envs.browser.options import PoolCounters, PoolOptions
from envs.browser.pool import BrowserPool
from envs.browser.result import StepResult
from envs.browser.session import WebSession

__all__ = ["BrowserPool", "Device", "PoolCounters", "PoolOptions", "StepResult", "WebSession", "find_chromium"]
