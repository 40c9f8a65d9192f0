# cython: annotation_typing=False
"""SEND_MESSAGE (10), SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): store messages.

Each message is validated and stored. The response follows at once or, with synchronous flush, when
the bytes are on disk.

Source: SendMessageProcessor, RocketMQ 5.3 (codes, remarks, the answer's header).
"""

from __future__ import annotations

from time import perf_counter

import msgspec

from cometmq.broker.creation import CreationNeededError, SharedCall
from cometmq.broker.sending.flow_control import FlowControl
from cometmq.broker.sending.group_commit import GroupCommit
from cometmq.broker.sending.validation import SendHeader, SendRules, SendValidation
from cometmq.broker.stats.counters import BrokerStats
from cometmq.broker.stats.throughput import Throughput
from cometmq.model import property_names
from cometmq.model.errors import InvalidMessageError, ResponseError, StoreError
from cometmq.model.flags import SysFlag
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.frame import JSON_HEADER
from cometmq.protocol.headers import (
    SendMessageRequest,
    SendMessageResponse,
    SendMessageV2Request,
)
from cometmq.protocol.octets import copy_of, put_hex, two_u32
from cometmq.protocol.properties import decode_properties
from cometmq.remoting.exchange import Request, Response, SuccessFormat
from cometmq.remoting.wire import Wire
from cometmq.store import MessageStore, SegmentCreateError, SegmentNotReadyError
from cometmq.store.appending import AppendedBatch

