"""Tells brokers what became of popped messages: done with, or to come again after a while.

Source: MQClientAPIImpl.ackMessageAsync and changeInvisibleTimeAsync, and
ConsumeMessagePopConcurrentlyService.changePopInvisibleTime, RocketMQ 5.3.
"""

from __future__ import annotations

import logging

from cometmq.client.errors import QueueNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.pop.handles import Handle
from cometmq.model.errors import CometError
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    Header,
)

log = logging.getLogger(__name__)

DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Until a message that failed comes again, by how often it did before."""


def delay_s(reconsume_times: int, delay_level: int = 0) -> int:
    """Give the seconds until a message comes again.

    Args:
        reconsume_times: how often it came again before.
        delay_level: what the handler ordered; 0 for nothing. As in RocketMQ it counts from 0, so
            that 1 is the second of the delays.
    """
    level = delay_level if delay_level > 0 else max(reconsume_times, 0)
    return DELAYS_S[min(level, len(DELAYS_S) - 1)]


class Acks:
    """Sends acknowledgements for one group.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        timeout: seconds for each of them.
    """

    def __init__(self, instance: ClientInstance, group: str, *, timeout: float) -> None:
        self._instance = instance
        self._group = group
        self._timeout = timeout

    async def done(self, topic: str, handle: Handle) -> bool:
        """Say that a message is done with.

        Args:
            topic: that it was sent to, as brokers know it.
            handle: of its delivery.

        Returns:
            Whether the broker took it; if not, the message comes again.
        """
        try:
            header = AckMessageRequest(
                consumer_group=self._group,
                topic=handle.topic(topic, self._group),
                queue_id=handle.queue_id,
                extra_info=handle.text,
                offset=handle.offset,
                bname=handle.broker_name,
            )
            await self._tell(topic, handle, RequestCode.ACK_MESSAGE, header)
        except CometError as error:
            log.warning("cannot acknowledge a message topic=%s error=%s", topic, error)
            return False
        return True

    async def later(self, topic: str, handle: Handle, seconds: float) -> bool:
        """Have a message come again so many seconds from now.

        Returns:
            Whether the broker took it; if not, the message comes when its time is over.
        """
        try:
            header = ChangeMessageInvisibletimeRequest(
                consumer_group=self._group,
                topic=handle.topic(topic, self._group),
                queue_id=handle.queue_id,
                extra_info=handle.text,
                offset=handle.offset,
                invisible_time=int(seconds * 1000),
                bname=handle.broker_name,
            )
            await self._tell(topic, handle, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except CometError as error:
            log.warning("cannot change an invisible time topic=%s error=%s", topic, error)
            return False
        return True

    async def _tell(self, topic: str, handle: Handle, code: int, header: Header) -> None:
        route = await self._instance.routes.find(topic)
        address = route.master(handle.broker_name)
        if address is None:
            raise QueueNotFoundError(f"broker {handle.broker_name} has no master now")
        await self._instance.brokers.call(address, code, header, timeout=self._timeout)
