"""Egress control: a default-deny proxy between Chromium and the network.

What pages may reach: the sites that a run names, and nothing else of the network or of this
machine.

Chromium is given a proxy on loopback for everything, loopback included (`chromium_args`). Each
lease gets a listener of that proxy with an allow list of its own (`EgressProxy.open`), so that a
refusal is known by the episode that asked. The proxy resolves names, checks what they resolve to,
and connects to the address that it checked: a name that changes its answer gains nothing.

``addresses`` and ``allow`` are pure, ``resolve`` asks for what a name leads to. ``message`` reads
the heads of HTTP/1.1 messages, ``relay`` passes one connection's messages on, ``proxy`` owns
listeners and counters, ``hardening`` holds the flags and the settings of a browser context. It
knows no site and no task.
"""

from envs.egress.addresses import Reason
from envs.egress.allow import AllowList
from envs.egress.hardening import EGRESS_ARGS, PROXY_BYPASS, chromium_args, harden, harden_page
from envs.egress.proxy import EgressProxy, Listener
from envs.egress.resolve import Refused, resolve_allowed
from envs.egress.secrets import SiteSecrets

__all__ = [
    "EGRESS_ARGS",
    "PROXY_BYPASS",
    "AllowList",
    "EgressProxy",
    "Listener",
    "Reason",
    "Refused",
    "SiteSecrets",
    "chromium_args",
    "harden",
    "harden_page",
    "resolve_allowed",
]
