"""The table of rights: it covers every key of a cluster, and both stores get what it says."""

from __future__ import annotations

import pytest

from bookie.cluster import keys
from bookie.config import load_settings
from bookie.errors import ConfigurationError
from bookie.metadata.model import ROOT, Acl
from bookie.metadata.rights import (
    ELSEWHERE,
    PARTS,
    EtcdGrant,
    Kind,
    etcd_grants,
    etcd_role,
    part_of,
    permissions_of,
    zookeeper_acl,
)
from bookie.metadata.security import MetadataSecurity, security_of

OF_ADMINS = {"LAYOUT", "INSTANCEID", "REMOVAL"}


def test_every_key_of_a_cluster_has_its_part() -> None:
    """A new top-level key needs a line in the table, or only admins can write it."""
    parts = {part.split("/")[1] for part in PARTS}
    assert parts | OF_ADMINS == keys.OWN
    assert not parts & OF_ADMINS


@pytest.mark.parametrize(
    ("key", "part"),
    [
        (ROOT, ROOT),
        ("/LAYOUT", ELSEWHERE),
        ("/ledgers", "/ledgers"),
        ("/ledgers/00/0000/L0001", "/ledgers"),
        ("/ledgers-of-others", ELSEWHERE),
        ("/config/settings/log.level", "/config"),
        ("/config/logs/default/orders", "/config/logs"),
        ("/security/roles/ann", "/security"),
    ],
)
def test_the_longest_part_decides(key: str, part: str) -> None:
    assert part_of(key) == part


@pytest.mark.parametrize("kind", list(Kind))
def test_a_role_in_etcd_grants_what_the_table_says(kind: Kind) -> None:
    """Its ranges are compared with each key, as etcd does it."""
    grants = etcd_grants("/a/b", kind)
    samples = [f"{part}{rest}" for part in PARTS for rest in ("", "/x", "/x/y")]
    samples += [f"/{name}" for name in OF_ADMINS] + ["/other", "/other/x"]
    for key in samples:
        name = f"/a/b{key}"
        assert any(one.first <= name < one.end for one in grants), "every kind reads every key"
        writes = any(one.writes and one.first <= name < one.end for one in grants)
        assert writes == ("write" in permissions_of(kind, part_of(key))), key
    for foreign in ("/a/b-2/ledgers/x", "/a/bb/ledgers", "/a/c", "/a/b1"):
        assert not any(one.first <= foreign < one.end for one in grants)


def test_only_those_who_write_use_the_stores_own_keys() -> None:
    own = "/b/\0receipts/1/1"
    writes = {
        kind
        for kind in Kind
        if any(one.writes and one.first <= own < one.end for one in etcd_grants("/b", kind))
    }
    assert writes == {Kind.WRITER, Kind.BOOKIE, Kind.ADMIN}
    assert etcd_grants("/b", Kind.READER) == [EtcdGrant(False, "/b/", "/b0")]
    assert etcd_role("/a/b", Kind.READER) == "a-b-reader"


def test_a_user_of_two_kinds_has_the_rights_of_both() -> None:
    users = {
        Kind.READER: ["world:anyone"],
        Kind.WRITER: ["sasl:both"],
        Kind.BOOKIE: ["sasl:both", "x509:CN=b1,O=a b"],
        Kind.ADMIN: ["digest:ops:hash="],
    }
    found = {(one.scheme, one.id): one for one in zookeeper_acl("/cookies", users)}
    change = frozenset({"read", "write", "create", "delete"})
    assert found["world", "anyone"].permissions == {"read"}
    assert found["sasl", "both"].permissions == change
    assert found["x509", "CN=b1,O=a b"].permissions == change
    assert found["digest", "ops:hash="] == Acl("digest", "ops:hash=", change | {"admin"})


def test_only_admins_change_what_lies_directly_below_the_scope() -> None:
    for kind in Kind:
        permissions = permissions_of(kind, ROOT)
        assert ("create" in permissions) == ("delete" in permissions) == (kind is Kind.ADMIN)


# ---- settings


def _security(**values: str) -> MetadataSecurity:
    overrides = {f"metadata.{name}": value for name, value in values.items()}
    return security_of(load_settings(overrides=overrides, environment={}).metadata)


def test_the_lists_are_separated_by_semicolons() -> None:
    found = _security(
        access="kinds", acl_admins="sasl:ops; x509:CN=ops,O=a;", acl_readers="world:anyone"
    )
    assert found.users == {
        Kind.ADMIN: ("sasl:ops", "x509:CN=ops,O=a"),
        Kind.READER: ("world:anyone",),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"access": "kinds"}, "needs metadata.acl_admins"),
        ({"access": "kinds", "acl_writers": "sasl:a"}, "needs metadata.acl_admins"),
        ({"acl_admins": "sasl:a"}, 'need metadata.access = "kinds"'),
        ({"access": "kinds", "acl_admins": "ann"}, "metadata.acl_admins must name users"),
        ({"access": "kinds", "acl_admins": "auth:ann"}, "SCHEME:ID"),
        ({"access": "kinds", "acl_admins": "saml:ann"}, "SCHEME:ID"),
        ({"access": "kinds", "acl_admins": "sasl:"}, "SCHEME:ID"),
    ],
)
def test_lists_that_make_no_sense_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _security(**values)
