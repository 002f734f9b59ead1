"""Verifies tokens: a token names its caller, and a key that the bookie trusts has signed the token.

A token is a JWT (RFC 7519) in the compact form of JWS (RFC 7515). The ``kid`` names a key of the
bookie; a token without ``kid`` is accepted if the bookie has only one key. The key determines the
algorithm: EdDSA for a key on Ed25519, HS256 for a shared secret. A token with another algorithm in
``alg`` is refused. So an attacker can neither omit the signature, nor use a public key as an HS256
secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bookie.env import Clock
from bookie.security.followed_file import FollowedFile
from bookie.security.token_file import TOKEN_BYTES_MAX

LEEWAY_SECONDS = 30.0
"""The allowed difference between the clocks of the issuer and of a bookie."""

SECRET_BYTES_MIN = 32
"""The shortest secret of HS256. Source: RFC 7518, section 3.2."""

CACHE_TOKENS_MAX = 1024
"""The greatest number of verified tokens that a verifier remembers."""

SUBJECT_LENGTH_MAX = 255
KEYS_FILE_BYTES_MAX = 2**20

EDDSA, HS256 = "EdDSA", "HS256"

_SECONDS_MAX = 1e12
"""The latest allowed time in a token, in seconds since 1970; up to this time, a float is exact to
the second."""

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_KEY_ID = re.compile(r"[A-Za-z0-9._~+/=:-]{1,128}")


class TokenRefused(ValueError):  # noqa: N818 (every stranger can cause this error)
    """The token is invalid; ``str(error)`` gives the reason, and never contains the token."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The content of a verified token."""

    subject: str
    expires_seconds: float
    """The end of the token's validity, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key that verifies tokens."""

    key_id: str
    algorithm: str
    """`EDDSA` or `HS256`."""
    material: Any = field(repr=False)
    """The public key, or the secret, in the form that PyJWT needs."""


def parse_keys(content: bytes) -> Mapping[str, TokenKey]:
    """Return the keys in a JWK set (RFC 7517), by key id.

    Raises:
        ValueError: the content is not a key set with at least one key, or a key cannot be used. The
            text of the error can follow the name of the file, and contains no part of a key.
    """
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("holds no JSON") from error
    listed = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(listed, list):
        raise ValueError('holds no key set: an object with a list "keys"')
    if not listed:
        raise ValueError("holds no key")
    keys: dict[str, TokenKey] = {}
    for place, one in enumerate(listed, start=1):
        if not isinstance(one, dict):
            raise ValueError(f"holds no key at place {place}")
        key = _parse_key(one, place)
        if key.key_id in keys:
            raise ValueError(f"holds two keys with the id {key.key_id}")
        keys[key.key_id] = key
    return keys


def _parse_key(jwk: Mapping[str, Any], place: int) -> TokenKey:
    key_id = jwk.get("kid")
    if not isinstance(key_id, str) or _KEY_ID.fullmatch(key_id) is None:
        raise ValueError(f"holds a key without an id (kid) at place {place}")
    of_key = f"holds a key {key_id}"
    if jwk.get("kty") == "OKP" and jwk.get("crv") == "Ed25519":
        if "d" in jwk:
            raise ValueError(f"{of_key} with its private part, which a bookie must not have")
        algorithm, material = EDDSA, _public_key(jwk.get("x"), of_key)
    elif jwk.get("kty") == "oct":
        algorithm, material = HS256, _secret(jwk.get("k"), of_key)
    else:
        raise ValueError(f"{of_key} that is neither on Ed25519 (OKP) nor a secret (oct)")
    if jwk.get("alg", algorithm) != algorithm:
        raise ValueError(f"{of_key} whose alg is not {algorithm}")
    if jwk.get("use", "sig") != "sig":
        raise ValueError(f"{of_key} whose use is not sig")
    return TokenKey(key_id, algorithm, material)


