"""Request handlers and jobs for accounts, users and policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.access.account_handler import AccountHandler
    from cometmq.broker.access.user_handler import UserHandler
    from cometmq.broker.assembly import Endpoint, Parts

LOG_S = 10.0


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers that show and change accounts, and the reading of changed files."""

    def make_accounts() -> AccountHandler:
        from cometmq.broker.access.account_handler import AccountHandler

        return AccountHandler(parts.accounts, settings=parts.settings, address=endpoint.address)

    def make_users() -> UserHandler:
        from cometmq.broker.access.user_handler import UserHandler

        if parts.access is None:  # nothing is checked
            return UserHandler(parts.users, lambda request: True)
        return UserHandler(parts.users, parts.access.is_administrator)

    accounts, users = Deferred(make_accounts), Deferred(make_users)
    jobs: list[Job] = []
    if parts.accounts is not None:
        from cometmq.access.plain.accounts import RELOAD_S

        jobs.append(Job("reload-accounts", lambda: RELOAD_S, parts.accounts.reload, blocking=True))
    if parts.access is not None:
        jobs.append(every(LOG_S, parts.access.settle_log, "log-refused-requests"))
    return Feature(
        {
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: exclusive(
                accounts.handler(lambda h: h.put_account)
            ),
            RequestCode.DELETE_ACL_CONFIG: exclusive(accounts.handler(lambda h: h.delete_account)),
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO: accounts.handler(lambda h: h.versions),
            RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: exclusive(
                accounts.handler(lambda h: h.put_addresses)
            ),
            RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: accounts.handler(lambda h: h.show),
            RequestCode.AUTH_CREATE_USER: exclusive(users.handler(lambda h: h.create_user)),
            RequestCode.AUTH_UPDATE_USER: exclusive(users.handler(lambda h: h.update_user)),
            RequestCode.AUTH_DELETE_USER: exclusive(users.handler(lambda h: h.delete_user)),
            RequestCode.AUTH_GET_USER: users.handler(lambda h: h.get_user),
            RequestCode.AUTH_LIST_USER: users.handler(lambda h: h.list_users),
            RequestCode.AUTH_CREATE_ACL: exclusive(users.handler(lambda h: h.put_acl)),
            RequestCode.AUTH_UPDATE_ACL: exclusive(users.handler(lambda h: h.put_acl)),
            RequestCode.AUTH_DELETE_ACL: exclusive(users.handler(lambda h: h.delete_acl)),
            RequestCode.AUTH_GET_ACL: users.handler(lambda h: h.get_acl),
            RequestCode.AUTH_LIST_ACL: users.handler(lambda h: h.list_acls),
        },
        jobs,
    )
