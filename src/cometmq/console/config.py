"""The table ``[console]`` of a TOML file: sign-in by a provider, and accounts of roles.

[console]
base_url = "https://console.example"

[console.openid]
issuer = "https://login.example"
client_id = "console"
secret_file = "openid.secret"
roles_claim = "groups"
roles.reader = ["staff"]
roles.administrator = ["operations"]

[console.accounts.reader]
access_key = "console-reader"
secret_file = "reader.secret"
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from cometmq.console.pages import Role
from cometmq.model.errors import ConfigError

SECRET_BYTES_MAX = 4096
VARIABLE = "COMETMQ_CONSOLE_{}_SECRET"
"""The environment variable with the secret of ``OPENID``, ``READER``, ``OPERATOR`` or
``ADMINISTRATOR``."""
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Texts = Annotated[list[Text], msgspec.Meta(max_length=256)]


class Secret(str):
    """A text that no log shows by accident."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "***"


class RoleNames(msgspec.Struct, forbid_unknown_fields=True):
    """The values of the claim that give a role."""

    reader: Texts = []
    operator: Texts = []
    administrator: Texts = []

    def role_of(self, values: set[str]) -> Role | None:
        """Return the highest role that one of the values gives."""
        for role in sorted(Role, reverse=True):
            if values.intersection(getattr(self, role.name.lower())):
                return role
        return None


class OpenIdSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The provider of OpenID Connect, and what gives its users a role."""

    issuer: Text
    client_id: Text
    secret_file: str = ""
    roles: RoleNames
    roles_claim: Text = "groups"
    """The claim with the values; dots lead into objects, such as ``realm_access.roles``."""
    user_claim: Text = "preferred_username"
    """The claim with the name that pages and the audit log show; without it, ``sub``."""
    scopes: Texts = msgspec.field(default_factory=lambda: ["openid", "profile"])
    name: Text = "single sign-on"
    """What the page of the sign-in calls the provider."""
    ca_file: str = ""
    """PEM file of the authorities of the provider's certificate; empty for the system's."""
    secret: str = ""
    """Of ``secret_file`` or of the environment; empty for a public client."""


class AccountSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An account of the cluster."""

    access_key: Text
    secret_file: str = ""
    secret: str = ""
    """Of ``secret_file`` or of the environment."""


class ConsoleSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The table."""

    base_url: str = ""
    """The address that browsers use; behind a reverse proxy it is that of the proxy."""
    proxies: Texts = []
    """Addresses or networks of reverse proxies, whose ``X-Forwarded-For`` counts."""
    openid: OpenIdSettings | None = None
    accounts: dict[str, AccountSettings] = {}

    @property
    def networks(self) -> list[Network]:
        """The reverse proxies.

        Raises:
            ValueError: one is no address and no network.
        """
        return [ipaddress.ip_network(each, strict=False) for each in self.proxies]

    @property
    def accounts_by_role(self) -> dict[Role, AccountSettings]:
        """The accounts."""
        return {Role[name.upper()]: each for name, each in self.accounts.items()}


def settings_of(
    tables: Mapping[str, Mapping[str, Any]], file: Path | None, environment: Mapping[str, str]
) -> ConsoleSettings:
    """Return the settings, with the secrets.

    Args:
        tables: of the TOML file; ``console`` is read.
        file: the TOML file; files with secrets are named from its folder on.
        environment: the variables; a secret there has precedence over a file.

    Raises:
        ConfigError: a setting is unknown, missing or wrong, or a file cannot be read.
    """
    where = f"{file or 'the configuration file'}: [console]"
    try:
        settings = msgspec.convert(tables.get("console", {}), ConsoleSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
    try:
        settings.networks  # noqa: B018
    except ValueError as error:
        raise ConfigError(f"{where}: proxies: {error}") from None
    folder = file.parent if file else Path()
    if settings.base_url:
        settings.base_url = _base(settings.base_url, where)
    if settings.openid is not None:
        _check_provider(settings, where)
        settings.openid.secret = _secret("openid", settings.openid, folder, environment, where)
        if settings.openid.ca_file:
            settings.openid.ca_file = str(folder / Path(settings.openid.ca_file).expanduser())
    known = [role.name.lower() for role in Role]
    for name, account in settings.accounts.items():
        if name not in known:
            raise ConfigError(f"{where}: accounts.{name}: expected one of {', '.join(known)}")
        account.secret = _secret(name, account, folder, environment, where)
        if not account.secret:
            raise ConfigError(
                f"{where}: accounts.{name} has no secret: expected secret_file, or the variable"
                f" {VARIABLE.format(name.upper())}"
            )
    return settings


def _check_provider(settings: ConsoleSettings, where: str) -> None:
    openid = settings.openid
    assert openid is not None
    if not is_safe_address(openid.issuer):
        raise ConfigError(
            f"{where}: openid.issuer {openid.issuer}: expected https, or http to loopback"
        )
    if not settings.base_url:
        raise ConfigError(
            f"{where}: base_url is missing: expected the address of the console for browsers, such"
            " as https://console.example, to which the provider sends them back"
        )
    if "openid" not in openid.scopes:
        raise ConfigError(f'{where}: openid.scopes: expected "openid" among them')
    if not (openid.roles.reader or openid.roles.operator or openid.roles.administrator):
        raise ConfigError(
            f"{where}: openid.roles is empty, so that no user has a role: expected reader, operator"
            f" or administrator with values of the claim {openid.roles_claim}"
        )


def _base(text: str, where: str) -> str:
    """Return an address of a site without a slash at its end."""
    base = text.rstrip("/")
    try:
        parts = urlsplit(base)
        is_site = bool(parts.hostname) and parts.port != 0 and not (parts.path or parts.query)
    except ValueError:
        is_site = False
    if not is_site or "@" in base or "#" in base or not is_safe_address(base):
        raise ConfigError(
            f"{where}: base_url {text}: expected https://HOST or https://HOST:PORT without a path;"
            " http for loopback only"
        )
    return base


def is_safe_address(address: object) -> bool:
    """Whether an address is one of https, or of http to loopback."""
    if not isinstance(address, str):
        return False
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "http":
        return host in ("localhost", "127.0.0.1", "::1")
    return parts.scheme == "https" and bool(host)


def _secret(
    name: str, given: OpenIdSettings | AccountSettings, folder: Path,
    environment: Mapping[str, str], where: str,
) -> str:  # fmt: skip
    """Return the secret of the environment or of a file; empty if neither has one."""
    if given.secret:
        raise ConfigError(f"{where}: {name}.secret: expected secret_file, a file that only has it")
    if found_there := environment.get(VARIABLE.format(name.upper())):
        return Secret(found_there)
    if not given.secret_file:
        return ""
    found = folder / Path(given.secret_file).expanduser()
    try:
        with found.open("rb") as file:
            text = file.read(SECRET_BYTES_MAX + 1).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{found}: {error}; expected a file with a secret") from None
    if not 0 < len(text) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{found}: expected a secret of 1 to {SECRET_BYTES_MAX} bytes, and nothing else"
        )
    return Secret(text)


def read(file: Path | None) -> ConsoleSettings:
    """Return the settings of a file; None for the one that COMETMQ_CONFIG names.

    Raises:
        ConfigError: as `settings_of`.
    """
    from cometmq.client.settings import FILE_VARIABLE, read_tables

    if file is None and (named := os.environ.get(FILE_VARIABLE)):
        file = Path(named).expanduser()
    return settings_of(read_tables(file) if file else {}, file, os.environ)
