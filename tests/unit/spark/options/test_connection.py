"""Options of connections, whose secrets are references."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cometmq.spark.errors import OptionError
from cometmq.spark.options.connection import ConnectionOptions, check_references
from cometmq.spark.options.meta import MetaOptions
from cometmq.spark.options.parsing import parse_options

NAMES = {"nameserver": "localhost:9876"}
SECRET = "open sesame"


def test_both_names_of_the_name_servers_mean_the_same() -> None:
    long = {"rocketmq.namesrv.addr": "localhost:9876"}
    assert parse_options(MetaOptions, long) == parse_options(MetaOptions, NAMES)


def test_name_servers_are_required() -> None:
    with pytest.raises(OptionError, match=r"rocketmq\.namesrv\.addr or nameServer is required"):
        parse_options(MetaOptions, {})


@pytest.mark.parametrize(
    "name", ["rocketmq.acl.secretKey", "rocketmq.acl.securityToken", "rocketmq.tls.keyPassword"]
)
def test_a_secret_itself_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*env:NAME or file:PATH") as met:
        parse_options(MetaOptions, NAMES | {name: SECRET})
    assert SECRET not in str(met.value)


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    given = {"rocketmq.acl.accesskey": "me", "rocketmq.acl.secretkey": "env:THE_SECRET"}
    settings = parse_options(MetaOptions, NAMES | given).client_settings()
    assert (settings.access_key, settings.secret_key) == ("me", SECRET)


def test_a_secret_comes_from_the_first_line_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\nand more\n")
    given = {"rocketmq.acl.accesskey": f"file:{path}", "rocketmq.acl.secretkey": f"file:{path}"}
    settings = parse_options(MetaOptions, NAMES | given).client_settings()
    assert (settings.access_key, settings.secret_key) == (SECRET, SECRET)


def test_options_never_hold_what_a_reference_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """They travel to executors, and are shown in plans."""
    monkeypatch.setenv("THE_SECRET", SECRET)
    given = {"rocketmq.acl.accesskey": "me", "rocketmq.acl.secretkey": "env:THE_SECRET"}
    options = parse_options(MetaOptions, NAMES | given)
    options.client_settings()
    assert SECRET not in repr(options)
    assert SECRET.encode() not in pickle.dumps(options)


def test_settings_do_not_show_what_was_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    given = {"rocketmq.acl.accesskey": "me", "rocketmq.acl.secretkey": "env:THE_SECRET"}
    settings = parse_options(MetaOptions, NAMES | given).client_settings()
    assert SECRET not in repr(settings)


def test_a_variable_that_is_not_set_here_is_an_error() -> None:
    given = {"rocketmq.acl.secretkey": "env:NO_SUCH_VARIABLE"}
    options = parse_options(MetaOptions, NAMES | given)
    with pytest.raises(OptionError, match=r"secretKey.*NO_SUCH_VARIABLE is not set here"):
        options.client_settings()


def test_a_file_that_is_not_here_is_an_error(tmp_path: Path) -> None:
    given = {"rocketmq.acl.secretkey": f"file:{tmp_path / 'none'}"}
    with pytest.raises(OptionError, match=r"secretKey.*none cannot be read: No such file"):
        parse_options(MetaOptions, NAMES | given).client_settings()


@pytest.mark.parametrize("text", [b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_secret_is_an_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(text)
    options = parse_options(MetaOptions, NAMES | {"rocketmq.acl.secretkey": f"file:{path}"})
    with pytest.raises(OptionError, match="secretKey"):
        options.client_settings()


def test_the_environment_of_a_client_does_not_change_whom_spark_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "elsewhere:1")
    settings = parse_options(MetaOptions, NAMES).client_settings()
    assert settings.name_servers == "localhost:9876"
    assert "name_servers" in settings.given


def test_tls_options_reach_the_client() -> None:
    given = {
        "rocketmq.tls.enable": "true",
        "rocketmq.tls.trustcertpath": "/ca.pem",
        "rocketmq.tls.certpath": "/own.pem",
        "rocketmq.tls.keypath": "/own.key",
    }
    settings = parse_options(MetaOptions, NAMES | given).client_settings()
    assert settings.use_tls
    assert (settings.tls_trusted, settings.tls_certificate, settings.tls_key) == (
        "/ca.pem",
        "/own.pem",
        "/own.key",
    )


def test_readers_that_differ_in_other_options_share_a_connection() -> None:
    one = parse_options(MetaOptions, NAMES | {"subscribe": "orders"})
    other = parse_options(MetaOptions, NAMES | {"subscribe": "bills"})
    assert one != other
    assert one.connection() == other.connection() == parse_options(ConnectionOptions, NAMES)


def test_no_secret_is_no_reason_to_complain() -> None:
    check_references(parse_options(ConnectionOptions, NAMES))
