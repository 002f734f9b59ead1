"""Names of logs and keys of partitions: what is told apart, and what is refused."""

from __future__ import annotations

import pytest

from bookie.errors import BadRequestError
from bookie.log.catalog.logs import LogManager, LogName, LogPartition, checked_name
from bookie.metadata.model import NOT_EXISTS

ORDERS = LogName("shop", "orders")
FIRST = LogPartition(ORDERS, 0)


def test_names_of_logs() -> None:
    """The namespace ``default`` is left out."""
    assert (
        LogName.parse("orders") == LogName("default", "orders") == LogName.parse("default/orders")
    )
    assert LogName.parse("shop/orders") == ORDERS
    assert [str(LogName.parse(text)) for text in ("default/a", "b/a")] == ["a", "b/a"]
    assert str(LogPartition(LogName.parse("orders"), 3)) == "orders#3"
    assert str(FIRST) == "shop/orders#0"
    longest = "x" * 100
    assert LogName.parse(f"{longest}/{longest}").key == f"/logs/{longest}/{longest}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "/a",
        "a/",
        "a/b/c",
        ".a",
        "n/..",
        "x" * 101,
        "ü",
        "a b",
        "a\n",
        "orders#3",
        "a\0",
        None,
        7,
        b"a",
    ],
)
def test_what_names_no_log_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="not the name of a log"):
        LogName.parse(text)


@pytest.mark.parametrize("text", ["", ".a", "a/b", "x" * 101, "ü", "a\n", None])
def test_what_names_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(BadRequestError, match="cannot name a cursor"):
        FIRST.cursor_key(text)
    with pytest.raises(BadRequestError, match="cannot name a group"):
        checked_name(text, "a group")


def test_keys_of_a_partition() -> None:
    """Numbers are padded, so that they sort."""
    partition = LogPartition(ORDERS, 1023)
    assert partition.head_key == "/logs/shop/orders/partitions/01023/head"
    assert partition.chunk_key(12) == "/logs/shop/orders/partitions/01023/chunks/0000000012"
    assert partition.cursor_key("a.b-c_d") == "/logs/shop/orders/partitions/01023/cursors/a.b-c_d"


@pytest.mark.parametrize("batch", [-1, 2**63, 1.5, None])
def test_what_is_no_batch_is_refused(batch: int) -> None:
    with pytest.raises(BadRequestError, match="not the number of a batch"):
        LogManager.put_batch(ORDERS, "app", batch, NOT_EXISTS)
