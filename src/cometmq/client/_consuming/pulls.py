"""One pull: request the messages of a queue from a broker, from an offset on.

Source: PullAPIWrapper and MQClientAPIImpl.processPullResponse, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from enum import Enum
from itertools import pairwise
from zlib import crc32

import msgspec

from cometmq.client._connection.broker_calls import BrokerCalls
from cometmq.client._connection.instance import ClientCore
from cometmq.client._connection.routes import MASTER_ID
from cometmq.client.errors import ClientError
from cometmq.client.filters import Filter
from cometmq.model import property_names as names
from cometmq.model.errors import (
    CometError,
    InvalidMessageError,
    ProtocolError,
    RemotingError,
    ResponseError,
)
from cometmq.model.flags import pull_sys_flag
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.headers.consumer import RegisterMessageFilterClassRequest
from cometmq.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from cometmq.protocol.lazy_record import RISING, check_packages, check_rising, decode_lazily
from cometmq.protocol.record import CRC_MASK, RecordError
from cometmq.protocol.version import LITE_PULL_VERSION_MIN
from cometmq.protocol.wrapped_batch import WRAPPED, unwrapped
from cometmq.remoting import ConnectError


class PullStatus(Enum):
    """The status of a pull.

    Example:
        result = await consumer.pull(queue, 0)
        found = result.status is PullStatus.FOUND
    """

    FOUND = "FOUND"
    """Messages were found. The list may be empty after tags are compared by text."""
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    """The queue has no message at or after the offset yet."""
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    """No scanned message matches the filter; continue at ``next_offset``."""
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"
    """The offset is outside the queue; ``next_offset`` is the nearest offset in it."""


STATUS = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MESSAGE,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MESSAGE,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


class PullResult(msgspec.Struct, frozen=True):
    """The result of one pull.

    Example:
        result: PullResult = await consumer.pull(queue, 0)
        print(result.status, len(result.messages), result.next_offset)
    """

    status: PullStatus
    """Whether messages were found."""
    messages: list[StoredMessage]
    """The messages, in the order of the queue."""
    next_offset: QueueOffset
    """The offset for the next pull of the queue."""
    min_offset: QueueOffset
    """The minimum offset of the queue at that time."""
    max_offset: QueueOffset
    """The offset of the queue's next message at that time."""
    suggested_broker_id: int = 0
    """The replica that the broker suggests for the next pull; 0 is the master."""


USUAL_MESSAGES_MAX = 32
"""Messages that any broker returns at once by default."""


class Pull(msgspec.Struct, frozen=True):
    """The part of a pull that is equal in all pulls of a queue by one consumer."""

    group: str
    queue: MessageQueue
    wanted: Filter
    max_messages: int = USUAL_MESSAGES_MAX
    """The limit of messages. Above the default, brokers of CometMQ return up to 1,024 at once."""
    hold_ms: int = 0
    """How long the broker may hold the request until a message arrives; 0 to respond at once."""
    max_bytes: int | None = None
    """The limit of bytes; None for the limit of the broker. Brokers before 5.0 ignore it."""
    send_filter: bool = True
    """Whether the filter travels along; else the broker has it from the last heartbeat."""
    lite: bool = False
    """Whether it is a lite pull, as pull consumers make it; brokers since 5.0 have an own code."""

    @property
    def has_expression(self) -> bool:
        """Whether the filter travels along as an expression; filter servers have the class."""
        return self.send_filter and self.wanted.class_source is None

    def flags(self, *, commits: bool) -> int:
        """Return the flags of the request."""
        return pull_sys_flag(
            commit_offset=commits,
            suspend=self.hold_ms > 0,
            subscription=self.has_expression,
            class_filter=self.wanted.class_source is not None,
            lite_pull=self.lite,
        )

    def header(
        self, offset: QueueOffset, commit_offset: QueueOffset | None = None
    ) -> PullMessageRequest:
        """Return the header of the request.

        Args:
            offset: of the first message.
            commit_offset: the offset that the master commits for the group; None commits nothing.
        """
        return PullMessageRequest(
            consumer_group=self.group,
            topic=self.queue.topic,
            queue_id=self.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=self.max_messages,
            sys_flag=self.flags(commits=commit_offset is not None),
            commit_offset=commit_offset or 0,
            suspend_timeout_millis=self.hold_ms,
            subscription=self.wanted.expression if self.has_expression else None,
            sub_version=self.wanted.version,
            expression_type=self.wanted.kind,
            max_msg_bytes=self.max_bytes,
            bulk=True if self.max_messages > USUAL_MESSAGES_MAX else None,
            bname=self.queue.broker_name,
        )


