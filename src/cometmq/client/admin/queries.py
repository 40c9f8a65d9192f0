"""Messages looked up: by a broker's id, by unique id, by key, by place in a queue.

Source: the message commands of DefaultMQAdminExt and MQAdminImpl.queryMessage, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio

from cometmq.client.admin.core import AdminCore
from cometmq.client.pulling import Pull, pull_once
from cometmq.client.subscription import Filter
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import QueryMessageRequest, ViewMessageByIdRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import decode_messages

FOUND_MAX = 64
"""Messages that one broker gives for a key."""
QUERY_S = 18.0
"""Time for one broker to search its index."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""The group every broker lets tools read with."""


class Queries(AdminCore):
    """Calls that find messages."""

    async def message_at(self, offset_message_id: str) -> StoredMessage:
        """Return the message with a broker's id, from the broker in the id.

        Raises:
            InvalidMessageIdError: the text is no such id.
            ResponseError: that broker has no such message.
        """
        place = decode_offset_id(offset_message_id)
        header = ViewMessageByIdRequest(offset=place.log_offset)
        answer = await self._ask(place.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        message = decode_messages(answer.body)[0]
        message.broker_name = await self._broker_at(place.address)
        return message

    async def message_by_unique_id(self, topic: str, message_id: str) -> StoredMessage | None:
        """Find a message by the unique id of its sender.

        Returns:
            The message, or None if no broker has it. If a retried send has stored it more than
            once, the one that was stored first.
        """
        found = await self.messages_by_key(topic, message_id, unique_id=True)
        return min(found, key=lambda message: message.store_time_ms, default=None)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Find messages by key or by unique id.

        Args:
            topic: the topic of the messages.
            key: the key or id.
            begin_ms, end_ms: range of the store time, in ms since 1970.
            unique_id: whether ``key`` is a unique id.

        Returns:
            At most 64 messages of each broker of the topic, in order of store time.
        """
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=FOUND_MAX,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique_id,
        )
        route = await self._route(topic)
        answers = await asyncio.gather(
            *(self._query(name, route.readable(name), header) for name in sorted(route.brokers))
        )
        found = [
            message
            for answer in answers
            for message in answer
            if _has_key(message, key, unique_id=unique_id)
        ]
        return sorted(found, key=lambda message: message.store_time_ms)

    async def message_in_queue(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the message at an offset of a queue, or None if there is none.

        Raises:
            TopicNotFoundError, QueueNotFoundError: no broker has the queue.
        """
        request = Pull(TOOLS_GROUP, queue, QueueOffset(offset), Filter.tags(), max_messages=1)
        self._instance.check_running()
        address = await self._offsets.address(queue)
        timeout = self._instance.settings.call_timeout_ms / 1000
        result = await pull_once(self._instance.brokers, address, request, timeout=timeout)
        return next((found for found in result.messages if found.queue_offset == offset), None)

    async def _query(
        self, broker_name: str, address: str | None, header: QueryMessageRequest
    ) -> list[StoredMessage]:
        if address is None:
            return []
        try:
            answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header, timeout=QUERY_S)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        messages = decode_messages(answer.body)
        for message in messages:
            message.broker_name = broker_name
        return messages

    async def _broker_at(self, address: str) -> str:
        """Give the name of the broker with this address, or nothing if it is not registered."""
        for name, broker in (await self.cluster_info()).broker_addr_table.items():
            if address in broker.broker_addrs.values():
                return name
        return ""


def _has_key(message: StoredMessage, key: str, *, unique_id: bool) -> bool:
    return message.unique_id == key if unique_id else key in message.keys
