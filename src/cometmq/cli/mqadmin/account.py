"""Which name servers a command asks, and the account that signs its requests."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.client.settings import ClientSettings, resolve_settings
from cometmq.model.errors import ConfigError

HOME = "ROCKETMQ_HOME"
FILE = Path("conf") / "tools.yml"
DEFAULT_NAME_SERVER = "127.0.0.1:9876"
KEYS = ("accessKey", "secretKey")


def known_name_servers(given: str) -> str:
    """Return the name servers that ``-n`` names, or else the settings, or else the usual one.

    Returns:
        Empty if the settings name them, or say where to look for them.
    """
    settings = resolve_settings(ClientSettings)
    if given or settings.name_servers or "http_domain" in settings.given:
        return given
    return DEFAULT_NAME_SERVER


def client_settings() -> ClientSettings | None:
    """Return the account of the file below ``ROCKETMQ_HOME``.

    Returns:
        None if there is no such file, or if the settings of clients name an account.

    Raises:
        ConfigError: the file cannot be read, or does not name both keys.
    """
    home = os.environ.get(HOME)
    path = Path(home or "") / FILE
    if not home or not path.is_file() or resolve_settings(ClientSettings).access_key:
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
