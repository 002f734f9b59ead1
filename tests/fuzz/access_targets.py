"""What decides who may do what: grants, tokens, their keys, and users of the metadata store."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bookie.cluster.role_grants import decode_grants, encode_grants
from bookie.errors import ConfigurationError
from bookie.metadata import security
from bookie.security import token_file
from bookie.security.grants import Grant, Grants, GrantScope
from bookie.security.rights import Role
from bookie.security.tokens import TokenRefused, TokenVerifier, parse_keys
from tests.fuzz.target import Target
from tests.fuzz.text_targets import by_text

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NOW_SECONDS = 1_000_000.0
CLUSTER = "c"

KEYS = json.dumps(
    {
        "keys": [
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "kid": "a",
                "x": jwt.utils.base64url_encode(PRIVATE.public_key().public_bytes_raw()).decode(),
            },
            {"kty": "oct", "kid": "s", "k": jwt.utils.base64url_encode(bytes(32)).decode()},
        ]
    }
).encode()

TOKEN = jwt.encode(
    {"sub": "reports", "aud": CLUSTER, "exp": int(NOW_SECONDS) + 900},
    PRIVATE,
    "EdDSA",
    {"kid": "a"},
).encode()

GRANTS = Grants(
    [
        Grant("a", Role.ADMIN),
        Grant("b*", Role.WRITER, GrantScope(1, 9)),
        Grant("c", Role.READER, GrantScope(log="shop/*")),
    ]
)


def _verify(data: bytes) -> Any:
    keys = cast("Any", SimpleNamespace(by_id=parse_keys(KEYS), refresh=lambda: False))
    return TokenVerifier(keys, CLUSTER).verify(data.decode("latin-1"), NOW_SECONDS)


TARGETS = (
    Target(
        "access.grants",
        lambda data: frozenset(decode_grants(data).all),
        [encode_grants(GRANTS)],
        encode=lambda grants: encode_grants(Grants(grants)),
    ),
    Target("access.token", _verify, [TOKEN], (TokenRefused,)),
    Target("access.token_keys", parse_keys, [KEYS], (ValueError,)),
    Target("access.token_file", token_file._parse_token, [TOKEN + b"\n"], (ValueError,)),
    Target(
        "access.store_users",
        by_text(lambda text: security._split("acl_readers", text)),
        [b"sasl:ann;x509:CN=ann,O=x"],
        (ConfigurationError,),
    ),
)
