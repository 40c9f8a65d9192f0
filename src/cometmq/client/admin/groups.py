"""Consumer groups: their lag, their members' offsets, and resets.

Source: DefaultMQAdminExtImpl, RocketMQ 5.3."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from cometmq.client._connection.routes import Route
from cometmq.client.admin.servers import AdminCore
from cometmq.client.admin.static_topics import StaticTopics
from cometmq.model.errors import ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms
from cometmq.model.topic import check_group_name
from cometmq.protocol.bodies.base import decode_body
from cometmq.protocol.bodies.broker_admin import QueryConsumeTimeSpanBody, QueueTimeSpan
from cometmq.protocol.bodies.common import GroupList, TopicList
from cometmq.protocol.bodies.group import (
    ConsumeStats,
    GroupForbidden,
    OffsetWrapper,
    QuerySubscriptionResponseBody,
    ResetOffsetBody,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.pop import MessageRequestMode, SetMessageRequestModeRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.group import (
    DeleteSubscriptionGroupRequest,
    GetConsumeStatsRequest,
    GetSubscriptionGroupConfigRequest,
    QuerySubscriptionByConsumerRequest,
    QueryTopicsByConsumerRequest,
    UpdateAndGetGroupForbiddenRequest,
)
from cometmq.protocol.headers.offset import (
    CloneGroupOffsetRequest,
    InvokeBrokerToResetOffsetRequest,
)
from cometmq.protocol.headers.topic import (
    QueryConsumeTimeSpanRequest,
    QueryTopicConsumeByWhoRequest,
)
from cometmq.remoting.tasks import side_by_side


class Groups(AdminCore):
    """Calls about consumer groups."""

    async def create_group(
        self,
        config: SubscriptionGroupConfig | str,
        *,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Create a group, or change it if it exists.

        Args:
            config: its settings, or only its name for the default settings.
            brokers: names of the brokers to create it on; None for all of the cluster.

        Raises:
            InvalidNameError: the name is invalid; nothing was changed.
            ClientError: there is no such broker; nothing was changed.
        """
        if isinstance(config, str):
            config = SubscriptionGroupConfig(group_name=config)
        check_group_name(config.group_name)
        for address in await self._masters(brokers):
            await self.set_group_config(address, config)

    async def set_group_config(self, address: str, config: SubscriptionGroupConfig) -> None:
        """Create a group on one broker, or change all its settings there."""
        body = msgspec.json.encode(config)
        await self.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def set_group_configs(
        self, address: str, configs: Sequence[SubscriptionGroupConfig]
    ) -> None:
        """Create or change several groups on one broker with one request.

        Raises:
            ResponseError: the broker refused, or is older than 5.3.
        """
        body = SubscriptionGroupList(group_config_list=list(configs)).encode()
        await self.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)

    async def set_consume_mode(
        self,
        address: str,
        group: str,
        topic: str,
        mode: MessageRequestMode,
        *,
        share_queues: int = 0,
    ) -> None:
        """Set on one broker whether a group reads a topic by pull or by pop.

        Args:
            address: the broker.
            group: the group.
            topic: the topic.
            mode: pull or pop.
            share_queues: how many further queues a member may share in pop mode.

        Raises:
            ResponseError: the broker refused, or is older than 5.0.
        """
        body = SetMessageRequestModeRequestBody(
            topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share_queues
        ).encode()
        await self.call(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)

    async def delete_group(
        self, group: str, *, keep_offsets: bool = False, brokers: Iterable[str] | None = None
    ) -> None:
        """Delete a group from brokers: from all brokers of the cluster, or from the named ones.

        Args:
            group: the group.
            keep_offsets: keep the committed offsets for a later group of the same name.
            brokers: names of brokers.
        """
        for address in await self._masters(brokers):
            await self.delete_broker_group(address, group, keep_offsets=keep_offsets)

    async def delete_broker_group(
        self, address: str, group: str, *, keep_offsets: bool = False
    ) -> None:
        """Delete a group from one broker, by its address; as `delete_group`."""
        forget = not keep_offsets
        header = DeleteSubscriptionGroupRequest(
            group_name=group, clean_offset=forget, remove_offset=forget
        )
        await self.call(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

    async def groups(self) -> list[str]:
        """Return the names of all groups with settings on a broker, in alphabetical order."""
        found: set[str] = set()
        for each in await side_by_side(await self._masters(), self.broker_groups):
            found.update(each)
        return sorted(found)

    async def broker_groups(self, address: str) -> dict[str, SubscriptionGroupConfig]:
        """Return the settings of all groups of one broker."""
        response = await self.call(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return SubscriptionGroupWrapper.decode(response.body).subscription_group_table

    async def group_config(self, group: str, address: str) -> SubscriptionGroupConfig | None:
        """Return a group's settings on one broker, or None if it has none.

        A broker with automatic group creation may create the group on this request.
        """
        header = GetSubscriptionGroupConfigRequest(group=group)
        try:
            response = await self.call(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, header)
        except ResponseError as error:
            if error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                return None
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            return (await self.broker_groups(address)).get(group)
        return decode_body(SubscriptionGroupConfig, response.body)

    async def may_read(self, group: str, topic: str) -> bool:
        """Return whether a group may read a topic on all of the topic's brokers.

        Raises:
            ResponseError: the broker is older than 5.0 and has no such rule.
        """
        return await self._read_permission(group, topic)

    async def set_may_read(self, group: str, topic: str, allowed: bool) -> None:
        """Set whether a group may read a topic, on every broker of the topic.

        Raises:
            ResponseError: the broker is older than 5.0 and has no such rule.
        """
        await self._read_permission(group, topic, allowed)

    async def _read_permission(self, group: str, topic: str, allowed: bool | None = None) -> bool:
        """Return whether a group may read a topic; set it first unless ``allowed`` is None."""
        header = UpdateAndGetGroupForbiddenRequest(group=group, topic=topic, readable=allowed)
        code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN
        responses = await self._call_masters(code, header, topic)
        return all(GroupForbidden.decode(response.body).readable for response in responses)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now, or have an offset in it."""
        found: set[str] = set()
        masters = (await self._route(topic)).masters()
        for each in await side_by_side(
            masters, lambda address: self.broker_groups_of_topic(address, topic)
        ):
            found.update(each)
        return sorted(found)

    async def broker_groups_of_topic(self, address: str, topic: str) -> list[str]:
        """Return the groups that one broker lists for a topic, in its order."""
        header = QueryTopicConsumeByWhoRequest(topic=topic)
        response = await self.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
        groups = GroupList.decode(response.body).group_list
        # RocketMQ 5.3 lists the topic itself too, if a group subscribes to it.
        return [group for group in groups if group != topic]

    async def topics_of_group(self, group: str) -> list[str]:
        """Return the topics in which a group has an offset.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        header = QueryTopicsByConsumerRequest(group=group)
        responses = await self._call_masters(RequestCode.QUERY_TOPICS_BY_CONSUMER, header)
        return sorted(
            {name for each in responses for name in TopicList.decode(each.body).topic_list}
        )

    async def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return an online group's subscription to a topic, or None.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        header = QuerySubscriptionByConsumerRequest(group=group, topic=topic)
        for address in (await self._route(topic)).masters():
            response = await self.call(address, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, header)
            found = QuerySubscriptionResponseBody.decode(response.body).subscription_data
            if found is not None:
                return found
        return None


TO_THE_END = -1


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group's committed offset and lag in one queue.

    Example:
        found: dict[MessageQueue, GroupLag] = await admin.lag("audit", "orders")
        for queue, each in found.items():
            print(queue, each.committed, each.lag)
    """

    committed: QueueOffset | None
    """The committed offset; None if there is none."""
    end: QueueOffset
    """The offset of the queue's next message."""
    begin: QueueOffset
    """The offset of the queue's oldest message."""

    @property
    def lag(self) -> int:
        """Messages not consumed yet; all of the queue's if nothing is committed."""
        return max(self.end - self.next, 0)

    @property
    def next(self) -> QueueOffset:
        """The offset of the first message that was not consumed yet."""
        return self.begin if self.committed is None else max(self.committed, self.begin)

    def skipped(self, target: int) -> int:
        """Return how many messages a move of the group to an offset would skip."""
        return max(target - self.next, 0)

    def repeated(self, target: int) -> int:
        """Return how many messages a move of the group to an offset would redeliver."""
        return max(self.next - max(target, self.begin), 0)


class Offsets(StaticTopics):
    """Calls about the offsets of groups."""

    async def committed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return a group's committed offset in each readable queue of a topic."""
        queues = (await self._route(topic)).read_queues

        async def one(queue: MessageQueue) -> int | None:
            return await self._offsets.committed(group, queue, zero_if_unknown=False)

        return dict(zip(queues, await side_by_side(queues, one), strict=True))

    async def lag(self, group: str, topic: str) -> dict[MessageQueue, GroupLag]:
        """Return a group's committed offset and lag in each readable queue of a topic."""
        committed = await self.committed(group, topic)
        bounds = await side_by_side(committed, self._offsets.bounds)
        return {
            queue: GroupLag(
                None if offset is None else QueueOffset(offset),
                end=each.max_offset,
                begin=each.min_offset,
            )
            for (queue, offset), each in zip(committed.items(), bounds, strict=True)
        }

    async def offsets_at(self, topic: str, time: datetime | int) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at or after a time, in each queue.

        Args:
            topic: the topic.
            time: a `datetime` with a time zone, or ms since 1970.
        """
        time_ms = epoch_ms(time)
        queues = (await self._route(topic)).read_queues

        async def one(queue: MessageQueue) -> int:
            return await self._offsets.at_time(queue, time_ms)

        return dict(zip(queues, await side_by_side(queues, one), strict=True))

    async def broker_offset_at(
        self, address: str, queue: MessageQueue, time_ms: int
    ) -> QueueOffset:
        """Return the offset of the first message at or after a time in a queue of one broker.

        The time is in ms since 1970; the broker gets it as it is.
        """
        self._instance.check_running()
        return await self._instance.brokers.offset_at_time(address, queue, time_ms)

    async def commit_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int
    ) -> None:
        """Write the committed offset of a group without members, at one broker."""
        self._instance.check_running()
        await self._instance.brokers.commit(address, group, queue, QueueOffset(offset))

    async def consume_stats(
        self, group: str, topic: str | None = None
    ) -> dict[MessageQueue, OffsetWrapper]:
        """Return the offsets that brokers have of a group, for one topic or for all."""
        found: dict[MessageQueue, OffsetWrapper] = {}
        for each in await side_by_side(
            await self._masters(), lambda address: self.broker_consume_stats(address, group, topic)
        ):
            found.update(each.offset_table)
        return await self.logical_consume_stats(group, found)

    async def broker_consume_stats(
        self, address: str, group: str, topic: str | None = None
    ) -> ConsumeStats:
        """Return the offsets that one broker has of a group, and how fast the group consumes."""
        header = GetConsumeStatsRequest(consumer_group=group, topic=topic)
        response = await self.call(address, RequestCode.GET_CONSUME_STATS, header)
        return ConsumeStats.decode(response.body)

    async def time_spans(self, group: str, topic: str) -> list[QueueTimeSpan]:
        """Return the time range of each queue's messages, and the time of the group's next one."""
        header = QueryConsumeTimeSpanRequest(topic=topic, group=group)
        found: list[QueueTimeSpan] = []
        for each in await self._call_masters(RequestCode.QUERY_CONSUME_TIME_SPAN, header, topic):
            found += QueryConsumeTimeSpanBody.decode(each.body).consume_time_span_set
        return sorted(found, key=lambda span: span.message_queue)

    async def oldest_unconsumed(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return when the first message that a group has not consumed was stored, by queue.

        Returns:
            Times in ms since 1970; None for a queue without lag.
        """
        header = QueryConsumeTimeSpanRequest(topic=topic, group=group)

        async def read(address: str) -> dict[MessageQueue, int | None]:
            response = await self.call(address, RequestCode.QUERY_CONSUME_TIME_SPAN, header)
            now_ms = round(clock.time() * 1000)
            spans = QueryConsumeTimeSpanBody.decode(response.body).consume_time_span_set
            return {span.message_queue: _oldest(span, now_ms) for span in spans}

        found = await side_by_side((await self._route(topic)).masters(), read)
        return dict(sorted(pair for each in found for pair in each.items()))

    async def reset_to_time(
        self, group: str, topic: str, time: datetime | int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Move a group to the first message stored at or after a time, in every queue.

        Online members move within some seconds. Without members, and on a broker where the group
        has no offset, the new offsets are written too.

        Args:
            group: the group.
            topic: the topic.
            time: a `datetime` with a time zone, or ms since 1970.
            force: if False, do not move the group forward. Brokers of 5.2 and later ignore it.

        Returns:
            The new offsets.

        Raises:
            ResponseError, RemotingError: a broker refused or did not respond. On earlier brokers
                the group has moved.
        """
        return await self._reset_all(group, topic, epoch_ms(time), force=force)

    async def skip_backlog(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Move a group to the end of every queue of a topic (skip the backlog)."""
        return await self._reset_all(group, topic, TO_THE_END, force=True)

    async def reset_to_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Move a group to an offset of one queue.

        On brokers of 5.2 and later, online members move at their next pull. Older brokers only
        store the offset, and a member that reads the queue overwrites it: stop the group first.

        Raises:
            ResponseError: the queue does not have this offset, or there is no such topic.
        """
        header = InvokeBrokerToResetOffsetRequest(
            topic=queue.topic,
            group=group,
            timestamp=TO_THE_END,
            is_force=True,
            queue_id=queue.queue_id,
            offset=QueueOffset(offset),
        )
        self._instance.check_running()
        address = await self._offsets.address(queue)
        if await self._moves_groups(address):
            await self.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        else:
            await self._offsets.commit(group, queue, QueueOffset(offset))

    async def clone_offsets(self, source: str, target: str, topics: Iterable[str]) -> None:
        """Copy the committed offsets of one group to another, for these topics.

        Args:
            source: the group to copy from.
            target: the group to copy to. Stop its members first, or they overwrite the offsets.
            topics: the topics.
        """

        async def copy(topic: str) -> None:
            header = CloneGroupOffsetRequest(src_group=source, dest_group=target, topic=topic)
            await self._call_masters(RequestCode.CLONE_GROUP_OFFSET, header, topic)

        await side_by_side(topics, copy)

    async def _reset_all(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        route = await self._route(topic)
        found: dict[MessageQueue, int] = {}
        for name in sorted(route.brokers):
            found.update(await self._reset(route, name, group, timestamp_ms, force=force))
        return found

    async def _reset(
        self, route: Route, broker: str, group: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        address = route.master(broker)
        if address is None:
            return {}
        header = InvokeBrokerToResetOffsetRequest(
            topic=route.topic, group=group, timestamp=timestamp_ms, is_force=force
        )
        queues = [queue for queue in route.read_queues if queue.broker_name == broker]
        try:
            return await self._move_members(address, header)
        except ResponseError as error:
            if not _has_no_members(error):
                raise
            written = await self._write(queues, group, timestamp_ms, force=force)
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return written
        # A broker that tells members to move does so only once there is an offset of every queue.
        try:
            return await self._move_members(address, header)
        except ResponseError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            return written

    async def _move_members(
        self, address: str, header: InvokeBrokerToResetOffsetRequest
    ) -> dict[MessageQueue, int]:
        response = await self.call(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        return dict(ResetOffsetBody.decode(response.body).offset_table)

    async def _write(
        self, queues: Iterable[MessageQueue], group: str, timestamp_ms: int, *, force: bool
    ) -> dict[MessageQueue, int]:
        """Write the new offset of each queue."""

        async def write(queue: MessageQueue) -> tuple[MessageQueue, int]:
            current = await self._offsets.committed(group, queue, zero_if_unknown=False)
            wanted = (
                (await self._offsets.bounds(queue)).max_offset
                if timestamp_ms < 0
                else await self._offsets.at_time(queue, timestamp_ms)
            )
            if not force and current is not None and wanted >= current:
                return queue, current
            await self._offsets.commit(group, queue, wanted)
            return queue, wanted

        return dict(await side_by_side(queues, write))

    async def _moves_groups(self, address: str) -> bool:
        """Whether a broker moves groups by itself; it says so in its settings."""
        response = await self.call(address, RequestCode.GET_BROKER_CONFIG)
        return b"useServerSideResetOffset=true" in response.body


def _oldest(span: QueueTimeSpan, now_ms: int) -> int | None:
    """Return when the first unconsumed message of a queue was stored.

    RocketMQ's brokers give the delay of a message that is gone, or that nothing precedes, as the
    time since 1970: the oldest message of the queue is then the first one.
    """
    if span.delay_time <= 0:
        return None
    if span.delay_time > now_ms - span.min_time_stamp:
        return span.min_time_stamp if span.min_time_stamp > 0 else None
    return now_ms - span.delay_time


def _has_no_members(error: ResponseError) -> bool:
    """Whether a broker refused to move a group because it has no member, or no offset yet."""
    no_offset = error.code == ResponseCode.SYSTEM_ERROR and "consumer group" in error.remark
    return error.code == ResponseCode.CONSUMER_NOT_ONLINE or no_offset
