"""Judges certificates by handshakes in memory, and finds those that expire soon.

`ssl` reads no certificate but a peer's. Source: X509_V_ERR of OpenSSL.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.remoting.config import TlsClientSettings, TlsSettings
from cometmq.remoting.tls import (
    CLIENT_KEYS,
    PAGE,
    SERVER_KEYS,
    client_context,
    server_context,
)

DAYS_WARNING = 30
_DAY_S = 86_400
_ROUNDS_MAX = 10
"""A handshake needs three."""


class Verdict(NamedTuple):
    """The judgement of a peer on a certificate: its content, or why the peer refuses it."""

    content: dict[str, Any]
    refusal: str

    @property
    def is_about_time(self) -> bool:
        """Whether the peer refuses the certificate because it is not valid now."""
        return "expired" in self.refusal or "not yet valid" in self.refusal


def verifier(authorities: str) -> ssl.SSLContext:
    """Return a client that trusts the certificates of a file, with or without their authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authorities)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def verdict_on_server(settings: TlsSettings) -> Verdict:
    """Judge a server's certificate by itself.

    Raises:
        ConfigError: a file cannot be used.
    """
    context = server_context(settings)
    context.verify_mode = ssl.CERT_NONE
    return handshake(context, verifier(settings.certificate))


def verdict_on_client(settings: TlsClientSettings) -> Verdict:
    """Judge a client's certificate by itself.

    Raises:
        ConfigError: a file cannot be used.
    """
    certificate, key, password = settings.certificate, settings.key, settings.key_password
    context = client_context(certificate=certificate, key=key, key_password=password)
    server = server_context(
        TlsSettings(
            certificate=certificate, key=key, key_password=password, client_certificate="require"
        )
    )
    server.load_verify_locations(settings.certificate)
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return handshake(server, context, of_client=True)


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "", *, of_client: bool = False
) -> Verdict:
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
                return Verdict({}, problem.verify_message)
            except ssl.SSLError as problem:
                return Verdict({}, str(problem))
        if not waiting:
            return Verdict(judge.getpeercert() or {}, "")
    return Verdict({}, "the handshake does not end")


def days_left(content: dict[str, Any], now_s: float) -> float:
    """Return for how many days a certificate is still valid; negative if it has expired."""
    return (ssl.cert_time_to_seconds(content["notAfter"]) - now_s) / _DAY_S


def end_text(content: dict[str, Any], now_s: float) -> str:
    """Return when a certificate expires or has expired, as a sentence."""
    end, days = content["notAfter"], days_left(content, now_s)
    if days <= 0:
        return f"it expired on {end}"
    return f"it expires on {end}, in {counted(round(days), 'day')}"


def expiry_warnings(server: TlsSettings, client: TlsClientSettings) -> Iterator[str]:
    """Return which certificates are not valid now, or not for long.

    Files that cannot be used are left out: they keep a server from starting.
    """
    now_s = time.time()
    for source, verdict in _verdicts(server, client):
        if verdict.is_about_time:
            met = verdict.refusal
        elif verdict.content and days_left(verdict.content, now_s) <= DAYS_WARNING:
            met = end_text(verdict.content, now_s)
        else:
            continue
        yield f"{source}: {met}; renew it, and start the server again; {PAGE}"


def _verdicts(server: TlsSettings, client: TlsClientSettings) -> Iterator[tuple[str, Verdict]]:
    """Yield each certificate in use, by the setting that names it."""
    if server.certificate and server.mode != "disabled":
        with contextlib.suppress(ConfigError):
            yield f"{SERVER_KEYS['certificate']}={server.certificate}", verdict_on_server(server)
    if client.certificate:
        with contextlib.suppress(ConfigError):
            yield f"{CLIENT_KEYS['certificate']}={client.certificate}", verdict_on_client(client)
    trusted = [(SERVER_KEYS["trusted"], server.trusted), (CLIENT_KEYS["trusted"], client.trusted)]
    for key, path in trusted:
        if path:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with contextlib.suppress(OSError):  # also what OpenSSL raises
                context.load_verify_locations(path)
            ends = [(days_left(content, 0.0), content) for content in context.get_ca_certs()]
            if ends:
                yield f"{key}={path}", Verdict(min(ends, key=lambda end: end[0])[1], "")
