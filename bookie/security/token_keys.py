"""Makes keys and tokens in a directory, for trials and small clusters: ``bookie security``.

==========================  ====================================================================
``DIR/token-key.json``      the signing key (JWK): its owner can make tokens for any principal
``DIR/token-keys.json``     the present and former keys (JWK set), with which bookies verify tokens
==========================  ====================================================================

If all keys are for EdDSA, the second file is public. A key for HS256 is a secret; with such a key,
only the owner can read the second file. Only the owner can ever read the first file.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

from bookie.errors import BadRequestError
from bookie.security.private_files import NewFile, locked, locked_existing, replace_files
from bookie.security.tokens import (
    EDDSA,
    HS256,
    SECRET_BYTES_MIN,
    SUBJECT_LENGTH_MAX,
    decode_base64url,
    parse_keys,
)

ALGORITHMS = (EDDSA, HS256)


def signing_key_path(directory: Path) -> Path:
    """Return the path of the key that signs tokens."""
    return directory / "token-key.json"


def key_set_path(directory: Path) -> Path:
    """Return the path of the key set, for the setting ``security.token_keys_file`` of bookies."""
    return directory / "token-keys.json"


def create_key(directory: Path, algorithm: str | None = None) -> str:
    """Make a key, which signs all later tokens, and return its id.

    Former keys stay in the key set, so the tokens that they signed stay valid.

    Args:
        directory: the directory of the files; a new directory is open to this user only.
        algorithm: one of `ALGORITHMS`; None means the algorithm of the former key, or EdDSA if
            there is no former key.

    Raises:
        BadRequestError: the algorithm is unknown, or a file in `directory` is damaged.
        OSError: a file cannot be read or written.
    """
    if algorithm not in (None, *ALGORITHMS):
        raise BadRequestError(f"the algorithm must be {' or '.join(ALGORITHMS)}, not {algorithm}")
    path, key_id = signing_key_path(directory), os.urandom(8).hex()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(directory):
        if algorithm is None:
            algorithm = _read_signing_key(path)["alg"] if path.exists() else EDDSA
        facts = {"kid": key_id, "alg": algorithm, "use": "sig"}
        if algorithm == EDDSA:
            verifying, secret = _ed25519_key()
            signing = verifying | {"d": secret}
        else:
            verifying = signing = {"kty": "oct", "k": _encoded(os.urandom(SECRET_BYTES_MIN))}
        # The key set is written first, so bookies can verify all tokens, also after a crash.
        key_set = _key_set_file(directory, [*_read_key_set(directory), verifying | facts])
        replace_files([key_set, NewFile(path, _json(signing | facts), 0o600)])
    return key_id


def forget_key(directory: Path, key_id: str) -> None:
    """Remove a former key from the key set; bookies that read the new set refuse its tokens.

    Raises:
        BadRequestError: the key does not exist, or it is the signing key, or a file is damaged.
        OSError: a file cannot be read or written.
    """
    with locked_existing(directory, f"`bookie security token-key {directory}` makes a key"):
        keys = _read_key_set(directory)
        remaining = [one for one in keys if one["kid"] != key_id]
        if len(remaining) == len(keys):
            known = ", ".join(one["kid"] for one in keys) or "none"
            raise BadRequestError(
                f"{key_set_path(directory)} holds no key {key_id}; it holds {known}"
            )
        if _read_signing_key(signing_key_path(directory))["kid"] == key_id:
            raise BadRequestError(
                f"the key {key_id} signs new tokens; make another one first: "
                f"`bookie security token-key {directory}`"
            )
        replace_files([_key_set_file(directory, remaining)])


def make_token(
    directory: Path, name: str, audience: str, *, seconds: int, now_seconds: float
) -> str:
    """Return a token for `name`, signed by the key in `directory`.

    Args:
        directory: the directory of the key.
        name: the subject of the token: the principal that shows it.
        audience: the id of the cluster whose bookies accept the token.
        seconds: the validity of the token, in seconds.
        now_seconds: the present time, in seconds since 1970.

    Raises:
        BadRequestError: the name or the audience is malformed, or `directory` has no usable key.
        OSError: the key cannot be read.
    """
    from jwt import encode

    if not name or len(name) > SUBJECT_LENGTH_MAX or not name.isprintable():
        raise BadRequestError(
            f"the name of a token must be 1 to {SUBJECT_LENGTH_MAX} printable characters"
        )
    if not audience:
        raise BadRequestError("a token needs the id of its cluster")
    jwk = _read_signing_key(signing_key_path(directory))
    issued = int(now_seconds)
    claims = {"sub": name, "aud": audience, "iat": issued, "exp": issued + seconds}
    return encode(claims, _signing_material(jwk), jwk["alg"], {"kid": jwk["kid"]})


def _ed25519_key() -> tuple[dict[str, str], str]:
    """Make a key pair; return the public key as a JWK, and the private key as base64url."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    public = {"kty": "OKP", "crv": "Ed25519", "x": _encoded(key.public_key().public_bytes_raw())}
    return public, _encoded(key.private_bytes_raw())


def _signing_material(jwk: dict[str, Any]) -> Any:
    """Return the private key in `jwk` for EdDSA, or its secret for HS256.

    Raises:
        ValueError: the private key is missing, or belongs to another public key.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if jwk["kty"] == "oct":
        return decode_base64url(jwk["k"])
    key = Ed25519PrivateKey.from_private_bytes(decode_base64url(jwk.get("d")))
    if key.public_key().public_bytes_raw() != decode_base64url(jwk["x"]):
        raise ValueError("d and x are not of one key")
    return key


def _read_signing_key(path: Path) -> dict[str, Any]:
    """Return the signing key, with its algorithm; check that bookies accept its public part.

    Raises:
        BadRequestError: the file does not exist, or holds no usable key.
    """
    try:
        jwk: Any = json.loads(path.read_bytes())
        public = {name: value for name, value in jwk.items() if name != "d"}
        (key,) = parse_keys(_json({"keys": [public]})).values()
        _signing_material(jwk)
    except FileNotFoundError as error:
        raise BadRequestError(
            f"{path} does not exist; `bookie security token-key {path.parent}` makes it"
        ) from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadRequestError(f"{path} holds no key (JWK) that signs tokens") from error
    return {**jwk, "alg": key.algorithm}


def _read_key_set(directory: Path) -> list[dict[str, Any]]:
    path = key_set_path(directory)
    try:
        content = path.read_bytes()
        parse_keys(content)
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise BadRequestError(f"{path} {error}") from error
    keys: list[dict[str, Any]] = json.loads(content)["keys"]
    return keys


def _key_set_file(directory: Path, keys: list[dict[str, Any]]) -> NewFile:
    is_secret = any(one["kty"] == "oct" for one in keys)
    content = _json({"keys": keys})
    parse_keys(content)
    return NewFile(key_set_path(directory), content, 0o600 if is_secret else 0o644)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
