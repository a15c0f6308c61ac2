"""Runs real Chromium for episodes: browser pools, contexts, sessions, deadlines.

Calls go one way::

    BrowserPool ── lends ──> WebSession ── reset, act, look ──> TaskPage ──> Tab ──> CdpSession
         └─────────────┬─────────┘
              ContextLender ──> BrowserSet ──> Browser ──> Connection

``BrowserPool`` owns all of it. A ``WebSession`` takes a browser context from the ``ContextLender``
at each reset and gives it back. ``connection`` and ``states`` survive a lost connection to a
browser; ``dispatcher`` shares the machine fairly over episodes. Nothing here knows a task file, a
reward or a policy; a ``Site`` says all that is known of a site.
"""

from envs.browser.network_log import NetworkLog
from envs.browser.options import BrowserOptions, Device, PageWork, PoolCounters, PoolOptions
from envs.browser.page_step import PageStep
from envs.browser.pool import BrowserPool
from envs.browser.process.chromium import chromium_version, find_chromium
from envs.browser.process.pinned import PINNED_PRODUCT
from envs.browser.session import WebSession
from envs.settle import SettleReason

__all__ = [
    "PINNED_PRODUCT",
    "BrowserOptions",
    "BrowserPool",
    "Device",
    "NetworkLog",
    "PageStep",
    "PageWork",
    "PoolCounters",
    "PoolOptions",
    "SettleReason",
    "WebSession",
    "chromium_version",
    "find_chromium",
]
