"""Request handlers and jobs of a master and its slaves with ``enableSlaveActingMaster``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the heartbeats to name servers, and the check whether there is a master."""
    acting = parts.acting
    if acting is None:
        return Feature({})

    def heartbeat_s() -> float:
        return parts.settings().broker_heartbeat_interval_ms / 1000

    def check_s() -> float:
        return parts.settings().sync_broker_member_group_period_ms / 1000

    return Feature(
        {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: acting.smallest_id_changed},
        [
            Job("send-heartbeats", heartbeat_s, parts.registration.send_heartbeats),
            Job("check-master", check_s, acting.check, first_s=0.0),
        ],
    )
