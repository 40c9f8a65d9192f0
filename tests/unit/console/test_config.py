"""The table of the console in a TOML file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cometmq.console.config import ConsoleSettings, settings_of
from cometmq.console.pages import Role
from cometmq.model.errors import ConfigError

OPENID = {"issuer": "https://login.example", "client_id": "c", "roles": {"reader": ["staff"]}}
URL = "https://console.example"


def read(table: dict[str, Any], folder: Path = Path(), **environment: str) -> ConsoleSettings:
    return settings_of({"console": table}, folder / "console.toml", environment)


def test_the_table_of_the_module_is_read(tmp_path: Path) -> None:
    """Secrets are in files beside the table, or in the environment, and in no text of it."""
    import cometmq.console.config as module

    (tmp_path / "openid.secret").write_text("one\n")
    (tmp_path / "reader.secret").write_text("two")
    example = tomllib.loads((module.__doc__ or "").partition("\n\n")[2])
    settings = read(example["console"], tmp_path, COMETMQ_CONSOLE_READER_SECRET="three")
    openid, [(role, account)] = settings.openid, settings.accounts_by_role.items()
    assert openid is not None
    assert (openid.secret, role, account.access_key) == ("one", Role.READER, "console-reader")
    assert account.secret == "three"
    assert not any(each in repr(settings) for each in ("'one'", "three"))


def test_a_user_gets_the_highest_role_that_a_value_gives() -> None:
    settings = read(
        {"base_url": URL, "openid": OPENID | {"roles": {"reader": ["a"], "operator": ["b"]}}}
    )
    assert settings.openid is not None
    roles = settings.openid.roles
    found = [roles.role_of(values) for values in ({"a", "b"}, {"a", "x"}, {"x"}, set[str]())]
    assert found == [Role.OPERATOR, Role.READER, None, None]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"base": URL}, "unknown field `base`"),
        ({"proxies": ["proxy.example"]}, "proxies: 'proxy.example' does not appear to be an IPv4"),
        ({"base_url": "console.example"}, "base_url console.example: expected https://HOST"),
        ({"base_url": f"{URL}/console"}, "without a path"),
        ({"base_url": "http://console.example"}, "http for loopback only"),
        ({"base_url": "https://a@b.example"}, "expected https://HOST"),
        ({"base_url": "https://b.example:x"}, "expected https://HOST"),
        ({"openid": OPENID}, "base_url is missing"),
        (
            {"base_url": URL, "openid": OPENID | {"issuer": "http://login.example"}},
            "expected https",
        ),
        ({"base_url": URL, "openid": OPENID | {"roles": {}}}, "openid.roles is empty"),
        ({"base_url": URL, "openid": OPENID | {"roles": {"owner": []}}}, "unknown field `owner`"),
        ({"base_url": URL, "openid": OPENID | {"scopes": ["email"]}}, '"openid" among them'),
        ({"base_url": URL, "openid": OPENID | {"secret": "x"}}, "openid.secret: expected secret_f"),
        (
            {"base_url": URL, "openid": OPENID | {"secret_file": "missing"}},
            "missing: .*No such file",
        ),
        ({"accounts": {"reader": {"access_key": "r"}}}, "COMETMQ_CONSOLE_READER_SECRET"),
        ({"accounts": {"owner": {"access_key": "r"}}}, "accounts.owner: expected one of reader"),
    ],
)
def test_a_mistake_in_the_table_is_named(table: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=text):
        read(table, tmp_path)
