"""The metadata of a call: the cluster and bookie that the client means, and the client's token.

The metadata of each call contains the instance id, which the bookie compares in constant time. The
instance id is not a secret, so an ordinary comparison would also be safe. But a comparison in
constant time costs almost nothing extra.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TypeAlias

from bookie.errors import WrongBookieError, WrongClusterError, WrongIncarnationError
from bookie.ids import (
    BOOKIE_ID_METADATA_KEY,
    INCARNATION_METADATA_KEY,
    INSTANCE_ID_METADATA_KEY,
    LIFE_METADATA_KEY,
)
from bookie.security.token_file import AUTHORIZATION

Pairs: TypeAlias = tuple[tuple[str, str | bytes], ...]
"""Keys and values, in the order in which they are sent."""


def call_metadata(
    instance_id: str,
    bookie_id: str = "",
    incarnation: str = "",
    life: str = "",
    *,
    authorization: str = "",
) -> Pairs:
    """Return the metadata of a client's calls.

    A call names the wanted bookie, because another bookie may get the same address later. A call
    that relies on stored entries also names the bookie's incarnation, or the id of the bookie's
    process (`life`).
    """
    pairs = [(INSTANCE_ID_METADATA_KEY, instance_id)]
    if bookie_id:
        pairs.append((BOOKIE_ID_METADATA_KEY, bookie_id))
    if incarnation:
        pairs.append((INCARNATION_METADATA_KEY, incarnation))
    if life:
        pairs.append((LIFE_METADATA_KEY, life))
    if authorization:
        pairs.append((AUTHORIZATION, authorization))
    return tuple(pairs)


def named(metadata: Iterable[tuple[str, str | bytes]], wanted: str) -> str:
    """Return the value of the key `wanted` in the metadata of a call; empty if it is missing."""
    for key, value in metadata:
        if key == wanted:
            return value if isinstance(value, str) else value.decode("ascii", "replace")
    return ""


def check_recipient(
    metadata: Iterable[tuple[str, str | bytes]],
    instance_id: str,
    bookie_id: str,
    incarnation: str,
) -> None:
    """Check that a call is meant for this cluster, this bookie, and its current incarnation.

    If the caller names no bookie id, any bookie accepts the call. If the caller names no
    incarnation, any incarnation accepts the call.

    Raises:
        WrongClusterError: The caller named no cluster, or another cluster.
        WrongBookieError: The caller means another bookie, which previously had this address.
        WrongIncarnationError: The caller names another incarnation of this bookie, and may rely on
            lost entries.
    """
    pairs = tuple(metadata)
    cluster = named(pairs, INSTANCE_ID_METADATA_KEY)
    if not cluster:
        raise WrongClusterError("the caller did not say which cluster it belongs to")
    if not hmac.compare_digest(cluster.encode(), instance_id.encode()):
        raise WrongClusterError("this bookie belongs to another cluster than the caller")
    if named(pairs, BOOKIE_ID_METADATA_KEY) not in ("", bookie_id):
        raise WrongBookieError(f"this is bookie {bookie_id}, not the one that the caller means")
    if named(pairs, INCARNATION_METADATA_KEY) not in ("", incarnation):
        raise WrongIncarnationError(
            f"bookie {bookie_id} may have lost what it acknowledged: it has another incarnation now"
        )
