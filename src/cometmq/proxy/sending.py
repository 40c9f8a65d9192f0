"""SendMessage, EndTransaction, RecallMessage.

Source: SendMessageActivity, EndTransactionActivity, RecallMessageActivity, RocketMQ 5.3.3.
"""

from __future__ import annotations

import itertools
import random
import zlib
from typing import Any

from cometmq.model.flags import SysFlag
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TEMPLATE_TOPIC
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.headers.send import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageResponse,
    SendMessageV2Request,
)
from cometmq.protocol.headers.transaction import EndTransactionRequest
from cometmq.protocol.message_id import decode_offset_id
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.recall_handle import decode_handle
from cometmq.proxy.checks import BODY_BYTES_MAX, check_message, topic_of
from cometmq.proxy.clients import Client, Half
from cometmq.proxy.conversion import (
    GZIP,
    MessageType,
    born_ms,
    properties_of,
    sys_flag_of,
    type_of,
)
from cometmq.proxy.messages import TYPES
from cometmq.proxy.status import (
    OF_RESPONSES,
    OK,
    Code,
    StatusError,
    code_of,
    status_of,
    status_of_all,
)
from cometmq.proxy.topics import MIXED, Topics

BROKER_S = 3.0
MESSAGES_MAX = 128
COMMIT, ROLLBACK = 1, 2
ENDS = {COMMIT: SysFlag.TRANSACTION_COMMIT, ROLLBACK: SysFlag.TRANSACTION_ROLLBACK}
STORED = (
    ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)  # fmt: skip
QUEUES_NEW = 4


