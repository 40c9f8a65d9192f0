"""Signatures and TLS of a client, against values of RocketMQ's own signer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import Producer
from cometmq.client._connection.security import (
    Credentials,
    Signer,
    credentials_of,
    read_properties,
    tls_context,
    with_file,
)
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.signature import SigningKey
from cometmq.remoting import OutgoingCall

VALUES = Path(__file__).resolve().parents[3] / "vectors" / "values"


def recorded(kind: str) -> list[dict[str, Any]]:
    """The recorded values of both versions."""
    return [
        case
        for version in ("4.9.7", "5.3.3")
        for case in json.loads((VALUES / version / "acl.json").read_text())[kind]
    ]


@pytest.mark.parametrize("case", recorded("signer"))
def test_a_signature_is_the_one_java_makes(case: dict[str, Any]) -> None:
    assert SigningKey(case["secret"]).sign(case["data"].encode()).decode() == case["signature"]


@pytest.mark.parametrize("case", recorded("requests"))
def test_a_signed_request_has_the_fields_java_sends(case: dict[str, Any]) -> None:
    sent: dict[str, str] = case["ext_fields"]
    own = {name: text for name, text in sent.items() if name not in {"AccessKey", "Signature"}}
    own.pop("SecurityToken", None)
    call = OutgoingCall(case["code"], own, bytes.fromhex(case["body_hex"] or ""))
    token = case["security_token"] or ""

    Signer(Credentials(case["access_key"], case["secret_key"], token)).before_request("a:1", call)

    assert call.fields == sent


def test_a_request_that_is_sent_again_is_signed_as_the_first_time() -> None:
    call = OutgoingCall(105, {"topic": "t"}, b"body")
    signer = Signer(Credentials("who", "secret"))

    signer.before_request("a:1", call)
    first = dict(call.fields)
    signer.before_request("a:1", call)

    assert call.fields == first


def test_neither_secret_nor_token_is_shown() -> None:
    shown = repr(Credentials("who", "hush", "quiet"))

    assert "who" in shown
    assert "hush" not in shown
    assert "quiet" not in shown


@pytest.mark.parametrize(("access_key", "secret_key"), [("", "s"), ("a", "")])
def test_credentials_without_a_key_are_refused(access_key: str, secret_key: str) -> None:
    with pytest.raises(ConfigError, match="is empty: expected both access_key and secret_key"):
        Credentials(access_key, secret_key)


def test_credentials_are_read_from_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("# mine\nAccessKey = who\nsecretKey=a=b\n\nSecurityToken=tok\nother=1\n")

    found = Credentials.from_file(path)

    assert (found.access_key, found.secret_key, found.token) == ("who", "a=b", "tok")


def test_a_credentials_file_without_a_secret_is_refused_without_telling_its_content(
    tmp_path: Path,
) -> None:
    path = tmp_path / "key"
    path.write_text("accessKey=who\nsecretkye=hush\n")

    with pytest.raises(ConfigError, match="has no SecretKey") as refused:
        Credentials.from_file(path)

    assert "hush" not in str(refused.value)


def test_a_credentials_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file"):
        Credentials.from_file(tmp_path / "nowhere")


def test_the_file_that_java_reads_by_default_is_read_when_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file of that name, whoever put it there, would decide who an application is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("accessKey=who\nsecretKey=hush\n")

    assert credentials_of(ClientSettings()) is None
    named = credentials_of(ClientSettings(key_file=Path("~/key")))
    assert named == Credentials("who", "hush")


def test_connections_are_plain_unless_told_otherwise() -> None:
    assert tls_context(ClientSettings()) is None
    assert tls_context(ClientSettings(use_tls=True)) is not None


@pytest.mark.parametrize(
    "setting",
    [
        {"tls_check_server": True},
        {"tls_trusted": "/ca.pem"},
        {"tls_certificate": "/me.pem"},
        {"tls_key": "/me.key"},
        {"tls_key_password": "hush"},
        {"tls_file": Path("/tls.properties")},
    ],
    ids=str,
)
def test_settings_of_tls_without_tls_are_refused_by_name(setting: dict[str, object]) -> None:
    [name] = setting
    with pytest.raises(ConfigError, match=f"^{name}.* without use_tls: ") as refused:
        Producer("127.0.0.1:1", client=ClientSettings(**setting))
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("key", [{"tls_key": "/me.key"}, {"tls_key_password": "hush"}], ids=str)
def test_a_key_without_a_certificate_is_refused(key: dict[str, str], tmp_path: Path) -> None:
    [name] = key
    with pytest.raises(ConfigError, match=f"^{name} without tls_certificate: "):
        tls_context(ClientSettings(use_tls=True, **key))
    path = tmp_path / "tls.properties"
    path.write_text("tls.client.keyPath=/me.key\n")
    with pytest.raises(ConfigError, match=r"^.*tls\.properties: tls\.client\.keyPath without "):
        tls_context(ClientSettings(use_tls=True, tls_file=path))


def test_a_file_says_what_the_settings_leave_open(tmp_path: Path) -> None:
    """Its keys are RocketMQ's; what concerns servers is passed over."""
    path = tmp_path / "tls.properties"
    path.write_text(
        "tls.server.mode=enforcing\n"
        "tls.client.trustCertPath=/ca.pem\n"
        "tls.client.authServer=true\n"
        "tls.client.certPath=/me.pem\n"
        "tls.client.keyPath=/me.key\n"
        "tls.client.keyPassword=hush\n"
    )

    found = with_file(ClientSettings(tls_file=path, tls_key="/mine.key", use_tls=True))

    assert (found.tls_trusted, found.tls_check_server) == ("/ca.pem", True)
    assert (found.tls_certificate, found.tls_key) == ("/me.pem", "/mine.key")
    assert found.tls_key_password == "hush"
    assert found.use_tls


def test_settings_without_a_file_stay_as_they_are() -> None:
    settings = ClientSettings(use_tls=True)

    assert with_file(settings) is settings


def test_a_wrong_value_in_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.client.authServer=perhaps\n")

    with pytest.raises(ConfigError, match="authServer=perhaps"):
        with_file(ClientSettings(tls_file=path))


@pytest.mark.parametrize("content", [b"x" * 70_000, b"key=\\u12"])
def test_a_file_that_is_too_large_or_malformed_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "some.properties"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"some\.properties"):
        read_properties(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_properties(tmp_path / "nowhere")


def test_a_file_that_cannot_be_used_is_named_with_the_argument_that_names_it() -> None:
    settings = ClientSettings(use_tls=True, tls_trusted="/nowhere/ca.pem")

    with pytest.raises(ConfigError, match=r"^tls_trusted=/nowhere/ca\.pem: cannot be read"):
        tls_context(settings)


def test_a_file_that_the_file_of_keys_names_is_named_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    path.write_text("tls.client.trustCertPath=/nowhere/ca.pem\n")

    with pytest.raises(ConfigError) as met:
        tls_context(ClientSettings(use_tls=True, tls_file=path))

    start = f"{path}: tls.client.trustCertPath=/nowhere/ca.pem: cannot be read"
    assert str(met.value).startswith(start)
