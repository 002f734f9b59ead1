"""A claim is a record by which a process claims a lock, a leadership, or a turn in a queue.

========================= ========================================================================
bytes                     meaning
========================= ========================================================================
``claim 1 ``              the format and its version
guid, a space             32 hexadecimal digits, which identify the process and the claim
mode, a newline           ``exclusive`` or ``shared``
owner, a newline          the owner name that the process chose, as JSON text; may be empty: ``""``
the rest                  the content, which the user of the lock chose
========================= ========================================================================

The first two lines are ASCII. If the reply to a claim's creation is lost, the process finds its
claim by the guid. Claims of an earlier run of the process have other guids.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass

from bookie.errors import FormatError, NewerFormatError

_HEAD = re.compile(rb"claim ([0-9]{1,9}) ([0-9a-f]{32}) (exclusive|shared)\n")
_VERSION = 1


class ClaimMode(enum.Enum):
    """The mode of a claim: exclusive, or shared with other claims of mode SHARED."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a claim's record; `guid` has 32 hexadecimal digits."""

    guid: str
    mode: ClaimMode = ClaimMode.EXCLUSIVE
    owner: str = ""
    content: bytes = b""


def encode_claim(claim: Claim) -> bytes:
    """Encode a claim as the bytes of its record."""
    head = f"claim {_VERSION} {claim.guid} {claim.mode.value}\n{json.dumps(claim.owner)}\n"
    return head.encode("ascii") + claim.content


def decode_claim(data: bytes) -> Claim:
    """Decode the claim in `data`.

    Raises:
        FormatError: the bytes are not a claim, or a newer version of bookie wrote the claim.
    """
    if data.startswith(b"claim ") and not data.startswith(b"claim 1 "):
        version = data[6:16].partition(b" ")[0]
        if version.isdigit():
            raise NewerFormatError(f"the claim has format {version.decode()}; this reads 1")
    head = _HEAD.match(data)
    line, newline, content = data[head.end() :].partition(b"\n") if head else (b"", b"", b"")
    if head is None or not newline:
        raise FormatError("not the record of a claim")
    try:
        owner = json.loads(line.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise FormatError("the owner of a claim is not JSON text") from error
    if not isinstance(owner, str):
        raise FormatError("the owner of a claim is not JSON text")
    return Claim(head[2].decode(), ClaimMode(head[3].decode()), owner, content)
