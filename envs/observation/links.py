"""Links for other programs (mail, telephone, an app): a browser without them opens nothing, and tells nobody of it."""

from __future__ import annotations

import re

from envs.observation.dom import Dom

OPENED = frozenset({"http", "https", "javascript", "data", "blob", "about"})
"""Schemes that lead somewhere, or that the browser says something of."""

_SCHEME = re.compile(r"\s*([a-z][a-z0-9+.-]*):", re.IGNORECASE)


def foreign_scheme(dom: Dom, node: int) -> str:
    """The scheme of the link that a node is or lies in, where this browser has nothing to open it; ``""`` for any other node.

    Source of what a scheme is: https://url.spec.whatwg.org/#scheme-start-state.
    """
    links = dom.having("href")
    while node >= 0 and node not in links:
        node = dom.up(node)
    scheme = _SCHEME.match(dom.string(links[node])) if node >= 0 else None
    named = scheme[1].lower() if scheme else ""
    return "" if named in OPENED else named
