"""The checks of certificates, with certificates that have the fault."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.cli.doctor.certificates import certificates
from cometmq.cli.doctor.findings import Finding, Level
from cometmq.remoting import TlsClientSettings, TlsSettings
from cometmq.system.configuration import Configuration
from support.brokers.certificates import HOST, Authority

YEAR = 365.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "good", days=YEAR)


def found(
    server: TlsSettings, client: TlsClientSettings | None = None, host: str = HOST
) -> list[Finding]:
    parts = Configuration.of(server, client or TlsClientSettings())
    return list(certificates(parts, host))


def of_server(authority: Authority, name: str, days: float = YEAR, host: str = HOST) -> TlsSettings:
    certificate, key = authority.issue(name, days=days, host=host)
    return TlsSettings(certificate=str(certificate), key=str(key), mode="enforcing")


def levels(findings: list[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def test_a_good_certificate_is_fine(authority: Authority) -> None:
    findings = found(of_server(authority, "ok"), TlsClientSettings(trusted=str(authority.file)))

    assert levels(findings) == {Level.FINE}
    assert "valid until" in findings[0].met


@pytest.mark.parametrize(
    ("days", "level", "met"),
    [
        (20, Level.WARNING, "it expires on"),
        (3, Level.PROBLEM, "it expires on"),
        (-2, Level.PROBLEM, "certificate has expired"),
    ],
)
def test_a_certificate_that_expires_is_found(
    authority: Authority, days: float, level: Level, met: str
) -> None:
    [finding] = found(of_server(authority, f"old{days}", days=days))

    assert (finding.level, met in finding.met) == (level, True)


def test_a_key_of_another_certificate_is_found(authority: Authority, tmp_path: Path) -> None:
    good, other = of_server(authority, "one"), of_server(authority, "two")

    [finding] = found(TlsSettings(certificate=good.certificate, key=other.key))

    assert finding.level is Level.PROBLEM
    assert "not the private key of" in finding.met


def test_a_certificate_of_another_authority_is_found(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger", days=YEAR)

    findings = found(of_server(stranger, "x"), TlsClientSettings(trusted=str(authority.file)))

    assert Level.PROBLEM in levels(findings)
    assert any("tls.client.trustCertPath: " in each.met for each in findings)


def test_a_certificate_that_clients_on_newer_pythons_refuse_is_found(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "incomplete", days=YEAR, complete=False)

    findings = found(of_server(authority, "x"), TlsClientSettings(trusted=str(authority.file)))

    [finding] = [each for each in findings if each.level is not Level.FINE]
    assert finding.level is Level.WARNING
    assert "Python 3.13" in finding.expected
    assert "Missing Authority Key Identifier" in finding.met


def test_a_certificate_of_another_host_is_found(authority: Authority) -> None:
    findings = found(of_server(authority, "elsewhere", host="192.0.2.1"))

    assert levels(findings) == {Level.FINE, Level.WARNING}
    assert f"it does not name {HOST}" in findings[1].met


def test_a_name_is_compared_too(authority: Authority) -> None:
    findings = found(of_server(authority, "named"), host="broker.example")

    assert any("it does not name broker.example" in each.met for each in findings)


def test_enforced_tls_without_a_certificate_is_found() -> None:
    assert levels(found(TlsSettings(mode="enforcing"))) == {Level.WARNING}


@pytest.mark.parametrize("mode", ["permissive", "disabled"])
def test_tls_without_a_certificate_is_fine_if_it_is_not_enforced(mode: str) -> None:
    assert found(TlsSettings(mode=mode)) == []


@pytest.mark.parametrize(
    ("days", "level"), [(YEAR, Level.FINE), (20, Level.WARNING), (-2, Level.PROBLEM)]
)
def test_the_certificate_for_other_servers_is_checked(
    authority: Authority, days: float, level: Level
) -> None:
    certificate, key = authority.issue(f"client{days}", days=days)
    client = TlsClientSettings(certificate=str(certificate), key=str(key))

    [finding] = found(TlsSettings(), client)

    assert finding.level is level
    assert finding.subject.startswith("tls.client.certPath=")


def test_a_key_with_another_password_is_found(authority: Authority) -> None:
    certificate, key = authority.issue("sealed", password="right", days=YEAR)
    client = TlsClientSettings(certificate=str(certificate), key=str(key), key_password="wrong")

    [finding] = found(TlsSettings(), client)

    assert finding.level is Level.PROBLEM
    assert "tls.client.keyPassword" in finding.met
    assert "wrong" not in finding.met


@pytest.mark.parametrize(
    ("days", "level"), [(YEAR, Level.FINE), (20, Level.WARNING), (-2, Level.PROBLEM)]
)
def test_an_authority_that_expires_is_found(tmp_path: Path, days: float, level: Level) -> None:
    authority = Authority(tmp_path, "old", days=days)

    [finding] = found(TlsSettings(trusted=str(authority.file)))

    assert (finding.level, finding.subject[:24]) == (level, "tls.server.trustCertPath")


def test_the_authority_that_expires_first_of_a_file_is_shown(
    authority: Authority, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    old = Authority(tmp_path, "old", days=3)
    both.write_bytes(authority.file.read_bytes() + old.file.read_bytes())

    [finding] = found(TlsSettings(trusted=str(both)))

    assert finding.level is Level.PROBLEM


@pytest.mark.parametrize("content", [b"", b"no certificate", None])
def test_a_file_without_authorities_is_found(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trusted.pem"
    if content is not None:
        path.write_bytes(content)

    [finding] = found(TlsSettings(trusted=str(path)))

    assert finding.level is Level.PROBLEM


def test_a_certificate_without_authority_is_no_authority(authority: Authority) -> None:
    certificate, _ = authority.issue("leaf", days=YEAR)

    [finding] = found(TlsSettings(trusted=str(certificate)))

    assert finding.level is Level.PROBLEM
    assert "no certificate of an authority" in finding.met


def test_time_passes(authority: Authority) -> None:
    parts = Configuration.of(of_server(authority, "later"), TlsClientSettings())

    def judged(days: float) -> Iterator[Level]:
        later_s = time.time() + days * 86_400
        return (each.level for each in certificates(parts, HOST, lambda: later_s))

    assert [list(judged(days)) for days in (0, 340, 360, 366)] == [
        [Level.FINE], [Level.WARNING], [Level.PROBLEM], [Level.PROBLEM],
    ]  # fmt: skip
