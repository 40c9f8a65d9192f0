"""TLS contexts: from the files of the settings, or from a certificate made on the spot.

The modes are those of RocketMQ's TlsMode.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping
from pathlib import Path

from cometmq.model.errors import ConfigError
from cometmq.remoting.config import TlsClientSettings, TlsSettings
from cometmq.system.settings import describe

HANDSHAKE_BYTE = 0x16
"""The first byte of a TLS connection; a plain frame begins with 0 or 1."""

_CLIENT_CERTIFICATE = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}

PAGE = "see docs/howto/tls.md"
CLOSED_AFTER_HANDSHAKE = (
    " after the TLS handshake, without a response: it may require a certificate that it trusts,"
    f" its log says why; {PAGE}"
)
"""The end of an error. Servers that use asyncio close without an alert, which would say it."""
_ADVICE = (
    (
        range(80, 95),
        "Python 3.13 and newer require the extensions of RFC 5280 in it and in its authority's:"
        f" issue them again, {PAGE}",
    ),
    ((9, 10), "renew it, or correct the clock"),
    ((2, 18, 19, 20, 21), "no trusted authority has signed it: trust its authority"),
    ((62, 64), f"issue it again with this subject alternative name, {PAGE}"),
)
"""How to correct a refused certificate, by the error codes of OpenSSL."""

Names = Mapping[str, str]
"""The names of ``certificate``, ``key``, ``key_password`` and ``trusted`` where they are set."""

SERVER_KEYS: Names = {known.name: known.key for known in describe(TlsSettings)}
CLIENT_KEYS: Names = {known.name: known.key for known in describe(TlsClientSettings)}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a server.

    Raises:
        ConfigError: a file cannot be used, or there is no certificate and none may be made.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake costs the server more than the client
    if settings.certificate:
        key, password = settings.key, settings.key_password
        _load_certificate(context, settings.certificate, key, password, SERVER_KEYS)
    elif settings.self_signed:
        _load_self_signed(context)
    else:
        raise ConfigError("TLS needs tls.server.certPath and tls.server.keyPath")
    if settings.trusted:
        _load_trusted(context, settings.trusted, SERVER_KEYS["trusted"])
    context.verify_mode = _CLIENT_CERTIFICATE[settings.client_certificate]
    return context


def client_context(
    *,
    trusted: str = "",
    certificate: str = "",
    key: str = "",
    key_password: str = "",
    check: bool = False,
    names: Names = CLIENT_KEYS,
) -> ssl.SSLContext:
    """Return the context of a client; by default it accepts any certificate, as RocketMQ does.

    Args:
        trusted: file of the authorities that servers are checked against.
        certificate, key, key_password: of the client, for servers that request one.
        check: check servers against the machine's authorities where ``trusted`` names none.
        names: what these are called where they are set, for error messages.

    Raises:
        ConfigError: a file cannot be used.
    """
    if trusted:
        _check_certificates(trusted, names["trusted"])
    context = ssl.create_default_context(cafile=trusted or None)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the default since Python 3.13
    if certificate:
        _load_certificate(context, certificate, key, key_password, names)
    if not trusted and not check:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def outgoing_context(settings: TlsClientSettings, server: TlsSettings) -> ssl.SSLContext | None:
    """Return the context of the connections that a server opens; None for plain ones.

    If no setting selects TLS, they use it if the server itself accepts nothing else.
    Source: BrokerStartup, RocketMQ 4.9; NettyClientConfig, RocketMQ 5.3.

    Raises:
        ConfigError: a file cannot be used.
    """
    if not settings.is_enabled(server):
        return None
    return client_context(
        trusted=settings.trusted,
        certificate=settings.certificate,
        key=settings.key,
        key_password=settings.key_password,
        check=settings.check_server,
    )


def failure_text(problem: BaseException) -> str:
    """Return why a connection failed; for a refused certificate also how to mend it.

    Source: X509_V_ERR of OpenSSL, alerts of RFC 8446.
    """
    if isinstance(problem, ssl.SSLCertVerificationError):
        advice = next((text for codes, text in _ADVICE if problem.verify_code in codes), PAGE)
        return f"certificate verify failed: {problem.verify_message.rstrip('.')}; {advice}"
    _, _, alert = str(getattr(problem, "reason", "")).partition("_ALERT_")
    if alert == "CERTIFICATE_REQUIRED":
        return f"the peer requires a certificate; set one and its key, {PAGE}"
    if "CERTIFICATE" in alert or alert == "UNKNOWN_CA":
        words = alert.replace("_", " ").lower()
        return f"the peer refused this end's certificate: {words}; its log says why, {PAGE}"
    return str(problem)


# --- files ----------------------------------------------------------------------------------------


def _load_certificate(
    context: ssl.SSLContext, certificate: str, key: str, password: str, names: Names
) -> None:
    """Load a certificate and its key; without ``key`` the certificate's file has both."""
    _check_certificates(certificate, names["certificate"])
    if key:
        _check_readable(key, names["key"])
    asked = False

    def give_password() -> str:  # without it OpenSSL asks for a password at the terminal
        nonlocal asked
        asked = True
        return password

    try:
        context.load_cert_chain(certificate, key or None, give_password)
    except ssl.SSLError as problem:
        reason = _why_refused(problem, certificate, key, names, asked=asked, password=password)
        raise ConfigError(reason) from None


def _why_refused(
    problem: ssl.SSLError, certificate: str, key: str, names: Names, *, asked: bool, password: str
) -> str:
    """Return why OpenSSL refuses a certificate that it can read, or its key."""
    source = f"{names['certificate']}={certificate}"
    key_source = f"{names['key']}={key}" if key else source
    if problem.reason == "KEY_VALUES_MISMATCH":
        return f"{key_source}: not the private key of {source}"
    if "PEM lib" not in str(problem):  # OpenSSL's words for a file that it cannot parse
        return f"{source}: cannot be used: {problem}"
    if asked and password:
        return (
            f"{names['key_password']}: not the password of the private key in {key or certificate},"
            " or encrypted with an algorithm that OpenSSL 3 has only in its legacy provider;"
            " convert it: openssl pkcs8 -topk8 -provider legacy -provider default -in OLD -out NEW"
        )
    if asked:
        return f"{key_source}: the private key has a password; set {names['key_password']}"
    if key:
        return f"{key_source}: contains no private key; expected a PEM file"
    return f"{source}: contains no private key; expected {names['key']} to name its file"


def _load_trusted(context: ssl.SSLContext, path: str, name: str) -> None:
    _check_readable(path, name)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"{name}={path}: contains no certificate; expected a PEM file") from None


def _check_certificates(path: str, name: str) -> None:
    """Check that a file contains certificates; the error of OpenSSL does not name the file."""
    _load_trusted(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path, name)


def _check_readable(path: str, name: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as problem:
        raise ConfigError(f"{name}={path}: cannot be read: {problem.strerror}") from None


# --- a certificate made on the spot ---------------------------------------------------------------


def _load_self_signed(context: ssl.SSLContext) -> None:
    import tempfile

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
