"""The start of ``bookie serve``, without a daemon."""

from __future__ import annotations

import os

import pytest

from bookie.cli.serve import _without_system_certificates


@pytest.mark.parametrize("given", [None, "/etc/mine.pem"])
def test_an_import_without_certificates_leaves_the_users_choice(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later contexts, such as that of a metadata store, read the system's certificates again."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if given is not None:
        monkeypatch.setenv("SSL_CERT_FILE", given)
    with _without_system_certificates():
        assert os.environ["SSL_CERT_FILE"] == os.devnull
    assert os.environ.get("SSL_CERT_FILE") == given
