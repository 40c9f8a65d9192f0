"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue.

Source: ReceiveMessageActivity, AckMessageActivity, ChangeInvisibleDurationActivity and
ReceiptHandleProcessor, RocketMQ 5.3.3.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from cometmq.client._pop.calls import ALL_QUEUES, HandleError, PopRequests, ReceiptHandle
from cometmq.client.filters import Filter
from cometmq.client.offsets import StartFrom
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import now_ms
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.compression import CompressionError
from cometmq.protocol.headers.consumer import ConsumerSendMsgBackRequest
from cometmq.proxy.checks import check_invisible, group_of, topic_of
from cometmq.proxy.clients import Client, filter_of
from cometmq.proxy.conversion import message_of, milliseconds, set_milliseconds
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import OK, Code, StatusError, code_of, status_of, status_of_all
from cometmq.proxy.topics import Topics
from cometmq.remoting.tasks import Supervisor

log = logging.getLogger(__name__)

BROKER_S = 3.0
BATCH_MAX = 32
POLL_S_MIN, POLL_S_MAX = 5.0, 20.0
MARGIN_S = 0.2
"""A poll ends so long before its client gives up, so that no message goes to nobody."""
RENEWED_INVISIBLE_S = 60.0
GIVEN_BACK_MS = 1_000
RECEIVES_MAX = 1_000
"""Receives of a client at a time."""
RENEW_S, RENEW_BEFORE_S, RENEW_AGE_S_MAX = 5.0, 10.0, 3 * 3600.0
RENEWALS_S = (60, 180, 300, 600, 1800, 3600)
RENEWALS_MAX = 100_000
RENEWALS_AT_ONCE = 64
FAILURES_MAX = 3
DEAD_LETTER = -1


class _Lease:
    """A message that is renewed while its client lives and has not settled it."""

    __slots__ = ("begun_s", "client", "failures", "group", "handle", "lock", "renewals", "topic")

    def __init__(self, client: Client, group: str, topic: str, handle: ReceiptHandle) -> None:
        self.client, self.group, self.topic = client, group, topic
        self.handle = handle
        self.lock = asyncio.Lock()
        """Held by the request that uses the receipt: a renewal makes it worthless to others."""
        self.begun_s = time.monotonic()
        self.renewals = self.failures = 0


class _Key(NamedTuple):
    """Which message a lease is of."""

    client_id: str
    group: str
    topic: str
    """As the client knows it; `kind` tells it from its retry topics."""
    kind: str
    broker_name: str
    queue_id: int
    offset: int


