"""Tokens: who is let in, and why others are refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jwt
import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bookie.errors import ConfigurationError
from bookie.security import tokens
from bookie.security.followed_file import LOOK_SECONDS
from bookie.security.token_file import TOKEN_BYTES_MAX
from bookie.security.tokens import (
    LEEWAY_SECONDS,
    TokenClaims,
    TokenKeys,
    TokenRefused,
    TokenVerifier,
)
from tests.unit.security.test_pem_files import Clock

CLUSTER = "2f8a1c94-6f0e-4b7e-9d5c-0a6f3c1d2e4b"
NOW = 1_800_000_000.0
SECRET = bytes(range(40))


def encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def part(value: object) -> str:
    """A part of a token."""
    return encoded(json.dumps(value).encode())


class Issuer:
    """Somebody with a pair of keys."""

    def __init__(self, key_id: str, seed: int) -> None:
        # A key by seed: processes that share these tests must agree on their names.
        self.key_id = key_id
        self.key = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public_bytes = self.key.public_key().public_bytes_raw()

    def jwk(self, **others: object) -> dict[str, Any]:
        own = {"kty": "OKP", "crv": "Ed25519", "kid": self.key_id, "x": encoded(self.public_bytes)}
        return own | others

    def token(self, *, without: str = "", header: dict[str, Any] | None = None, **own: Any) -> str:
        claims = {"sub": "reports", "aud": CLUSTER, "exp": NOW + 900} | own
        claims.pop(without, None)
        named = {"kid": self.key_id} if header is None else header
        return jwt.encode(claims, self.key, "EdDSA", named)


A, B, STRANGER = Issuer("a", 1), Issuer("b", 2), Issuer("a", 3)
SHARED = {"kty": "oct", "kid": "s", "k": encoded(SECRET)}


def shared_token(**own: Any) -> str:
    claims = {"sub": "reports", "aud": CLUSTER, "exp": NOW + 900} | own
    return jwt.encode(claims, SECRET, "HS256", {"kid": "s"})


def write(path: Path, *jwks: dict[str, Any]) -> None:
    path.write_text(json.dumps({"keys": jwks}), encoding="utf-8")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A key set of two pairs and a secret."""
    path = tmp_path / "token-keys.json"
    write(path, A.jwk(), B.jwk(), SHARED)
    return path


@pytest.fixture
def verifier(path: Path) -> TokenVerifier:
    return TokenVerifier(TokenKeys(str(path)), CLUSTER)


def refusal(verifier: TokenVerifier, token: str, now_seconds: float = NOW) -> str:
    with pytest.raises(TokenRefused) as caught:
        verifier.verify(token, now_seconds)
    assert token not in str(caught.value) or len(token) < 10
    assert caught.value.__cause__ is None
    return str(caught.value)


