"""Messages looked up: by a broker's id, by unique id, by key, by place in a queue.

Source: the message commands of DefaultMQAdminExt and MQAdminImpl.queryMessage, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.core import AdminCore
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import QueryMessageRequest, ViewMessageByIdRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.record import decode_messages

FOUND_MAX = 64


class Queries(AdminCore):
    """Calls that find messages."""

    async def message_at(self, offset_message_id: str) -> StoredMessage:
        """Give the message that a broker's id of it names, asking the broker in the id.

        Raises:
            InvalidMessageIdError: this is no such id.
            ResponseError: that broker has no such message.
        """
        place = decode_offset_id(offset_message_id)
        header = ViewMessageByIdRequest(offset=place.log_offset)
        answer = await self._ask(place.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        return decode_messages(answer.body)[0]

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Find messages by one of their keys, or by the unique id their sender gave them.

        Args:
            topic: where they were sent.
            key: the key or id.
            begin_ms, end_ms: when they were stored, in ms since 1970.
            unique_id: whether ``key`` is a unique id.
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
        found: list[StoredMessage] = []
        for name in sorted(route.brokers):
            found += await self._query(name, route.master(name), header)
        return [message for message in found if _has_key(message, key, unique_id=unique_id)]

    async def _query(
        self, broker_name: str, address: str | None, header: QueryMessageRequest
    ) -> list[StoredMessage]:
        if address is None:
            return []
        try:
            answer = await self._ask(address, RequestCode.QUERY_MESSAGE, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        messages = decode_messages(answer.body)
        for message in messages:
            message.broker_name = broker_name
        return messages


def _has_key(message: StoredMessage, key: str, *, unique_id: bool) -> bool:
    return message.unique_id == key if unique_id else key in message.keys
