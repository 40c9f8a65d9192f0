"""TLS contexts: from the files of the settings, or from a certificate made on the spot.

Source: ours; the modes are those of RocketMQ's TlsMode.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from pathlib import Path

from cometmq.model.errors import ConfigError
from cometmq.remoting.config import TlsSettings

HANDSHAKE_BYTE = 0x16
"""The first byte of a TLS connection; a plain frame begins with 0 or 1."""

_CLIENT_CERTIFICATE = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """The context of a server.

    Raises:
        ConfigError: a file cannot be used, or there is no certificate and none may be made.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        if settings.certificate:
            key, password = settings.key or None, settings.key_password or None
            context.load_cert_chain(settings.certificate, key, password)
        elif settings.self_signed:
            _load_self_signed(context)
        else:
            raise ConfigError("TLS needs tls.server.certPath and tls.server.keyPath")
        if settings.trusted:
            context.load_verify_locations(settings.trusted)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"the TLS files cannot be used: {problem}") from None
    context.verify_mode = _CLIENT_CERTIFICATE[settings.client_certificate]
    return context


def client_context(
    *,
    trusted: str = "",
    certificate: str = "",
    key: str = "",
    key_password: str = "",
    check: bool = False,
) -> ssl.SSLContext:
    """The context of a client; it takes any certificate, as RocketMQ does, unless told otherwise.

    Args:
        trusted: file of the authorities that servers are checked against.
        certificate, key, key_password: what the client shows of itself, if servers ask for it.
        check: check servers against the machine's authorities where ``trusted`` names none.

    Raises:
        ConfigError: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=trusted or None)
        if certificate:
            context.load_cert_chain(certificate, key or None, key_password or None)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(f"the TLS files cannot be used: {problem}") from None
    if not trusted and not check:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_self_signed(context: ssl.SSLContext) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder, "server.pem")
        pem.touch(mode=0o600)
        pem.write_bytes(_self_signed_pem())
        context.load_cert_chain(pem)


def _self_signed_pem() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise ConfigError(
            "a self-signed certificate needs the extra 'tls'; install it or set tls.server.certPath"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)
