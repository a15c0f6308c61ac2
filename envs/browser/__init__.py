"""Real Chromium for episodes: one browser per pool, one page per session, every call with a deadline.

``BrowserPool`` owns the process and the pages, ``WebSession`` is what an episode speaks to (reset, step), ``settle``
keeps the page's clock, ``keys`` sends trusted mouse and keyboard events, ``observation`` reads a page. Nothing here
knows a site, a task file, a reward or a policy: those come through the ``Site`` protocol and ``WebTask``.
"""

from envs.browser.chromium import find_chromium
from envs.browser.pool import BrowserPool, PoolCounters, PoolOptions
from envs.browser.session import Frame, WebSession

__all__ = ["BrowserPool", "Frame", "PoolCounters", "PoolOptions", "WebSession", "find_chromium"]