@pytest.mark.parametrize("audience", [CLUSTER, ["another", CLUSTER]])
def test_good_tokens(verifier: TokenVerifier, audience: object) -> None:
    for token in (A.token(aud=audience), B.token(aud=audience), shared_token(aud=audience)):
        assert verifier.verify(token, NOW) == TokenClaims("reports", NOW + 900)


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"aud": "another"}, "is for another cluster"),
        ({"aud": [CLUSTER[:-1]]}, "is for another cluster"),
        ({"aud": []}, "is for another cluster"),
        ({"aud": [CLUSTER, 1]}, "has no audience"),
        ({"aud": {CLUSTER: 1}}, "has no audience"),
        ({"without": "aud"}, "has no audience"),
        ({"without": "sub"}, "has no subject"),
        ({"sub": ""}, "has no subject"),
        ({"sub": "a\nb"}, "is too long or not printable"),
        ({"sub": "a" * 256}, "is too long or not printable"),
        ({"without": "exp"}, "has no expiry"),
        ({"exp": None}, "has no expiry"),
        ({"exp": True}, "exp is no number of seconds"),
        ({"exp": str(NOW + 900)}, "exp is no number of seconds"),
        ({"exp": float("nan")}, "exp is no number of seconds"),
        ({"exp": float("inf")}, "exp is no number of seconds"),
        ({"exp": 10**400}, "exp is no number of seconds"),
        ({"exp": -1}, "exp is no number of seconds"),
        ({"nbf": "soon"}, "nbf is no number of seconds"),
        ({"exp": NOW - LEEWAY_SECONDS}, "expired 30 s ago"),
        ({"nbf": NOW + LEEWAY_SECONDS + 1}, "is not valid before 31 s from now"),
    ],
)
def test_claims_that_are_refused(
    verifier: TokenVerifier, claims: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(verifier, A.token(**claims))


def test_a_subject_that_is_no_text(verifier: TokenVerifier) -> None:
    """The library that makes tokens refuses it, and others may not."""
    signed = f"{part({'alg': 'EdDSA', 'kid': 'a'})}.{part({'sub': 7, 'aud': CLUSTER, 'exp': NOW})}"
    token = f"{signed}.{encoded(A.key.sign(signed.encode()))}"
    assert "has no subject" in refusal(verifier, token)


@pytest.mark.parametrize("payload", [b"[]", b"7", b"nonsense", b"\xff", b"[" * 4000])
def test_signed_content_that_is_no_object(verifier: TokenVerifier, payload: bytes) -> None:
    signed = f"{part({'alg': 'EdDSA', 'kid': 'a'})}.{encoded(payload)}"
    token = f"{signed}.{encoded(A.key.sign(signed.encode()))}"
    assert refusal(verifier, token) == "the token cannot be parsed"


def test_the_clocks_may_differ(verifier: TokenVerifier) -> None:
    late, early = A.token(exp=NOW), A.token(nbf=NOW)
    assert verifier.verify(late, NOW + LEEWAY_SECONDS - 1).subject == "reports"
    assert verifier.verify(early, NOW - LEEWAY_SECONDS).subject == "reports"
    assert "not valid before" in refusal(verifier, early, NOW - LEEWAY_SECONDS - 1)


def test_a_key_of_a_stranger(verifier: TokenVerifier) -> None:
    assert refusal(verifier, STRANGER.token()) == "the token's signature is not good"
    assert "a key (kid) that the bookie does not have" in refusal(verifier, Issuer("c", 4).token())


def test_changed_content(verifier: TokenVerifier) -> None:
    header, payload, signature = A.token().split(".")
    other = part({"sub": "admin", "aud": CLUSTER, "exp": NOW + 900})
    assert "signature is not good" in refusal(verifier, f"{header}.{other}.{signature}")
    assert "signature is not good" in refusal(verifier, f"{header}.{payload}.{'A' * 86}")


@pytest.mark.parametrize("name", ["none", "None", "NONE", ""])
def test_unsigned(verifier: TokenVerifier, name: str) -> None:
    claims = part({"sub": "admin", "aud": CLUSTER, "exp": NOW + 900})
    for key_id in ("a", "s"):
        token = f"{part({'alg': name, 'kid': key_id})}.{claims}."
        assert "another algorithm than its key" in refusal(verifier, token)
    signature = A.token().rpartition(".")[2]
    token = f"{part({'alg': name, 'kid': 'a'})}.{claims}.{signature}"
    assert "another algorithm than its key" in refusal(verifier, token)
    assert refusal(verifier, f"{part({'kid': 'a'})}.{claims}.{signature}")


def test_a_public_key_is_no_secret(verifier: TokenVerifier) -> None:
    """Everybody knows the public key. A verifier that follows the header takes it as a secret."""
    pem = A.key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    claims = part({"sub": "admin", "aud": CLUSTER, "exp": NOW + 900})
    in_base64 = encoded(A.public_bytes).encode()
    for secret in (A.public_bytes, in_base64, json.dumps(A.jwk()).encode(), pem):
        for key_id in ("a", "s"):
            signed = f"{part({'alg': 'HS256', 'kid': key_id})}.{claims}"
            signature = hmac.digest(secret, signed.encode(), hashlib.sha256)
            assert refusal(verifier, f"{signed}.{encoded(signature)}")


def test_a_secret_signs_for_its_key_alone(verifier: TokenVerifier) -> None:
    claims = {"sub": "admin", "aud": CLUSTER, "exp": NOW + 900}
    token = jwt.encode(claims, SECRET, "HS256", {"kid": "a"})
    assert "another algorithm than its key" in refusal(verifier, token)
    for other in ("HS384", "HS512"):
        token = jwt.encode(claims, SECRET * 2, other, {"kid": "s"})
        assert "another algorithm than its key" in refusal(verifier, token)
    token = jwt.encode(claims, A.key, "EdDSA", {"kid": "s"})
    assert "another algorithm than its key" in refusal(verifier, token)


def test_a_critical_header_that_nobody_knows(verifier: TokenVerifier) -> None:
    """RFC 7515: a verifier refuses an extension that it does not understand."""
    header = {"alg": "EdDSA", "kid": "a", "crit": ["limit"], "limit": 1}
    signed = f"{part(header)}.{part({'sub': 'a', 'aud': CLUSTER, 'exp': NOW + 9})}"
    token = f"{signed}.{encoded(A.key.sign(signed.encode()))}"
    assert refusal(verifier, token) == "the token cannot be parsed"


def test_a_token_without_a_key_id(verifier: TokenVerifier, tmp_path: Path) -> None:
    assert "names no key (kid)" in refusal(verifier, A.token(header={}))
    write(tmp_path / "one.json", A.jwk())
    only = TokenVerifier(TokenKeys(str(tmp_path / "one.json")), CLUSTER)
    assert only.verify(A.token(header={}), NOW).subject == "reports"
    assert "signature is not good" in refusal(only, STRANGER.token(header={}))
    assert "does not have" in refusal(only, B.token())


@pytest.mark.parametrize("key_id", [7, None, ["a"], {"a": 1}])
def test_key_ids_that_are_no_text(verifier: TokenVerifier, key_id: object) -> None:
    signed = f"{part({'alg': 'EdDSA', 'kid': key_id})}.{part({})}"
    assert refusal(verifier, f"{signed}.{encoded(A.key.sign(signed.encode()))}")


def test_a_long_token(verifier: TokenVerifier) -> None:
    token = A.token(more="a" * TOKEN_BYTES_MAX)
    assert refusal(verifier, token) == "the token is longer than 8192 bytes"


LETTERS = "eyJhbGciOi.-_=+/ \0é\ud800"


@given(
    st.one_of(
        st.text(max_size=200),
        st.text(LETTERS, max_size=200),
        st.binary(max_size=200).map(lambda one: one.decode("utf-8", "surrogateescape")),
        st.tuples(
            st.dictionaries(
                st.sampled_from(["alg", "kid", "crit", "b64", "typ"]),
                st.sampled_from(["EdDSA", "HS256", "none", "a", "s", ["b64"], [], 0, None, False]),
            ),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
                max_leaves=5,
            ),
            st.binary(max_size=70),
        ).map(lambda one: f"{part(one[0])}.{part(one[1])}.{encoded(one[2])}"),
    )
)
def test_nothing_but_a_refusal(token: str) -> None:
    """Any text may come from the network; the keys are not looked at again for it."""
    keys = Mock(spec=TokenKeys)
    keys.by_id = BY_ID
    with pytest.raises(TokenRefused):
        TokenVerifier(keys, CLUSTER).verify(token, NOW)


