"""Finds messages, and tracks which groups have consumed one.

Source: MQAdminImpl and DefaultMQAdminExtImpl.messageTrackDetail, RocketMQ 5.3."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from cometmq.client._connection.routes import Route
from cometmq.client._consuming.pulls import Pull, PullResult, pull_once
from cometmq.client._sending.sender import Sender
from cometmq.client.admin.groups import Groups
from cometmq.client.admin.servers import AdminCore, Clients
from cometmq.client.errors import ClientError, NoMasterError, TopicNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.receipt import SendReceipt, receipt_from
from cometmq.client.settings import ProducerSettings
from cometmq.client.trace.records import (
    RECORD_END,
    ConsumeAfter,
    ConsumeBefore,
    Record,
    TraceError,
    decode_records,
)
from cometmq.model import property_names as names
from cometmq.model.errors import CometError, InvalidMessageIdError, ResponseError
from cometmq.model.message import Message, StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms, now_ms
from cometmq.model.topic import (
    DELAY_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dlq_topic,
    retry_topics,
)
from cometmq.protocol.bodies.base import InvalidBodyError
from cometmq.protocol.bodies.broker_admin import QueryConsumeQueueResponseBody
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.bodies.heartbeat import ConsumeType, MessageModel
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.query import QueryMessageRequest, ViewMessageByIdRequest
from cometmq.protocol.headers.send import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
)
from cometmq.protocol.headers.topic import QueryConsumeQueueRequest
from cometmq.protocol.headers.transaction import ResumeCheckHalfMessageRequest
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.recall_handle import decode_handle
from cometmq.protocol.subscription import ALL_TAGS
from cometmq.remoting.tasks import side_by_side

FOUND_MAX = 64
"""Messages that one broker gives for a key."""
QUERY_S = 18.0
"""Time for one broker to search its index."""
SEND_GROUP = "CLIENT_INNER_PRODUCER"
"""The producer group of clients that have none of their own."""
RESEND_GROUP = "ReSendMsgById"
"""The producer group of RocketMQ's tool for messages that are sent again."""
PORT_MAX = 65_535
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
        response = await self.call(place.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        message = next(iter(decode_lazily(response.body)), None)
        if message is None:
            raise InvalidBodyError(f"a message is expected of {place.address}, but there is none")
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
        begin: datetime | int = 0,
        end: datetime | int = 2**63 - 1,
        unique_id: bool = False,
    ) -> list[StoredMessage]:
        """Find messages by key or by unique id.

        Args:
            topic: the topic of the messages.
            key: the key or id.
            begin, end: range of the store time; each a `datetime` with a time zone, or ms since
                1970.
            unique_id: whether ``key`` is a unique id.

        Returns:
            At most 64 messages of each broker of the topic, in order of store time.
        """
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=FOUND_MAX,
            begin_timestamp=epoch_ms(begin, "begin"),
            end_timestamp=epoch_ms(end, "end"),
            unique_key_query=unique_id,
        )
        return await self._query(await self._route(topic), header)

    async def timer_messages(
        self, topic: str, key: str, *, unique_id: bool = True
    ) -> list[StoredMessage]:
        """Find timer messages of a topic by the unique id of the sender, or by key.

        Args:
            topic: the topic of the messages.
            key: the id or key.
            unique_id: whether ``key`` is a unique id.

        Returns:
            The records of the timer topic, in order of store time: messages that wait, messages
            that were delivered already, and recalls, which have the property TIMER_DEL_UNIQKEY
            and no keys.
        """
        header = QueryMessageRequest(
            topic=TIMER_TOPIC,
            key=key,
            max_num=FOUND_MAX,
            begin_timestamp=0,
            end_timestamp=2**63 - 1,
            unique_key_query=unique_id,
        )
        found = await self._query(await self._route(topic), header)
        return [each for each in found if each.properties.get(names.REAL_TOPIC) == topic]

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a timer message before it is due, as `Producer.recall` does.

        Args:
            topic: the topic of the message.
            handle: the ``recall_handle`` of its receipt.

        Returns:
            The unique id of the message.

        Raises:
            InvalidMessageError: the handle cannot be read.
            ResponseError: the broker refused: the message was due already, or the broker does not
                serve recalls.
        """
        broker_name = decode_handle(handle).broker_name
        address = (await self._route(topic)).master(broker_name)
        if address is None:
            raise NoMasterError(f"broker {broker_name} of the handle has no master of {topic} now")
        header = RecallMessageRequest(topic=topic, recall_handle=handle, bname=broker_name)
        response = await self.call(address, RequestCode.RECALL_MESSAGE, header)
        return response.header(RecallMessageResponse).msg_id

    async def _query(self, route: Route, header: QueryMessageRequest) -> list[StoredMessage]:
        """Return what the brokers of a route find, in order of store time."""
        responses = await asyncio.gather(
            *(
                self.broker_messages(name, address, header)
                for name in sorted(route.brokers)
                if (address := route.readable(name)) is not None
            )
        )
        found = [message for response in responses for message in response]
        return sorted(found, key=lambda message: message.store_time_ms)

    async def message_in_queue(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the message at an offset of a queue, or None if there is none.

        Raises:
            TopicNotFoundError, QueueNotFoundError: no broker has the queue.
        """
        result = await self.pull(queue, offset, count=1)
        return next((found for found in result.messages if found.queue_offset == offset), None)

    async def pull(
        self, queue: MessageQueue, offset: int, *, filter: str | Filter = ALL_TAGS, count: int = 32
    ) -> PullResult:
        """Return messages of a queue from an offset on, which a filter selects.

        No group is needed, and nothing is committed. The broker responds at once.

        Args:
            queue: the queue.
            offset: the offset of the first message.
            filter: tags, or a `Filter`; brokers of RocketMQ refuse SQL unless their setting
                ``enablePropertyFilter`` is true.
            count: the limit of messages; brokers may return fewer.

        Raises:
            TopicNotFoundError, QueueNotFoundError: no broker has the queue.
            ResponseError: the broker refused the filter.
        """
        request = Pull(TOOLS_GROUP, queue, Filter.of(filter), max_messages=count)
        self._instance.check_running()
        address = await self._offsets.address(queue)
        timeout = self._instance.settings.call_timeout_ms / 1000
        return await pull_once(
            self._instance.brokers, address, request, QueueOffset(offset), timeout=timeout
        )

    async def queue_entries(
        self,
        address: str,
        topic: str,
        queue_id: int,
        index: int,
        *,
        count: int = 10,
        group: str = "",
    ) -> QueryConsumeQueueResponseBody | None:
        """Return entries of a consume queue of one broker, or None if it has none there.

        Args:
            address: the broker.
            topic, queue_id: the queue.
            index: the offset of the first entry.
            count: the number of entries.
            group: a group whose subscription is evaluated for each entry; empty for none.
        """
        header = QueryConsumeQueueRequest(
            topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group or None
        )
        response = await self.call(address, RequestCode.QUERY_CONSUME_QUEUE, header)
        return QueryConsumeQueueResponseBody.decode(response.body) if response.body else None

    async def resume_checks(self, offset_message_id: str) -> None:
        """Let a broker check a half message again from the start, mostly one that it discarded.

        Args:
            offset_message_id: that of the message in ``TRANS_CHECK_MAX_TIME_TOPIC``; it names the
                broker.

        Raises:
            InvalidMessageIdError: the text is no such id.
            ResponseError: that broker has no such half message, or it is decided already.
        """
        place = decode_offset_id(offset_message_id)
        header = ResumeCheckHalfMessageRequest(msg_id=offset_message_id)
        await self.call(place.address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header)

    async def broker_messages(
        self, broker_name: str, address: str, header: QueryMessageRequest
    ) -> list[StoredMessage]:
        """Return the messages of one broker with a key or unique id, in its order.

        Args:
            broker_name: the name of the broker, which the messages get.
            address: its address.
            header: the topic, the key or id, the range of the store time, and the limit.
        """
        try:
            response = await self.call(address, RequestCode.QUERY_MESSAGE, header, timeout=QUERY_S)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        by_id, key = header.unique_key_query, header.key  # an index finds what has the same hash
        found = [
            message
            for message in decode_lazily(response.body)
            if (message.unique_id == key if by_id else key in message.keys)
        ]
        for message in found:
            message.broker_name = broker_name
        return found

    async def _broker_at(self, address: str) -> str:
        """Return the name of the broker with this address, or nothing if it is not registered."""
        for name, broker in (await self.cluster_info()).broker_addr_table.items():
            if address in broker.broker_addrs.values():
                return name
        return ""