def _public_key(text: object, of_key: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        return Ed25519PublicKey.from_public_bytes(decode_base64url(text))
    except ValueError as error:
        raise ValueError(f"{of_key} whose x is not 32 bytes in base64url") from error


def _secret(text: object, of_key: str) -> bytes:
    from jwt.algorithms import HMACAlgorithm
    from jwt.exceptions import InvalidKeyError

    try:
        secret = decode_base64url(text)
    except ValueError as error:
        raise ValueError(f"{of_key} whose k is no base64url") from error
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(f"{of_key} that is shorter than {SECRET_BYTES_MIN} bytes")
    try:
        return HMACAlgorithm(HMACAlgorithm.SHA256).prepare_key(secret)
    except InvalidKeyError as error:
        raise ValueError(f"{of_key} whose secret is a public key or a certificate") from error


def decode_base64url(text: object) -> bytes:
    """Decode base64url without padding.

    Raises:
        ValueError: `text` is not a string of base64url without padding.
    """
    if not isinstance(text, str) or _BASE64URL.fullmatch(text) is None:
        raise ValueError("no base64url")
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as error:
        raise ValueError("no base64url") from error


class TokenKeys:
    """Holds the keys in the file ``security.token_keys_file``, and follows changes of the file.

    Raises:
        ConfigurationError: the file cannot be read, or is not a set of usable keys.
    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._file = FollowedFile(
            "security.token_keys_file", path, KEYS_FILE_BYTES_MAX, parse_keys, clock
        )

    @property
    def by_id(self) -> Mapping[str, TokenKey]:
        """The keys by their ids; each change of the keys replaces the object."""
        return self._file.value

    def refresh(self) -> bool:
        """Load changed keys, but look at most once a second; True if new keys are used now.

        If the content cannot be used, the former keys stay, and the error is logged once.
        """
        return self._file.refresh()


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token whose signature and audience were verified."""

    claims: TokenClaims
    not_before_seconds: float


class TokenVerifier:
    """Verifies the tokens of one cluster's callers; only one thread may use a verifier.

    A verifier remembers the SHA-256 of up to `CACHE_TOKENS_MAX` verified tokens, not the tokens. A
    token is forgotten when it has expired, when the keys change, or when newer tokens need room.

    Args:
        keys: the keys of the issuers; after a change of the keys, the verifier uses the new keys.
        audience: the id of this cluster, which a token must name.
    """

    def __init__(self, keys: TokenKeys, audience: str) -> None:
        from jwt.api_jws import PyJWS

        self._keys = keys
        self._audience = audience
        self._signatures = PyJWS(algorithms=[EDDSA, HS256])
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._verified_by = keys.by_id

    def verify(self, token: str, now_seconds: float) -> TokenClaims:
        """Verify a token, and return its content.

        Args:
            token: the token in its compact form.
            now_seconds: the present time, in seconds since 1970.

        Raises:
            TokenRefused: the token is invalid.
        """
        self._keys.refresh()
        by_id = self._keys.by_id
        if by_id is not self._verified_by:
            self._verified.clear()
            self._verified_by = by_id
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"the token is longer than {TOKEN_BYTES_MAX} bytes")
        try:
            raw = token.encode("ascii")
        except UnicodeEncodeError:
            raise TokenRefused("the token cannot be parsed") from None
        digest = hashlib.sha256(raw).digest()
        found = self._verified.get(digest)
        if found is None:
            found = self._read(raw, by_id)
            _check_time(found, now_seconds)
            self._verified[digest] = found
            if len(self._verified) > CACHE_TOKENS_MAX:
                self._verified.popitem(last=False)
            return found.claims
        try:
            _check_time(found, now_seconds)
        except TokenRefused:
            del self._verified[digest]
            raise
        self._verified.move_to_end(digest)
        return found.claims

    def _read(self, token: bytes, by_id: Mapping[str, TokenKey]) -> _Verified:
        """Parse and verify a token, except for its times; raises `TokenRefused`."""
        from jwt.exceptions import InvalidAlgorithmError, InvalidSignatureError, PyJWTError

        try:
            header = self._signatures.get_unverified_header(token)
            key = _key_for(header.get("kid"), by_id)
            signed = self._signatures.decode_complete(token, key.material, [key.algorithm])
            claims = json.loads(signed["payload"])
        except TokenRefused:
            raise
        except InvalidSignatureError:
            raise TokenRefused("the token's signature is not good") from None
        except InvalidAlgorithmError:
            raise TokenRefused(
                "the token is signed by another algorithm than its key is for"
            ) from None
        except (PyJWTError, ValueError, RecursionError):
            raise TokenRefused("the token cannot be parsed") from None
        if not isinstance(claims, dict):
            raise TokenRefused("the token cannot be parsed")
        return self._understand(claims)

    def _understand(self, claims: Mapping[str, Any]) -> _Verified:
        audience = claims.get("aud")
        named = [audience] if isinstance(audience, str) else audience
        if not isinstance(named, list) or not all(isinstance(one, str) for one in named):
            raise TokenRefused("the token has no audience (aud)")
        if self._audience not in named:
            raise TokenRefused("the token is for another cluster (aud)")
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise TokenRefused("the token has no subject (sub)")
        if len(subject) > SUBJECT_LENGTH_MAX or not subject.isprintable():
            raise TokenRefused("the token's subject (sub) is too long or not printable")
        expires = _moment(claims, "exp")
        if expires is None:
            raise TokenRefused("the token has no expiry (exp)")
        not_before = _moment(claims, "nbf")
        return _Verified(TokenClaims(subject, expires), 0.0 if not_before is None else not_before)


def _key_for(key_id: object, by_id: Mapping[str, TokenKey]) -> TokenKey:
    if key_id is None:
        if len(by_id) == 1:
            return next(iter(by_id.values()))
        raise TokenRefused("the token names no key (kid), and the bookie has several")
    key = by_id.get(key_id) if isinstance(key_id, str) else None
    if key is None:
        raise TokenRefused("the token names a key (kid) that the bookie does not have")
    return key


def _moment(claims: Mapping[str, Any], name: str) -> float | None:
    """Return the time in the claim `name`, in seconds since 1970; None if the claim is missing."""
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= _SECONDS_MAX:  # false for a NaN, too
        raise TokenRefused(f"the token's {name} is no number of seconds")
    return float(value)


def _check_time(token: _Verified, now_seconds: float) -> None:
    if now_seconds >= token.claims.expires_seconds + LEEWAY_SECONDS:
        late = now_seconds - token.claims.expires_seconds
        raise TokenRefused(f"the token expired {late:.0f} s ago")
    if now_seconds < token.not_before_seconds - LEEWAY_SECONDS:
        early = token.not_before_seconds - now_seconds
        raise TokenRefused(f"the token is not valid before {early:.0f} s from now")
