"""Text from outside: settings, addresses, URIs, arguments, names in keys.

The bytes become text as Python makes it from arguments and variables: what is not UTF-8 becomes
surrogates.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from bookie import addresses
from bookie.cli import config as cli_config
from bookie.cli import log_arguments, options
from bookie.cluster import keys
from bookie.cluster.layout import FLAT, HIERARCHICAL
from bookie.config import load, quantities, supervision
from bookie.env.clock import moment_text, parse_moment
from bookie.errors import BadRequestError, ConfigurationError, FormatError
from bookie.ids import is_valid_bookie_id
from bookie.log.catalog.logs import LogName, LogPartition
from bookie.metadata import uri
from bookie.metadata.etcd.key_layout import KeyLayout
from bookie.metadata.etcd.server_version import checks_rights, parse_version
from bookie.security.authority import require_hosts
from bookie.wire.client.tls_problems import TlsHistory
from tests.fuzz.target import Target

REFUSED = (BadRequestError,)
USAGE = (typer.BadParameter,)
TEXTS_MAX = 40_000
"""Arguments and variables are no longer: the kernel takes at most 128 KiB."""


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")[:TEXTS_MAX]


def by_text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda data: parse(text_of(data))


def octets(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def servers(text: str) -> Any:
    parts = uri.split_uri(text)
    return uri.parse_servers(text, parts) if parts.scheme in ("zk", "etcd") else parts


def address(text: str) -> Any:
    addresses.is_wildcard(text)
    addresses.is_host(text)
    is_valid_bookie_id(text)
    return addresses.split_address(text), addresses.split_address(text, 3181)


def environment(text: str) -> Any:
    """Lines of NAME=VALUE, as variables of a process."""
    pairs = [line.partition("=") for line in text.replace("\0", "").split("\n")]
    variables = {name: value for name, _, value in pairs if name != "BOOKIE_CONFIG"}
    load.find_log_format(environment=variables)
    return load.load_settings(environment=variables)


def flags(text: str) -> Any:
    words = text.split("\n")
    return load.load_settings(None, cli_config.parse_overrides(words), environment={})


def cluster_settings(text: str) -> Any:
    pairs = [line.partition("=") for line in text.split("\n")]
    load.check_cluster_settings({name: value for name, _, value in pairs})


def toml(data: bytes) -> Any:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bookie.toml"
        path.write_bytes(data)
        load.find_log_format(path, environment={})
        return load.load_settings(path, environment={})


def supervised(text: str) -> Any:
    found = supervision.read_supervision(
        5, {"WATCHDOG_USEC": text, "NOTIFY_SOCKET": text, "WATCHDOG_PID": "5"}
    )
    assert found.watchdog_seconds is None or found.watchdog_seconds > 0
    return found


def moment(text: str) -> Any:
    return parse_moment(moment_text(parse_moment(text)).removesuffix(" ms"))


def ledger_key(text: str) -> Any:
    """A name below the ledgers is the key of one ledger, or of none."""
    found = []
    for layout in (FLAT, HIERARCHICAL):
        for tree in layout.trees:
            tree.owns(text)
            try:
                number = tree.number_of(f"{keys.LEDGERS}/{text}")
            except FormatError:
                continue
            assert tree.key(number) == f"{keys.LEDGERS}/{text}"
            found.append(number)
    return found


def place(text: str) -> Any:
    return log_arguments.parse_place(text, "--start"), log_arguments.parse_place(
        text, "--end", words=False
    )


def etcd_key(data: bytes) -> Any:
    layout = KeyLayout("/scope")
    name = layout.name(data)
    assert name is None or not data.startswith(b"/scope") or layout.key(name) == data
    return name


def host_names(text: str) -> Any:
    return require_hosts(text[:2000].split(","))


TARGETS: Sequence[Target] = (
    Target(
        "text.metadata_uri",
        by_text(servers),
        [
            b"zk://h1:2181,[::1]:2182/scope/a",
            b"etcd://h1/scope",
            b"local:///var/lib/x",
            b"memory://name",
        ],
        (ConfigurationError,),
    ),
    Target(
        "text.address",
        by_text(address),
        [b"h1:3181", b"[::1]:3181", b"[fe80::1%eth0]:1"],
        (ValueError,),
    ),
    Target(
        "text.size",
        by_text(quantities.parse_size),
        [b"256MiB", b" 7 ", b"12B"],
        (ValueError,),
        encode=lambda size: octets(quantities.format_size(size)),
    ),
    Target(
        "text.labels",
        by_text(quantities.parse_labels),
        [b"zone=a,rack=r1", b"zone=b"],
        (ValueError,),
        encode=lambda labels: octets(quantities.format_labels(labels)),
    ),
    Target(
        "text.moment",
        by_text(moment),
        [b"2026-01-31T09:30:00Z", b"1700000000000", b"2026-01-31T09:30:00.125+05:30"],
        REFUSED,
    ),
    Target(
        "text.log",
        by_text(LogName.parse),
        [b"orders", b"shop/orders"],
        REFUSED,
        encode=lambda one: octets(str(one)),
    ),
    Target(
        "text.partition",
        by_text(LogPartition.parse),
        [b"orders#3", b"shop/orders#00", b"orders"],
        REFUSED,
        encode=lambda one: octets(str(one)),
    ),
    Target(
        "text.etcd_version",
        lambda data: checks_rights(parse_version(data)),
        [b'{"etcdserver":"3.5.30","etcdcluster":"3.5.0"}', b'{"etcdserver":"3.7.0-rc.1"}'],
        (ValueError,),
    ),
    Target("text.supervision", by_text(supervised), [b"30000000"], ()),
    Target(
        "text.environment",
        by_text(environment),
        [
            b"BOOKIE_RPC__MESSAGE_BYTES_MAX=16MiB\nBOOKIE_METADATA__URI=zk://h/s",
            b"BOOKIE_BOOKIE__ID=b1\nBOOKIE_BOOKIE__LABELS=zone=a\nBOOKIE_LISTEN__PORT=17",
            b"BOOKIE_LOG__FORMAT=json",
        ],
        (ConfigurationError,),
        examples=200,
    ),
    Target(
        "text.flags",
        by_text(flags),
        [b"log.level=info\nrpc.message_bytes_max=16MiB", b"bookie.labels=zone=a"],
        (ConfigurationError, *USAGE),
        examples=200,
    ),
    Target(
        "text.cluster_settings",
        by_text(cluster_settings),
        [b"rpc.message_bytes_max=16MiB\nlog.level=info"],
        (ConfigurationError,),
        examples=200,
    ),
    Target(
        "text.toml",
        toml,
        [b'[bookie]\nid = "b1"\nlabels = {zone = "a"}\n[rpc]\nmessage_bytes_max = "16MiB"\n'],
        (ConfigurationError,),
        examples=200,
    ),
    Target("text.place", by_text(place), [b"17", b"17:4"], USAGE),
    Target(
        "text.time_argument",
        by_text(lambda text: log_arguments.parse_time(text, "--at")),
        [b"17"],
        USAGE,
    ),
    Target(
        "text.span",
        by_text(lambda text: log_arguments.parse_span(text, "--for")),
        [b"1.5h", b"90s"],
        USAGE,
    ),
    Target(
        "text.pairs",
        by_text(lambda text: options.parse_pairs(text.split(" "), "A=B")),
        [b"a=b c=d"],
        USAGE,
    ),
    Target(
        "text.ledger_key",
        by_text(ledger_key),
        [b"00/0000/L0001", b"0000000000000000017", b"000/0000/0000/0000/L0001"],
        (),
    ),
    Target("text.etcd_key", etcd_key, [b"/scope/a/b", b"/scope/\xe2\x82\xac"], ()),
    Target("text.host_names", by_text(host_names), [b"*.example.org,b1,10.0.0.1,::1"], REFUSED),
    Target(
        "text.tls_problem",
        by_text(TlsHistory(uses_tls=True).problem),
        [b"Ssl handshake failed: CERTIFICATE_VERIFY_FAILED"],
        (),
    ),
)
