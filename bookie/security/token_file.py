"""The token that a client shows with each call, read again when its file changes."""

from __future__ import annotations

import re

from bookie.env import Clock
from bookie.security.followed_file import FollowedFile

AUTHORIZATION = "authorization"
"""The header of HTTP, and the key of a call's metadata, that carries a token."""

SCHEME = "Bearer"
"""The word before the token. Source: RFC 6750, section 2.1."""

TOKEN_BYTES_MAX = 8192
"""The longest token. A bookie's ``rpc.metadata_bytes_max`` may refuse shorter ones."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class TokenFile:
    """The token in the file of ``security.token_file``, as it is now.

    If the file becomes unusable, the former token stays until the file is whole again. The log
    tells it once.

    Args:
        path: the file, with one token and perhaps the line's end.
        clock: for the time between two looks.

    Raises:
        ConfigurationError: the file cannot be read, or holds no token.
    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self._file = FollowedFile(
            "security.token_file", path, TOKEN_BYTES_MAX + 2, _parse_token, clock
        )

    def refresh(self) -> bool:
        """Take a changed token, at most one look a second; return True if it was taken."""
        return self._file.refresh()

    def authorization(self) -> str:
        """Return the value of the header `AUTHORIZATION`; any thread may call this."""
        self._file.refresh()
        return self._file.value


def _parse_token(content: bytes) -> str:
    """Return the header's value. The sentence of an error never contains the token."""
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if _TOKEN.fullmatch(token) is None:
        raise ValueError("holds no token")
    if len(token) > TOKEN_BYTES_MAX:
        raise ValueError(f"holds a token longer than {TOKEN_BYTES_MAX} bytes")
    return f"{SCHEME} {token}"
