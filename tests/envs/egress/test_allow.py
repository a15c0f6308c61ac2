"""The allow list: one spelling of every host, default deny, no way to loopback but by its own
name."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.egress import AllowList, Reason
from envs.egress.addresses import canonical_host, is_this_machine, refuse_address
from envs.types import ConfigError

SITE = AllowList.of("http://127.0.0.1:8080", "https://shop.example", "https://*.cdn.example.com")


@pytest.mark.parametrize(
    "written",
    [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "[::ffff:127.0.0.1]",
        "::ffff:7f00:1",
        "[0:0:0:0:0:ffff:7f00:0001]",
    ],
)
def test_every_spelling_of_an_address_is_one(written: str) -> None:
    assert canonical_host(written) == "127.0.0.1"
    assert SITE.refuse(written, 8080, "http") is None
    assert SITE.refuse(written, 8081, "http") is Reason.LOOPBACK


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        "a..b",
        "-a.example",
        "a-.example",
        "exa mple.com",
        "ex%61mple.com",
        "bücher.example",
        "256.1.1.1",
        "1.2.3.4.5",
        "08.1.1.1",
        "0x7g.1",
        "[::1",
        "[::1%lo]",
        "a" * 64,
        "a." * 130,
        "shop.example\r\nHost: x",
        "1.2.3.999",
    ],
)
def test_what_is_no_host_is_refused(written: str) -> None:
    assert canonical_host(written) is None
    assert SITE.refuse(written, 80) is Reason.BAD_HOST


@given(st.integers(0, 2**32 - 1))
def test_numbers_and_dotted_addresses_agree(number: int) -> None:
    dotted = str(ipaddress.IPv4Address(number))
    assert canonical_host(str(number)) == canonical_host(hex(number)) == canonical_host(dotted) == dotted


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1", Reason.LOOPBACK),
        ("127.9.9.9", Reason.LOOPBACK),
        ("::1", Reason.LOOPBACK),
        ("::ffff:127.0.0.1", Reason.LOOPBACK),
        ("10.1.2.3", Reason.PRIVATE),
        ("172.16.0.1", Reason.PRIVATE),
        ("192.168.1.1", Reason.PRIVATE),
        ("fd12::1", Reason.PRIVATE),
        ("169.254.1.1", Reason.LINK_LOCAL),
        ("fe80::1", Reason.LINK_LOCAL),
        ("169.254.169.254", Reason.METADATA),
        ("::ffff:169.254.169.254", Reason.METADATA),
        ("fd00:ec2::254", Reason.METADATA),
        ("100.100.100.200", Reason.METADATA),
        ("168.63.129.16", Reason.METADATA),
        ("100.64.0.1", Reason.CGNAT),
        ("0.0.0.0", Reason.RESERVED),
        ("::", Reason.RESERVED),
        ("0.1.2.3", Reason.RESERVED),
        ("192.0.2.2", Reason.RESERVED),
        ("198.18.0.1", Reason.RESERVED),
        ("224.0.0.251", Reason.RESERVED),
        ("255.255.255.255", Reason.RESERVED),
        ("ff02::1", Reason.RESERVED),
        ("::127.0.0.1", Reason.RESERVED),
        ("64:ff9b::7f00:1", Reason.RESERVED),
        ("2002:7f00:1::", Reason.RESERVED),
        ("2001:0:7f00:1::", Reason.RESERVED),
        ("::ffff:0:127.0.0.1", Reason.RESERVED),
        ("fec0::1", Reason.RESERVED),
        ("2001:db8::1", Reason.RESERVED),
        ("93.184.215.14", None),
        ("2606:2800:21f::1", None),
    ],
)
def test_which_addresses_are_public(address: str, reason: Reason | None) -> None:
    assert refuse_address(ipaddress.ip_address(address)) is reason


@given(st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address))
def test_nothing_that_is_not_global_is_public(address: ipaddress.IPv4Address) -> None:
    if not address.is_global:
        assert refuse_address(address) is not None
    assert refuse_address(ipaddress.IPv6Address(f"::ffff:{address}")) is refuse_address(address)


def test_everything_else_is_denied() -> None:
    assert AllowList().refuse("shop.example", 443, "https") is Reason.NOT_LISTED
    assert SITE.refuse("shop.example", 443, "https") is None
    assert SITE.refuse("SHOP.example.", 443) is None
    assert SITE.refuse("shop.example", 8443, "https") is Reason.NOT_LISTED
    assert SITE.refuse("shop.example", 443, "http") is Reason.SCHEME
    assert SITE.refuse("www.shop.example", 443) is Reason.NOT_LISTED
    assert SITE.refuse("shop.example.evil.test", 443) is Reason.NOT_LISTED
    assert SITE.refuse("metadata.google.internal", 80) is Reason.METADATA
    assert AllowList.of("http://*.ec2.internal").refuse("instance-data.ec2.internal", 80) is Reason.METADATA
    assert SITE.refuse("localhost", 8080) is Reason.LOOPBACK, "the site is named by its address"
    assert SITE.refuse("127.0.0.2", 8080) is Reason.LOOPBACK


def test_a_wildcard_is_for_subdomains_only() -> None:
    assert SITE.refuse("a.cdn.example.com", 443) is None
    assert SITE.refuse("a.b.cdn.example.com", 443) is None
    assert SITE.refuse("cdn.example.com", 443) is Reason.NOT_LISTED
    assert SITE.refuse("acdn.example.com", 443) is Reason.NOT_LISTED


def test_answers_of_the_name_server_are_checked() -> None:
    def answer(host: str, address: str, allow: AllowList = SITE) -> Reason | None:
        return allow.refuse_answer(host, ipaddress.ip_address(address))

    assert answer("shop.example", "93.184.215.14") is None
    assert answer("shop.example", "127.0.0.1") is Reason.LOOPBACK
    assert answer("shop.example", "169.254.169.254") is Reason.METADATA
    assert answer("shop.example", "::ffff:10.0.0.1") is Reason.PRIVATE
    assert answer("127.1", "127.0.0.1") is None
    assert answer("localhost", "127.0.0.1") is None
    assert answer("localhost", "93.184.215.14") is Reason.NOT_LISTED


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.1:8080/a?b#c", None),
        ("https://shop.example/", None),
        ("about:blank", None),
        ("file:///etc/passwd", Reason.SCHEME),
        ("FILE:///etc/passwd", Reason.SCHEME),
        (" file:///etc/passwd", Reason.SCHEME),
        ("view-source:http://127.0.0.1:8080/", Reason.SCHEME),
        ("chrome://version", Reason.SCHEME),
        ("javascript:alert(1)", Reason.SCHEME),
        ("data:text/html,x", Reason.SCHEME),
        ("blob:http://127.0.0.1:8080/x", Reason.SCHEME),
        ("ftp://shop.example/", Reason.SCHEME),
        ("/relative", Reason.SCHEME),
        ("http://[::1]:9222/json", Reason.LOOPBACK),
        ("http://127.0.0.1:9222/json", Reason.LOOPBACK),
        ("http://127.0.0.1:8080@evil.test/", Reason.NOT_LISTED),
        ("http://evil.test:99999/", Reason.BAD_HOST),
        ("http://", Reason.BAD_HOST),
    ],
)
def test_where_an_action_may_navigate(url: str, reason: Reason | None) -> None:
    assert SITE.refuse_url(url) is reason


@pytest.mark.parametrize(
    "site",
    [
        "shop.example",
        "ftp://shop.example",
        "http://shop.example/path",
        "http://u:p@shop.example",
        "http://shop.example:0x50",
        "http://*.com",
        "http://*.localhost",
        "http://*.0.0.1",
        "http://*",
        "http://a.*.example.com",
        "http://exa mple",
        "http://10.0.0.1",
        "http://169.254.169.254",
        "http://metadata.google.internal",
        "http://0.0.0.0:8080",
        "http://[fe80::1]",
        "http://100.64.1.1",
        "file:///etc",
    ],
)
def test_what_cannot_be_a_site(site: str) -> None:
    with pytest.raises(ConfigError, match="site "):
        AllowList.of(site)


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("LOCALHOST", True),
        ("shop.localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("notlocalhost", False),
        ("[::1", False),
    ],
)
def test_this_machine_has_loopback_addresses_and_local_names(host: str, is_here: bool) -> None:
    assert is_this_machine(host) is is_here