async def pull_once(
    brokers: BrokerCalls,
    address: str,
    pull: Pull,
    offset: QueueOffset,
    *,
    commit_offset: QueueOffset | None = None,
    timeout: float,
    broker_version: int = 0,
) -> PullResult:
    """Send one pull to a broker and read its response.

    Args:
        brokers: reaches them.
        address: of the broker.
        pull: what to ask for.
        offset, commit_offset: as for `Pull.header`.
        timeout: for the response, in seconds; more than the broker may hold the pull.
        broker_version: what the broker said it is, 0 if unknown; decides on the request's code.

    Raises:
        ResponseError: the broker refused.
        RemotingError: no answer.
    """
    code = code_of(pull, broker_version)
    header = pull.header(offset, commit_offset)
    response = await brokers.call_raw(address, code, header, timeout=timeout)
    try:
        return result_from(response, pull, offset)
    except ResponseError as error:
        error.address = address
        raise


def code_of(pull: Pull, broker_version: int) -> RequestCode:
    """Return the request code of a pull: lite pull consumers have their own since 5.0."""
    if pull.lite and broker_version >= LITE_PULL_VERSION_MIN:
        return RequestCode.LITE_PULL_MESSAGE
    return RequestCode.PULL_MESSAGE


def result_from(response: Command, pull: Pull, offset: int = 0) -> PullResult:
    """Read the response to a pull.

    Args:
        response: of the broker.
        pull, offset: the pull, and the offset that it requested.

    Raises:
        ResponseError: the broker refused.
        ProtocolError: what it sent cannot be read.
    """
    status = STATUS.get(response.code)  # type: ignore[call-overload]
    if status is None:
        raise ResponseError(response.code, response.remark or "")
    header = response.header(PullMessageResponse)
    fetched = _fetched(response, pull, offset, header) if status is PullStatus.FOUND else []
    return PullResult(
        status=status,
        messages=pull.wanted.selected(fetched),
        next_offset=QueueOffset(header.next_begin_offset),
        min_offset=QueueOffset(header.min_offset),
        max_offset=QueueOffset(header.max_offset),
        suggested_broker_id=header.suggest_which_broker_id,
    )


def _fetched(
    response: Command, pull: Pull, offset: int, header: PullMessageResponse
) -> list[StoredMessage]:
    """Decode the messages of a response.

    A pull from inside a batch that is one record returns all of it: the messages before the offset
    are left out.
    """
    added = added_properties(header.min_offset, header.max_offset)
    cut = decode_lazily(response.body, broker_name=pull.queue.broker_name, added=added)
    check_packages(cut)
    messages = unwrap_all(cut, added)
    if header.offset_delta is not None:  # only of static topics, whose queues are numbered anew
        for message in messages:
            message.queue_id = pull.queue.queue_id
            message.queue_offset = QueueOffset(message.queue_offset + header.offset_delta)
    if messages is not cut:
        messages = [message for message in messages if message.queue_offset >= offset]
    if not leads_on(messages, header.next_begin_offset):
        raise ProtocolError(
            f"next offset {header.next_begin_offset} after a message at"
            f" {messages[-1].queue_offset} of {pull.queue}: expected a higher one"
        )
    return messages


