"""Runs real Chromium for episodes: browser pools, contexts, sessions, deadlines.

``BrowserPool`` owns processes, contexts and the way out; ``WebSession`` is what an episode speaks to
(reset, step), and ``episode`` does what it is asked. ``connection`` and ``states`` are the way to a
browser that may go away; ``dispatcher`` shares the machine fairly over episodes. Nothing here knows
a task file, a reward or a policy; a site is what ``Site`` says of it.
"""

from envs.browser.chromium import chromium_version, find_chromium
from envs.browser.options import Device, PoolCounters, PoolOptions
from envs.browser.page_step import PageStep
from envs.browser.pinned import PINNED_PRODUCT
from envs.browser.pool import BrowserPool
from envs.browser.session import WebSession
from envs.settle import SettleReason

__all__ = [
    "PINNED_PRODUCT",
    "BrowserPool",
    "Device",
    "PageStep",
    "PoolCounters",
    "PoolOptions",
    "SettleReason",
    "WebSession",
    "chromium_version",
    "find_chromium",
]
