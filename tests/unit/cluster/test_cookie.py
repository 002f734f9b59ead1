"""Cookies: text that round trips, and refusal of everything else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie.cluster.cookie import Cookie, CookieState, decode_cookie, encode_cookie
from bookie.errors import FormatError

COOKIE = Cookie(
    bookie_id="bookie-1",
    journal_dirs=("/data/journal",),
    ledger_dirs=("/data/ledgers", "/mnt/zwölf = 12\n"),
    instance_id="0b7c",
    unique_id="55aa",
    state=CookieState.READY,
)
TEXT = encode_cookie(COOKIE).decode()


@pytest.mark.parametrize("state", list(CookieState))
def test_cookie_round_trip(state: CookieState) -> None:
    """Every field survives, odd paths included."""
    cookie = replace(COOKIE, state=state)
    assert decode_cookie(encode_cookie(cookie)) == cookie


def test_cookie_is_readable_text() -> None:
    """A version line, then one line for each field."""
    assert TEXT.splitlines() == [
        "bookie-cookie 1",
        'bookie_id="bookie-1"',
        'instance_id="0b7c"',
        'journal_dirs=["/data/journal"]',
        'ledger_dirs=["/data/ledgers", "/mnt/zw\\u00f6lf = 12\\n"]',
        'state="READY"',
        'unique_id="55aa"',
    ]


def test_what_was_added_later_round_trips() -> None:
    """Incarnation, number and marks survive, and stand on lines of their own."""
    cookie = replace(COOKIE, incarnation="8f", state_number=7, is_settled=False, is_in_doubt=True)
    data = encode_cookie(cookie)
    assert decode_cookie(data) == cookie
    assert data.decode().removeprefix(TEXT).splitlines() == [
        'incarnation="8f"',
        "state_number=7",
        "is_settled=false",
        "is_in_doubt=true",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a bookie cookie"),
        (b"\xff", "not text"),
        (b"4\nbookieHost: x", "not a bookie cookie: it starts with '4'"),
        (b"bookie-cookie 0\n", "not a bookie cookie"),
        (TEXT.replace("cookie 1", "cookie 2").encode(), "newer version: format 2"),
        (TEXT[:-1].encode(), "cut off"),
        (TEXT.replace('state="READY"\n', "").encode(), "state is missing"),
        (TEXT.replace("READY", "STEADY").encode(), "STEADY"),
        (TEXT.replace('"READY"', "7").encode(), "state is not text"),
        (TEXT.replace('"READY"', "READY").encode(), "its line"),
        (TEXT.replace('"bookie-1"', '"a/b"').encode(), "cannot be a bookie's id"),
        (TEXT.replace('["/data/journal"]', '"x"').encode(), "journal_dirs is not a list"),
        (TEXT.replace('["/data/journal"]', "[7]").encode(), "journal_dirs is not a list of texts"),
        ((TEXT + 'state="NEW"\n').encode(), "twice"),
    ],
)
def test_bad_cookies_are_refused(data: bytes, message: str) -> None:
    """Foreign, damaged and newer cookies are told apart."""
    with pytest.raises(FormatError, match=message):
        decode_cookie(data)


def test_differences_are_named_but_not_the_state() -> None:
    """Two cookies of one bookie differ in nothing while one is still NEW."""
    assert COOKIE.differences(replace(COOKIE, state=CookieState.NEW)) == []
    other = Cookie("b2", ("/j",), ("/l",), "other", "unique", CookieState.READY)
    assert COOKIE.differences(other) == [
        "bookie id",
        "journal directories",
        "ledger directories",
        "instance id",
        "unique id",
    ]
