"""Who a peer is: one answer for both carriers."""

from __future__ import annotations

from bookie.security.identity import PeerIdentity, identity_of_call, identity_of_certificate


def test_a_call() -> None:
    properties = {
        "transport_security_type": [b"ssl"],
        "x509_common_name": [b"b1"],
        "x509_subject_alternative_name": [b"b1.example", b"10.0.0.1"],
        "x509_pem_cert": [b"-----BEGIN"],
    }
    assert identity_of_call(properties) == PeerIdentity("b1", ("b1.example", "10.0.0.1"))


def test_a_call_without_a_certificate() -> None:
    assert identity_of_call({}) is None
    assert identity_of_call({"transport_security_type": [b"ssl"]}) is None


def test_a_request() -> None:
    certificate = {
        "subject": ((("organizationName", "x"),), (("commonName", "b1"),)),
        "subjectAltName": (("DNS", "b1.example"), ("IP Address", "10.0.0.1")),
    }
    identity = identity_of_certificate(certificate)
    assert identity == PeerIdentity("b1", ("b1.example", "10.0.0.1"))
    assert str(identity) == "b1"
    assert str(PeerIdentity("", ("a", "b"))) == "a, b"


def test_a_request_without_a_certificate() -> None:
    assert identity_of_certificate(None) is None
    assert identity_of_certificate({}) is None


def test_the_first_of_several_common_names_counts() -> None:
    """For both carriers alike, or one certificate would have two names and the roles of both."""
    certificate = {"subject": ((("commonName", "ann"),), (("commonName", "admin"),))}
    properties = {"x509_common_name": [b"ann", b"admin"], "x509_pem_cert": [b"-----BEGIN"]}
    assert identity_of_certificate(certificate) == identity_of_call(properties)
