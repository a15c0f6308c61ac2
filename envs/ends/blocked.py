"""Detects captchas, bot walls and server errors in a page.

An episode that meets one says nothing about the policy. A wall differs from a page that merely
mentions captchas: walls are short, name themselves in their title or address, or carry the widget's
own frame. So every sign names the part of the page that it is searched in, and signs in prose count
only on short pages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SHORT_PAGE = 1200
"""Longest text of a page that may be a wall, in characters.

Walls of Cloudflare, DataDome, PerimeterX and Google have 100 to 700. An article or a form that
mentions captchas has more, or lacks the sentences below.
"""

SERVER_ERROR = 500
"""Lowest status that is the server's fault."""

Where = Literal["url", "title", "text", "frame"]


@dataclass(frozen=True)
class BlockSign:
    """One sign that a page is a wall."""

    name: str
    where: Where
    """Part that is searched.

    ``url`` and ``title`` of the page, ``text`` of a short page, or the address of a ``frame`` in
    it.
    """
    pattern: re.Pattern[str]
    hint: str
    """Description for logs and reports."""
    statuses: frozenset[int] | None = None
    """HTTP statuses that it needs; ``None`` for any."""


def _sign(name: str, where: Where, pattern: str, hint: str, *statuses: int) -> BlockSign:
    return BlockSign(name, where, re.compile(pattern, re.IGNORECASE), hint, frozenset(statuses) or None)


_DENIED = (401, 403, 405, 406, 409, 418, 429, 503)
"""Statuses that walls answer with."""

SIGNS: tuple[BlockSign, ...] = (
    _sign("cloudflare", "title", r"^(just a moment|attention required! \| cloudflare|please wait\.\.\. \| cloudflare)", "Cloudflare's challenge"),
    _sign("cloudflare", "url", r"^[^?#]*/cdn-cgi/challenge-platform/|[?&]__cf_chl_", "Cloudflare's challenge"),
    _sign("cloudflare", "text", r"(checking|verifying) (if the site connection is secure|you are human|your browser)", "Cloudflare's challenge"),
    _sign("google", "url", r"^https?://(www\.)?google\.[a-z.]+/sorry/", "Google's unusual-traffic page"),
    _sign("google", "text", r"our systems have detected unusual traffic", "Google's unusual-traffic page"),
    _sign("datadome", "frame", r"^https?://[\w.-]*captcha-delivery\.com/", "DataDome's captcha"),
    _sign("perimeterx", "text", r"press (&|and) hold to confirm (you are|that you'?re) (a )?human", "PerimeterX's press and hold"),
    _sign("perimeterx", "title", r"^access to this page has been denied", "PerimeterX's wall"),
    _sign("akamai", "text", r"you don't have permission to access .{1,300} on this server\.\s*reference #", "Akamai's wall"),
    _sign("imperva", "text", r"request unsuccessful\. incapsula incident id", "Imperva's wall"),
    _sign("amazon", "text", r"(enter|type) the characters you see (below|in this image)", "Amazon's captcha"),
    _sign("amazon", "url", r"^https?://[^/?#]+/errors/validatecaptcha", "Amazon's captcha"),
    _sign("robot_check", "title", r"^(robot check|are you (a )?(robot|human)\??|human verification|bot verification|captcha)\s*$", "a robot check"),
    _sign("robot_check", "text", r"(prove|confirm|verify|make sure) (that )?you('re| are) (a )?(human|not a (ro)?bot)", "a robot check"),
    _sign("robot_check", "text", r"(complete|solve) (the|this) (captcha|security check|challenge) (below )?to (continue|proceed)", "a captcha"),
    _sign("recaptcha", "frame", r"^https?://(www\.)?(google|recaptcha)\.(com|net)/recaptcha/[^?#]*/bframe", "reCAPTCHA's picture puzzle"),
    _sign("hcaptcha", "frame", r"^https?://[\w.-]*hcaptcha\.com/[^?]*[?#].*frame=challenge", "hCaptcha's picture puzzle"),
    _sign("rate_limit", "text", r"(too many requests|rate limit(ed| exceeded)|temporarily blocked)", "a rate limit", 429, 403, 503),
    _sign("denied", "title", r"^(403 forbidden|access denied|forbidden|blocked|request blocked)\b", "access denied", *_DENIED),
)  # fmt: skip
"""All signs.

Captcha boxes in ordinary forms (reCAPTCHA's ``anchor`` frame) are none: the page can be used until
the puzzle opens.
"""


def blocked(
    *, url: str, title: str, text: str, status: int | None = None, frames: Sequence[str] = ()
) -> BlockSign | None:
    """Return the first sign of a captcha or a bot wall, or ``None``.

    Args:
        text: Visible text of the whole page, not cut: a long page is no wall.
        status: HTTP status of the document, if it is known.
        frames: Addresses of the visible frames.
    """
    squashed = " ".join(text.split())
    seen: dict[Where, tuple[str, ...]] = {
        "url": (url,),
        "title": (" ".join(title.split()),),
        "text": (squashed,) if len(squashed) <= SHORT_PAGE else (),
        "frame": tuple(frames),
    }
    for sign in SIGNS:
        if sign.statuses is not None and status not in sign.statuses:
            continue
        if any(sign.pattern.search(part) for part in seen[sign.where]):
            return sign
    return None


def http_error(status: int | None) -> bool:
    """Return True if the document's HTTP status is the server's fault."""
    return status is not None and status >= SERVER_ERROR
