"""Chromium's flags and CDP settings for what no proxy sees: UDP, name look-ups, files, permissions,
service workers.

``file:`` needs no flag against pages: Chromium refuses it to pages of the web in every way (link,
form, frame, window, fetch, redirect). Only a navigation that we ask for opens one, so an action's
URL goes through `AllowList.refuse_url` first. (``Network.setBlockedURLs`` does not stop such a
navigation; ``Fetch.enable`` does, at the price of a round trip through the browser process for
every request.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from envs.cdp import Cdp

PROXY_BYPASS = "<-loopback>"
"""The bypass list that sends loopback and link-local addresses through the proxy too; Chromium
would reach them directly. For ``--proxy-bypass-list`` and for ``proxyBypassList`` of
``Target.createBrowserContext``."""

EGRESS_ARGS = (
    f"--proxy-bypass-list={PROXY_BYPASS}",
    # The second wall: nothing that does not go through the proxy can look up a name. The proxy is
    # an address.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    # WebRTC would send UDP to any address that a page names as its STUN server.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    # What a browser asks for without a page: updates, lists, variations, reports, accounts.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-breakpad",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
)
"""Flags of every Chromium that shows sites, with a debugging port or not.
``--remote-allow-origins`` is never among them: without it a page that reached the port would still
be refused by its origin."""

EGRESS_DISABLED_FEATURES = (
    "DnsOverHttps",
    "AsyncDns",
    # Multicast on the local network, to find screens to cast to.
    "MediaRouter",
    "OptimizationHints",
    # Pages that load before they are asked for are no part of an episode, and not under its clock.
    "Prerender2",
)
"""Features for the one ``--disable-features`` of the command line: Chromium reads only the last."""


def chromium_args(proxy: str, *, disable_features: Iterable[str] = ()) -> tuple[str, ...]:
    """`EGRESS_ARGS`, a process-wide proxy and ``--disable-features`` with the caller's own
    features.

    Args:
        proxy: address of a listener; one that allows nothing, where every context is given a
            listener of its own.
    """
    features = ",".join((*EGRESS_DISABLED_FEATURES, *disable_features))
    return (*EGRESS_ARGS, f"--proxy-server={proxy}", f"--disable-features={features}")


async def harden(browser: Cdp, context_id: str, downloads: Path | None) -> None:
    """Deny every permission to a browser context, and downloads unless they go into ``downloads``.

    Args:
        browser: the session of the browser itself.
        downloads: the episode's folder, which has to exist; files get there under the names that
            pages give (Chromium keeps the last part of a path only). ``None`` denies downloads.
    """
    where: dict[str, object] = {"behavior": "deny"}
    if downloads is not None:
        where = {"behavior": "allow", "downloadPath": str(downloads.resolve(strict=True))}
    context = {"browserContextId": context_id}
    await asyncio.gather(
        # Granting nothing rejects everything that is not granted.
        browser.send("Browser.grantPermissions", {"permissions": [], **context}),
        browser.send("Browser.setDownloadBehavior", {**where, **context}),
    )


async def harden_page(page: Cdp) -> None:
    """Keep a tab from being served by a service worker (the proxy refuses to load one over plain
    HTTP; HTTPS is opaque to it)."""
    await asyncio.gather(page.send("Network.enable"), page.send("Network.setBypassServiceWorker", {"bypass": True}))
