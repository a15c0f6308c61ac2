"""Addresses that a host's connections may go to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from envs.egress.addresses import IpAddress, Reason, as_address, canonical_host, is_local_name
from envs.egress.allow import AllowList

LOOPBACK = ("127.0.0.1", "::1")


class Refused(Exception):
    """The request is not allowed."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


async def resolve_allowed(host: str, allow: AllowList) -> list[IpAddress]:
    """The addresses of a host, each of which may be connected to.

    Who connects does so to one of these, never by the name again.

    Raises:
        Refused: one of them may not be reached, or it is no host. OSError: the name is not known.
    """
    addresses = await _resolve(host)
    for address in addresses:
        reason = allow.refuse_answer(host, address)
        if reason is not None:
            raise Refused(reason)
    return addresses


async def _resolve(host: str) -> list[IpAddress]:
    """The addresses of a host that is allowed: itself, loopback for its names, else what the
    system's resolver says."""
    name = canonical_host(host)
    if name is None:
        raise Refused(Reason.BAD_HOST)
    if (literal := as_address(name)) is not None:
        return [literal]
    if is_local_name(name):
        return [ipaddress.ip_address(text) for text in LOOPBACK]
    entries = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in entries))
