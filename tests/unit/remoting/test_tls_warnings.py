"""What a server logs at its start about its settings of TLS, and certificates that expire."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.remoting.tls_warnings import access_warnings, log_tls_warnings
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (TlsSettings(), []),
        (TlsSettings(mode="enforcing", client_certificate="require", trusted="ca.pem"), []),
        (TlsSettings(client_certificate="optional", trusted="ca.pem"), []),
        (
            TlsSettings(client_certificate="require", trusted="ca.pem"),
            [
                "tls.server.need.client.auth=require with tls.server.mode=permissive: "
                "plain clients are accepted without a certificate; "
                "set tls.server.mode=enforcing to refuse them"
            ],
        ),
        (
            TlsSettings(mode="disabled", client_certificate="require"),
            [
                "tls.server.need.client.auth=require with tls.server.mode=disabled: "
                "plain clients are accepted without a certificate; "
                "set tls.server.mode=enforcing to refuse them"
            ],
        ),
        (
            TlsSettings(mode="enforcing", client_certificate="require"),
            [
                "tls.server.need.client.auth=require without tls.server.trustCertPath: "
                "no client's certificate can be verified, and every TLS connection is refused; "
                "set tls.server.trustCertPath"
            ],
        ),
        (
            TlsSettings(client_certificate="optional"),
            [
                "tls.server.need.client.auth=optional without tls.server.trustCertPath: "
                "no client's certificate can be verified, and TLS connections that present one "
                "are refused; set tls.server.trustCertPath"
            ],
        ),
    ],
)
def test_settings_that_do_not_ask_all_clients_for_a_certificate_are_warned_of(
    settings: TlsSettings, expected: list[str]
) -> None:
    assert access_warnings(settings) == expected
    assert access_warnings(settings, TlsClientSettings()) == expected


@pytest.mark.parametrize(
    ("server", "client", "expected"),
    [
        (
            TlsSettings(key="k"),
            TlsClientSettings(),
            "tls.server.keyPath without tls.server.certPath: the key is not used; "
            "set tls.server.certPath",
        ),
        (
            TlsSettings(),
            TlsClientSettings(trusted="ca", check_server=True),
            "tls.client.authServer, tls.client.trustCertPath without tls.enable: "
            "connections to other servers are plain; set tls.enable=true",
        ),
        (
            TlsSettings(mode="enforcing"),
            TlsClientSettings(key="k"),
            "tls.client.keyPath without tls.client.certPath: this server presents no certificate; "
            "set tls.client.certPath",
        ),
    ],
)
def test_settings_without_effect_are_warned_of(
    server: TlsSettings, client: TlsClientSettings, expected: str
) -> None:
    assert access_warnings(server, client) == [expected]


def test_settings_of_a_server_that_uses_tls_everywhere_are_fine() -> None:
    client = TlsClientSettings(trusted="ca", certificate="c", key="k")

    assert access_warnings(TlsSettings(mode="enforcing", certificate="c", key="k"), client) == []
