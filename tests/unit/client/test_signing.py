"""Signatures, against values of RocketMQ's own signer and its signed requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cometmq.client._connection.security import Credentials, Signer, credentials_of
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.signature import SigningKey
from cometmq.remoting import OutgoingCall

VALUES = Path(__file__).resolve().parents[2] / "vectors" / "values"


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
    with pytest.raises(ConfigError, match="an access key and a secret key"):
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
