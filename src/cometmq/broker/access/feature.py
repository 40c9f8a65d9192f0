"""Request handlers and jobs for accounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job, every

if TYPE_CHECKING:
    from cometmq.broker.access.handler import AccountHandler
    from cometmq.broker.assembly import Endpoint, Parts

LOG_S = 10.0


def build(parts: Parts, endpoint: Endpoint) -> Feature:
    """Build the handlers that show and change accounts, and the reading of changed files."""
    access = parts.access

    def make() -> AccountHandler:
        from cometmq.broker.access.handler import AccountHandler

        return AccountHandler(
            None if access is None else access.accounts,
            settings=parts.settings,
            address=endpoint.address,
        )

    accounts = Deferred(make)
    jobs: list[Job] = []
    if access is not None:
        from cometmq.access.plain.accounts import RELOAD_S

        jobs = [
            Job("reload-accounts", lambda: RELOAD_S, access.accounts.reload, blocking=True),
            every(LOG_S, access.settle_log, "log-refused-requests"),
        ]
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
        },
        jobs,
    )
