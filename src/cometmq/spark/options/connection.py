"""The options of every format that connects to brokers: addresses, accounts, timeouts.

Options show up in plans, in the history server and in logs. So a secret is never given itself but
by reference, and looked up in each process that connects:

    env:NAME     the environment variable NAME
    file:PATH    the first line of the file PATH
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cometmq.client.settings import ClientSettings
from cometmq.spark.errors import OptionError
from cometmq.spark.options.parsing import option

SECRET_BYTES_MAX: Final = 4_096
_FORMS = "expected env:NAME or file:PATH, for options show up in plans"


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of connections to servers. Each format that connects to servers has them."""

    name_servers: str = option("", "rocketmq.namesrv.addr", alias="nameServer", required=True)
    """Name servers: ``host:port;host:port``."""
    access_key: str = option("", "rocketmq.acl.accessKey")
    """Account name for signed requests, as text or by reference."""
    secret_key: str = option("", "rocketmq.acl.secretKey")
    """The account's secret, by reference: ``env:NAME`` or ``file:PATH``."""
    security_token: str = option("", "rocketmq.acl.securityToken")
    """Token of a temporary account, by reference."""
    acl_file: str = option("", "rocketmq.acl.file")
    """Properties file with ``AccessKey`` and ``SecretKey``, on every node."""
    tls: bool = option(False, "rocketmq.tls.enable")
    """Whether connections to name servers and brokers use TLS."""
    tls_trusted: str = option("", "rocketmq.tls.trustCertPath")
    """PEM file of the authorities that servers' certificates are checked against."""
    tls_check_server: bool = option(False, "rocketmq.tls.authServer")
    """Whether servers' certificates are checked; always if `rocketmq.tls.trustCertPath` is set."""
    tls_certificate: str = option("", "rocketmq.tls.certPath")
    """PEM file of the client's certificate chain."""
    tls_key: str = option("", "rocketmq.tls.keyPath")
    """PEM file of the certificate's private key."""
    tls_key_password: str = option("", "rocketmq.tls.keyPassword")
    """Password of the private key, by reference."""
    request_timeout_ms: int = option(3_000, "request.timeoutMs", unit="ms", low=1, high=600_000)
    """Timeout of one request other than sends and pulls."""
    retries: int = option(10, "fetchOffset.numRetries", low=0, high=1_000)
    """Retries of a request for routes or offsets that got no response."""
    retry_interval_ms: int = option(
        100, "fetchOffset.retryIntervalMs", unit="ms", low=1, high=60_000
    )
    """Pause before the first retry; doubled each time, up to five seconds."""

    def connection(self) -> ConnectionOptions:
        """Return these options alone: sessions are shared by all that have equal ones."""
        fields = dataclasses.fields(ConnectionOptions)
        return ConnectionOptions(**{field.name: getattr(self, field.name) for field in fields})

    def client_settings(self) -> ClientSettings:
        """Return the settings of a client, with every secret looked up in this process.

        Raises:
            OptionError: a secret is not a reference, or what it refers to is not there.
        """
        return ClientSettings(
            name_servers=self.name_servers,
            http_domain="",
            access_key=looked_up("rocketmq.acl.accessKey", self.access_key, plain=True),
            secret_key=looked_up("rocketmq.acl.secretKey", self.secret_key),
            security_token=looked_up("rocketmq.acl.securityToken", self.security_token),
            key_file=Path(self.acl_file) if self.acl_file else None,
            use_tls=self.tls,
            tls_trusted=self.tls_trusted,
            tls_check_server=self.tls_check_server,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            tls_key_password=looked_up("rocketmq.tls.keyPassword", self.tls_key_password),
            call_timeout_ms=self.request_timeout_ms,
        )


def check_references(options: ConnectionOptions) -> None:
    """Refuse secrets that are given themselves; looks nothing up.

    Raises:
        OptionError: one is; the text does not repeat it.
    """
    check_secret("rocketmq.acl.secretKey", options.secret_key)
    check_secret("rocketmq.acl.securityToken", options.security_token)
    check_secret("rocketmq.tls.keyPassword", options.tls_key_password)


def check_secret(name: str, text: str) -> None:
    """Refuse a secret that is given itself.

    Raises:
        OptionError: the text is no reference; the error does not repeat it.
    """
    if text and not _is_reference(text):
        raise OptionError(f"option {name} is a secret: {_FORMS}")


def _is_reference(text: str) -> bool:
    return text.startswith(("env:", "file:"))


def looked_up(name: str, text: str, *, plain: bool = False) -> str:
    """Return a secret in this process.

    Args:
        name: of the option, for errors.
        text: a reference; may be empty.
        plain: whether the text may also be the value itself.

    Raises:
        OptionError: the text is no reference, or what it refers to is not there.
    """
    if not text or (plain and not _is_reference(text)):
        return text
    check_secret(name, text)
    kind, _, target = text.partition(":")
    if kind == "env":
        if not (found := os.environ.get(target)):
            raise OptionError(f"option {name}: environment variable {target} is not set here")
        return found
    try:
        with Path(target).open(encoding="utf-8") as stream:
            found = stream.readline(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise OptionError(f"option {name}: file {target} cannot be read: {reason}") from None
    if not found:
        raise OptionError(f"option {name}: file {target} begins with an empty line")
    return found