class Receiving:
    """Handles what consumers send.

    Args:
        topics: knows the settings of groups.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._leases: dict[_Key, _Lease] = {}
        self._tasks = Supervisor("proxy renewals")

    def start(self) -> None:
        """Begin to renew invisible times."""
        self._tasks.every(RENEW_S, self.renew, "renewals")

    async def close(self) -> None:
        """Renew no more."""
        await self._tasks.cancel()

    # --- receive ------------------------------------------------------------------------------

    async def receive(
        self, client: Client, request: Any, left_s: float | None
    ) -> AsyncIterator[Any]:
        """ReceiveMessage: yield the responses, the status first."""
        popped: list[tuple[StoredMessage, ReceiptHandle]] = []
        requests = self._requests(client, group_of(request.group))
        topic = topic_of(request.message_queue.topic)
        try:
            settings = await self._topics.group(group_of(request.group), client.topics())
            wanted = filter_of(request.filter_expression)
            popped = await self._pop(client, request, wanted, settings, left_s)
            popped = [
                (stored, replace(handle, text=f"{handle.text} {stored.log_offset}"))
                for stored, handle in popped
                if await self._is_for_client(
                    client, requests, topic, wanted, settings, stored, handle
                )
            ]
            response = TYPES["ReceiveMessageResponse"]
            if not popped:
                yield response(status=status_of(Code.MESSAGE_NOT_FOUND, "no new message"))
            else:
                yield response(status=OK)
                while popped:
                    stored, handle = popped[0]
                    made = message_of(stored, handle.text)
                    # From here on the client may have it, and settle it.
                    if request.auto_renew:
                        self._lease(client, request.group.name, topic, handle)
                    yield response(message=made)
                    popped.pop(0)
            ended = response()
            set_milliseconds(ended.delivery_timestamp, now_ms())
            yield ended
        finally:
            if popped:
                await asyncio.shield(self._give_back(client, requests, topic, popped))

    async def _pop(
        self,
        client: Client,
        request: Any,
        wanted: Filter,
        settings: SubscriptionGroupConfig,
        left_s: float | None,
    ) -> list[tuple[StoredMessage, ReceiptHandle]]:
        group, topic = group_of(request.group), topic_of(request.message_queue.topic)
        poll_s = _poll_s(client, request, left_s)
        if request.auto_renew:
            invisible_ms = int(RENEWED_INVISIBLE_S * 1000)
        else:
            invisible_ms = milliseconds(request.invisible_duration)
            check_invisible(invisible_ms / 1000)
        if client.receiving >= RECEIVES_MAX:
            raise StatusError(Code.TOO_MANY_REQUESTS, f"{RECEIVES_MAX} receives wait")
        queue = await self._queue(client, topic, request.message_queue.broker.name)
        attempt = None
        if settings.consume_message_orderly:
            attempt = request.attempt_id or f"{client.id}-{time.monotonic_ns()}"
        requests = self._requests(client, group)
        await client.instance.ensure_heartbeat(await client.master(topic, queue.broker_name))
        client.receiving += 1
        popping = asyncio.ensure_future(
            requests.pop(
                queue,
                wanted,
                max_messages=min(max(request.batch_size, 1), BATCH_MAX),
                invisible_ms=invisible_ms,
                hold_ms=int(poll_s * 1000),
                margin_s=BROKER_S,
                attempt_id=attempt,
            )
        )
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            # The client is gone, and the broker may still give its messages to this pop.
            self._tasks.spawn(self._give_back_later(client, requests, topic, popping), "give-back")
            raise
        except ResponseError as error:
            if error.code == ResponseCode.POLLING_FULL:
                raise StatusError(Code.TOO_MANY_REQUESTS, "polling full") from None
            raise
        finally:
            client.receiving -= 1
            client.sees()

    async def _is_for_client(
        self,
        client: Client,
        requests: PopRequests,
        topic: str,
        wanted: Filter,
        settings: SubscriptionGroupConfig,
        stored: StoredMessage,
        handle: ReceiptHandle,
    ) -> bool:
        """Whether a message goes to the client: neither of another tag, nor retried too often."""
        if not wanted.takes(stored):
            await requests.ack(topic, handle)
            return False
        if stored.reconsume_times > settings.retry_max_times:
            await self._dead_letter(client, requests, topic, stored.log_offset, handle)
            return False
        try:
            stored.body  # noqa: B018 (decompresses it)
        except CompressionError as error:
            log.warning("a message cannot be decompressed id=%s: %s", stored.message_id, error)
            await self._dead_letter(client, requests, topic, stored.log_offset, handle)
            return False
        return True

    async def _queue(self, client: Client, topic: str, broker_name: str) -> MessageQueue:
        route = await client.instance.routes.find(topic)
        if route.master(broker_name) is None:
            masters = [name for name in route.brokers if route.master(name) is not None]
            if not masters:
                raise StatusError(Code.FORBIDDEN, f"topic {topic} has no readable queue")
            broker_name = masters[time.monotonic_ns() % len(masters)]
        return MessageQueue(topic, broker_name, ALL_QUEUES)

    @staticmethod
    def _requests(client: Client, group: str) -> PopRequests:
        return PopRequests(client.instance, group, start=StartFrom.LAST, timeout=BROKER_S)

    async def _give_back_later(
        self, client: Client, requests: PopRequests, topic: str, popping: asyncio.Future[Any]
    ) -> None:
        try:
            popped = await popping
        except CometError:
            return
        await self._give_back(client, requests, topic, popped)

    async def _give_back(
        self,
        client: Client,
        requests: PopRequests,
        topic: str,
        popped: Sequence[tuple[StoredMessage, ReceiptHandle]],
    ) -> None:
        """Make messages visible soon that did not get to their client."""
        for _, handle in popped:
            self._leases.pop(self._key(client, requests.group, topic, handle), None)
            await _show_soon(requests, topic, _plain(handle))

    # --- settle -------------------------------------------------------------------------------

    async def ack(self, client: Client, request: Any) -> Any:
        """AckMessage."""
        group, topic = group_of(request.group), topic_of(request.topic)
        if not request.entries:
            raise StatusError(Code.INTERNAL_SERVER_ERROR, "there is no entry to acknowledge")
        response = TYPES["AckMessageResponse"]()
        for entry in request.entries:
            made = response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle
            )
            try:
                await self._ack_one(client, group, topic, entry.receipt_handle)
                made.status.CopyFrom(OK)
            except CometError as error:
                made.status.CopyFrom(status_of(code_of(error), str(error)))
        response.status.CopyFrom(status_of_all(response.entries))
        return response

    async def _ack_one(self, client: Client, group: str, topic: str, text: str) -> None:
        async with self._settling(client, group, topic, text) as handle:
            await self._requests(client, group).ack(topic, handle)

    async def change(self, client: Client, request: Any) -> Any:
        """ChangeInvisibleDuration."""
        group, topic = group_of(request.group), topic_of(request.topic)
        seconds = milliseconds(request.invisible_duration) / 1000
        check_invisible(seconds, 0.0)
        async with self._settling(client, group, topic, request.receipt_handle) as handle:
            requests = self._requests(client, group)
            changed = await requests.change_invisible_time(topic, handle, int(seconds * 1000))
        text = f"{changed.text} {_log_offset(request.receipt_handle)}"
        return TYPES["ChangeInvisibleDurationResponse"](status=OK, receipt_handle=text)

    async def forward(self, client: Client, request: Any) -> Any:
        """ForwardMessageToDeadLetterQueue."""
        group, topic = group_of(request.group), topic_of(request.topic)
        offset = _log_offset(request.receipt_handle)
        async with self._settling(client, group, topic, request.receipt_handle) as handle:
            if offset < 0:
                raise StatusError(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
            requests = self._requests(client, group)
            await self._dead_letter(client, requests, topic, offset, handle)
        return TYPES["ForwardMessageToDeadLetterQueueResponse"](status=OK)

    async def _dead_letter(
        self, client: Client, requests: PopRequests, topic: str, offset: int, handle: ReceiptHandle
    ) -> None:
        address = await client.master(topic, handle.broker_name)
        header = ConsumerSendMsgBackRequest(
            offset=offset,
            group=requests.group,
            delay_level=DEAD_LETTER,
            origin_topic=handle.topic(topic, requests.group),
            max_reconsume_times=0,
            bname=handle.broker_name,
        )
        await client.instance.brokers.call(
            address, RequestCode.CONSUMER_SEND_MSG_BACK, header, timeout=BROKER_S
        )
        await requests.ack(topic, _plain(handle))

    @asynccontextmanager
    async def _settling(
        self, client: Client, group: str, topic: str, text: str
    ) -> AsyncIterator[ReceiptHandle]:
        """Give the receipt that is valid now, and forget its lease once it is settled.

        Renewals replace the receipt that the client has.

        Raises:
            StatusError: it is none, or its time is over.
        """
        try:
            handle = _plain(ReceiptHandle.parse(text))
        except HandleError as error:
            raise StatusError(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
        key = self._key(client, group, topic, handle)
        lease = self._leases.get(key)
        if lease is None:
            _check_time(handle)
            yield handle
            return
        async with lease.lock:
            _check_time(lease.handle)
            yield lease.handle
            self._leases.pop(key, None)

    # --- renewal ------------------------------------------------------------------------------

    def _lease(self, client: Client, group: str, topic: str, handle: ReceiptHandle) -> None:
        if len(self._leases) < RENEWALS_MAX:
            lease = _Lease(client, group, topic, _plain(handle))
            self._leases[self._key(client, group, topic, handle)] = lease

    @staticmethod
    def _key(client: Client, group: str, topic: str, handle: ReceiptHandle) -> _Key:
        return _Key(
            client.id, group, topic, handle.kind, handle.broker_name, handle.queue_id, handle.offset
        )

    def leases(self) -> list[_Lease]:
        """Return what is renewed."""
        return list(self._leases.values())

    async def renew(self) -> None:
        """Extend what expires soon, and whose client lives."""
        before_ms = now_ms() + int(RENEW_BEFORE_S * 1000)
        due = [
            (key, lease)
            for key, lease in self._leases.items()
            if lease.handle.expires_ms() <= before_ms
        ]
        slots = asyncio.Semaphore(RENEWALS_AT_ONCE)

        async def one(key: _Key, lease: _Lease) -> None:
            async with slots:
                await self._renew_one(key, lease)

        await asyncio.gather(*(one(*each) for each in due))

    async def _renew_one(self, key: _Key, lease: _Lease) -> None:
        seconds = RENEWALS_S[min(lease.renewals, len(RENEWALS_S) - 1)]
        if time.monotonic() - lease.begun_s > RENEW_AGE_S_MAX:
            self._leases.pop(key, None)
            return
        async with lease.lock:
            if self._leases.get(key) is not lease:
                return  # it was settled meanwhile
            requests = self._requests(lease.client, lease.group)
            try:
                changed = await requests.change_invisible_time(
                    lease.topic, lease.handle, seconds * 1000
                )
            except CometError as error:
                lease.failures += 1
                is_over = lease.handle.expires_ms() <= now_ms()
                if lease.failures >= FAILURES_MAX or is_over:
                    self._leases.pop(key, None)
                    log.warning("cannot renew a message group=%s: %s", lease.group, error)
                return
            lease.handle, lease.renewals, lease.failures = changed, lease.renewals + 1, 0

    async def release(self, client: Client) -> None:
        """Let others have at once what a client has received and not settled."""
        own = [(key, lease) for key, lease in self._leases.items() if lease.client is client]
        slots = asyncio.Semaphore(RENEWALS_AT_ONCE)

        async def one(key: _Key, lease: _Lease) -> None:
            async with slots, lease.lock:
                if self._leases.pop(key, None) is not lease:
                    return  # it was settled meanwhile
                await _show_soon(self._requests(client, lease.group), lease.topic, lease.handle)

        await asyncio.gather(*(one(*each) for each in own))


async def _show_soon(requests: PopRequests, topic: str, handle: ReceiptHandle) -> None:
    """Make a message visible again that its client does not settle."""
    try:
        await requests.change_invisible_time(topic, handle, GIVEN_BACK_MS)
    except CometError as error:
        log.info("a message comes back when its invisible time is over: %s", error)


def _poll_s(client: Client, request: Any, left_s: float | None) -> float:
    """Return how long a receive may wait.

    Raises:
        StatusError: its client gives up too early.
    """
    if request.HasField("long_polling_timeout"):
        poll_s = milliseconds(request.long_polling_timeout) / 1000
    elif left_s is not None:
        poll_s = left_s - milliseconds(client.settings.request_timeout) / 2000
    else:
        poll_s = POLL_S_MAX
    poll_s = min(max(poll_s, POLL_S_MIN), POLL_S_MAX)
    if left_s is None or poll_s <= left_s - MARGIN_S:
        return poll_s
    if left_s < POLL_S_MIN:
        raise StatusError(
            Code.ILLEGAL_POLLING_TIME,
            f"a deadline in {left_s:.1f} s: expected {POLL_S_MIN:g} s or more",
        )
    return left_s - MARGIN_S


def _check_time(handle: ReceiptHandle) -> None:
    """Check that a receipt still counts.

    Raises:
        StatusError: it does not.
    """
    if handle.expires_ms() <= now_ms():
        raise StatusError(
            Code.INVALID_RECEIPT_HANDLE, "the invisible time is over: it is redelivered"
        )


def _plain(handle: ReceiptHandle) -> ReceiptHandle:
    """Return a receipt as brokers know it: without the offset in the log."""
    return ReceiptHandle.parse(" ".join(handle.text.split(" ")[:8]))


def _log_offset(text: str) -> int:
    """Return the offset in the log, which this service adds to a receipt; -1 if there is none."""
    parts = text.split(" ")
    return int(parts[8]) if len(parts) > 8 and parts[8].isdecimal() else -1
