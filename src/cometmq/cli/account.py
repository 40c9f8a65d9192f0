"""The account that signs the requests of the admin commands."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.client.settings import ClientSettings, read_tables, resolve_settings
from cometmq.model.errors import ConfigError

HOME = "ROCKETMQ_HOME"
FILE = Path("conf") / "tools.yml"
KEYS = ("accessKey", "secretKey")


def _settings(config: Path | None) -> ClientSettings:
    return resolve_settings(ClientSettings, tables=read_tables(config) if config else None)


def client_settings(config: Path | None = None) -> ClientSettings | None:
    """Return the account of the file below ``ROCKETMQ_HOME``.

    Args:
        config: the TOML file with the settings; None for the one that COMETMQ_CONFIG names.

    Returns:
        None if there is no such file, or if the settings of clients name an account.

    Raises:
        ConfigError: the file cannot be read, or does not name both keys.
    """
    home = os.environ.get(HOME)
    path = Path(home or "") / FILE
    if not home or not path.is_file() or _settings(config).access_key:
        return None
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    found = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in KEYS:
            found[name.strip()] = value.partition(" #")[0].strip().strip("\"'")
    if missing := [name for name in KEYS if not found.get(name)]:
        raise ConfigError(f"{path}: {' and '.join(missing)} missing, expected lines 'name: value'")
    return ClientSettings(access_key=found["accessKey"], secret_key=found["secretKey"])


def connection_settings(
    config: Path | None = None, account: ClientSettings | None = None
) -> ClientSettings:
    """Return all settings of connections: of the account's file, the environment and a TOML file.

    Args:
        config: the TOML file with the settings; None for the one that COMETMQ_CONFIG names.
        account: an account, and what else has precedence; None for the account of these places.

    Raises:
        ConfigError: a file cannot be read, or a setting is unknown or wrong.
    """
    tables = read_tables(config) if config else None
    return resolve_settings(ClientSettings, given=account or client_settings(config), tables=tables)