Place = tuple[int | bytes, int, int]
"""What an answer tells: log offset or message ids, queue, and queue offset."""

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
        self._store = store
        self._segment = SharedCall(store.wait_for_segment)
        self.appender = store.appender
        self.validation = validation
        self.flow = flow
        self.stats = stats
        self._throughput = throughput
        self._began_s = 0.0
        self._commit = commit
        self.store_host = store_host
        self._id_prefix = store_host.hex().upper()
        self._id_pattern = self._id_prefix.encode() + _ID_END
        self._host_flag = SysFlag.STORE_HOST_V6 if len(store_host) > 8 else 0
        self._rules: SendRules | None = None
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
        trace = msgspec.json.encode(self._trace_fields).decode()[:-1].replace("%", "%%")
        place = '"queueId":"%d","queueOffset":"%d"}'
        self.success = SuccessFormat(f'{trace},"msgId":"{self._id_prefix}%016X",{place}')
        self.batch_success = SuccessFormat(f'{trace},"msgId":"%s",{place}')

    def handle(self, request: Request) -> Response | None:
        """Answer one send.

        Raises:
            ResponseError: the message was refused and is not stored.
        """
        began_s = self._began_s = perf_counter()
        self.follow_rules()
        header: SendHeader
        if request.code == RequestCode.SEND_MESSAGE:
            header = request.header(SendMessageRequest)
        else:
            header = request.header(SendMessageV2Request)
        try:
            refusal = self.flow.refusal()
            if refusal is not None:
                raise refusal
            if header.batch:
                self._store_batch(request, header)
            else:
                self._store_one(request, header)
        except ResponseError as refused:
            return self._refused(refused.code, refused.remark)
        except InvalidMessageError as problem:
            return self._refused(ResponseCode.MESSAGE_ILLEGAL, str(problem))
        except SegmentNotReadyError:
            raise CreationNeededError(self._segment) from None
        except StoreError as problem:
            return self.failed(problem)
        self._appended(began_s)
        return None

    def _appended(self, began_s: float) -> None:
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

    def _store_one(self, request: Request, header: SendHeader) -> None:
        connection = request.connection
        placement = self.validation.place(header, request.body, connection)
        host = connection.peer_bytes
        stored = self.appender.append(
            placement.topic,
            placement.queue_id,
            request.body,
            placement.properties,
            header.flag,
            self._sys_flag(header, host) | placement.sys_flag,
            header.born_timestamp,
            host,
            self.store_host,
            header.reconsume_times or 0,
            0,
        )
        self.stats.put(placement.topic, placement.queue_id, 1, stored.size_bytes)
        place = (stored.log_offset, placement.asked_queue_id, stored.queue_offset)
        if self._commit is None:
            self._succeed(request, self.success, place)
        else:
            end = stored.log_offset + stored.size_bytes
            self._answer_when_synced(request, header, self.success, place, end)

    def _sys_flag(self, header: SendHeader, born_host: bytes) -> int:
        flag = header.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        return flag | self.host_flags(born_host)

    def host_flags(self, born_host: bytes) -> int:
        """The bits that say which hosts of a record have IPv6 addresses."""
        return self._host_flag | (SysFlag.BORN_HOST_V6 if len(born_host) > 8 else 0)

    def ids_of(self, batch: AppendedBatch) -> bytes:
        """The ids of the messages of a batch, as an answer tells them."""
        space = bytearray(self._id_pattern * batch.count)
        step = len(self._id_pattern)
        at = step - len(_ID_END)
        for number in range(batch.count):
            high, low = two_u32(batch.packed_offsets, number * 8)
            put_hex(space, at, high << 32 | low)
            at += step
        return copy_of(space, 0, len(space) - 1)

    def _store_batch(self, request: Request, header: SendHeader) -> None:
        connection = request.connection
        placement = self.validation.place_batch(header, request.body, connection)
        host = connection.peer_bytes
        stored = self._store.append_batch(
            placement.topic,
            placement.queue_id,
            request.body,
            placement.properties,
            sys_flag=self._sys_flag(header, host) | placement.sys_flag,
            born_time_ms=header.born_timestamp,
            born_host=host,
            store_host=self.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
        self.stats.put(placement.topic, placement.queue_id, stored.count, stored.size_bytes)
        place = (self.ids_of(stored), placement.asked_queue_id, stored.queue_offset)
        if self._commit is None:
            self._succeed(request, self.batch_success, place)
        else:
            end = stored.log_offset_end
            self._answer_when_synced(request, header, self.batch_success, place, end)

    # --- answers ------------------------------------------------------------------------------

    def _answer_when_synced(
        self,
        request: Request,
        header: SendHeader,
        success: SuccessFormat,
        place: Place,
        end: int,
    ) -> None:
        assert self._commit is not None
        if not _waits_for_disk(header.properties or ""):
            self._commit.kick()
            self._succeed(request, success, place)
            return
        began_s = self._began_s
        self.flow.wait_began()

        def told(synced: bool, error: StoreError | None) -> None:
            self.flow.wait_ended()
            self._throughput.put_took(int((perf_counter() - began_s) * 1000))
            if synced:
                self._succeed(request, success, place)
            else:
                request.reply(self._not_synced(place, error))

        self._commit.wait(end, told)

    def answer_plain(
        self,
        wire: Wire,
        heads: bytes,
        places: list[tuple[int | bytes, int, int, int]],
        end: int,
        began_s: float,
    ) -> None:
        """Answer several sends of one peer, when their bytes are on disk if they must be.

        Args:
            wire: where they came from.
            heads: the answers if all is well, one after the other.
            places: log offset or ids, queue, queue offset and opaque of each.
            end: the log offset where the last of them ends.
            began_s: when the first of them was begun.
        """
        self._appended(began_s)
        if self._commit is None:
            wire.write(heads)
            return
        self.flow.wait_began(len(places))

        def told(synced: bool, error: StoreError | None) -> None:
            self.flow.wait_ended(len(places))
            self._throughput.put_took(int((perf_counter() - began_s) * 1000), len(places))
            if synced:
                wire.write(heads)
                return
            for where, queue_id, queue_offset, opaque in places:
                answer = self._not_synced((where, queue_id, queue_offset), error)
                request = Request(Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque), wire)
                request.reply(answer)

        self._commit.wait(end, told)

    def answer_lost(
        self,
        wire: Wire,
        places: list[tuple[int | bytes, int, int, int]],
        problem: StoreError,
    ) -> None:
        """Refuse sends that were given their places and could not be written there after all."""
        for *_, opaque in places:
            self.stats.put_failed()
            request = Request(Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque), wire)
            request.reply(self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(problem)))

    def _succeed(self, request: Request, success: SuccessFormat, place: Place) -> None:
        command = request.command
        if command.serialization == JSON_HEADER:
            request.reply_head(success.head((*place, command.opaque)))
        else:
            request.reply(self._stored(ResponseCode.SUCCESS, place))

    def _not_synced(self, place: Place, error: StoreError | None) -> Response:
        if error is None:
            return self._stored(ResponseCode.FLUSH_DISK_TIMEOUT, place)
        remark = f"stored, but not on disk, and nothing further will be: {error}"
        return self._refused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)

    def _stored(self, code: int, place: Place) -> Response:
        """The long way, for answers that are no success or not in JSON."""
        where, queue_id, queue_offset = place
        message_id = (
            where.decode() if isinstance(where, bytes) else f"{self._id_prefix}{where:016X}"
        )
        header = SendMessageResponse(
            msg_id=message_id, queue_id=queue_id, queue_offset=queue_offset
        )
        return Response(code, header=header, fields=self._trace_fields)


def _waits_for_disk(properties: str) -> bool:
    """Whether the sender of a message wants to be answered only when it is on disk."""
    if "WAIT\x01" not in properties or "\x02WAIT\x01true\x02" in properties:
        return True
    return decode_properties(properties).get(property_names.WAIT, "true").lower() == "true"
