# cython: annotation_typing=False
"""Handles SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): stores messages.

Each message is validated and stored. The response follows at once or, with synchronous flush and on
a synchronous master, when the bytes are on the disk and slaves have them.

Source: SendMessageProcessor, RocketMQ 5.3 (codes, remarks, the header of the response).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Final

from cometmq.broker.durability.wait import DurabilityWait, status_of
from cometmq.broker.prerequisites import PrerequisiteError
from cometmq.broker.sending.flow_control import FlowControl
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.broker.sending.validation import SendRules, SendValidation
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.broker.thread_calls import SharedCall
from cometmq.model import property_names
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.protocol import octets
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command, command_at
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.protocol.headers.send import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.logical_queues import stored_offset
from cometmq.protocol.octets import copy_of, put_hex, two_u32
from cometmq.protocol.properties import decode_properties
from cometmq.remoting.requests import DECIMAL, HEX, TEXT, Request, Response, SuccessFormat
from cometmq.remoting.wire import Wire
from cometmq.store import MessageStore, SegmentCreateError, SegmentNotReadyError
from cometmq.store.appender import AppendedBatch

if TYPE_CHECKING:
    from cometmq.remoting.latencies import Latencies

log = logging.getLogger(__name__)

PendingResponses = tuple[Wire, bytes, int, float, int, str]
"""A connection, its unsent responses, their number, when their first request began, the request
code of all of them, and the topic of the last one."""

PENDING_MAX: Final = 512
"""The limit of sends that wait for the end of an iteration of the event loop."""
_SUCCESS = int(ResponseCode.SUCCESS)
_SLOW_S = 0.001
"""A send that took less is not noted: durations are in milliseconds."""
RESPONSES_BYTES: Final = 128 * 1024
_ID_END = b"0" * 16 + b","
"""The digits of a log offset, filled in later, and the separator of ids."""


class SendHandler:
    """Stores messages.

    Args:
        store: stores them.
        validation: checks and routes them.
        flow: refuses them if the store cannot keep up.
        stats: counts them.
        throughput: counts how long they took.
        durability: what responses wait for.
        store_host: our address as records carry it, 8 or 20 bytes.
        latencies: counts how long responses take, for metrics.
    """

    def __init__(
        self,
        store: MessageStore,
        validation: SendValidation,
        flow: FlowControl,
        stats: BrokerStats,
        throughput: Throughput,
        *,
        durability: DurabilityWait,
        store_host: bytes,
        latencies: Latencies | None = None,
    ) -> None:
        self._segment = SharedCall(store.wait_for_segment)
        self.appender = store.appender
        self.validation = validation
        self.flow = flow
        self.stats = stats
        self._throughput = throughput
        self._durability = durability
        self._latencies = latencies
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._id_pattern = self._id_prefix.encode() + _ID_END
        self._rules: SendRules | None = None
        self._responses = bytearray(RESPONSES_BYTES)
        self._pending: list[PendingResponses] = []
        self._pending_count = 0
        self.appender.on_finish_deferred = self.finish_deferred
        self.log_end = 0
        """The log offset behind the last send that was stored."""
        self._topic = ""
        """The topic of that send."""
        self._wrote_slowly = False
        """Whether sends without a wait that are to be responded to may have been slow."""
        self.apply_rules()

    def apply_rules(self) -> None:
        """Apply changed rules: responses name the region and the trace switch."""
        rules = self.validation.rules
        if rules is self._rules:
            return
        self._rules = rules
        self._trace_fields = {
            "MSG_REGION": rules.region,
            "TRACE_ON": "true" if rules.trace_on else "false",
        }
        position = {"queueId": DECIMAL, "queueOffset": DECIMAL}
        named = {"transactionId": TEXT}
        one = {**self._trace_fields, "msgId": self._id_prefix + HEX, **position, **named}
        many = {**self._trace_fields, "msgId": TEXT, **position}
        timed = {**one, "recallHandle": TEXT}
        self._one_json = SuccessFormat(one)
        self._timed_json = SuccessFormat(timed)
        self._timed_binary = SuccessFormat(timed, serialization=BINARY_HEADER)
        self._many_json = SuccessFormat(many)
        self._named_json = SuccessFormat(many | named)
        wrapped = {**one, "batchUniqId": TEXT}
        self._wrapped_json = SuccessFormat(wrapped)
        self._one_binary = SuccessFormat(one, serialization=BINARY_HEADER)
        self._many_binary = SuccessFormat(many, serialization=BINARY_HEADER)
        self._named_binary = SuccessFormat(many | named, serialization=BINARY_HEADER)
        self._wrapped_binary = SuccessFormat(wrapped, serialization=BINARY_HEADER)

    def handle(self, request: Request) -> Response | None:
        """Handle one send.

        Raises:
            ResponseError: the message was refused and is not stored.
        """
        began_s = perf_counter()
        self.finish_deferred()
        self.apply_rules()
        header: SendHeader
        if request.code == RequestCode.SEND_MESSAGE:
            header = request.header(SendMessageRequest)
        else:
            header = request.header(SendMessageV2Request)
        send = Send(request.connection)
        send.request = request
        send.take_header(header, request.body)
        command = request.command
        try:
            refusal = self.flow.refusal()
            if refusal is not None and (
                refusal is not self.flow.lack_of_replicas or _waits(header.properties or "")
            ):
                raise refusal
            if send.requested_topic in self.validation.static_topics:
                self.validation.route_logical(send)
            else:
                self.validation.route(send)
            end = self.store(send, command.opaque, command.serialization == BINARY_HEADER, 0)
        except ResponseError as refused:
            return self._refused(refused.code, refused.remark)
        except InvalidMessageError as problem:
            return self._refused(ResponseCode.MESSAGE_ILLEGAL, str(problem))
        except SegmentNotReadyError:
            raise PrerequisiteError(self._segment) from None
        except StoreError as problem:
            return self.failed(problem)
        response = self.responses_to(0 if request.oneway else end)
        if self._durability.waits() and not _waits(header.properties or ""):
            self._durability.begin()
            self._record_duration(began_s)
            self._send(
                (request.connection, response, 1, began_s, request.code, self._topic), _SUCCESS
            )
        else:
            self._record_duration(began_s)
            self._respond([(request.connection, response, 1, began_s, request.code, self._topic)])
        return None

    def store(self, send: Send, opaque: int, is_binary: bool, at: int) -> int:
        """Store a send that was routed, and encode its response; return the position behind that.

        Args:
            send: the message or the batch.
            opaque: the opaque number of the request.
            is_binary: whether its header is binary.
            at: where the response begins in the buffer of responses.

        Raises:
            CometError: it is not stored.
        """
        send.born_host, send.store_host = send.wire.peer_bytes, self._store_host
        self._topic = send.topic
        more = b""
        unique_id, id_at = octets.start_of(send.id_source), send.id_at
        id_bytes = send.id_end - id_at
        if not is_binary and not octets.is_plain_text(unique_id, id_at, id_bytes):
            escaped = _escaped(octets.bytes_in(unique_id, id_at, id_bytes))
            unique_id, id_at, id_bytes = octets.start_of(escaped), 0, len(escaped)
        if send.is_batch and not send.is_one_record:
            if id_bytes:
                success = self._named_binary if is_binary else self._named_json
            else:
                success = self._many_binary if is_binary else self._many_json
            batch = self.appender.put_batch(send)
            self.stats.put(send.topic, send.queue_id, batch.count, batch.size_bytes)
            more = self._ids_of(batch)
            self.log_end = batch.log_offset_end
            success.numbers[0] = send.requested_queue_id
            success.numbers[1] = batch.queue_offset
            if send.item is not None:
                success.numbers[1] = stored_offset(send.item, batch.queue_offset)
            success.numbers[2] = opaque
        else:
            count, more = 1, send.recall_handle
            if send.is_one_record:
                success = self._wrapped_binary if is_binary else self._wrapped_json
                count = self.appender.put_as_one(send)
            elif more:
                success = self._timed_binary if is_binary else self._timed_json
                self.appender.put(send)
            else:
                success = self._one_binary if is_binary else self._one_json
                self.appender.put(send)
            self.stats.put(send.topic, send.queue_id, count, send.size_bytes)
            self.log_end = send.log_offset + send.size_bytes
            success.numbers[0] = send.log_offset
            success.numbers[1] = send.requested_queue_id
            success.numbers[2] = send.queue_offset
            if send.item is not None:
                success.numbers[2] = stored_offset(send.item, send.queue_offset)
            success.numbers[3] = opaque
        room = at + success.size_max + len(more) + id_bytes * (2 if send.is_one_record else 1)
        if room > len(self._responses):
            self._responses.extend(bytes(room))
        named = octets.window(unique_id, id_at, id_bytes)
        text = octets.start_of(more)
        if send.is_one_record:  # its id is the one of the batch, too
            return success.put(self._responses, at, 0, named, id_bytes, named, id_bytes)
        if send.is_batch:
            return success.put(self._responses, at, 0, text, len(more), named, id_bytes)
        return success.put(self._responses, at, 0, named, id_bytes, text, len(more))

    def responses_to(self, end: int) -> bytes:
        """Return the responses that `store` has encoded, and empty their buffer."""
        responses = copy_of(self._responses, 0, end)
        if len(self._responses) > RESPONSES_BYTES:  # a batch of very many messages was among them
            self._responses = bytearray(RESPONSES_BYTES)
        return responses

    def _record_duration(self, began_s: float) -> None:
        took_s = perf_counter() - began_s
        if took_s >= _SLOW_S:
            took_ms = int(took_s * 1000)
            self.flow.append_took(took_ms)
            self._wrote_slowly = True
            if not self._durability.waits():
                self._throughput.put_took(took_ms)

    def failed(self, problem: StoreError) -> Response:
        """Return the response to a send that the store failed to write."""
        self.stats.put_failed()
        if isinstance(problem, SegmentCreateError):
            remark = f"create mapped file failed, server is busy or broken. {problem}"
            return self._refused(ResponseCode.SYSTEM_ERROR, remark)
        return self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))

    def _refused(self, code: int, remark: str | None) -> Response:
        return Response(code, remark, fields=self._trace_fields)

    def _ids_of(self, batch: AppendedBatch) -> bytes:
        """Return the ids of the messages of a batch, as the response contains them."""
        space = bytearray(self._id_pattern * batch.count)
        step = len(self._id_pattern)
        at = step - len(_ID_END)
        for number in range(batch.count):
            high, low = two_u32(batch.packed_offsets, number * 8)
            put_hex(space, at, high << 32 | low)
            at += step
        return copy_of(space, 0, len(space) - 1)

    # --- responses ----------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Begin to `store` sends of one read batch; see `end_batch`."""
        if not self._pending:
            self.appender.defer()

    def end_batch(
        self, wire: Wire, responses_end: int, count: int, began_s: float, code: int
    ) -> None:
        """Respond to the sends since `begin_batch` when the iteration of the event loop ends.

        So the sends that one iteration reads from several connections have one write to the log.
        A connection that was read twice in a row gets its responses at once.

        Args:
            wire: their connection.
            responses_end: where the responses that `store` has encoded end.
            count: the number of sends.
            began_s: when the first of them began.
            code: their request code.
        """
        batch = wire._batch
        is_alone = batch.is_alone(wire)
        if count:
            self._record_duration(began_s)
            if not self._pending and not is_alone:
                batch.at_end(self.finish_deferred)
            self._pending.append(
                (wire, self.responses_to(responses_end), count, began_s, code, self._topic)
            )
            self._pending_count += count
        if is_alone or not self._pending or self._pending_count >= PENDING_MAX:
            self.finish_deferred()

    def finish_deferred(self) -> None:
        """Write the stored records to the log, and respond."""
        if not self.appender.is_deferred:
            return
        began_s = perf_counter()
        pending, self._pending, self._pending_count = self._pending, [], 0
        try:
            self.appender.write_staged()
        except StoreError as problem:
            self._refuse(pending, problem)
            return
        except Exception as problem:  # several connections wait for their responses
            log.exception("cannot finish sends")
            self._refuse(pending, StoreError(f"{type(problem).__name__}: {problem}"))
            return
        if pending:
            self._record_duration(began_s)
            self._respond(pending)

    def _respond(self, pending: list[PendingResponses]) -> None:
        """Send the responses of stored messages, when all that they wait for has happened."""
        if not self._durability.waits():
            if self._wrote_slowly:
                self._wrote_slowly = False
                now_s = perf_counter()
                for sends in pending:
                    _log_if_slow(sends, now_s, now_s, "")
            for sends in pending:
                self._send(sends, _SUCCESS)
            return
        total = sum(sends[2] for sends in pending)
        self.flow.waiting += total
        waits_s = perf_counter()

        def on_outcome(code: int, error: StoreError | None) -> None:
            self.flow.waiting -= total
            now_s = perf_counter()
            for sends in pending:
                _log_if_slow(sends, waits_s, now_s, self._durability.last_wait)
                self._throughput.put_took(int((now_s - sends[3]) * 1000), sends[2])
                if code == ResponseCode.SUCCESS:
                    self._send(sends, _SUCCESS)
                else:
                    self._respond_not_confirmed(sends, code, error)

        self._durability.wait(self.log_end, on_outcome)

    def _send(self, sends: PendingResponses, code: int) -> None:
        """Send responses; one-way requests have none."""
        if self._latencies is not None:
            self._count_latency(sends, code)
        if sends[1]:
            sends[0].write(sends[1])

    def _count_latency(self, sends: PendingResponses, response_code: int) -> None:
        if self._latencies is not None:
            wire, responses, count, began_s, code, _ = sends
            is_oneway = not responses
            self._latencies.add(code, response_code, began_s, count, False, is_oneway, wire.closed)

    def _refuse(self, pending: list[PendingResponses], problem: StoreError) -> None:
        """Refuse sends whose records could not be written to the log."""
        refused = self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))
        for sends in pending:
            self._count_latency(sends, refused.code)
            for success in _commands_in(sends[1]):
                self.stats.put_failed()
                Request(success, sends[0]).reply(refused)

    def _respond_not_confirmed(
        self, sends: PendingResponses, code: int, error: StoreError | None
    ) -> None:
        """Replace responses: the messages are stored, but perhaps not on the disk or on slaves."""
        status, remark = status_of(code, error)
        wire = sends[0]
        self._count_latency(sends, status)
        for success in _commands_in(sends[1]):
            if status == ResponseCode.SERVICE_NOT_AVAILABLE:
                response = self._refused(status, remark)
            else:
                response = Response(status, fields=success.fields)
            Request(success, wire).reply(response)


