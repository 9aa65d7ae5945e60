"""Makes certificates: an authority, servers' certificates that it signs, and self-signed ones. It writes no files."""

import hashlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.hazmat.primitives.serialization import load_pem_private_key as _load_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS: Final = 3650
SERVER_DAYS: Final = 90
SELF_SIGNED_DAYS: Final = 3650  # it is pinned, so that its end means nothing
_CLOCKS_DIFFER: Final = timedelta(hours=1)
_LONGEST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, each in PEM."""

    certificate: bytes
    key: bytes


def make_authority(now: datetime, *, days: int = AUTHORITY_DAYS) -> Issued:
    """A new certificate authority. It signs servers' certificates, and no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Gpuward CA {_spki_hash(key.public_key())[:8]}")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Issued(made.public_bytes(Encoding.PEM), _pem_of(key))


def issue_server(authority: Issued, names: Sequence[str], now: datetime, *, days: int = SERVER_DAYS) -> Issued:
    """A certificate for a server with these DNS names and addresses; the authority's follows it.

    Raises:
        ValueError: the authority's key cannot be read, or a name is neither a DNS name
            nor an IP address.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = _private_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = (
        _builder(subject, signer.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
        .sign(signing, hashes.SHA256())
    )
    return Issued(made.public_bytes(Encoding.PEM) + authority.certificate, _pem_of(key))


def make_self_signed(name: str, now: datetime) -> Issued:
    """A certificate that no authority has signed: those that know its fingerprint accept it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    made = (
        _builder(subject, subject, key.public_key(), now, SELF_SIGNED_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Issued(made.public_bytes(Encoding.PEM), _pem_of(key))


def public_key_hash(certificate: bytes) -> str:
    """SHA-256 of a certificate's public key (SPKI), in hexadecimal digits.

    Raises:
        ValueError: it is not a certificate in PEM.
    """
    return _spki_hash(x509.load_pem_x509_certificate(certificate).public_key())


@dataclass(frozen=True, slots=True)
class Described:
    """What a certificate states."""

    names: tuple[str, ...]
    begins: datetime
    ends: datetime
    is_authority: bool

    def due_for_renewal(self, now: datetime) -> bool:
        """Whether a third of its time or less is left."""
        return (self.ends - now) * 3 <= self.ends - self.begins


def describe(certificate: bytes) -> Described:
    """Reads a certificate.

    Raises:
        ValueError: it is not a certificate in PEM.
    """
    read = x509.load_pem_x509_certificate(certificate)
    names: tuple[str, ...] = ()
    is_authority = False
    for extension in read.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = tuple(str(name.value) for name in extension.value)
        elif isinstance(extension.value, x509.BasicConstraints):
            is_authority = extension.value.ca
    return Described(names, read.not_valid_before_utc, read.not_valid_after_utc, is_authority)


def is_signed_by(certificate: bytes, authority: bytes) -> bool:
    """Whether an authority's key has signed a certificate; both in PEM."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def checked_name(name: str) -> str:
    """A DNS name or IP address for a server's certificate.

    Raises:
        ValueError: it is neither.
    """
    _general(name)
    return name


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    plain = all(
        label and label.replace("-", "").isalnum() and label.isascii() and label.strip("-") == label for label in labels
    )
    if not plain or len(name) > _LONGEST_NAME:
        raise ValueError(f"{name!r} is not a DNS name and not an IP address; write one such as gpuward.example")
    return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - _CLOCKS_DIFFER)
        .not_valid_after(now.astimezone(UTC) + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = _load_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is of another kind than `gpuward ca init` makes")  # noqa: TRY004 - of a file
    return key


def _pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _spki_hash(key: CertificatePublicKeyTypes) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
