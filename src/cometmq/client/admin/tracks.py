"""Who consumed a message, as far as offsets and traces tell.

A group counts as having consumed a message when it has committed an offset behind it: that is no
proof that a handler liked it. Traces say more, where producers and consumers write them.

Source: DefaultMQAdminExtImpl.messageTrackDetail and QueryMsgTraceByIdSubCommand, RocketMQ 5.3;
comparing brokers by name rather than by address is ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from cometmq.client.admin.clients import Clients
from cometmq.client.admin.groups import Groups
from cometmq.client.admin.queries import Queries
from cometmq.client.trace.records import Record, TraceError, decode
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.topic import TRACE_TOPIC
from cometmq.protocol.bodies import (
    ConsumerConnection,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)
from cometmq.protocol.codes import ResponseCode


class TrackKind(Enum):
    """The state of a message in a group."""

    CONSUMED = "CONSUMED"
    """The group has committed an offset after the message."""
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The same, but the group does not subscribe to the message's tag."""
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
    """Whether one group has consumed a message."""

    group: str
    """The consumer group."""
    kind: TrackKind
    """The state of the message in the group."""
    committed: QueueOffset | None = None
    """The group's committed offset in the message's queue, if it was read."""
    why: str = ""
    """Why the state is unknown; otherwise empty."""


class Tracks(Queries, Groups, Clients):
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
        return [await self._track(group, message) for group in sorted(asked)]

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
            found += [part for part in _records(message) if _is_of(part, message_id)]
        return found

    async def _track(self, group: str, message: StoredMessage) -> Track:
        try:
            connection = await self.consumer_connections(group)
        except ResponseError as error:
            if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                return Track(group, TrackKind.NOT_ONLINE)
            return Track(group, TrackKind.UNKNOWN, why=str(error))
        except CometError as error:
            return Track(group, TrackKind.UNKNOWN, why=str(error))
        if connection.consume_type is ConsumeType.CONSUME_ACTIVELY:
            return Track(group, TrackKind.PULL)
        if connection.message_model is MessageModel.BROADCASTING:
            return Track(group, TrackKind.BROADCAST)
        return await self._compare(group, message, connection)

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
        kind = TrackKind.CONSUMED if _wants(wanted, message) else TrackKind.CONSUMED_BUT_FILTERED
        return Track(group, kind, committed)


def _wants(wanted: SubscriptionData | None, message: StoredMessage) -> bool:
    return wanted is None or not wanted.tags_set or message.tags in wanted.tags_set


def _records(message: StoredMessage) -> list[Record]:
    try:
        return decode(message.body.decode())
    except (TraceError, UnicodeDecodeError):
        return []


def _is_of(record: Record, message_id: str) -> bool:
    return message_id in record.message_id.split(",")
