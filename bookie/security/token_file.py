"""Reads the token that a client shows with each call, and reads it again when its file changes."""

from __future__ import annotations

import re

from bookie.env import Clock
from bookie.security.followed_file import FollowedFile

AUTHORIZATION = "authorization"
"""The name of the HTTP header, and of the gRPC metadata key, whose value has a token."""

SCHEME = "Bearer"
"""The word before the token. Source: RFC 6750, section 2.1."""

TOKEN_BYTES_MAX = 8192
"""The greatest size of a token; a bookie's ``rpc.metadata_bytes_max`` may be a lower limit."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenFile:
    """Holds the token in the file ``security.token_file``, and follows changes of the file.

    If the file becomes unusable, the former token stays until the file is usable again. Each error
    is logged once.

    Args:
        path: the path of the file, which holds one token and at most one line end.
        clock: measures the time between two checks of the file.

    Raises:
        ConfigurationError: the file cannot be read, or holds no token.
    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._file = FollowedFile(
            "security.token_file", path, TOKEN_BYTES_MAX + 2, _parse_token, clock
        )

    def refresh(self) -> bool:
        """Load a changed token, but look at most once a second; True if a new token is used."""
        return self._file.refresh()

    def authorization(self) -> str:
        """Return the header value for the present token; any thread may call this method."""
        self._file.refresh()
        return self._file.value


def _parse_token(content: bytes) -> str:
    """Return the header value for the token in `content`; no error text contains the token."""
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if _TOKEN.fullmatch(token) is None:
        raise ValueError("holds no token")
    if len(token) > TOKEN_BYTES_MAX:
        raise ValueError(f"holds a token longer than {TOKEN_BYTES_MAX} bytes")
    return f"{SCHEME} {token}"