BY_ID = tokens.parse_keys(json.dumps({"keys": [A.jwk(), SHARED]}).encode())


ANY = st.one_of(
    st.sampled_from(["OKP", "Ed25519", "oct", "EdDSA", "HS256", "sig", "AA", "A", None, 0]),
    st.text(max_size=5),
    st.floats(),
)


@given(
    ANY
    | st.lists(ANY, max_size=2)
    | st.dictionaries(
        st.sampled_from(["kty", "crv", "x", "k", "d", "kid", "alg", "use", "keys"]), ANY
    )
)
def test_any_key_set_is_refused_in_a_sentence(found: object) -> None:
    for content in (found, {"keys": [found]}):
        with pytest.raises(ValueError, match=r"^holds "):
            tokens.parse_keys(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("jwk", "sentence"),
    [
        ({"kty": "RSA", "kid": "r"}, "holds a key r that is neither on Ed25519"),
        ({"kty": "EC", "crv": "P-256", "kid": "r"}, "neither on Ed25519"),
        (A.jwk(crv="Ed448"), "neither on Ed25519"),
        (A.jwk(x="AAAA"), "whose x is not 32 bytes"),
        (A.jwk(x=encoded(A.public_bytes) + "="), "whose x is not 32 bytes"),
        (A.jwk(x=7), "whose x is not 32 bytes"),
        (A.jwk(d="AAAA"), "with its private part"),
        (A.jwk(alg="HS256"), "whose alg is not EdDSA"),
        (A.jwk(use="enc"), "whose use is not sig"),
        (A.jwk(kid=""), "without an id"),
        (A.jwk(kid=None), "without an id"),
        (A.jwk(kid="a\nb"), "without an id"),
        (SHARED | {"k": encoded(SECRET[:31])}, "shorter than 32 bytes"),
        (SHARED | {"k": "!"}, "whose k is no base64url"),
        (SHARED | {"alg": "HS512"}, "whose alg is not HS256"),
        (SHARED | {"k": encoded(b"ssh-ed25519 AAAA" + SECRET)}, "is a public key"),
        (B.jwk(), "two keys with the id b"),
        ([], "no key at place 2"),
    ],
)
def test_keys_that_are_refused(path: Path, jwk: Any, sentence: str) -> None:
    write(path, B.jwk(), jwk)
    with pytest.raises(ConfigurationError, match=f"security.token_keys_file .*{sentence}"):
        TokenKeys(str(path))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be used: no such file"),
        (b"", "holds no JSON"),
        (b"\xff", "holds no JSON"),
        (b"[" * 100_000, "holds no JSON"),
        (b'{"keys": ' + b"9" * 5000 + b"}", "holds no JSON"),
        (b"[]", "holds no key set"),
        (json.dumps(A.jwk()).encode(), "holds no key set"),
        (b'{"keys": []}', "holds no key"),
        (b" " * (2**20 + 1), "is longer than"),
    ],
)
def test_files_that_are_refused(path: Path, content: bytes | None, sentence: str) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=sentence):
        TokenKeys(str(path))


