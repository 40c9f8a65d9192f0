"""TLS contexts: from files, made on the spot, or refused with the reason."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from cometmq.model.errors import ConfigError
from cometmq.remoting import TlsClientSettings, TlsSettings, outgoing_context
from cometmq.remoting.tls import (
    _self_signed_pem,
    client_context,
    failure_text,
    server_context,
)
from support.brokers.certificates import HOST, Authority


@pytest.fixture
def pem(tmp_path: Path) -> str:
    file = tmp_path / "server.pem"
    file.write_bytes(_self_signed_pem())
    return str(file)


def shaken(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "localhost"
) -> ssl.SSLObject:
    """Both ends after their handshake, in memory; the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server, server_hostname=host)
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


# --- the checks of Python 3.13 ------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "tls.md"
SIGNED = "openssl x509 -req -days 9 -CA ca.pem -CAkey ca.key -CAcreateserial"
KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -passout pass:123456"
ROCKETMQ_PAGE = f"""
openssl req {KEY} -keyout ca.key -x509 -days 9 -out ca.pem -subj /CN=ca
openssl req {KEY} -keyout server.key -out server.csr -subj /CN=broker
{SIGNED} -in server.csr -out server.pem -passin pass:123456
"""
"""The commands of RocketMQ's page, with keys that are made faster."""
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is missing")


def strict(trusted: Path) -> ssl.SSLContext:
    """The context of a client on Python 3.13 and newer, on every Python."""
    context = client_context(trusted=str(trusted))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def server_of(certificate: Path, key: Path, password: str = "") -> ssl.SSLContext:
    return server_context(
        TlsSettings(certificate=str(certificate), key=str(key), key_password=password)
    )


def run(folder: Path, commands: str) -> None:
    shell = ["bash", "-euc", commands]
    done = subprocess.run(shell, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def incomplete(tmp_path: Path) -> tuple[Authority, ssl.SSLContext]:
    """An authority whose certificates lack extensions, and a server with one of them."""
    authority = Authority(tmp_path, "authority", complete=False)
    return authority, server_of(*authority.issue("server"))


def test_the_certificates_of_the_tests_pass(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")

    assert shaken(server_of(*authority.issue("server")), strict(authority.file), HOST)


@needs_openssl
def test_the_certificates_that_the_page_makes_pass(tmp_path: Path) -> None:
    commands = re.search(r"## Steps.*?```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert commands is not None
    run(tmp_path, dedent(commands[1]))

    server = server_of(tmp_path / "server.pem", tmp_path / "server.key")
    for host in ("127.0.0.1", "localhost"):
        assert shaken(server, strict(tmp_path / "authority.pem"), host)


@needs_openssl
def test_the_certificates_that_the_page_of_rocketmq_makes_are_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    run(tmp_path, ROCKETMQ_PAGE)
    server = server_of(tmp_path / "server.pem", tmp_path / "server.key", "123456")

    with pytest.raises(ssl.SSLCertVerificationError) as met:
        shaken(server, strict(tmp_path / "ca.pem"), "broker")

    assert failure_text(met.value) == (
        "certificate verify failed: CA cert does not include key usage extension; Python 3.13 and"
        " newer require the extensions of RFC 5280 in it and in its authority's: issue them again,"
        " see docs/howto/tls.md"
    )


def test_a_certificate_without_extensions_is_refused_with_what_to_do(
    incomplete: tuple[Authority, ssl.SSLContext],
) -> None:
    authority, server = incomplete
    with pytest.raises(ssl.SSLCertVerificationError) as met:
        shaken(server, strict(authority.file), HOST)

    text = failure_text(met.value)
    assert "RFC 5280" in text
    assert "issue them again, see docs/howto/tls.md" in text
    assert text in PAGE.read_text()


def test_a_certificate_without_extensions_passes_if_it_is_itself_trusted(
    tmp_path: Path, incomplete: tuple[Authority, ssl.SSLContext]
) -> None:
    _, server = incomplete
    assert shaken(server, strict(tmp_path / "authority-server.pem"), HOST)


@pytest.mark.parametrize(
    ("days", "host", "trusts", "expected"),
    [
        (-1.0, HOST, "ours", "certificate has expired; renew it"),
        (1.0, "192.0.2.1", "ours", "for '192.0.2.1'; issue it again with this subject alternative"),
        (1.0, HOST, "theirs", "no trusted authority has signed it: trust its authority"),
    ],
)
def test_the_text_of_a_refused_certificate_says_what_to_do(
    tmp_path: Path, days: float, host: str, trusts: str, expected: str
) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server = server_of(*ours.issue("server", days=days))
    trusted = (ours if trusts == "ours" else theirs).file
    with pytest.raises(ssl.SSLCertVerificationError) as met:
        shaken(server, client_context(trusted=str(trusted)), host)

    assert expected in failure_text(met.value)


def test_the_text_of_another_error_stays() -> None:
    assert failure_text(OSError("no route")) == "no route"


@pytest.mark.parametrize(
    ("presents", "expected"),
    [
        ("", "the peer requires a certificate; set one and its key, see docs/howto/tls.md"),
        ("theirs", "the peer refused this end's certificate: unknown ca; its log says why"),
    ],
)
def test_the_text_of_an_alert_says_what_to_do(tmp_path: Path, presents: str, expected: str) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    certificate, key = map(str, ours.issue("server"))
    own, own_key = map(str, theirs.issue("client"))
    server = server_context(
        TlsSettings(
            certificate=certificate, key=key, trusted=str(ours.file), client_certificate="require"
        )
    )
    client = client_context(certificate=own, key=own_key) if presents else client_context()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = client.wrap_bio(to_client, to_server)
    there = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (here, there):
        with pytest.raises(ssl.SSLWantReadError):
            end.do_handshake()
    here.do_handshake()
    with pytest.raises(ssl.SSLError):
        there.do_handshake()
    with pytest.raises(ssl.SSLError) as met:
        here.read()

    assert expected in failure_text(met.value)
