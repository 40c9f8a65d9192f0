"""Notifies the members of a consumer group that its members or topics have changed.

Each member gets NOTIFY_CONSUMER_IDS_CHANGED (40), one-way, and rebalances at once. Members of
broadcasting groups do not share queues and are not notified. Source:
DefaultConsumerIdsChangeListener, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.clients.consumers import BROADCASTING, ConsumerGroup
from cometmq.broker.config import BrokerSettings
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import NotifyConsumerIdsChangedRequest


class ConsumerNotices:
    """Sends the notices.

    Args:
        settings: returns the current settings of the broker.
    """

    def __init__(self, settings: Callable[[], BrokerSettings]) -> None:
        self._settings = settings

    def group_changed(self, group: ConsumerGroup) -> None:
        """Tell all members of a group."""
        if group.model == BROADCASTING or not self._settings().notify_consumer_ids_changed_enable:
            return
        header = NotifyConsumerIdsChangedRequest(consumer_group=group.name)
        for connection in list(group.members):
            if not connection.closed:
                connection.oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
