"""Request handlers and jobs for brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.access.needs import ADMINISTRATOR, NOTHING, Needs
from cometmq.namesrv.brokers.handler import BrokerHandler
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core


NEEDS: Mapping[int, Needs] = {
    RequestCode.GET_BROKER_MEMBER_GROUP: NOTHING,
    RequestCode.REGISTER_BROKER: ADMINISTRATOR,
    RequestCode.UNREGISTER_BROKER: ADMINISTRATOR,
    RequestCode.QUERY_DATA_VERSION: ADMINISTRATOR,
    RequestCode.BROKER_HEARTBEAT: ADMINISTRATOR,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ADMINISTRATOR,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ADMINISTRATOR,
}
"""The needs of the requests with ``aclEnable``: a signature only, if clients send them to read."""


def build(core: Core) -> Feature:
    """Build the handlers of registrations, heartbeats and permissions, and the expiry job."""
    brokers = BrokerHandler(core)
    return Feature(
        {
            RequestCode.REGISTER_BROKER: exclusive(brokers.register),
            RequestCode.UNREGISTER_BROKER: exclusive(brokers.unregister),
            RequestCode.QUERY_DATA_VERSION: brokers.query_data_version,
            RequestCode.BROKER_HEARTBEAT: brokers.heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: exclusive(brokers.members),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: exclusive(brokers.wipe_write_perm),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: exclusive(brokers.add_write_perm),
        },
        [Job("expiry", lambda: core.settings().expiry_scan_ms / 1000, core.liveness.expire)],
    )
