"""Settings of users and policies of a broker.

Source: AuthConfig, RocketMQ 5.3.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from cometmq.model.errors import ConfigError
from cometmq.system.configuration import Configuration
from cometmq.system.settings import setting, settings_class

_PACKAGE: Final = "org.apache.rocketmq.auth"
_CODE = re.compile(r"[0-9]{1,9}")


def _names(part: str, *names: str) -> frozenset[str]:
    """Return how a configuration file may name classes of RocketMQ: by default not at all."""
    return frozenset(("", *(f"{_PACKAGE}.{part}.{name}" for name in names)))


_AUTHENTICATION: Final = _names("authentication", "provider.DefaultAuthenticationProvider")
_USERS: Final = _names("authentication", "provider.LocalAuthenticationMetadataProvider")
_SIGNATURES: Final = _names(
    "authentication",
    "strategy.StatelessAuthenticationStrategy",
    "strategy.StatefulAuthenticationStrategy",
)
_AUTHORIZATION: Final = _names("authorization", "provider.DefaultAuthorizationProvider")
_POLICIES: Final = _names("authorization", "provider.LocalAuthorizationMetadataProvider")
_DECISIONS: Final = _names(
    "authorization",
    "strategy.StatelessAuthorizationStrategy",
    "strategy.StatefulAuthorizationStrategy",
)


class FirstUser(msgspec.Struct):
    """A user that the configuration file names."""

    username: str
    password: str

    def __repr__(self) -> str:
        """Return a text without the password."""
        return f"<FirstUser {self.username!r}>"


@settings_class
class UserSettings:
    """Whether requests need a user, and what its policies allow."""

    authentication_enabled: bool = setting(False, key="authenticationEnabled")
    """Whether requests need the name of a user and a signature with its password."""

    authorization_enabled: bool = setting(False, key="authorizationEnabled")
    """Whether a user needs policies for what it uses; then requests need a signature, too."""

    auth_config_path: Path | None = setting(None, key="authConfigPath")
    """The directory of the databases ``users`` and ``acls``. Default: ``config`` below
    ``storePathRootDir``."""

    init_authentication_user: str = setting("", key="initAuthenticationUser", secret=True)
    """The super user that a start creates, if there is no user of its name:
    ``{"username":"…","password":"…"}``."""

    authentication_whitelist: str = setting("", key="authenticationWhitelist")
    """The codes of requests that need no signature, separated by commas. With
    ``authorizationEnabled=true`` they must be in both lists."""

    authorization_whitelist: str = setting("", key="authorizationWhitelist")
    """The codes of requests that need no policies, separated by commas."""

    migrate_from_plain: bool = setting(False, key="migrateAuthFromV1Enabled")
    """Whether a start makes users and policies of the accounts in ``conf/plain_acl.yml`` and
    ``conf/acl`` below ``rocketmqHome``. Users that exist stay as they are."""

    authentication_metadata_provider: str = setting("", key="authenticationMetadataProvider")
    """RocketMQ's class; only that of local users exists. Set alone, it lets requests manage users
    and policies while no request needs them."""

    authorization_metadata_provider: str = setting("", key="authorizationMetadataProvider")
    """RocketMQ's class; only that of local policies exists."""

    authentication_provider: str = setting("", key="authenticationProvider")
    """RocketMQ's class; only the default one exists."""

    authorization_provider: str = setting("", key="authorizationProvider")
    """RocketMQ's class; only the default one exists."""

    authentication_strategy: str = setting("", key="authenticationStrategy")
    """RocketMQ's class, stateless or stateful. With both each request is checked."""

    authorization_strategy: str = setting("", key="authorizationStrategy")
    """RocketMQ's class, stateless or stateful. With both a change is in force at once."""

    def __post_init__(self) -> None:
        """Check the classes, the lists of codes and the first user.

        Raises:
            ConfigError: one of them does not exist or is malformed.
        """
        for key, value, classes in (
            ("authenticationProvider", self.authentication_provider, _AUTHENTICATION),
            ("authenticationMetadataProvider", self.authentication_metadata_provider, _USERS),
            ("authenticationStrategy", self.authentication_strategy, _SIGNATURES),
            ("authorizationProvider", self.authorization_provider, _AUTHORIZATION),
            ("authorizationMetadataProvider", self.authorization_metadata_provider, _POLICIES),
            ("authorizationStrategy", self.authorization_strategy, _DECISIONS),
        ):
            if value not in classes:
                expected = " or ".join(sorted(filter(None, classes)))
                raise ConfigError(f"{key}={value[:200]}: expected {expected}")
        _codes("authenticationWhitelist", self.authentication_whitelist)
        _codes("authorizationWhitelist", self.authorization_whitelist)
        _ = self.first_user

    @property
    def checks_requests(self) -> bool:
        """Whether requests need a user."""
        return self.authentication_enabled or self.authorization_enabled

    @property
    def keeps_users(self) -> bool:
        """Whether there are users; they may be for later."""
        return bool(
            self.checks_requests
            or self.migrate_from_plain
            or self.authentication_metadata_provider
            or self.authorization_metadata_provider
        )

    @property
    def first_user(self) -> FirstUser | None:
        """The user of ``initAuthenticationUser``.

        Raises:
            ConfigError: it is malformed; the text does not show it.
        """
        text = self.init_authentication_user
        if not text:
            return None
        try:
            user = msgspec.json.decode(text, type=FirstUser)
        except msgspec.MsgspecError:
            user = FirstUser("", "")
        if not user.username or not user.password:
            raise ConfigError(
                'initAuthenticationUser=(hidden): expected {"username":"…","password":"…"}'
            )
        return user

    @property
    def open_codes(self) -> frozenset[int]:
        """The codes of requests that need no signature."""
        open_codes = _codes("authenticationWhitelist", self.authentication_whitelist)
        if not self.authorization_enabled:
            return open_codes
        # Policies are those of a user, which only a signature proves.
        return self.signed_codes & open_codes if self.authentication_enabled else self.signed_codes

    @property
    def signed_codes(self) -> frozenset[int]:
        """The codes of requests that need no policies."""
        return _codes("authorizationWhitelist", self.authorization_whitelist)


def _codes(key: str, text: str) -> frozenset[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(_CODE.fullmatch(part) for part in parts):
        raise ConfigError(f"{key}={text[:200]}: expected request codes separated by commas")
    return frozenset(map(int, parts))


def user_settings(configuration: Configuration) -> UserSettings:
    """Return the settings of users; the defaults if the configuration has none."""
    return configuration[UserSettings] if UserSettings in configuration else UserSettings()
