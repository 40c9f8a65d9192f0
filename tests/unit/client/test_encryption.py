"""What a client's TLS settings say, with a file of them and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.client import Producer
from cometmq.client._connection.security import read_properties, tls_context, with_file
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError


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
