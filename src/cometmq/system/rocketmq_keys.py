"""The settings of RocketMQ 4.9.8 and 5.3.3.

A key of RocketMQ that no settings class claims has no effect and causes a warning; any other
unknown key is an error. Tools of RocketMQ expect all keys in the settings that a server shows, so
a server shows its own ones and RocketMQ's default of the others.

The names and defaults are in ``rocketmq_settings.conf``. Source: the setters of RocketMQ's
configuration classes and the settings that its servers print.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

Keys = Callable[[], Mapping[str, str | None]]
"""Returns the keys of one server, with the default that RocketMQ shows; None if it shows none.

The file is read at each call: at a start with a key that no class claims, and for tools.
"""

_FILE = Path(__file__).with_name("rocketmq_settings.conf")


def _read(server: str) -> Mapping[str, str | None]:
    found: dict[str, str | None] = {}
    section = ""
    for line in _FILE.read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif section == server and line:
            key, shown, value = line.partition("=")
            found[key] = value if shown else None
    return found


BROKER_KEYS: Keys = partial(_read, "broker")
"""The keys that RocketMQ reads from a broker's configuration file."""

NAMESRV_KEYS: Keys = partial(_read, "namesrv")
"""The keys that RocketMQ reads from a name server's configuration file."""

FILTERSRV_KEYS: Keys = partial(_read, "filtersrv")
"""The keys that RocketMQ reads from the configuration file of a filter server, which it had until
4.2."""

CONTROLLER_KEYS: Keys = partial(_read, "controller")
"""The keys that RocketMQ reads from a controller's configuration file."""

PROTECTED_KEYS = frozenset(
    ("brokerConfigPath", "configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
)
"""Keys that no request may change, whether we act on them or not."""

SECRET_KEYS = frozenset(
    (
        "initAuthenticationUser",
        "innerClientAuthenticationCredentials",
        "metricsGrpcExporterHeader",
        "socksProxyConfig",
    )
)
"""Keys whose values are never shown: they contain passwords or tokens."""

_SECRET_WORDS = ("secret", "password", "credential", "token")


def is_secret_key(key: str) -> bool:
    """Return whether the value of a setting must not be shown."""
    return key in SECRET_KEYS or any(word in key.lower() for word in _SECRET_WORDS)


def shown_setting(key: str, value: str) -> str:
    """Return the value of a setting of a server, or stars if it is a secret."""
    return "***" if value and is_secret_key(key) else value