class Sending:
    """Handles what producers send.

    Args:
        topics: knows the types of topics.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._turns = itertools.count(random.randrange(1 << 30))

    async def send(self, client: Client, request: Any, peer: str) -> Any:
        """SendMessage."""
        if not request.messages:
            raise StatusError(Code.MESSAGE_CORRUPTED, "there is no message to send")
        if len(request.messages) > MESSAGES_MAX:
            raise StatusError(
                Code.BAD_REQUEST,
                f"{len(request.messages)} messages: expected {MESSAGES_MAX} at most",
            )
        topic = topic_of(request.messages[0].topic)
        for message in request.messages:
            if message.topic.name != topic:
                raise StatusError(Code.MESSAGE_CORRUPTED, "the messages have different topics")
            check_message(message)
        response = TYPES["SendMessageResponse"]()
        for message in request.messages:
            try:
                entry = await self._send_one(client, topic, message, peer)
            except Exception as error:
                if len(request.messages) == 1:
                    raise
                entry = TYPES["SendResultEntry"](status=status_of(code_of(error), str(error)))
            response.entries.append(entry)
        response.status.CopyFrom(status_of_all(response.entries))
        return response

    async def _send_one(self, client: Client, topic: str, message: Any, peer: str) -> Any:
        properties = properties_of(message, topic, peer)
        kind = type_of(properties)
        await self._topics.check_type(topic, kind)
        body, flag = message.body, sys_flag_of(message)
        if message.system_properties.body_encoding == GZIP:
            body, flag = _unpacked(body), flag & ~SysFlag.COMPRESSED
        queue, address = await self._queue(
            client, topic, message.system_properties.message_group or ""
        )
        header = SendMessageV2Request(
            producer_group=topic,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=QUEUES_NEW,
            queue_id=queue.queue_id,
            sys_flag=flag,
            born_timestamp=born_ms(message),
            flag=0,
            properties=encode_properties(properties).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            bname=queue.broker_name,
        )
        if kind is MessageType.TRANSACTION:
            # The broker asks this connection for the outcome.
            await client.instance.ensure_heartbeat(address)
        response = await client.instance.brokers.call_raw(
            address, RequestCode.SEND_MESSAGE_V2, header, body=body, timeout=BROKER_S
        )
        if response.code not in STORED:
            raise StatusError(
                OF_RESPONSES.get(response.code, Code.INTERNAL_SERVER_ERROR),
                response.remark or "the broker refused",
            )
        code = OF_RESPONSES[response.code]
        entry = TYPES["SendResultEntry"](status=status_of(code, response.remark or ""))
        if code is not Code.OK:
            return entry
        stored = response.header(SendMessageResponse)
        message_id = message.system_properties.message_id
        entry.message_id, entry.offset = message_id, stored.queue_offset
        entry.recall_handle = stored.recall_handle or ""
        if kind is MessageType.TRANSACTION:
            entry.transaction_id = stored.transaction_id or message_id
            log_offset = decode_offset_id(stored.msg_id).log_offset
            client.remember(
                topic,
                entry.transaction_id,
                Half(
                    address, queue.broker_name, stored.queue_offset, log_offset, message_id,
                    is_checked=False,
                ),
            )  # fmt: skip
        return entry

    async def _queue(self, client: Client, topic: str, group: str) -> tuple[MessageQueue, str]:
        """Return the queue for a message, and the address of its master."""
        route = await client.instance.routes.find(topic)
        queues = sorted(route.publish_queues, key=lambda each: (each.broker_name, each.queue_id))
        if group and queues:
            queues = [queues[consistent(java_hash(group), len(queues))]]
        start = next(self._turns)
        for number in range(len(queues)):
            queue = queues[(start + number) % len(queues)]
            address = route.master(queue)
            if address is not None:
                return queue, address
        raise StatusError(Code.FORBIDDEN, f"topic {topic} has no writable queue")

    async def end_transaction(self, client: Client, request: Any) -> Any:
        """EndTransaction."""
        topic = topic_of(request.topic)
        if not request.transaction_id.strip():
            raise StatusError(Code.INVALID_TRANSACTION_ID, "the transaction_id is missing")
        half = client.halves.pop((topic, request.transaction_id), None)
        if half is None:
            raise StatusError(
                Code.INTERNAL_SERVER_ERROR,
                f"transaction {request.transaction_id:.100}: it is decided, or was not begun here",
            )
        header = EndTransactionRequest(
            producer_group=topic,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=ENDS.get(request.resolution, SysFlag.TRANSACTION_NONE),
            from_transaction_check=half.is_checked,
            msg_id=half.message_id,
            transaction_id=request.transaction_id,
            topic=topic,
            bname=half.broker_name or None,
        )
        await client.instance.remoting.oneway(half.address, RequestCode.END_TRANSACTION, header)
        return TYPES["EndTransactionResponse"](status=OK)

    async def recall(self, client: Client, request: Any) -> Any:
        """RecallMessage."""
        topic = topic_of(request.topic)
        wanted = await self._topics.type_of(topic)
        if wanted not in (MIXED, MessageType.DELAY.name):
            raise StatusError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes messages of type {wanted}: expected DELAY",
            )
        handle = decode_handle(request.recall_handle)
        address = await client.master(topic, handle.broker_name)
        header = RecallMessageRequest(
            producer_group=topic,
            topic=topic,
            recall_handle=request.recall_handle,
            bname=handle.broker_name,
        )
        response = await client.instance.brokers.call(
            address, RequestCode.RECALL_MESSAGE, header, timeout=BROKER_S
        )
        message_id = response.header(RecallMessageResponse).msg_id
        return TYPES["RecallMessageResponse"](status=OK, message_id=message_id)


def consistent(seed: int, count: int) -> int:
    """Return a number below ``count``; few seeds get another one if the count changes.

    Source: Hashing.consistentHash of Guava, which RocketMQ uses, so that a message group keeps its
    queue when its producer changes from one proxy to the other.
    """
    seed &= (1 << 64) - 1
    candidate = 0
    while True:
        seed = (seed * 2862933555777941757 + 1) & ((1 << 64) - 1)
        upper = seed >> 33
        following = int((candidate + 1) / ((upper + 1) / (1 << 31)))
        if not 0 <= following < count:
            return candidate
        candidate = following


def _unpacked(body: bytes) -> bytes:
    """Return a body that a client has packed, to `BODY_BYTES_MAX`.

    Raises:
        StatusError: it is no GZIP, or too large.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        found = unpacker.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise StatusError(
            Code.MESSAGE_CORRUPTED, f"body_encoding is GZIP, and the body is none: {error}"
        ) from None
    if len(found) > BODY_BYTES_MAX:
        raise StatusError(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes unpacked"
        )
    return found
