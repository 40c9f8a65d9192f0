"""The check that tables are only changed on a master; slaves copy them from it.

Source: AdminBrokerProcessor, RocketMQ 4.9.
"""

from __future__ import annotations

from cometmq.broker.config import BrokerSettings
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import ResponseCode


def check_is_master(settings: BrokerSettings) -> None:
    """Refuse a change of topics or groups on a slave.

    Raises:
        ResponseError: 1, this broker is a slave.
    """
    if settings.broker_id != 0:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, "
            "please execute it from master broker.",
        )
