"""The requests of pop consumption: pop, wait for messages, ack, change the invisible time.

Source: MQClientAPIImpl.popMessageAsync, ackMessageAsync and changeInvisibleTimeAsync, and the
broker's NotificationProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
import time

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._pop.receipts import Handle, handles_of
from cometmq.client.errors import QueueNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
    NotificationRequest,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from cometmq.protocol.lazy_record import decode_lazily

log = logging.getLogger(__name__)

FROM_MIN, FROM_MAX = 0, 1
ALL_QUEUES = -1
"""The queue id that means all queues of a broker."""
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


class PopRequests:
    """Sends the pop requests of one group to the masters of its queues.

    Args:
        instance: whose connections are used.
        group: as brokers know it.
        timeout: seconds for a request, in addition to the time that a broker may hold it.
    """

    def __init__(self, instance: ClientInstance, group: str, *, timeout: float) -> None:
        self._instance = instance
        self._group = group
        self._timeout = timeout

    async def pop(
        self,
        queue: MessageQueue,
        wanted: Filter,
        *,
        max_messages: int,
        invisible_ms: int,
        start: StartFrom,
        hold_ms: int = 0,
        margin_s: float | None = None,
    ) -> list[tuple[StoredMessage, Handle]]:
        """Pop messages, each with its receipt; none if there are none.

        Args:
            queue: the queue; the id -1 means all queues of its broker.
            wanted: the filter of its topic.
            max_messages: 32 at most; 0 only fixes where a new group starts.
            invisible_ms: for how long other consumers do not see the messages.
            start: where a new group starts.
            hold_ms: how long the broker may wait for a message; 0 to respond at once.
            margin_s: the timeout in addition to ``hold_ms``; by default that of the other requests.

        Raises:
            QueueNotFoundError: the broker has no master now.
            ResponseError: the broker refused.
            RemotingError: no response.
            ProtocolError: a receipt has the wrong format.
        """
        header = PopMessageRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=hold_ms,
            # A broker refuses what is older than poll time + 0.5 s by its own clock; 0 means now.
            born_time=time.time_ns() // 1_000_000 if hold_ms else 0,
            init_mode=FROM_MIN if start is StartFrom.FIRST else FROM_MAX,
            exp_type=wanted.kind,
            exp=wanted.expression,
            order=False,
            bname=queue.broker_name,
        )
        answer = await self._instance.brokers.call_raw(
            await self._master(queue.topic, queue.broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout=hold_ms / 1000 + (self._timeout if margin_s is None else margin_s),
        )
        if answer.code in _NOTHING:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark or "")
        messages = decode_lazily(answer.body, broker_name=queue.broker_name)
        handles = handles_of(answer.header(PopMessageResponse), messages, queue.broker_name)
        return list(zip(messages, handles, strict=True))

    async def wait_for_messages(self, queue: MessageQueue, hold_ms: int) -> bool:
        """Let the broker hold a request until there is something to pop, or the time is over.

        Returns:
            Whether the broker saw messages; they may be of other tags, or taken meanwhile.

        Raises:
            QueueNotFoundError: the broker has no master now.
            ResponseError: the broker refused.
            RemotingError: no response.
        """
        header = NotificationRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            poll_time=hold_ms,
            born_time=0,
            bname=queue.broker_name,
        )
        answer = await self._instance.brokers.call(
            await self._master(queue.topic, queue.broker_name),
            RequestCode.NOTIFICATION,
            header,
            timeout=hold_ms / 1000 + self._timeout,
        )
        return answer.header(NotificationResponse).has_msg

    async def ack(self, topic: str, handle: Handle) -> None:
        """Acknowledge a delivery. Brokers confirm one that is over, too: it has no effect then.

        Args:
            topic: the topic that the message was sent to, as brokers know it.
            handle: the receipt.

        Raises:
            CometError: the broker did not confirm it.
        """
        header = AckMessageRequest(
            consumer_group=self._group,
            topic=handle.topic(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.offset,
            bname=handle.broker_name,
        )
        address, code = await self._master(topic, handle.broker_name), RequestCode.ACK_MESSAGE
        await self._instance.brokers.call(address, code, header, timeout=self._timeout)

    async def change_invisible_time(self, topic: str, handle: Handle, invisible_ms: int) -> Handle:
        """Let a message be redelivered this long from now, unless it is acknowledged before.

        Returns:
            The new receipt. The one before has no effect any more.

        Raises:
            CometError: the broker did not confirm it.
        """
        header = ChangeMessageInvisibletimeRequest(
            consumer_group=self._group,
            topic=handle.topic(topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.offset,
            invisible_time=invisible_ms,
            bname=handle.broker_name,
        )
        address = await self._master(topic, handle.broker_name)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await self._instance.brokers.call(address, code, header, timeout=self._timeout)
        return handle.changed(answer.header(ChangeMessageInvisibletimeResponse))

    async def _master(self, topic: str, broker_name: str) -> str:
        address = (await self._instance.routes.find(topic)).master(broker_name)
        if address is None:
            raise QueueNotFoundError(f"broker {broker_name} of topic {topic} has no master now")
        return address


class Acks:
    """Settles deliveries in the background: a failure is logged, and the message is redelivered.

    Args:
        requests: those of the group.
    """

    def __init__(self, requests: PopRequests) -> None:
        self._requests = requests

    async def done(self, topic: str, handle: Handle) -> bool:
        """Acknowledge a delivery; return whether the broker confirmed it.

        Args:
            topic: the topic that the message was sent to, as brokers know it.
            handle: the receipt.
        """
        try:
            await self._requests.ack(topic, handle)
        except CometError as error:
            log.warning("cannot acknowledge a message topic=%s error=%s", topic, error)
            return False
        return True

    async def later(self, topic: str, handle: Handle, seconds: float) -> bool:
        """Let a message be redelivered this long from now; return whether the broker confirmed."""
        try:
            await self._requests.change_invisible_time(topic, handle, int(seconds * 1000))
        except CometError as error:
            log.warning("cannot change an invisible time topic=%s error=%s", topic, error)
            return False
        return True
