"""What a server logs at its start about certificates that expire."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.certificates import log_tls_warnings
from cometmq.system.configuration import Configuration
from support.brokers.certificates import Authority

log = logging.getLogger("test")


def logged(
    caplog: pytest.LogCaptureFixture, server: TlsSettings, client: TlsClientSettings
) -> list[str]:
    caplog.clear()
    log_tls_warnings(Configuration.of(server, client), log)
    return caplog.messages


@pytest.mark.parametrize(
    ("days", "met"),
    [(-2, "certificate has expired"), (3, "it expires on "), (40, "")],
)
def test_a_certificate_that_expires_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: float, met: str
) -> None:
    authority = Authority(tmp_path, "authority", days=100)
    certificate, key = authority.issue("peer", days=days)
    server = TlsSettings(certificate=str(certificate), key=str(key), mode="enforcing")
    client = TlsClientSettings(certificate=str(certificate), key=str(key), enable=True)
    lines = logged(caplog, server, client)

    sources = [f"tls.server.certPath={certificate}", f"tls.client.certPath={certificate}"]
    assert len(lines) == (2 if met else 0)
    for line, source in zip(lines, sources, strict=False):
        assert line.startswith(f"{source}: {met}")
        assert line.endswith("renew it, and start the server again; see docs/howto/tls.md")
    assert logged(caplog, replace(server, mode="disabled"), TlsClientSettings()) == []


def test_an_authority_that_expires_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The authority that expires first counts."""
    old, new = (Authority(tmp_path, name, days=days) for name, days in (("old", 5), ("new", 99)))
    both = tmp_path / "both.pem"
    both.write_bytes(new.file.read_bytes() + old.file.read_bytes())
    client = TlsClientSettings(trusted=str(both), enable=True)
    [line] = logged(caplog, TlsSettings(), client)
    assert line.startswith(f"tls.client.trustCertPath={both}: it expires on ")
    assert "in 5 days; renew it" in line
    client = TlsClientSettings(trusted=str(new.file), enable=True)
    assert logged(caplog, TlsSettings(), client) == []


def test_files_that_cannot_be_used_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The start fails because of them, with a reason."""
    missing = str(tmp_path / "missing.pem")
    server = TlsSettings(certificate=missing, key=missing, trusted=missing, mode="enforcing")
    assert logged(caplog, server, TlsClientSettings(certificate=missing, enable=True)) == []
