"""TLS contexts: from files, made on the spot, or refused with the reason."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from cometmq.model.errors import ConfigError
from cometmq.remoting import TlsClientSettings, TlsSettings, outgoing_context
from cometmq.remoting.tls import (
    _self_signed_pem,
    access_warnings,
    client_context,
    server_context,
)
from support.certificates import Authority


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


def test_without_a_certificate_the_keys_to_set_are_named() -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath and tls\.server\.keyPath"):
        server_context(TlsSettings(self_signed=False))


Files = dict[str, str]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files that can be used, one that cannot, and one that does not exist."""
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("plain")
    sealed, sealed_key = authority.issue("sealed", password="open sesame")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    return {
        "certificate": str(certificate),
        "key": str(key),
        "sealed": str(sealed),
        "sealed_key": str(sealed_key),
        "junk": str(junk),
        "nowhere": str(tmp_path / "nowhere.pem"),
        "folder": str(tmp_path),
    }


WRONG_FILES = [
    ({"certificate": "nowhere"}, "{certificate}={nowhere}: cannot be read: No such file"),
    ({"certificate": "folder"}, "{certificate}={folder}: cannot be read: Is a directory"),
    ({"certificate": "junk"}, "{certificate}={junk}: contains no certificate"),
    ({"certificate": "key"}, "{certificate}={key_file}: contains no certificate"),
    ({"certificate": "certificate", "key": "nowhere"}, "{key}={nowhere}: cannot be read: No such"),
    ({"certificate": "certificate", "key": "junk"}, "{key}={junk}: contains no private key"),
    ({"certificate": "certificate"}, "contains no private key; expected {key} to name its file"),
    (
        {"certificate": "certificate", "key": "sealed_key", "key_password": "open sesame"},
        "{key}={sealed_key}: not the private key of {certificate}={certificate_file}",
    ),
    (
        {"certificate": "sealed", "key": "sealed_key"},
        "{key}={sealed_key}: the private key has a password; set {key_password}",
    ),
    (
        {"certificate": "sealed", "key": "sealed_key", "key_password": "guessed"},
        "{key_password}: not the password of the private key in {sealed_key}",
    ),
    ({"trusted": "nowhere"}, "{trusted}={nowhere}: cannot be read: No such file"),
    ({"trusted": "junk"}, "{trusted}={junk}: contains no certificate"),
]
"""Which files are set, and what the error says."""
SERVER_KEYS = {
    "certificate": "tls.server.certPath",
    "key": "tls.server.keyPath",
    "key_password": "tls.server.keyPassword",
    "trusted": "tls.server.trustCertPath",
}
CLIENT_KEYS = {name: key.replace(".server.", ".client.") for name, key in SERVER_KEYS.items()}


def filled(text: str, keys: dict[str, str], files: Files) -> str:
    own = {"certificate_file": files["certificate"], "key_file": files["key"]}
    return text.format_map({**files, **keys, **own})


@pytest.mark.parametrize(("given", "reason"), WRONG_FILES)
def test_a_file_of_a_server_that_cannot_be_used_is_named_with_its_key(
    files: Files, given: dict[str, str], reason: str
) -> None:
    values = {name: files.get(value, value) for name, value in given.items()}
    with pytest.raises(ConfigError) as met:
        server_context(TlsSettings(**values))

    assert filled(reason, SERVER_KEYS, files) in str(met.value)
    assert "guessed" not in str(met.value)


@pytest.mark.parametrize(("given", "reason"), WRONG_FILES)
def test_a_file_of_a_client_that_cannot_be_used_is_named_with_its_setting(
    files: Files, given: dict[str, str], reason: str
) -> None:
    values = {name: files.get(value, value) for name, value in given.items()}
    with pytest.raises(ConfigError) as met:
        client_context(**values, names=CLIENT_KEYS)

    assert filled(reason, CLIENT_KEYS, files) in str(met.value)
    assert "guessed" not in str(met.value)


def test_a_certificate_that_is_too_weak_is_refused_with_the_reason_of_openssl(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        error = ssl.SSLError(1, "[SSL: EE_KEY_TOO_SMALL] ee key too small")
        error.reason = "EE_KEY_TOO_SMALL"
        raise error

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", refuse)
    with pytest.raises(ConfigError) as met:
        server_context(TlsSettings(certificate=files["certificate"], key=files["key"]))

    start = f"tls.server.certPath={files['certificate']}: cannot be used: "
    assert str(met.value).startswith(start)
    assert "ee key too small" in str(met.value)


@pytest.mark.parametrize(
    ("enable", "mode", "is_encrypted"),
    [
        (None, "permissive", False),
        (None, "disabled", False),
        (None, "enforcing", True),
        (False, "enforcing", False),
        (True, "permissive", True),
    ],
)
def test_connections_of_a_server_use_tls_if_set_or_if_it_accepts_nothing_else(
    enable: bool | None, mode: str, is_encrypted: bool
) -> None:
    found = outgoing_context(TlsClientSettings(enable=enable), TlsSettings(mode=mode))

    assert (found is not None) == is_encrypted


def test_connections_of_a_server_check_other_servers_if_told_to(pem: str) -> None:
    for settings in (TlsClientSettings(check_server=True), TlsClientSettings(trusted=pem)):
        context = outgoing_context(settings, TlsSettings(mode="enforcing"))
        assert context is not None
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.check_hostname


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


@pytest.mark.parametrize("asked", ["require", "optional"])
def test_without_authorities_a_client_that_presents_a_certificate_is_refused(
    files: Files, asked: str
) -> None:
    client = client_context(certificate=files["certificate"], key=files["key"])
    with pytest.raises(ssl.SSLError):
        shaken(server_context(TlsSettings(client_certificate=asked)), client)


def test_a_password_opens_the_private_key(files: Files) -> None:
    settings = TlsSettings(
        certificate=files["sealed"], key=files["sealed_key"], key_password="open sesame"
    )

    assert shaken(server_context(settings), client_context()).cipher() is not None
