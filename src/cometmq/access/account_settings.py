"""Access control of a name server or a controller: its settings, and what they turn on.

The accounts are those of brokers; RocketMQ's name servers and controllers know none. An account
that is not an administrator may read what clients need. All else, such as registrations, elections
and changes, needs an administrator: request codes that come later, too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.model.errors import ConfigError
from cometmq.remoting.config import NO_ACCOUNT, TlsSettings
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files
from cometmq.system.settings import setting, settings_class

if TYPE_CHECKING:
    from cometmq.access.needs import StatedNeeds
    from cometmq.access.server_guard import ServerGuard
    from cometmq.remoting import RpcHook

log = logging.getLogger(__name__)


@settings_class
class AccountSettings:
    """Whether requests to a name server or a controller need an account."""

    acl_enable: bool = setting(False, key="aclEnable")
    """Whether requests need an account of ``conf/plain_acl.yml`` below ``rocketmqHome``, or of a
    file below ``conf/acl`` there. RocketMQ has this setting only for brokers."""

    rocketmq_home: Path | None = setting(None, key="rocketmqHome", environment="ROCKETMQ_HOME")
    """The directory above ``conf/plain_acl.yml``, for ``aclEnable=true``."""

    inner_client_credentials: str = setting(
        "", key="innerClientAuthenticationCredentials", secret=True
    )
    """The account that signs the requests of this server to brokers with access control:
    ``{"accessKey":"…","secretKey":"…"}``. RocketMQ has this setting only for brokers."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: there is no directory of accounts.
        """
        if self.acl_enable and self.rocketmq_home is None:
            raise ConfigError(
                "aclEnable=true without rocketmqHome: expected the directory above"
                " conf/plain_acl.yml"
            )


def server_guard(
    configuration: Configuration, needs: StatedNeeds, clock: Clock, files: Files
) -> ServerGuard | None:
    """Read the accounts, and return what checks requests; None without ``aclEnable``.

    Args:
        configuration: all settings of the server.
        needs: what requests need.
        clock, files: time and disk.

    Raises:
        ConfigError: the files of accounts cannot be used.
    """
    settings, tls = configuration[AccountSettings], configuration[TlsSettings]
    if not settings.acl_enable:
        warn_of_certificates(tls)
        return None
    from cometmq.access.plain.accounts import RELOAD_S, PlainAccounts  # most servers have none
    from cometmq.access.server_guard import ServerGuard
    from cometmq.remoting.jobs import Job

    assert settings.rocketmq_home is not None
    accounts = PlainAccounts(settings.rocketmq_home.absolute(), files, clock)
    accounts.load()
    reload = Job("reload-accounts", lambda: RELOAD_S, accounts.reload, blocking=True)
    return ServerGuard(accounts, tls, needs, jobs=[reload])


def warn_of_certificates(tls: TlsSettings) -> None:
    """Warn if certificates name accounts, and access control is off."""
    if tls.client_account != NO_ACCOUNT:
        log.warning(
            "tls.server.client.account=%s has no effect: access control is off",
            tls.client_account,
        )


def signing_hooks(credentials: str) -> list[RpcHook]:
    """Return the hook that signs the requests of a server; none without credentials.

    Raises:
        ConfigError: the credentials are malformed; the text does not show them.
    """
    if not credentials:
        return []
    from cometmq.access.signer import RequestSigner  # most servers do not sign

    return [RequestSigner(credentials)]
