"""Handles INVOKE_BROKER_TO_RESET_OFFSET (222): a group consumes again, or skips its backlog.

On the server (the default): the new offset is stored, commits are void until the group's next pull,
and the response to that pull contains the offset. On the clients: every member gets
RESET_CONSUMER_CLIENT_OFFSET (220) and seeks by itself; if no member is online, that is an error.
Source: AdminBrokerProcessor.resetOffset and Broker2Client.resetOffset, RocketMQ 5.3, which chooses
the form of 220 by the requester instead of by the member.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.clients.consumers import ConsumerRegistry
from cometmq.broker.config import BrokerSettings
from cometmq.broker.groups.table import GroupTable
from cometmq.broker.offsets.offset_store import OffsetStore
from cometmq.broker.topics.table import TopicTable
from cometmq.model.errors import ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import InvokeBrokerToResetOffsetRequest
from cometmq.remoting import Request, Response
from cometmq.store import MessageStore

_CPP = "CPP"


class ResetHandler:
    """Resets the offsets of groups.

    Args:
        offsets: the table.
        consumers: the members to notify.
        store: finds offsets by time.
        topics, groups: what exists.
        settings: returns the current settings of the broker.
    """

    def __init__(
        self,
        offsets: OffsetStore,
        *,
        consumers: ConsumerRegistry,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._topics = topics
        self._groups = groups
        self._settings = settings

    def reset(self, request: Request) -> Response:
        """Reset a group's offsets in a topic; the response lists the new ones."""
        header = request.header(InvokeBrokerToResetOffsetRequest)
        if self._settings().use_server_side_reset_offset:
            offsets = self._reset_here(header)
        else:
            offsets = self._notify_members(header)
        return Response(body=self._body(header.topic, offsets))

    # --- on the server's side -----------------------------------------------------------------

    def _reset_here(self, header: InvokeBrokerToResetOffsetRequest) -> dict[int, int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist"
            )
        if self._groups.get(header.group) is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        offsets = self._new_offsets(header, topic)
        for queue_id, offset in offsets.items():
            self._offsets.reset(header.group, header.topic, queue_id, offset)
        return offsets

    def _new_offsets(
        self, header: InvokeBrokerToResetOffsetRequest, topic: TopicConfig
    ) -> dict[int, int]:
        queue_id = -1 if header.queue_id is None else header.queue_id
        if queue_id < 0:
            return {
                queue: self._by_time(header.topic, queue, header.timestamp)
                for queue in range(topic.read_queue_nums)
            }
        if queue_id >= topic.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
            )
        if header.offset is None or header.offset < 0:
            return {queue_id: self._by_time(header.topic, queue_id, header.timestamp)}
        low, high = self._store.bounds(header.topic, queue_id)
        if not low <= header.offset <= high + 1:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
            )
        return {queue_id: header.offset}

    # --- by the clients -----------------------------------------------------------------------

    def _notify_members(self, header: InvokeBrokerToResetOffsetRequest) -> dict[int, int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        offsets = {
            queue_id: self._moved(header, queue_id) for queue_id in range(topic.write_queue_nums)
        }
        group = self._consumers.group(header.group)
        members = [] if group is None else list(group.members.values())
        if not members:
            raise ResponseError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        told = InvokeBrokerToResetOffsetRequest(
            topic=header.topic, group=header.group, timestamp=header.timestamp
        )
        for member in members:
            # C++ consumers read only the list form, all others only the map.
            body = self._list_body if member.language == _CPP else self._body
            member.connection.oneway(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET, told, body(header.topic, offsets)
            )
        return offsets

    def _moved(self, header: InvokeBrokerToResetOffsetRequest, queue_id: int) -> int:
        current = self._offsets.committed(header.group, header.topic, queue_id)
        if current is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
            )
        wanted = self._by_time(header.topic, queue_id, header.timestamp)
        return wanted if header.is_force or wanted < current else current

    # --- both ---------------------------------------------------------------------------------

    def _by_time(self, topic: str, queue_id: int, timestamp: int) -> int:
        if timestamp < 0:
            return self._store.bounds(topic, queue_id)[1]
        return max(self._store.offset_at_time(topic, queue_id, timestamp), 0)

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._settings().broker_name, queue_id)

    def _body(self, topic: str, offsets: dict[int, int]) -> bytes:
        table = {self._queue(topic, queue): offset for queue, offset in offsets.items()}
        return ResetOffsetBody(offset_table=table).encode()

    def _list_body(self, topic: str, offsets: dict[int, int]) -> bytes:
        name = self._settings().broker_name
        places = [
            MessageQueueForC(topic=topic, broker_name=name, queue_id=queue, offset=offset)
            for queue, offset in offsets.items()
        ]
        return ResetOffsetBodyForC(offset_table=places).encode()
