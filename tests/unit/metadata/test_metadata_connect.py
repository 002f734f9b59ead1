"""A metadata URI opens the right store, or says in one sentence why not."""

from __future__ import annotations

import pytest

from bookie.errors import ConfigurationError
from bookie.metadata.connect import open_store


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "must begin with"),
        ("/var/lib/metadata", "must begin with"),
        ("redis://host", "must begin with"),
        ("memory:", "memory://NAME"),
        ("memory://", "memory://NAME"),
        ("memory://a/b", "memory://NAME"),
        ("local://relative/directory", "local:///absolute/directory"),
        ("local:relative", "local:///absolute/directory"),
        ("local:///a?x=1", "query"),
        ("zk://user:secret@host/ledgers", "credentials"),
        ("zk://host:2181/ledgers", "no metadata backend for zk:// yet"),
        ("etcd://host:2379/ledgers", "no metadata backend for etcd:// yet"),
        ("etcd://[::1", "cannot be parsed"),
    ],
)
def test_a_wrong_uri_is_refused_in_one_sentence(uri: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        open_store(uri)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.05, 3601.0, float("nan"), float("inf")])
def test_a_session_timeout_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="session timeout"):
        open_store("memory://timeout", session_timeout_seconds=seconds)


async def test_two_names_are_two_stores() -> None:
    async with open_store("memory://one-name") as one, open_store("memory://other-name") as other:
        await one.put("/a", b"")
        assert not await other.exists("/a")
