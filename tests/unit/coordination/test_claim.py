"""Claims: what is read back is what was written, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.coordination.claim import Claim, ClaimMode, decode_claim, encode_claim
from bookie.errors import FormatError, NewerFormatError

GUID = "0123456789abcdef0123456789abcdef"


@given(st.sampled_from(ClaimMode), st.text(), st.binary())
def test_round_trip(mode: ClaimMode, owner: str, content: bytes) -> None:
    claim = Claim(GUID, mode, owner, content)
    assert decode_claim(encode_claim(claim)) == claim


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"claim",
        b"claim 1 ",
        b"claim x \n",
        b'claim 1 0123 exclusive\n""\n',
        b'claim 1 %s greedy\n""\n' % GUID.encode(),
        b'claim 1 %s shared\n""' % GUID.encode(),
        b"claim 1 %s shared\n17\n" % GUID.encode(),
        b"claim 1 %s shared\n\xff\n" % GUID.encode(),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError) as caught:
        decode_claim(data)
    assert not isinstance(caught.value, NewerFormatError)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(NewerFormatError, match="has format 2"):
        decode_claim(b"claim 2 whatever\n")