def test_a_public_key_in_the_place_of_a_secret(path: Path) -> None:
    spki = form.PublicFormat.SubjectPublicKeyInfo
    for encoding in (form.Encoding.PEM, form.Encoding.DER):
        public = A.key.public_key().public_bytes(encoding, spki)
        write(path, SHARED | {"k": encoded(public)})
        with pytest.raises(ConfigurationError, match="is a public key or a certificate"):
            TokenKeys(str(path))


def test_secrets_are_not_shown(path: Path) -> None:
    assert str(SECRET) not in repr(TokenKeys(str(path)).by_id)


def followed(path: Path) -> tuple[TokenVerifier, TokenKeys, Clock]:
    clock = Clock()
    keys = TokenKeys(str(path), clock)
    return TokenVerifier(keys, CLUSTER), keys, clock


def test_rotation(path: Path) -> None:
    """A new key is taken, and tokens of a key that is gone are refused, verified before or not."""
    verifier, _, clock = followed(path)
    before = A.token()
    assert verifier.verify(before, NOW)
    new = Issuer("new", 5)
    assert "does not have" in refusal(verifier, new.token())
    write(path, B.jwk(), new.jwk())
    assert verifier.verify(before, NOW), "nobody looks twice within a second"
    clock.seconds += LOOK_SECONDS
    assert "does not have" in refusal(verifier, before)
    assert verifier.verify(new.token(), NOW)
    assert verifier.verify(B.token(), NOW)


def test_another_key_with_the_same_id(path: Path) -> None:
    verifier, _, clock = followed(path)
    before = A.token()
    assert verifier.verify(before, NOW)
    write(path, STRANGER.jwk())
    clock.seconds += LOOK_SECONDS
    assert "signature is not good" in refusal(verifier, before)


def test_unusable_keys_change_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    verifier, keys, clock = followed(path)
    path.write_bytes(b"nonsense")
    for _ in range(3):
        clock.seconds += LOOK_SECONDS
        assert verifier.verify(A.token(), NOW)
    said = [one for one in caplog.messages if one.startswith("security_file_not_reloaded")]
    assert len(said) == 1
    assert "holds no JSON" in said[0]
    path.unlink()
    for _ in range(3):
        clock.seconds += LOOK_SECONDS
        assert not keys.refresh()
    assert len(caplog.messages) == 2
    write(path, B.jwk())
    clock.seconds += LOOK_SECONDS
    assert keys.refresh()
    assert list(keys.by_id) == ["b"]


def counted(verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """The verifications of signatures."""
    spy = Mock(wraps=verifier._signatures.decode_complete)
    monkeypatch.setattr(verifier._signatures, "decode_complete", spy)
    return spy


def test_a_verified_token_is_remembered(
    verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = counted(verifier, monkeypatch)
    token = A.token()
    assert verifier.verify(token, NOW) is verifier.verify(token, NOW + 1)
    assert spy.call_count == 1
    assert "expired" in refusal(verifier, token, NOW + 900 + LEEWAY_SECONDS)
    assert not verifier._verified, "an expired token is forgotten"


def test_a_refused_token_is_not_remembered(verifier: TokenVerifier) -> None:
    refusal(verifier, STRANGER.token())
    refusal(verifier, A.token(aud="another"))
    refusal(verifier, A.token(exp=NOW - 100))
    assert not verifier._verified


def test_the_memory_is_bounded(verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that was not used for the longest time is forgotten first."""
    monkeypatch.setattr(tokens, "CACHE_TOKENS_MAX", 2)
    first, second, third = (shared_token(sub=name) for name in "abc")
    for token in (first, second, first, third):
        verifier.verify(token, NOW)
    spy = counted(verifier, monkeypatch)
    assert verifier.verify(first, NOW).subject == "a"
    assert spy.call_count == 0
    assert verifier.verify(second, NOW).subject == "b"
    assert spy.call_count == 1
    assert len(verifier._verified) == 2


def test_the_file_of_keys_may_be_a_link(path: Path, tmp_path: Path) -> None:
    """Kubernetes swaps a link."""
    link = tmp_path / "link.json"
    link.symlink_to(path)
    verifier, _, clock = followed(link)
    write(tmp_path / "other.json", STRANGER.jwk())
    (tmp_path / "next").symlink_to(tmp_path / "other.json")
    os.replace(tmp_path / "next", link)
    clock.seconds += LOOK_SECONDS
    assert verifier.verify(STRANGER.token(), NOW)
