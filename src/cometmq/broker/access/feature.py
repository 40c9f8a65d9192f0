"""The accounts or users of this broker, and the requests and jobs for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.account_settings import warn_of_certificates
from cometmq.access.user_settings import user_settings
from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import TlsSettings
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.access.gate import Accounts
    from cometmq.access.plain.accounts import PlainAccounts
    from cometmq.access.rights import Rights
    from cometmq.access.users.accounts import UserAccounts
    from cometmq.broker.access.account_handler import AccountHandler
    from cometmq.broker.access.control import AccessControl
    from cometmq.broker.access.sources import AccessSources
    from cometmq.broker.access.user_handler import UserHandler

LOG_S = 10.0


class AccessFeature(BrokerFeature):
    """Checks requests, if the settings want that.

    Args:
        core: of the broker.

    Raises:
        ConfigError: files of accounts or the databases of users cannot be used.
        StoreError: the disk refuses, or another process uses the databases.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        sources = _open(core)
        self.control: AccessControl | None = None if sources is None else sources.control
        """Checks every request; None if the settings want no check."""
        self.accounts: PlainAccounts | None = None if sources is None else sources.accounts
        """Plain accounts; None unless ``aclEnable=true``."""
        self.users: UserAccounts | None = None if sources is None else sources.users
        """Users and policies; None unless ``authenticationEnabled`` or its relatives are set."""
        core.topics.creations.access = self.control

    @property
    def senders(self) -> Accounts | None:
        """The accounts or users; None without any."""
        return self.accounts or self.users

    def rights(self) -> Mapping[int, Rights]:
        """Return what the requests need, also requests that no broker of ours serves."""
        from cometmq.broker.access import unserved

        return {**unserved.RIGHTS, **super().rights()}

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers that show and change accounts, and the reading of changed files."""
        core, control = self._core, self.control

        @Deferred
        def accounts() -> AccountHandler:
            from cometmq.broker.access.account_handler import AccountHandler

            return AccountHandler(self.accounts, settings=core.settings, address=endpoint.address)

        @Deferred
        def users() -> UserHandler:
            from cometmq.broker.access.user_handler import UserHandler

            if control is None:  # nothing is checked
                return UserHandler(self.users, lambda request: True)
            return UserHandler(self.users, control.is_administrator)

        return Feature(
            {
                RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: accounts.exclusive(
                    lambda h: h.put_account
                ),
                RequestCode.DELETE_ACL_CONFIG: accounts.exclusive(lambda h: h.delete_account),
                RequestCode.GET_BROKER_CLUSTER_ACL_INFO: accounts.handler(lambda h: h.versions),
                RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: accounts.exclusive(
                    lambda h: h.put_addresses
                ),
                RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: accounts.handler(lambda h: h.show),
                RequestCode.AUTH_CREATE_USER: users.exclusive(lambda h: h.create_user),
                RequestCode.AUTH_UPDATE_USER: users.exclusive(lambda h: h.update_user),
                RequestCode.AUTH_DELETE_USER: users.exclusive(lambda h: h.delete_user),
                RequestCode.AUTH_GET_USER: users.handler(lambda h: h.get_user),
                RequestCode.AUTH_LIST_USER: users.handler(lambda h: h.list_users),
                RequestCode.AUTH_CREATE_ACL: users.exclusive(lambda h: h.put_acl),
                RequestCode.AUTH_UPDATE_ACL: users.exclusive(lambda h: h.put_acl),
                RequestCode.AUTH_DELETE_ACL: users.exclusive(lambda h: h.delete_acl),
                RequestCode.AUTH_GET_ACL: users.handler(lambda h: h.get_acl),
                RequestCode.AUTH_LIST_ACL: users.handler(lambda h: h.list_acls),
            },
            self._jobs(),
        )

    def _jobs(self) -> list[Job]:
        """The reading of changed files, and the log of refusals."""
        jobs: list[Job] = []
        if self.accounts is not None:
            from cometmq.access.plain.accounts import RELOAD_S

            reload = self.accounts.reload
            jobs.append(Job("reload-accounts", lambda: RELOAD_S, reload, blocking=True))
        if self.control is not None:
            jobs.append(every(LOG_S, self.control.settle_log, "log-refused-requests"))
        return jobs

    def save(self) -> None:
        """Close the databases of users."""
        if self.users is not None:
            self.users.close()


def _open(core: Core) -> AccessSources | None:
    """Read the accounts or users of the broker; None if the settings turn on neither."""
    of_users, is_plain = user_settings(core.configuration), core.settings().acl_enable
    if not is_plain and not of_users.checks_requests:
        warn_of_certificates(core.configuration[TlsSettings])
    if not is_plain and not of_users.keeps_users:
        return None
    from cometmq.broker.access.sources import open_sources

    return open_sources(core)
