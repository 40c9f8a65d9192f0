"""Signs requests, so that servers with access control know whose they are.

    signature := Base64(HMAC-SHA1(secret, values of all fields in the order of their names | body))

The account's name and its token are fields of the request and are signed with the others; the
secret never travels. Credentials come from code or from a properties file:

    AccessKey=…
    SecretKey=…
    SecurityToken=…

Source: AclClientRPCHook, AclSigner and SessionCredentials, RocketMQ 5.3.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from cometmq.client._connection.tls import read_properties
from cometmq.client.settings import ClientSettings
from cometmq.model.errors import ConfigError
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall

ACCESS_KEY = "AccessKey"
SECRET_KEY = "SecretKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


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
            raise ConfigError("credentials need an access key and a secret key")

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
    """Give the account that a client's settings name, themselves or in a file; None without one.

    Raises:
        ConfigError: one half of the account is missing.
    """
    if settings.access_key or settings.secret_key:
        return Credentials(settings.access_key, settings.secret_key, settings.security_token)
    return Credentials.from_file(settings.key_file) if settings.key_file else None


def signature(content: bytes, secret_key: str) -> str:
    """Sign what a request consists of."""
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


class Signer:
    """Adds the account and the signature to each request. It must be the last hook.

    Args:
        credentials: the account.

    Example:
        ClientInstance(name_server, hooks=[Signer(Credentials("user", "secret"))])
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Sign the current fields and body."""
        fields = call.fields
        fields.pop(SIGNATURE, None)
        fields[ACCESS_KEY] = self._credentials.access_key
        if self._credentials.token:
            fields[SECURITY_TOKEN] = self._credentials.token
        values = "".join(fields[name] for name in sorted(fields))
        fields[SIGNATURE] = signature(values.encode() + call.body, self._credentials.secret_key)

    def after_answer(self, address: str, call: OutgoingCall, answer: Command) -> None:
        """Does nothing."""


class StreamHook:
    """Says of each request that it belongs to a stream.

    Source: StreamTypeRPCHook, RocketMQ 5.3.
    """

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Add the field."""
        call.fields["ReqT"] = "0"

    def after_answer(self, address: str, call: OutgoingCall, answer: Command) -> None:
        """Does nothing."""
