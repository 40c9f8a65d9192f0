"""Checks of certificates: files, keys, expiry, chain and names.

A server's certificate is checked as a client does it: by a handshake, here in memory.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cometmq.cli.doctor.findings import WORST_FIRST, Finding, Level, fine
from cometmq.model.errors import ConfigError
from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.certificates import (
    DAYS_WARNING,
    Verdict,
    days_left,
    end_text,
    handshake,
    verdict_on_client,
    verifier,
)
from cometmq.remoting.tls import PAGE, server_context
from cometmq.system.configuration import Configuration

DAYS_PROBLEM = 7


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
    verdict = handshake(context, verifier(settings.certificate))
    yield from _expiry(subject, verdict, now_s)
    if trusted:
        verdict = handshake(context, verifier(trusted))
        if verdict.refusal and not verdict.is_about_time:
            yield Finding(
                "certificates", Level.PROBLEM, subject,
                f"refused with the authorities of tls.client.trustCertPath: {verdict.refusal}",
                "a chain from the server's certificate to one of these authorities",
                f"put the certificates between them behind the server's in its file; {PAGE}",
            )  # fmt: skip
        elif not verdict.refusal:
            yield from _extensions(context, trusted, subject)
    peer = verifier(settings.certificate)
    peer.check_hostname = True
    verdict = handshake(context, peer, host)
    if verdict.refusal and not verdict.is_about_time:
        yield Finding(
            "certificates", Level.WARNING, subject, f"it does not name {host}: {verdict.refusal}",
            f"{host} as a subject alternative name: clients that check the host refuse it",
            f"issue it again with this name, or set brokerIP1 to a name that it has; {PAGE}",
        )  # fmt: skip


def _extensions(context: ssl.SSLContext, trusted: str, subject: str) -> Iterator[Finding]:
    """Check what clients on Python 3.13 and newer check, on every Python."""
    peer = verifier(trusted)
    peer.verify_flags |= ssl.VERIFY_X509_STRICT
    if refusal := handshake(context, peer).refusal:
        yield Finding(
            "certificates", Level.WARNING, subject,
            f"refused with the authorities of tls.client.trustCertPath: {refusal}",
            "the extensions of RFC 5280: clients on Python 3.13 and newer require them",
            f"issue it and its authority's certificate again; {PAGE}",
        )  # fmt: skip


def _certificate_of_client(settings: TlsClientSettings, now_s: float) -> Iterator[Finding]:
    subject = f"tls.client.certPath={settings.certificate}"
    try:
        verdict = verdict_on_client(settings)
    except ConfigError as problem:
        yield _unusable(subject, problem)
        return
    yield from _expiry(subject, verdict, now_s)


def _unusable(subject: str, problem: ConfigError) -> Finding:
    return Finding(
        "certificates", Level.PROBLEM, subject, str(problem),
        "a certificate and its private key, PEM", f"replace the files; {PAGE}",
    )  # fmt: skip


def _expiry(subject: str, verdict: Verdict, now_s: float) -> Iterator[Finding]:
    renew = f"renew it, and start the server again; {PAGE}"
    if verdict.refusal:
        yield Finding(
            "certificates", Level.PROBLEM, subject, verdict.refusal, "a valid certificate", renew
        )
        return
    yield _lifetime(subject, verdict.content, now_s, renew)


def _lifetime(subject: str, content: dict[str, Any], now_s: float, action: str) -> Finding:
    end = content["notAfter"]
    days = days_left(content, now_s)
    if days > DAYS_WARNING:
        return fine("certificates", subject, f"valid until {end}")
    return Finding(
        "certificates",
        Level.PROBLEM if days <= DAYS_PROBLEM else Level.WARNING,
        subject,
        end_text(content, now_s),
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
