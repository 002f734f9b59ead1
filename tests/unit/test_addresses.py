"""Addresses as text: a host and a port, with brackets around an IPv6 address."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.addresses import is_host, is_wildcard, join_address, split_address


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [
        ("h1", 1, "h1:1"),
        ("10.0.0.1", 3181, "10.0.0.1:3181"),
        ("::1", 65535, "[::1]:65535"),
        ("::", 3181, "[::]:3181"),
        ("fe80::2%eth0", 80, "[fe80::2%eth0]:80"),
    ],
)
def test_an_address_goes_to_text_and_back(host: str, port: int, text: str) -> None:
    assert join_address(host, port) == text
    assert split_address(text) == (host, port)


@given(
    st.one_of(
        st.from_regex(r"[A-Za-z0-9_.-]{1,40}", fullmatch=True),
        st.ip_addresses().map(str),
        st.ip_addresses(v=6).map(lambda one: ipaddress.IPv6Address(one).exploded),
    ),
    st.integers(1, 65535),
)
def test_every_address_comes_back(host: str, port: int) -> None:
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("text", "host"), [("h1", "h1"), ("[::1]", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_a_port_that_is_left_out_has_a_default(text: str, host: str) -> None:
    assert split_address(text, 2181) == (host, 2181)
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1", "h:", "h:0", "h:65536", "h:-1", "h:+1", "h:1_0", "h:one", "h:\u0661", "h:1 "),
        *(" h:1", "h h:1", "h:1:2", "::1", "::1:2181", "h/x:1", "u@h:1"),
        *("[::1", "[]:1", "[h]:1", "[10.0.0.1]:1", "[::1]1", "[::1]:", "x[::1]:1", "[::1]]:1"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        split_address(text, 2181)


@given(st.text(max_size=12))
def test_any_text_is_split_or_refused(text: str) -> None:
    try:
        host, port = split_address(text, 1)
    except ValueError:
        return
    assert is_host(host)
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("host", "wildcard"),
    [
        *(("0.0.0.0", True), ("::", True), ("0:0::0", True)),
        *(("127.0.0.1", False), ("::1", False), ("h1", False), ("", False)),
    ],
)
def test_a_wildcard_is_every_address_of_a_machine(host: str, wildcard: bool) -> None:
    assert is_wildcard(host) is wildcard
