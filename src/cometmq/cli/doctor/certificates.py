"""Checks of certificates: files, keys, expiry, chain and names.

A server's certificate is checked as a client does it: by a handshake, here in memory. Source:
X509_V_ERR of OpenSSL.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cometmq.cli.doctor.findings import WORST_FIRST, Finding, Level, fine
from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.tls import client_context, server_context
from cometmq.system.configuration import Configuration

DAYS_WARNING, DAYS_PROBLEM = 30, 7
_DAY_S = 86_400
_ROUNDS_MAX = 10
"""A handshake needs three."""
PAGE = "see docs/howto/tls.md"


class _Verdict(NamedTuple):
    """The judgement of a peer on a certificate: its content, or why the peer refuses it."""

    content: dict[str, Any]
    refusal: str


def certificates(
    configuration: Configuration, host: str, now_s: Callable[[], float] = time.time
) -> Iterator[Finding]:
    """Check the certificates and authorities that the settings name.

    Args:
        configuration: the settings.
        host: the host at which clients reach the server; the certificate has to name it.
        now_s: the wall clock.
    """
    server = configuration[TlsSettings]
    client = (
        configuration[TlsClientSettings]
        if TlsClientSettings in configuration
        else TlsClientSettings()
    )
    if server.certificate and server.mode != "disabled":
        yield from _certificate_of_server(server, client.trusted, host, now_s())
    elif server.mode == "enforcing":
        yield Finding(
            "certificates", Level.WARNING, "tls.server.certPath",
            "not set: the server makes a certificate that no authority has signed",
            "a certificate that clients can check", f"set tls.server.certPath; {PAGE}",
        )  # fmt: skip
    if client.certificate:
        yield from _certificate_of_client(client, now_s())
    for key, path in (
        ("tls.server.trustCertPath", server.trusted),
        ("tls.client.trustCertPath", client.trusted),
    ):
        if path:
            yield from _authorities(key, path, now_s())


def _certificate_of_server(
    settings: TlsSettings, trusted: str, host: str, now_s: float
) -> Iterator[Finding]:
    subject = f"tls.server.certPath={settings.certificate}"
    try:
        context = server_context(settings)
    except ConfigError as problem:
        yield _unusable(subject, problem)
        return
    context.verify_mode = ssl.CERT_NONE
    verdict = _handshake(context, _verifier(settings.certificate))
    yield from _expiry(subject, verdict, now_s)
    if trusted:
        verdict = _handshake(context, _verifier(trusted))
        if verdict.refusal and not _is_about_time(verdict.refusal):
            yield Finding(
                "certificates", Level.PROBLEM, subject,
                f"refused with the authorities of tls.client.trustCertPath: {verdict.refusal}",
                "a chain from the server's certificate to one of these authorities",
                f"put the certificates between them behind the server's in its file; {PAGE}",
            )  # fmt: skip
        elif not verdict.refusal:
            yield from _extensions(context, trusted, subject)
    verifier = _verifier(settings.certificate)
    verifier.check_hostname = True
    verdict = _handshake(context, verifier, host)
    if verdict.refusal and not _is_about_time(verdict.refusal):
        yield Finding(
            "certificates", Level.WARNING, subject, f"it does not name {host}: {verdict.refusal}",
            f"{host} as a subject alternative name: clients that check the host refuse it",
            f"issue it again with this name, or set brokerIP1 to a name that it has; {PAGE}",
        )  # fmt: skip


def _extensions(context: ssl.SSLContext, trusted: str, subject: str) -> Iterator[Finding]:
    """Check what clients on Python 3.13 and newer check, on every Python."""
    verifier = _verifier(trusted)
    verifier.verify_flags |= ssl.VERIFY_X509_STRICT
    if refusal := _handshake(context, verifier).refusal:
        yield Finding(
            "certificates", Level.WARNING, subject,
            f"refused with the authorities of tls.client.trustCertPath: {refusal}",
            "the extensions of RFC 5280: clients on Python 3.13 and newer require them",
            f"issue it and its authority's certificate again; {PAGE}",
        )  # fmt: skip


def _certificate_of_client(settings: TlsClientSettings, now_s: float) -> Iterator[Finding]:
    subject = f"tls.client.certPath={settings.certificate}"
    certificate, key, password = settings.certificate, settings.key, settings.key_password
    try:
        context = client_context(certificate=certificate, key=key, key_password=password)
        server = server_context(
            TlsSettings(
                certificate=certificate,
                key=key,
                key_password=password,
                client_certificate="require",
            )
        )
    except ConfigError as problem:
        yield _unusable(subject, problem)
        return
    server.load_verify_locations(settings.certificate)
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    yield from _expiry(subject, _handshake(server, context, of_client=True), now_s)


def _unusable(subject: str, problem: ConfigError) -> Finding:
    return Finding(
        "certificates", Level.PROBLEM, subject, str(problem),
        "a certificate and its private key, PEM", f"replace the files; {PAGE}",
    )  # fmt: skip


def _verifier(authorities: str) -> ssl.SSLContext:
    """Return a client that trusts the certificates of a file, with or without their authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "", *, of_client: bool = False
) -> _Verdict:
    """Let two ends shake hands in memory; return what one says of the other's certificate."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host or None),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    judge = ends[1] if of_client else ends[0]
    for _ in range(_ROUNDS_MAX):
        waiting = 0
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
            except ssl.SSLCertVerificationError as problem:
                return _Verdict({}, problem.verify_message)
            except ssl.SSLError as problem:
                return _Verdict({}, str(problem))
        if not waiting:
            return _Verdict(judge.getpeercert() or {}, "")
    return _Verdict({}, "the handshake does not end")


def _is_about_time(refusal: str) -> bool:
    return "expired" in refusal or "not yet valid" in refusal


def _expiry(subject: str, verdict: _Verdict, now_s: float) -> Iterator[Finding]:
    renew = f"renew it, and start the server again; {PAGE}"
    if verdict.refusal:
        yield Finding(
            "certificates", Level.PROBLEM, subject, verdict.refusal, "a valid certificate", renew
        )
        return
    yield _lifetime(subject, verdict.content, now_s, renew)


def _lifetime(subject: str, content: dict[str, Any], now_s: float, action: str) -> Finding:
    end = content["notAfter"]
    days = (ssl.cert_time_to_seconds(end) - now_s) / _DAY_S
    if days > DAYS_WARNING:
        return fine("certificates", subject, f"valid until {end}")
    when = (
        f"it expires on {end}, in {counted(round(days), 'day')}"
        if days > 0
        else f"it expired on {end}"
    )
    return Finding(
        "certificates",
        Level.PROBLEM if days <= DAYS_PROBLEM else Level.WARNING,
        subject,
        when,
        f"more than {DAYS_WARNING} days",
        action,
    )


def _authorities(key: str, path: str, now_s: float) -> Iterator[Finding]:
    subject = f"{key}={path}"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        with Path(path).open("rb"):
            pass
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as problem:
        yield Finding(
            "certificates", Level.PROBLEM, subject, f"cannot be used: {problem}",
            "a PEM file with the certificates of authorities", f"replace the file; {PAGE}",
        )  # fmt: skip
        return
    action = f"add the certificate of the authority that takes its place; {PAGE}"
    found = [_lifetime(subject, content, now_s, action) for content in context.get_ca_certs()]
    if not found:
        yield Finding(
            "certificates", Level.PROBLEM, subject, "it contains no certificate of an authority",
            "at least one certificate with basicConstraints CA:TRUE", f"replace the file; {PAGE}",
        )  # fmt: skip
    yield from sorted(found, key=lambda finding: WORST_FIRST.index(finding.level))[:1]
