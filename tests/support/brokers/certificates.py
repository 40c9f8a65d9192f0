"""Certificates for tests of TLS, and the authorities that sign them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
_OTHER_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
    "key_agreement", "encipher_only", "decipher_only",
)  # fmt: skip
SIGNS_CERTIFICATES = x509.KeyUsage(
    key_cert_sign=True, crl_sign=True, **dict.fromkeys(_OTHER_USES, False)
)


class Authority:
    """Signs certificates of servers and clients, and keeps them in a folder.

    Args:
        folder: where the files are made.
        name: its common name.
        days: how long it is valid.
        complete: its certificates have the extensions that RFC 5280 requires.
    """

    def __init__(self, folder: Path, name: str, *, days: float = 1, complete: bool = True) -> None:
        self._folder, self._name, self._complete = folder, name, complete
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._unsigned(self._subject, self._key, days).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if complete:
            identifier = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
            own = own.add_extension(SIGNS_CERTIFICATES, critical=True)
            own = own.add_extension(identifier, critical=False)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        name: str,
        *,
        password: str = "",
        days: float = 1,
        host: str = HOST,
        names: Sequence[x509.GeneralName] = (),
    ) -> tuple[Path, Path]:
        """The files of a certificate for one address, valid for so many days, and of its key.

        Args:
            name: its common name.
            password: of the key.
            days: how long it is valid.
            host: the address.
            names: further alternative names.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        where = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host)), *names])
        made = self._unsigned(subject, key, days).add_extension(where, critical=False)
        if self._complete:
            signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            made = made.add_extension(signer, critical=False)
        certificate = self._folder / f"{self._name}-{name}.pem"
        certificate.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        sealed: serialization.KeySerializationEncryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        key_file = certificate.with_suffix(".key")
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
        )
        return certificate, key_file

    def _unsigned(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=400))
            .not_valid_after(now + datetime.timedelta(days=days))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
