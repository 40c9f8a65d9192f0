"""Signed requests and TLS: what a client proves to servers, and what it checks of them.

Source: AclClientRPCHook, AclUtils and TlsHelper, RocketMQ 5.3.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.command import ACCESS_KEY, Command
from cometmq.protocol.signature import SECURITY_TOKEN, SigningKey, sign
from cometmq.remoting import OutgoingCall
from cometmq.remoting.tls import client_context
from cometmq.system import java_properties
from cometmq.system.settings import describe

SECRET_KEY = "SecretKey"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An account and its secret. ``repr`` shows neither the secret nor the token.

    Example:
        signer = Signer(Credentials(access_key="user", secret_key="secret"))
    """

    access_key: str
    """The name of the account."""
    secret_key: str = field(repr=False)
    """The secret, which is never sent."""
    token: str = field(default="", repr=False)
    """The token of a temporary account; empty for none."""

    def __post_init__(self) -> None:
        """Check that there is something to sign with.

        Raises:
            ConfigError: the access key or the secret key is empty.
        """
        if not self.access_key or not self.secret_key:
            missing = "secret_key" if self.access_key else "access_key"
            raise ConfigError(f"{missing} is empty: expected both access_key and secret_key")

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read credentials from a properties file. Its keys are case-insensitive.

        Raises:
            ConfigError: the file cannot be read, or lacks a key. The message has no secret.
        """
        found = {key.lower(): value for key, value in read_properties(path).items()}
        for name in (ACCESS_KEY, SECRET_KEY):
            if not found.get(name.lower()):
                raise ConfigError(f"the credentials file {path} has no {name}")
        return cls(
            found[ACCESS_KEY.lower()],
            found[SECRET_KEY.lower()],
            found.get(SECURITY_TOKEN.lower(), ""),
        )


def credentials_of(settings: ClientSettings) -> Credentials | None:
    """Return the account that a client's settings name, themselves or in a file; None without one.

    Raises:
        ConfigError: one half of the account is missing.
    """
    if settings.access_key or settings.secret_key:
        return Credentials(settings.access_key, settings.secret_key, settings.security_token)
    return Credentials.from_file(settings.key_file) if settings.key_file else None


class Signer:
    """Adds the account and the signature to each request. It must be the last hook.

    Args:
        credentials: the account.

    Example:
        ClientInstance(name_server, hooks=[Signer(Credentials("user", "secret"))])
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._key = SigningKey(credentials.secret_key)

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Sign the current fields and body."""
        account = self._credentials
        sign(call.fields, call.body, account.access_key, self._key, account.token)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Do nothing."""


class StreamHook:
    """Marks each request as belonging to a stream.

    Source: StreamTypeRPCHook, RocketMQ 5.3.
    """

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Add the field."""
        call.fields["ReqT"] = "0"

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Do nothing."""


FILE_BYTES_MAX = 64 * 1024
_FILE_KEYS = {
    "tls.client.trustCertPath": "tls_trusted",
    "tls.client.authServer": "tls_check_server",
    "tls.client.certPath": "tls_certificate",
    "tls.client.keyPath": "tls_key",
    "tls.client.keyPassword": "tls_key_password",
}


def tls_context(settings: ClientSettings) -> ssl.SSLContext | None:
    """Return what a client's connections are encrypted with; None for plain ones.

    What the settings leave open is taken from the file they name.

    Raises:
        ConfigError: a file cannot be used, or the settings contradict each other: connections
            would be less safe than they say.
    """
    _check_consistent(settings)
    if not settings.use_tls:
        return None
    used = with_file(settings)
    _check_pair(used, _names(settings))
    return client_context(
        trusted=used.tls_trusted,
        certificate=used.tls_certificate,
        key=used.tls_key,
        key_password=used.tls_key_password,
        check=used.tls_check_server,
        names=_names(settings),
    )


def _check_consistent(settings: ClientSettings) -> None:
    """Refuse TLS settings without TLS: connections would be plain, and nothing would say so."""
    if settings.use_tls:
        return
    for name in ("tls_file", *_FILE_KEYS.values()):
        if getattr(settings, name):
            shown = "" if name == "tls_key_password" else f"={getattr(settings, name)}"
            raise ConfigError(
                f"{name}{shown} without use_tls: connections would be plain; expected use_tls=True "
                f"too, or no {name}"
            )


def _check_pair(used: ClientSettings, names: Mapping[str, str]) -> None:
    """Refuse a key without a certificate: the client would present none."""
    for name in ("key", "key_password"):
        if getattr(used, f"tls_{name}") and not used.tls_certificate:
            raise ConfigError(
                f"{names[name]} without {names['certificate']}: the client would present no "
                "certificate; expected both"
            )


def _names(settings: ClientSettings) -> dict[str, str]:
    """Return what each TLS setting is called where its value comes from."""
    names = {}
    for key, name in _FILE_KEYS.items():
        is_given = settings.tls_file is None or name in settings.given
        names[name.removeprefix("tls_")] = name if is_given else f"{settings.tls_file}: {key}"
    return names


def with_file(settings: ClientSettings) -> ClientSettings:
    """Return the settings with what their TLS file adds.

    Raises:
        ConfigError: the file cannot be read, or a value in it is wrong.
    """
    if settings.tls_file is None:
        return settings
    values = {name: getattr(settings, name) for name in settings.given}
    known = {known.name: known for known in describe(ClientSettings)}
    for key, text in read_properties(settings.tls_file).items():
        name = _FILE_KEYS.get(key)
        if name is not None and name not in values:
            values[name] = known[name].parse(text)
    return ClientSettings(**values)


def read_properties(path: Path) -> dict[str, str]:
    """Read a properties file of at most 64 KiB.

    Raises:
        ConfigError: it cannot be read; never says what is in it.
    """
    try:
        with path.expanduser().open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(f"cannot read the file {path}: {why}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the file {path} is larger than {FILE_BYTES_MAX} bytes")
    try:
        entries = java_properties.parse(java_properties.decode(data))
    except ValueError as error:
        raise ConfigError(f"cannot read the file {path}: {error}") from None
    return {entry.key: entry.value for entry in entries}
