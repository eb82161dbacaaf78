"""Certificates for tests of TLS: `Authority(folder).issue("localhost")`."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificate(NamedTuple):
    cert_file: Path
    key_file: Path


class Authority:
    """Signs certificates. ``ca_file`` is its own, which clients and servers are to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.ca_file = folder / f"{name}.pem"
        self.ca_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *, valid_for: timedelta = timedelta(days=2), password: str = "") -> Certificate:
        """Issue a certificate for the host, the address or the user ``name``; with ``password``, its key is
        encrypted."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, valid_for).add_extension(
            x509.SubjectAlternativeName([_general_name(name)]), critical=False
        )
        certificate = Certificate(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        certificate.cert_file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        certificate.key_file.touch(mode=0o600)  # servers refuse a key that others can read
        certificate.key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
        )
        return certificate

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid_for: timedelta = timedelta(days=2)
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder(issuer_name=self._name, subject_name=subject, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=3))
            .not_valid_after(now + valid_for)
        )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