def leads_on(messages: list[StoredMessage], next_offset: int) -> bool:
    """Return whether the next offset is behind the last message, so that pulls go on there."""
    return not messages or messages[-1].queue_offset < next_offset


def added_properties(min_offset: int, max_offset: int) -> dict[str, str]:
    """Return the properties that every message of a pull gets."""
    return {names.MIN_OFFSET: str(min_offset), names.MAX_OFFSET: str(max_offset)}


log = logging.getLogger(__name__)


def unwrap_all(messages: list[StoredMessage], added: Mapping[str, str]) -> list[StoredMessage]:
    """Put the messages of wrapped batches in their place.

    Args:
        messages: as they came.
        added: properties that messages from inside a batch get besides their own.

    Raises:
        RecordError: offsets do not rise. A commit could pass a message that is not consumed.
    """
    if not check_rising(messages, WRAPPED):
        return messages
    unwrapped = [inner for message in messages for inner in _unwrapped(message, added)]
    for before, after in pairwise(unwrapped):
        if after.queue_offset <= before.queue_offset:
            raise RecordError(
                f"offset {after.queue_offset} follows {before.queue_offset}: {RISING}"
            )
    return unwrapped


def _unwrapped(message: StoredMessage, added: Mapping[str, str]) -> list[StoredMessage]:
    if message.sys_flag & WRAPPED != WRAPPED:
        return [message]
    try:
        return unwrapped(message, added)
    except (InvalidMessageError, CompressionError) as error:
        queue, offset = message.queue, message.queue_offset
        log.warning("cannot unwrap a batch queue=%s offset=%d error=%s", queue, offset, error)
        return [message]


NOT_UPLOADED = "Find Filter class failed"
"""How the remark of a filter server begins that does not have a group's filter."""
UPLOADS_MAX = 1_024
"""The uploads that a client remembers; after more it begins anew."""
UPLOAD_S = 30.0
"""Time for a filter server to load a filter, which waits for other uploads."""


class _Upload:
    """One upload of a filter; another one of the same filter is another object."""

    def __init__(self, wanted: Filter) -> None:
        self.wanted = wanted


