"""Implements ZooKeeper's SASL DIGEST-MD5: client and server prove that they know a password.

kazoo's own DIGEST-MD5 needs a library that is not maintained any more, so this module implements
the mechanism. The names of service and host, which the mechanism needs, are the same constants for
every ZooKeeper server.

Source: RFC 2831; SecurityUtils of ZooKeeper 3.9.
"""

from __future__ import annotations

import hashlib
import re

_DIGEST_URI = "zookeeper/zk-sasl-md5"
_DIRECTIVE = re.compile(r'([a-z-]+)=(?:"((?:[^"\\]|\\.)*)"|([^,\s]+))', re.IGNORECASE)


class SaslRefusedError(Exception):
    """The server's message is malformed, or does not prove that the server knows the password."""


class DigestMd5:
    """One authentication: `respond` to the server's challenge, then `check` the server's proof.

    Args:
        user: the name of the user.
        password: the user's password; only digests of the password are sent.
        nonce: text that was never used before.
    """

    def __init__(self, user: str, password: str, nonce: str) -> None:
        self._user = user
        self._password = password
        self._nonce = nonce
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge."""
        found = _directives(challenge)
        realm, nonce = found.get("realm", ""), found.get("nonce", "")
        if not nonce:
            raise SaslRefusedError("the server's challenge has no nonce")
        secret = _md5(f"{self._user}:{realm}:{self._password}".encode()).digest()
        key = _hex(secret + f":{nonce}:{self._nonce}".encode())

        def answer(verb: str) -> str:
            what = _hex(f"{verb}:{_DIGEST_URI}".encode())
            return _hex(f"{key}:{nonce}:00000001:{self._nonce}:auth:{what}".encode())

        self._proof = answer("")
        return ",".join(
            [
                "charset=utf-8",
                f"username={_quoted(self._user)}",
                f"realm={_quoted(realm)}",
                f"nonce={_quoted(nonce)}",
                "nc=00000001",
                f"cnonce={_quoted(self._nonce)}",
                f"digest-uri={_quoted(_DIGEST_URI)}",
                f"response={answer('AUTHENTICATE')}",
                "qop=auth",
            ]
        ).encode()

    def check(self, answer: bytes) -> None:
        """Raise `SaslRefusedError` unless `answer` proves that the server knows the password."""
        if _directives(answer).get("rspauth") != self._proof:
            raise SaslRefusedError("the server does not know our password")


def _directives(message: bytes) -> dict[str, str]:
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise SaslRefusedError("the server's message is not text") from error
    found = {}
    for name, quoted, plain in _DIRECTIVE.findall(text):
        found[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted else plain
    return found


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _md5(data: bytes) -> hashlib._Hash:
    return hashlib.md5(data, usedforsecurity=False)


def _hex(data: bytes) -> str:
    return _md5(data).hexdigest()
