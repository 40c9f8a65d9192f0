# cython: annotation_typing=False
"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): store messages.

Each message is validated and stored. The response follows at once or, with synchronous flush, when
the bytes are on disk.

Source: SendMessageProcessor, RocketMQ 5.3 (codes, remarks, the answer's header).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import Final

from cometmq.broker.creation import CreationNeededError, SharedCall
from cometmq.broker.sending.flow_control import FlowControl
from cometmq.broker.sending.group_commit import GroupCommit
from cometmq.broker.sending.send import Send, SendHeader
from cometmq.broker.sending.validation import SendRules, SendValidation
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.model import property_names
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.protocol import octets
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command, command_at
from cometmq.protocol.frame import BINARY_HEADER
from cometmq.protocol.headers import SendMessageRequest, SendMessageV2Request
from cometmq.protocol.octets import copy_of, put_hex, two_u32
from cometmq.protocol.properties import decode_properties
from cometmq.remoting.requests import DECIMAL, HEX, TEXT, Request, Response, SuccessFormat
from cometmq.remoting.wire import Wire
from cometmq.store import MessageStore, SegmentCreateError, SegmentNotReadyError
from cometmq.store.appender import AppendedBatch

log = logging.getLogger(__name__)

Answers = tuple[Wire, bytes, int, float]
"""The responses to one connection, how many they are, and when their first request was begun."""

UNANSWERED_MAX: Final = 512
"""So many sends wait for the end of a turn of the loop, which others may make longer."""
RESPONSES_BYTES: Final = 128 * 1024
_ID_END = b"0" * 16 + b","
"""The digits of a log offset, yet to be filled in, and what separates ids."""


class SendHandler:
    """Stores messages.

    Args:
        store: keeps them.
        validation: says where they go.
        flow: says when to refuse them.
        stats: counts them.
        throughput: told how long it took, when it took long.
        commit: tells when they are on disk; None where nobody waits for that.
        store_host: our address as records carry it, 8 or 20 bytes.
    """

    def __init__(
        self,
        store: MessageStore,
        validation: SendValidation,
        flow: FlowControl,
        stats: BrokerStats,
        throughput: Throughput,
        *,
        commit: GroupCommit | None,
        store_host: bytes,
    ) -> None:
        self._segment = SharedCall(store.wait_for_segment)
        self.appender = store.appender
        self.validation = validation
        self.flow = flow
        self.stats = stats
        self._throughput = throughput
        self._commit = commit
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._id_pattern = self._id_prefix.encode() + _ID_END
        self._rules: SendRules | None = None
        self._responses = bytearray(RESPONSES_BYTES)
        self._unanswered: list[Answers] = []
        self._unanswered_count = 0
        self.appender.before_others = self.settle
        self.log_end = 0
        """The log offset where the last send that was stored ends."""
        self.follow_rules()

    def follow_rules(self) -> None:
        """Tell producers of region and trace switch as they are set now."""
        rules = self.validation.rules
        if rules is self._rules:
            return
        self._rules = rules
        self._trace_fields = {
            "MSG_REGION": rules.region,
            "TRACE_ON": "true" if rules.trace_on else "false",
        }
        place = {"queueId": DECIMAL, "queueOffset": DECIMAL}
        one = {**self._trace_fields, "msgId": self._id_prefix + HEX, **place}
        many = {**self._trace_fields, "msgId": TEXT, **place}
        self._one_json = SuccessFormat(one)
        self._many_json = SuccessFormat(many)
        self._one_binary = SuccessFormat(one, serialization=BINARY_HEADER)
        self._many_binary = SuccessFormat(many, serialization=BINARY_HEADER)

    def handle(self, request: Request) -> Response | None:
        """Answer one send.

        Raises:
            ResponseError: the message was refused and is not stored.
        """
        began_s = perf_counter()
        self.settle()
        self.follow_rules()
        header: SendHeader
        if request.code == RequestCode.SEND_MESSAGE:
            header = request.header(SendMessageRequest)
        else:
            header = request.header(SendMessageV2Request)
        send = Send(request.connection)
        send.take_header(header, request.body)
        command = request.command
        try:
            refusal = self.flow.refusal()
            if refusal is not None:
                raise refusal
            self.validation.place(send)
            end = self.store(send, command.opaque, command.serialization == BINARY_HEADER, 0)
        except ResponseError as refused:
            return self._refused(refused.code, refused.remark)
        except InvalidMessageError as problem:
            return self._refused(ResponseCode.MESSAGE_ILLEGAL, str(problem))
        except SegmentNotReadyError:
            raise CreationNeededError(self._segment) from None
        except StoreError as problem:
            return self.failed(problem)
        response = self.responses_to(0 if request.oneway else end)
        if self._commit is not None and not _waits_for_disk(header.properties or ""):
            self._commit.kick()
            self._took(began_s)
            _write(request.connection, response)
        else:
            self._took(began_s)
            self._respond([(request.connection, response, 1, began_s)])
        return None

    def store(self, send: Send, opaque: int, is_binary: bool, at: int) -> int:
        """Store what was placed and write its response; return the position behind that.

        Args:
            send: the message or the batch.
            opaque: the request's number.
            is_binary: whether its header is.
            at: where in the space for responses this one begins.

        Raises:
            CometError: it is not stored.
        """
        host = send.wire.peer_bytes
        source = octets.start_of(send.source)
        ids = b""
        if send.is_batch:
            success = self._many_binary if is_binary else self._many_json
            batch = self.appender.put_batch(
                send.topic,
                send.queue_id,
                source,
                send.body_at,
                send.body_end,
                send.more,
                send.sys_flag,
                send.born_ms,
                host,
                self._store_host,
                send.reconsumed,
            )
            self.stats.put(send.topic, send.queue_id, batch.count, batch.size_bytes)
            ids = self._ids_of(batch)
            self.log_end = batch.log_offset_end
            success.numbers[0] = send.asked_queue_id
            success.numbers[1] = batch.queue_offset
            success.numbers[2] = opaque
        else:
            success = self._one_binary if is_binary else self._one_json
            stored = self.appender
            stored.put(
                send.topic,
                send.queue_id,
                source,
                send.body_at,
                send.body_end,
                octets.start_of(send.text),
                send.text_at,
                send.text_end,
                send.more,
                send.flag,
                send.sys_flag,
                send.born_ms,
                host,
                self._store_host,
                send.reconsumed,
                0,
            )
            self.stats.put(send.topic, send.queue_id, 1, stored.size_bytes)
            self.log_end = stored.log_offset + stored.size_bytes
            success.numbers[0] = stored.log_offset
            success.numbers[1] = send.asked_queue_id
            success.numbers[2] = stored.queue_offset
            success.numbers[3] = opaque
        room = at + success.size_max + len(ids)
        if room > len(self._responses):
            self._responses.extend(bytes(room))
        return success.put(self._responses, at, ids, 0)

    def responses_to(self, end: int) -> bytes:
        """The responses that `store` has written, to be begun anew after this."""
        responses = copy_of(self._responses, 0, end)
        if len(self._responses) > RESPONSES_BYTES:  # a batch of very many messages was among them
            self._responses = bytearray(RESPONSES_BYTES)
        return responses

    def _took(self, began_s: float) -> None:
        took_ms = int((perf_counter() - began_s) * 1000)
        if took_ms > 0:
            self.flow.append_took(took_ms)
            if self._commit is None:
                self._throughput.put_took(took_ms)

    def failed(self, problem: StoreError) -> Response:
        """The response if the disk refused a message, or what the message needs."""
        self.stats.put_failed()
        if isinstance(problem, SegmentCreateError):
            remark = f"create mapped file failed, server is busy or broken. {problem}"
            return self._refused(ResponseCode.SYSTEM_ERROR, remark)
        return self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))

    def _refused(self, code: int, remark: str) -> Response:
        return Response(code, remark, fields=self._trace_fields)

    def _ids_of(self, batch: AppendedBatch) -> bytes:
        """The ids of the messages of a batch, as an answer tells them."""
        space = bytearray(self._id_pattern * batch.count)
        step = len(self._id_pattern)
        at = step - len(_ID_END)
        for number in range(batch.count):
            high, low = two_u32(batch.packed_offsets, number * 8)
            put_hex(space, at, high << 32 | low)
            at += step
        return copy_of(space, 0, len(space) - 1)

    # --- responses ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to `store` sends of one read that are answered together; see `end`."""
        if not self._unanswered:
            self.appender.hold()

    def end(self, wire: Wire, responses_end: int, count: int, began_s: float) -> None:
        """Have what was stored since `begin` answered, mostly at the end of the loop's turn.

        So the sends that one turn reads from several connections go to the file in one write.
        A connection that was read twice in a row is answered at once.

        Args:
            wire: where they came from.
            responses_end: where the responses that `store` has written end.
            count: how many they are.
            began_s: when the first of them was begun.
        """
        turn = wire._batch
        is_alone = turn.is_alone(wire)
        if count:
            self._took(began_s)
            if not self._unanswered and not is_alone:
                turn.at_end(self.settle)
            self._unanswered.append((wire, self.responses_to(responses_end), count, began_s))
            self._unanswered_count += count
        if is_alone or not self._unanswered or self._unanswered_count >= UNANSWERED_MAX:
            self.settle()

    def settle(self) -> None:
        """Bring what was stored into the log, and respond."""
        if not self.appender.is_held:
            return
        began_s = perf_counter()
        answers, self._unanswered, self._unanswered_count = self._unanswered, [], 0
        try:
            self.appender.release()
        except StoreError as problem:
            self._refuse(answers, problem)
            return
        except Exception as problem:  # an edge: several connections wait for this
            log.exception("cannot settle sends")
            self._refuse(answers, StoreError(f"{type(problem).__name__}: {problem}"))
            return
        if answers:
            self._took(began_s)
            self._respond(answers)

    def _respond(self, answers: list[Answers]) -> None:
        """Send the responses of stored messages, when their bytes are on disk if they must be."""
        if self._commit is None:
            for wire, responses, _, _ in answers:
                _write(wire, responses)
            return
        total = sum(count for _, _, count, _ in answers)
        self.flow.wait_began(total)

        def told(synced: bool, error: StoreError | None) -> None:
            self.flow.wait_ended(total)
            now_s = perf_counter()
            for wire, responses, count, began_s in answers:
                self._throughput.put_took(int((now_s - began_s) * 1000), count)
                if synced:
                    _write(wire, responses)
                else:
                    self._retract(wire, responses, error)

        self._commit.wait(self.log_end, told)

    def _refuse(self, answers: list[Answers], problem: StoreError) -> None:
        """Refuse sends that were given their places and could not be written there after all."""
        refused = self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem))
        for wire, responses, _, _ in answers:
            for success in _commands_in(responses):
                self.stats.put_failed()
                Request(success, wire).reply(refused)

    def _retract(self, wire: Wire, responses: bytes, error: StoreError | None) -> None:
        """Say instead that stored messages are not, or perhaps not, on the disk."""
        remark = f"stored, but not on disk, and nothing further will be: {error}"
        for success in _commands_in(responses):
            if error is not None:
                response = self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
            else:
                response = Response(ResponseCode.FLUSH_DISK_TIMEOUT, fields=success.fields)
            Request(success, wire).reply(response)


def _write(wire: Wire, responses: bytes) -> None:
    """Send responses; there are none to requests that want none."""
    if responses:
        wire.write(responses)


def _commands_in(responses: bytes) -> Iterator[Command]:
    """The responses one by one, each of which leads to its request's number and serialization."""
    at = 0
    while at < len(responses):
        command = command_at(responses, at, len(responses), len(responses))
        assert command is not None, "part of a response"
        command.flag = 0
        at += command.frame_bytes
        yield command


def _waits_for_disk(properties: str) -> bool:
    """Whether the sender of a message wants to be answered only when it is on disk."""
    if "WAIT\x01" not in properties or "\x02WAIT\x01true\x02" in properties:
        return True
    return decode_properties(properties).get(property_names.WAIT, "true").lower() == "true"
