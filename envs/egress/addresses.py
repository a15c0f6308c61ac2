"""Hosts as they are written, and addresses as they are reached.

A host has many spellings: ``127.1``, ``2130706433``, ``0x7f.1`` and ``[::ffff:127.0.0.1]`` are all
loopback. They are read as the URL standard reads them (https://url.spec.whatwg.org/#host-parsing),
once, so that everything after compares one canonical form.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class Reason(StrEnum):
    """Reason for which a request was refused; the response header and metrics use these values."""

    NOT_LISTED = "not_listed"
    """No site of the run has this host and port."""
    LOOPBACK = "loopback"
    """This machine."""
    PRIVATE = "private"
    """A private network (RFC 1918, unique local IPv6)."""
    LINK_LOCAL = "link_local"
    """The link's own addresses."""
    METADATA = "metadata"
    """A cloud's metadata service."""
    CGNAT = "cgnat"
    """The shared space of carriers, 100.64.0.0/10."""
    RESERVED = "reserved"
    """Unspecified, multicast, documentation, translated or otherwise not a public host."""
    BAD_HOST = "bad_host"
    """Not a host name or address."""
    BAD_REQUEST = "bad_request"
    """Not a request that the proxy reads: malformed, too long a head, or a body of unknown
    length."""
    SCHEME = "scheme"
    """A scheme other than the site's: ``file:``, ``ftp:``, plain HTTP for an HTTPS site."""
    SERVICE_WORKER = "service_worker"
    """The script of a service worker: it would live outside of the page's clock."""


METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Google, Azure, OpenStack…
        "169.254.170.2",  # AWS tasks' credentials
        "169.254.170.23",  # AWS pod identity
        "fd00:ec2::254",  # AWS over IPv6
        "fd00:ec2::23",
        "fd20:ce::254",  # Google over IPv6
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server: a public number that is routed to the host
        "192.0.0.192",  # Oracle, older shapes
    )
)
METADATA_NAMES = frozenset(
    {"metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"}
)
CGNAT = ipaddress.ip_network("100.64.0.0/10")
TRANSLATED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "::/96",  # IPv4-compatible, obsolete
        "::ffff:0:0:0/96",  # IPv4-translated (SIIT)
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 inside a network
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "fec0::/10",  # site-local, obsolete
    )
)
"""IPv6 ranges that lead to an IPv4 address of somebody's choice. No site needs them."""

MAX_HOST = 253
"""Characters of a DNS name (RFC 1035)."""
NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")


def canonical_host(host: str) -> str | None:
    """The one spelling of a host: a dotted IPv4 address, an IPv6 address without brackets, or a
    lower-case name; ``None`` if it is none.

    An IPv4 address mapped into IPv6 comes out as IPv4. A name may be internationalised only in its
    ASCII form (``xn--…``), which is what browsers send.
    """
    host = host.strip().lower()
    if host.startswith("[") and host.endswith("]"):
        return _canonical_ipv6(host[1:-1])
    if ":" in host:
        return _canonical_ipv6(host)
    host = host.removesuffix(".")
    if not host or len(host) > MAX_HOST or NAME.fullmatch(host) is None:
        return None
    # The URL standard: a host whose last label is a number is an IPv4 address or an error, never a
    # name.
    return _canonical_ipv4(host) if NUMBER.fullmatch(host.rpartition(".")[2]) else host


def _canonical_ipv6(text: str) -> str | None:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    if address.scope_id is not None:
        return None
    return str(address.ipv4_mapped or address)


def _canonical_ipv4(host: str) -> str | None:
    parts = host.split(".")
    if len(parts) > 4 or not all(NUMBER.fullmatch(part) for part in parts):
        return None
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        return None
    *first, last = numbers
    if any(number > 255 for number in first) or last >= 256 ** (5 - len(numbers)):
        return None
    return str(ipaddress.IPv4Address(sum(number << (24 - 8 * index) for index, number in enumerate(first)) + last))


def _number(text: str) -> int:
    """Decimal, octal with a leading zero, or hexadecimal; ``0x`` alone is zero, as in browsers."""
    if text.startswith("0x"):
        return int(text[2:] or "0", 16)
    return int(text, 8) if len(text) > 1 and text.startswith("0") else int(text)


def as_address(host: str) -> IpAddress | None:
    """The address that a canonical host is; ``None`` for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_local_name(host: str) -> bool:
    """True if a canonical name always means loopback (RFC 6761)."""
    return host == "localhost" or host.endswith(".localhost")


def is_this_machine(host: str) -> bool:
    """True if a host, in any case, always means this machine: a loopback address or a local
    name."""
    address = as_address(host)
    return is_local_name(host.lower()) if address is None else address.is_loopback


def refuse_address(address: IpAddress) -> Reason | None:
    """Return the reason why an address is no public host, or ``None``."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address in METADATA_ADDRESSES:
        return Reason.METADATA
    if address.is_loopback:
        return Reason.LOOPBACK
    if address.is_link_local:
        return Reason.LINK_LOCAL
    if address in CGNAT:
        return Reason.CGNAT
    if address.is_unspecified or address.is_multicast or any(address in network for network in TRANSLATED):
        return Reason.RESERVED
    if _is_private(address):
        return Reason.PRIVATE
    return None if address.is_global and not address.is_reserved else Reason.RESERVED


def _is_private(address: IpAddress) -> bool:
    """RFC 1918 and RFC 4193; ``ipaddress.is_private`` also counts documentation and benchmark
    ranges."""
    return any(
        address in ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
    )
