"""Listeners that others reach need TLS, or the one setting that permits plaintext."""

from __future__ import annotations

import socket
from unittest.mock import Mock

import pytest

from bookie.config import Settings
from bookie.errors import CannotStartError, ConfigurationError
from bookie.security.exposure import exposed_listeners, is_loopback, require_protected

BOTH = ("listen", "http")
FILES = {"certificate_file": "c", "key_file": "k", "ca_file": "a"}


def settings(listen: str, http: str, **security: object) -> Settings:
    tables = {"listen": {"host": listen}, "http": {"host": http}, "security": security}
    return Settings.model_validate(tables)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%lo"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_loopback_needs_nothing() -> None:
    assert require_protected(settings("127.0.0.1", "::1"), BOTH) == {}


@pytest.mark.parametrize(
    ("listen", "http", "name"),
    [("0.0.0.0", "127.0.0.1", "listen.host"), ("127.0.0.1", "::", "http.host")],
)
def test_plaintext_beyond_loopback_is_refused(listen: str, http: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name} = .*security\.allow_plaintext = true"):
        require_protected(settings(listen, http), BOTH)


def test_a_host_without_an_address_is_no_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that is away is not the configuration's fault: a later start may succeed."""
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=unknown))
    assert not is_loopback("b1.invalid")
    with pytest.raises(
        CannotStartError, match=r"listen\.host = b1\.invalid: .* cannot be resolved"
    ):
        require_protected(settings("b1.invalid", "127.0.0.1"), BOTH)


def test_plaintext_that_is_allowed_is_named() -> None:
    allowed = settings("0.0.0.0", "::", allow_plaintext=True)
    assert require_protected(allowed, BOTH) == {"listen.host": "0.0.0.0", "http.host": "::"}


def test_tls_is_enough() -> None:
    assert require_protected(settings("0.0.0.0", "0.0.0.0", **FILES), BOTH) == {}


def test_a_port_without_tls_beside_one_with_it_is_named() -> None:
    both = settings("0.0.0.0", "0.0.0.0", **FILES, allow_plaintext=True)
    assert exposed_listeners(both, BOTH) == {"listen.host": "0.0.0.0"}


def test_a_process_without_that_listener() -> None:
    assert require_protected(settings("0.0.0.0", "127.0.0.1"), ("http",)) == {}


NOBODY_ASKED = {**FILES, "require_client_certificate": False, "require_roles": False}


def test_tls_that_asks_nobody_who_he_is() -> None:
    """It is encrypted, and anybody may delete everything."""
    for listen, http, name in (("0.0.0.0", "::1", "listen"), ("::1", "0.0.0.0", "http")):
        with pytest.raises(ConfigurationError, match=rf"{name}\.host = .* ask nobody who he is"):
            require_protected(settings(listen, http, **NOBODY_ASKED), BOTH)
    allowed = settings("0.0.0.0", "0.0.0.0", **NOBODY_ASKED, allow_plaintext=True)
    assert require_protected(allowed, BOTH)
    assert require_protected(settings("::1", "127.0.0.1", **NOBODY_ASKED), BOTH) == {}


@pytest.mark.parametrize("setting", ["require_client_certificate", "require_roles"])
def test_one_of_both_is_enough(setting: str) -> None:
    security = {**NOBODY_ASKED, setting: True}
    assert require_protected(settings("0.0.0.0", "0.0.0.0", **security), BOTH) == {}
