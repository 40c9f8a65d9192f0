"""Handles INVOKE_BROKER_TO_RESET_OFFSET (222): a group consumes again, or skips its backlog.

On the server (the default): the new offset is stored, commits are void until the group's next pull,
and the response to that pull contains the offset. On the clients: every member gets
RESET_CONSUMER_CLIENT_OFFSET (220) and seeks by itself; if no member is online, that is an error.
Source: AdminBrokerProcessor.resetOffset and Broker2Client.resetOffset, RocketMQ 5.3, which chooses
the form of 220 by the requester instead of by the member.
"""

from __future__ import annotations

from cometmq.broker.checks import invalid
from cometmq.broker.core import Core
from cometmq.model.errors import ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.group import MessageQueueForC, ResetOffsetBody, ResetOffsetBodyForC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.offset import InvokeBrokerToResetOffsetRequest
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode

_CPP = "CPP"


class ResetHandler:
    """Resets the offsets of groups.

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._offsets = core.offsets
        self._consumers = core.consumers
        self._store = core.store
        self._topics = core.topics
        self._groups = core.groups
        self._settings = core.settings
        self._role = core.role

    async def reset(self, request: Request) -> Response:
        """Reset a group's offsets in a topic; the response lists the new ones."""
        header = request.header(InvokeBrokerToResetOffsetRequest)
        slices = Slices()
        if self._settings().use_server_side_reset_offset:
            offsets = await self._reset_here(header, slices)
        else:
            offsets = await self._notify_members(header, slices)
        return Response(body=await self._body(header.topic, offsets, slices))

    # --- on the server's side -----------------------------------------------------------------

    async def _reset_here(
        self, header: InvokeBrokerToResetOffsetRequest, slices: Slices
    ) -> dict[int, int]:
        if self._role.is_slave:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "Can not reset offset in slave broker, please execute it from master broker.",
            )
        topic = self._topics.get(header.topic)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist"
            )
        if self._groups.get(header.group) is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        offsets = await self._new_offsets(header, topic, slices)
        async for queue_id, offset in slices.each(offsets.items()):
            if header.topic not in self._topics:  # deleted meanwhile
                break
            self._offsets.reset(header.group, header.topic, queue_id, offset)
        return offsets

    async def _new_offsets(
        self, header: InvokeBrokerToResetOffsetRequest, topic: TopicConfig, slices: Slices
    ) -> dict[int, int]:
        queue_id = -1 if header.queue_id is None else header.queue_id
        if queue_id < 0:
            return {
                queue: self._by_time(header.topic, queue, header.timestamp)
                async for queue in slices.each(range(topic.read_queue_nums))
            }
        if queue_id >= topic.read_queue_nums:
            raise invalid(
                f"queueId[{queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]"
            )
        if header.offset is None or header.offset < 0:
            return {queue_id: self._by_time(header.topic, queue_id, header.timestamp)}
        low, high = self._store.bounds(header.topic, queue_id)
        if not low <= header.offset <= high + 1:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {header.offset} not in consume queue range [{low}-{high}]",
            )
        return {queue_id: min(header.offset, high)}

    # --- by the clients -----------------------------------------------------------------------

    async def _notify_members(
        self, header: InvokeBrokerToResetOffsetRequest, slices: Slices
    ) -> dict[int, int]:
        topic = self._topics.get(header.topic)
        if topic is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        offsets = {
            queue_id: self._moved(header, queue_id)
            async for queue_id in slices.each(range(topic.write_queue_nums))
        }
        group = self._consumers.group(header.group)
        members = [] if group is None else list(group.members.values())
        if not members:
            raise ResponseError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        request = InvokeBrokerToResetOffsetRequest(
            topic=header.topic, group=header.group, timestamp=header.timestamp
        )
        # C++ consumers read only the list form, all others only the map.
        of_cpp = b"".join(await self._list_body(header.topic, offsets, slices))
        of_others = b"".join(await self._body(header.topic, offsets, slices))
        async for member in slices.each(members):
            body = of_cpp if member.language == _CPP else of_others
            member.connection.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, request, body)
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

    async def _body(self, topic: str, offsets: dict[int, int], slices: Slices) -> list[bytes]:
        table = {
            self._queue(topic, queue): offset
            async for queue, offset in slices.each(offsets.items())
        }
        return await encode(ResetOffsetBody(offset_table=table), slices)

    async def _list_body(self, topic: str, offsets: dict[int, int], slices: Slices) -> list[bytes]:
        name = self._settings().broker_name
        entries = [
            MessageQueueForC(topic=topic, broker_name=name, queue_id=queue, offset=offset)
            async for queue, offset in slices.each(offsets.items())
        ]
        return await encode(ResetOffsetBodyForC(offset_table=entries), slices)