def _escaped(text: bytes) -> bytes:
    """Return a text as a JSON header contains it between its quotes."""
    import json  # no id of RocketMQ's clients needs it

    return json.dumps(text.decode(errors="replace"))[1:-1].encode()


def _log_if_slow(pending: PendingResponses, waits_s: float, now_s: float, wait: str) -> None:
    """Log the first of some sends if they took long.

    Args:
        pending: the sends.
        waits_s: when their records were in the log, and the wait for their confirmation began.
        now_s: the time now.
        wait: what they have waited for since then; empty for nothing.
    """
    wire, responses, _, began_s, code, topic = pending
    slow = wire.slow
    if slow is None or now_s - began_s < slow.limit_s or not responses:
        return
    spent = {"append": waits_s - began_s}
    if wait:
        spent[wait] = now_s - waits_s
    opaque = next(_commands_in(responses)).opaque
    slow.add(code, opaque, wire.peer_text, now_s - began_s, spent, topic=topic)


def _commands_in(responses: bytes) -> Iterator[Command]:
    """Yield the responses one by one, with opaque number and serialization of their requests."""
    at = 0
    while at < len(responses):
        command = command_at(responses, at, len(responses), len(responses))
        assert command is not None, "part of a response"
        command.flag = 0
        at += command.frame_bytes
        yield command


def _waits(properties: str) -> bool:
    """Return whether the response to a message waits for disk and slaves."""
    if "WAIT\x01" not in properties or "\x02WAIT\x01true\x02" in properties:
        return True
    return decode_properties(properties).get(property_names.WAIT, "true").lower() == "true"