class Sends(AdminCore):
    """Calls that send a message, or a stored message again."""

    async def send(self, message: Message) -> SendReceipt:
        """Send one message, for instance to test a topic. Applications use `Producer`.

        Returns:
            The receipt: the queue, the offset, the id.

        Raises:
            InvalidMessageError: the message cannot be sent to any broker.
            TopicNotFoundError: there is no such topic, and no broker would create it.
            ResponseError: the broker refused.
        """
        self._instance.check_running()
        settings = ProducerSettings()
        sender = Sender(self._instance, SEND_GROUP, settings)
        return await sender.send_message(message, timeout=settings.timeout_ms / 1000)

    async def send_again(self, message: StoredMessage) -> SendReceipt:
        """Send a stored message with all its properties to any queue of its topic.

        The new message has the same unique id. Every group of the topic receives it.

        Raises:
            ClientError: no queue of the topic can be written to.
        """
        route = await self._route(message.topic)
        if not route.publish_queues:
            raise ClientError(f"no queue of topic {message.topic} may be written to")
        queue = random.choice(route.publish_queues)
        address = route.master(queue.broker_name) or ""
        header = SendMessageRequest(
            producer_group=RESEND_GROUP,
            topic=message.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=len(route.publish_queues),
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=encode_properties(message.properties).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        response = await self.call(address, RequestCode.SEND_MESSAGE, header, message.body)
        return receipt_from(response, queue, message.message_id)


class TrackKind(Enum):
    """The state of a message in a group.

    Example:
        tracks = await admin.track(message)
        pending = [track.group for track in tracks if track.kind is TrackKind.NOT_CONSUME_YET]
    """

    CONSUMED = "CONSUMED"
    """The group has committed an offset after the message."""
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group has committed an offset after the message, but does not subscribe to its tag."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    """The group has not committed an offset after the message."""
    PULL = "PULL"
    """The members pull queues of their choice, so offsets show nothing."""
    NOT_ONLINE = "NOT_ONLINE"
    """No member of the group is online."""
    BROADCAST = "CONSUME_BROADCASTING"
    """Each member stores its own offsets; brokers do not have them."""
    UNKNOWN = "UNKNOWN"
    """The state could not be read; `Track.why` has the error."""


@dataclass(frozen=True, slots=True)
class Track:
    """Whether one group has consumed a message.

    Example:
        tracks: list[Track] = await admin.track(message)
        for track in tracks:
            print(track.group, track.kind)
    """

    group: str
    """The consumer group."""
    kind: TrackKind
    """The state of the message in the group."""
    committed: QueueOffset | None = None
    """The group's committed offset in the message's queue, if it was read."""
    why: str = ""
    """Why the state, or the offset of a group that is not online, is unknown; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Redelivery:
    """The copies of a message that were stored to redeliver it to one group.

    Example:
        copies: Redelivery = await admin.redelivery("ledger-desk", message)
        print(len(copies.retries), len(copies.dead_letters))
    """

    retries: list[StoredMessage]
    """The copies in the retry topic of the group, the oldest first."""
    scheduled: list[StoredMessage]
    """The copies in the schedule topic that are not in the retry topic yet."""
    dead_letters: list[StoredMessage]
    """The copies in the dead-letter topic of the group."""


class Tracks(Queries, Sends, Groups, Clients):
    """Calls that follow a message."""

    async def track(
        self, message: StoredMessage, groups: Iterable[str] | None = None
    ) -> list[Track]:
        """Return whether each group that reads the message's topic has consumed it.

        Args:
            message: a message that a query returned.
            groups: the groups to check; None for those that brokers list for the topic. Brokers
                of 5.3 list only groups with a committed offset.

        Returns:
            One entry for each group, by name.
        """
        asked = await self.groups_of_topic(message.topic) if groups is None else groups
        return await side_by_side(sorted(asked), lambda group: self._track(group, message))

    async def redelivery(self, group: str, message: StoredMessage) -> Redelivery:
        """Return the copies of a message that were stored to redeliver it to a group.

        They are found by the unique id of the message; a message without one has none.
        """
        if message.unique_id is None:
            return Redelivery([], [], [])
        topics = retry_topics(group, message.topic)
        dead, scheduled, *retried = await side_by_side(
            (dlq_topic(group), DELAY_TOPIC, *topics), lambda topic: self._copies(topic, message)
        )
        retries = [found for copies in retried for found in copies]
        begun = {each.reconsume_times for each in retries}
        waiting = [
            each
            for each in scheduled
            if each.properties.get(names.REAL_TOPIC) in topics and each.reconsume_times not in begun
        ]
        retries.sort(key=lambda each: each.store_time_ms)
        return Redelivery(retries, waiting, dead)

    async def _copies(self, topic: str, message: StoredMessage) -> list[StoredMessage]:
        try:
            return await self.messages_by_key(topic, message.unique_id or "", unique_id=True)
        except TopicNotFoundError:
            return []

    async def trace(self, message_id: str, *, topic: str = TRACE_TOPIC) -> list[Record]:
        """Return what producers and consumers have traced of a message, in stored order.

        Args:
            message_id: the unique id of the message.
            topic: the topic of the traces.

        Raises:
            TopicNotFoundError: the trace topic does not exist yet.
        """
        found: list[Record] = []
        for message in await self.messages_by_key(topic, message_id):
            found += records_of(message, message_id)
        return found

    async def _track(self, group: str, message: StoredMessage) -> Track:
        try:
            connection = await self.consumer_connections(group)
        except ResponseError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return await self._offline(group, message)
            return Track(group, TrackKind.UNKNOWN, why=str(error))
        except CometError as error:
            return Track(group, TrackKind.UNKNOWN, why=str(error))
        if connection.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return Track(group, TrackKind.PULL)
        if connection.message_model is MessageModel.BROADCASTING:
            return Track(group, TrackKind.BROADCAST)
        return await self._compare(group, message, connection)

    async def _offline(self, group: str, message: StoredMessage) -> Track:
        try:
            committed = await self._offsets.committed(group, message.queue, zero_if_unknown=False)
        except CometError as error:
            return Track(group, TrackKind.NOT_ONLINE, why=str(error))
        return Track(group, TrackKind.NOT_ONLINE, committed)

    async def _compare(
        self, group: str, message: StoredMessage, connection: ConsumerConnection
    ) -> Track:
        try:
            committed = await self._offsets.committed(group, message.queue, zero_if_unknown=False)
        except CometError as error:
            return Track(group, TrackKind.UNKNOWN, why=str(error))
        if committed is None or committed <= message.queue_offset:
            return Track(group, TrackKind.NOT_CONSUME_YET, committed)
        wanted = connection.subscription_table.get(message.topic)
        tags = frozenset(wanted.tags_set) if wanted is not None else frozenset[str]()
        if Filter(wanted_tags=tags).takes(message):
            return Track(group, TrackKind.CONSUMED, committed)
        return Track(group, TrackKind.CONSUMED_BUT_FILTERED, committed)


def records_in(message: StoredMessage) -> list[Record]:
    """Return the records of a trace message that can be read."""
    found: list[Record] = []
    for row in message.body.decode(errors="replace").split(RECORD_END):
        with suppress(TraceError):
            found += decode_records(row)
    return found


def records_of(message: StoredMessage, message_id: str) -> list[Record]:
    """Return the records of a trace message that are about one message."""
    return [each for each in records_in(message) if message_id in each.message_id.split(",")]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """What one client did with a message: a consumption is one event with its start and its end."""

    host: str
    """The address of the client, without its port."""
    record: Record
    """The record; of a consumption, the end if it has ended."""
    start: ConsumeBefore | None = None
    """The start of a consumption that has ended; None if it was not recorded."""

    @property
    def group(self) -> str:
        """The group of the producer or consumer."""
        return (self.start or self.record).group

    @property
    def time_ms(self) -> int:
        """When it began, in ms since 1970."""
        return (self.start or self.record).time_ms


def trace_events(messages: Iterable[StoredMessage], message_id: str) -> list[TraceEvent]:
    """Return what clients did with a message, in the order in which it was recorded.

    Args:
        messages: trace messages, in any order.
        message_id: the unique id of the message.
    """
    found = [
        (message.born_host.rpartition(":")[0], record)
        for message in sorted(messages, key=lambda each: each.store_time_ms)
        for record in records_of(message, message_id)
    ]
    starts = {each.request_id: each for _, each in found if isinstance(each, ConsumeBefore)}
    ended = {each.request_id for _, each in found if isinstance(each, ConsumeAfter)}
    return [
        TraceEvent(
            host, each, starts.get(each.request_id) if isinstance(each, ConsumeAfter) else None
        )
        for host, each in found
        if not (isinstance(each, ConsumeBefore) and each.request_id in ended)
    ]


def is_offset_id(text: str) -> bool:
    """Whether a text is a broker's id: unique ids have the same form, but name no address."""
    try:
        address = decode_offset_id(text).address
    except InvalidMessageIdError:
        return False
    return 0 < int(address.rpartition(":")[2]) <= PORT_MAX
