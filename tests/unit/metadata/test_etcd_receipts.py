"""The message of a write that is filled in again and again."""

from __future__ import annotations

from bookie._pb import etcd_pb2 as pb
from bookie.metadata import etcd_messages as messages
from bookie.metadata.etcd_receipts import Receipt, mark, overwrite


def test_a_message_that_is_filled_in_again_says_what_a_new_one_would() -> None:
    receipt = Receipt(b"/scope/\0receipt", lease=7)
    for number in range(300):
        key, value, version = b"/scope/%d" % (number % 7), b"%d" % number * 100, 10 + number
        receipt.revision = 1000 + number
        found = overwrite(receipt, key, value, version)
        receipt.uses -= 1
        assert found == pb.TxnRequest(
            compare=[messages.mod(receipt.key, receipt.revision), messages.mod(key, version)],
            success=[mark(receipt), messages.put(key, value, 0)],
            failure=[messages.stat(key), messages.read(receipt.key)],
        )


def test_a_message_that_is_filled_in_again_does_not_grow_for_ever() -> None:
    """A message keeps all that it ever held, until it is given up."""
    receipt = Receipt(b"/scope/\0receipt", lease=7)
    made: list[object] = []
    for number in range(100):
        overwrite(receipt, b"/scope/k", bytes(8 * 1024), number)
        assert receipt.overwrite is not None
        made += [receipt.overwrite] if receipt.overwrite not in made else []
        assert receipt.overwrite.held_bytes < 80 * 1024
    assert len(made) > 1
