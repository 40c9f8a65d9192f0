"""TLS contexts: from files, made on the spot, or refused with the reason."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.remoting import TlsSettings
from cometmq.remoting.tls import _self_signed_pem, client_context, server_context


@pytest.fixture
def pem(tmp_path: Path) -> str:
    file = tmp_path / "server.pem"
    file.write_bytes(_self_signed_pem())
    return str(file)


def shaken(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """Both ends after their handshake, in memory; the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    there = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [here, there]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
        if not waiting:
            return here
    raise AssertionError("the handshake does not end")


def test_without_files_a_certificate_is_made() -> None:
    assert shaken(server_context(TlsSettings()), client_context()).version() == "TLSv1.3"


def test_each_server_makes_a_certificate_of_its_own() -> None:
    seen = {
        shaken(server_context(TlsSettings()), client_context()).getpeercert(binary_form=True)
        for _ in range(2)
    }
    assert len(seen) == 2


def test_a_certificate_may_come_from_files(pem: str) -> None:
    context = server_context(TlsSettings(certificate=pem, key=pem, self_signed=False))

    assert shaken(context, client_context()).cipher() is not None


def test_a_client_that_trusts_others_refuses_the_server(pem: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(server_context(TlsSettings()), client_context(trusted=pem))


def test_a_client_without_the_certificate_that_is_required_is_refused(pem: str) -> None:
    server = server_context(TlsSettings(certificate=pem, trusted=pem, client_certificate="require"))
    with pytest.raises(ssl.SSLError):
        shaken(server, client_context())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (TlsSettings(self_signed=False), "tls.server.certPath"),
        (TlsSettings(certificate="/no/such/file.pem"), "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(settings: TlsSettings, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        server_context(settings)


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path, pem: str) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    for settings in (
        TlsSettings(certificate=str(junk)),
        TlsSettings(certificate=pem, key=str(junk)),
        TlsSettings(certificate=pem, trusted=str(junk)),
    ):
        with pytest.raises(ConfigError, match="cannot be used"):
            server_context(settings)
