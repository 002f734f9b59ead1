"""Checks that gRPC can use certificates and keys; OpenSSL, which HTTP uses, accepts more kinds."""

from __future__ import annotations

from typing import Final

from bookie.security.certificates import parsing

RSA_BITS_MIN: Final = 2048
CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384"}
"""The curves that gRPC accepts for the key of a server's or client's certificate. Source: the
list of signature algorithms that gRPC 1.85 accepts in TLS."""

CA_CURVES: Final = {**CURVES, "secp521r1": "P-521"}
"""The curves that gRPC accepts for the keys of CAs, which only sign certificates."""

_RSA_OID: Final = "1.2.840.113549.1.1.1"
_MARK: Final = b"\xef\xbb\xbf"


def require_usable(ca: bytes, certificate: bytes = b"") -> None:
    """Check that gRPC can use the content of ``ca_file`` and of ``certificate_file``.

    Args:
        ca: the content of ``ca_file``, as PEM.
        certificate: the content of ``certificate_file``, as PEM; empty if there is no such file.

    Raises:
        ValueError: gRPC cannot use one of the files; the text names its setting.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    for setting, pem in (("ca_file", ca), ("certificate_file", certificate)):
        if not pem:
            continue
        if pem.startswith(_MARK):
            raise ValueError(
                f"security.{setting} begins with a byte order mark, which gRPC refuses; remove it"
            )
        with parsing(f"security.{setting}"):
            found = x509.load_pem_x509_certificates(pem)
            keys = [one.public_key() for one in found]
        issuers = keys if setting == "ca_file" else keys[1:]
        for key in issuers:
            if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name not in CA_CURVES:
                raise ValueError(
                    f"security.{setting} has a CA on the curve {key.curve.name}, which gRPC cannot"
                    f" verify; take one of {', '.join(CA_CURVES.values())}"
                )
        if setting == "certificate_file" and (kind := _unfit_kind(found[0])):
            raise ValueError(
                f"security.certificate_file is for {kind}, which gRPC cannot use; take a key on"
                f" {' or '.join(CURVES.values())}, or RSA of at least {RSA_BITS_MIN} bits"
            )


def _unfit_kind(certificate: object) -> str:
    """Return the kind of a certificate's key if gRPC cannot use that kind; otherwise empty."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    assert isinstance(certificate, x509.Certificate)
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        if certificate.public_key_algorithm_oid.dotted_string != _RSA_OID:
            return "an RSA-PSS key"
        return "" if key.key_size >= RSA_BITS_MIN else f"an RSA key of {key.key_size} bits"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "" if key.curve.name in CURVES else f"a key on the curve {key.curve.name}"
    return f"an {type(key).__name__.removesuffix('PublicKey')} key"


def certificate_fault(pem: bytes) -> str:
    """Return the reason, for an error text, why a file has no usable certificate, or empty."""
    from cryptography import x509

    if b"CERTIFICATE-----" not in pem:
        return "it holds no certificate (PEM)"
    damaged = "it holds a certificate that is damaged or not whole"
    if pem.count(b"-----BEGIN ") != pem.count(b"-----END "):
        return damaged
    try:
        with parsing():
            x509.load_pem_x509_certificates(pem)
    except ValueError:
        return damaged
    return ""


def key_fault(pem: bytes) -> str:
    """Return the reason, for an error text, why a file has no usable key; empty if it has one."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if b"PRIVATE KEY-----" not in pem:
        return "it holds no private key (PEM)"
    try:
        with parsing():
            load_pem_private_key(pem, password=None)
    except TypeError:
        return "its key is encrypted; store it without a passphrase"
    except ValueError:
        return "it holds a key that is damaged or not whole"
    return ""
