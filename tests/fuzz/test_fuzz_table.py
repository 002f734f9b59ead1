"""No parser is forgotten: whatever is named like one is entered by a row of the table.

The rows run their seeds under a profiler. So a row cannot claim a parser that it does not call.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import bookie
from tests.fuzz.table import HAS_SPARK, TARGETS
from tests.fuzz.target import watched

ROOT = Path(bookie.__file__).parent

NAME = re.compile(
    r"_?(parse|parsed|decode|decoded|unpack|unpacked|split|scan)(_\w+)?"
    r"|_?from_(json|bytes|file|message|environment|flags|cluster|short_name|version_1)"
    r"|_?read_(certificate|header|supervision|cookie|mark|claim|profile)\w*"
    r"|_?(load|read)_(layout|settings|certificates)"
    r"|(stat|record|row|key|number|text|name|identity|lock|batch|readable)_of\w*"
    r"|_?(lock_of|batch_of|instance_id|setting_text)"
)
"""Names of functions that make values of bytes or text."""

NO_BYTES = "it reads values, not bytes"
LIBRARY = "kazoo or gRPC has parsed the answer before"
BY_A_ROW = "it only calls a parser that has a row"

EXPLAINED: Mapping[str, str] = {
    "api/connection:ClusterConnection.instance_id": NO_BYTES,
    "coordination/cache:Codec.decode": "a protocol",
    "coordination/cache:MetadataCache._decode": BY_A_ROW,
    "entry/batch:batch_of": NO_BYTES,
    "entry/digest:key_of_life": NO_BYTES,
    "ledger/copies/marks:UnderreplicationManager.lock_of": NO_BYTES,
    "ledger/striping:_batch_of": NO_BYTES,
    "metadata/etcd/transactions:stat_of": LIBRARY,
    "metadata/store:MetadataStore.scan_children": "a protocol",
    "metadata/zookeeper/kazoo_parts:_Connection._read_header": LIBRARY,
    "metadata/zookeeper/outcome:Committed.stat_of_new": LIBRARY,
    "metadata/zookeeper/tree:stat_of": LIBRARY,
    "node/engine/directories:Directories.read_cookie": BY_A_ROW,
    "node/engine/index/deleted_ledgers:row_of": BY_A_ROW,
    "node/engine/reclaim/live_scan:scan_live": BY_A_ROW,
    "security/certificates:read_certificate_file": BY_A_ROW,
    "spark/jobs/export:_parse": "Spark parses the records",
    "spark/jobs/export:parse_schema": "Spark parses the text",
    "spark/jobs/marks:read_mark": "it needs Spark to read the file; tests/spark damages the marks",
    "wire/server/add_stream:AddStreamHandler._split": BY_A_ROW,
    "wire/interfaces:BookieNode.instance_id": "a protocol",
}
"""Functions with such a name that no row enters, and why."""


def parsers() -> Iterator[str]:
    """Functions of the package with the name of a parser, as MODULE:QUALIFIED.NAME."""
    skipped = ("testing/", "_pb/") if HAS_SPARK else ("testing/", "_pb/", "spark/")
    for path in sorted(ROOT.rglob("*.py")):
        module = path.relative_to(ROOT).with_suffix("").as_posix()
        if not module.startswith(skipped):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            yield from (f"{module}:{name}" for name in _functions(tree, ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef) and NAME.fullmatch(child.name):
            yield prefix + child.name


def entered() -> set[str]:
    """Run all seeds and all of the corpus, and return the functions of the package they enter."""
    found: set[str] = set()
    root = f"{ROOT}/"

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            module = code.co_filename.removeprefix(root).removesuffix(".py")
            found.add(f"{module}:{code.co_qualname}")

    for target in TARGETS.values():
        with watched(target):
            sys.setprofile(note)
            try:
                for data in (*target.seeds, *target.corpus):
                    target.answer(data)
            finally:
                sys.setprofile(None)
    return found


def test_every_parser_has_a_row_or_an_explanation() -> None:
    """A new parser needs one or the other."""
    named, called = set(parsers()), entered()
    forgotten = sorted(named - called - EXPLAINED.keys())
    assert not forgotten, f"no row of the table enters {forgotten}"
    assert EXPLAINED.keys() <= named or not HAS_SPARK, sorted(EXPLAINED.keys() - named)
    assert not EXPLAINED.keys() & called, sorted(EXPLAINED.keys() & called)