class FilterServers:
    """Uploads class filters to filter servers, and pulls through them.

    Source: MQClientInstance.uploadFilterClassToAllFilterServer and PullAPIWrapper, RocketMQ 4.9,
    which uploads with every heartbeat.
    """

    def __init__(self, instance: ClientCore) -> None:
        self._routes = instance.routes
        self._brokers = instance.brokers
        self._uploaded: dict[tuple[str, str, str], _Upload] = {}
        """By filter server, group and topic."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By filter server."""
        self._failed: dict[str, tuple[float, RemotingError]] = {}
        """The last failed upload to a filter server, and when it failed."""

    @classmethod
    def of(cls, instance: ClientCore) -> FilterServers:
        """Return the object that all consumers of a client share."""
        return instance.shared(cls, lambda: cls(instance))

    async def upload_to_all(self, group: str, topic: str, wanted: Filter) -> None:
        """Upload a filter to every filter server of a topic.

        A filter server that cannot be reached gets it before the first pull through it.

        Raises:
            TopicNotFoundError: no broker serves the topic.
            ResponseError: a filter server refused the filter.
        """
        route = await self._routes.find(topic)
        servers = sorted({each for found in route.filter_servers.values() for each in found})
        uploads = (self._upload(server, group, topic, wanted) for server in servers)
        outcomes = await asyncio.gather(*uploads, return_exceptions=True)
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, RemotingError):
                log.warning("cannot upload a filter server=%s error=%s", server, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def pull(
        self, broker: str, pull: Pull, offset: QueueOffset, *, timeout: float
    ) -> PullResult:
        """Pull through a random filter server of a broker, which gets the filter first if needed.

        Args:
            broker: the address of the queue's broker.
            pull: what to ask for.
            offset: of the first message.
            timeout: for the response, in seconds.

        Raises:
            ClientError: the broker has no filter server.
            ResponseError: the filter server refused, or the filter failed.
            RemotingError: no filter server responded.
        """
        topic = pull.queue.topic
        route = await self._routes.find(topic)
        servers = list(route.filter_servers.get(broker, ()))
        random.shuffle(servers)
        failure: CometError = ClientError(
            f"no filter server of broker {broker} for {topic}: start one with cometmq filtersrv"
        )
        for server in servers:
            try:
                return await self._pull_through(server, pull, offset, timeout)
            except ConnectError as error:  # not sent: another one may run
                failure = error
        raise failure

    async def _pull_through(
        self, server: str, pull: Pull, offset: QueueOffset, timeout: float
    ) -> PullResult:
        key = (server, pull.group, pull.queue.topic)
        upload = await self._upload(*key, pull.wanted)
        try:
            return await pull_once(self._brokers, server, pull, offset, timeout=timeout)
        except ResponseError as error:
            if not error.remark.startswith(NOT_UPLOADED):
                raise
        # The server was started again, or has given the filter up.
        if self._uploaded.get(key) is upload:  # else the pull of another queue has uploaded it
            del self._uploaded[key]
        await self._upload(*key, pull.wanted)
        return await pull_once(self._brokers, server, pull, offset, timeout=timeout)

    async def _upload(self, server: str, group: str, topic: str, wanted: Filter) -> _Upload:
        """Upload a filter unless that is done; one at a time to each server.

        An upload that fails fails for all that wait for it: one after the other, they would wait
        too long for a server that does not respond.

        Raises:
            ConnectError: the server did not respond.
        """
        key, clock = (server, group, topic), asyncio.get_running_loop().time
        began_s = clock()
        async with self._locks.setdefault(server, asyncio.Lock()):
            done = self._uploaded.get(key)
            if done is not None and done.wanted == wanted:
                return done
            failed = self._failed.pop(server, None)
            if failed is not None and failed[0] >= began_s:
                self._failed[server] = failed
                raise ConnectError(f"no filter server at {server}: {failed[1]}")
            assert wanted.class_source is not None
            body = wanted.class_source.encode()
            header = RegisterMessageFilterClassRequest(
                consumer_group=group,
                topic=topic,
                class_name=wanted.expression,
                class_crc=crc32(body) & CRC_MASK,
            )
            code = RequestCode.REGISTER_MESSAGE_FILTER_CLASS
            try:
                await self._brokers.call(server, code, header, body, timeout=UPLOAD_S)
            except RemotingError as error:
                if len(self._failed) >= UPLOADS_MAX:
                    self._failed.clear()
                self._failed[server] = clock(), error
                raise ConnectError(f"no filter server at {server}: {error}") from error
            if len(self._uploaded) >= UPLOADS_MAX:
                self._uploaded.clear()
                self._locks.clear()
            self._uploaded[key] = done = _Upload(wanted)
            return done


class ReplicaChoice:
    """Remembers what brokers advise: the master, or a replica while a queue lags far behind."""

    def __init__(self) -> None:
        self.forced: int | None = None
        """The broker id that all queues are pulled from; None to follow the advice of brokers."""
        self._advised: dict[MessageQueue, int] = {}

    def of(self, queue: MessageQueue) -> int:
        """Return the broker id to pull a queue from."""
        return self._advised.get(queue, MASTER_ID) if self.forced is None else self.forced

    def advise(self, queue: MessageQueue, broker_id: int) -> None:
        """Note what a broker suggests for the next pull of a queue."""
        if broker_id == MASTER_ID:
            self._advised.pop(queue, None)
        else:
            self._advised[queue] = broker_id

    def forget(self, queue: MessageQueue) -> None:
        """Go back to the master."""
        self._advised.pop(queue, None)
