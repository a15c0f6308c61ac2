"""Links for other programs (mail, telephone, an app).

A browser without such programs opens nothing for these links and shows no message.
"""

from __future__ import annotations

import re

from envs.observation.dom import Dom

OPENED = frozenset({"http", "https", "javascript", "data", "blob", "about"})
"""Schemes that open something in this browser or make it show a message."""

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):", re.IGNORECASE)


def foreign_scheme(dom: Dom, node: int) -> str:
    """Return the scheme of a node's link if this browser has nothing to open it, else ``""``.

    The link may be the node or lie around it. Syntax of schemes:
    https://url.spec.whatwg.org/#scheme-start-state.
    """
    links = dom.having("href")
    while node >= 0 and node not in links:
        node = dom.up(node)
    scheme = _SCHEME.match(dom.string(links[node])) if node >= 0 else None
    named = scheme[1].lower() if scheme else ""
    return "" if named in OPENED else named
