"""Handles LIST_TIMER_MESSAGES (420002): shows the messages that wait, slot by slot.

A response has whole slots, so that it knows which of their messages are recalled: a recall is
behind its message, and a slot is read from its end. A slot with too many messages is cut.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.core import Core
from cometmq.broker.targets import queue_id_of
from cometmq.broker.timers.routing import TimerRouting
from cometmq.broker.timers.senders import Recallers
from cometmq.model import property_names as names
from cometmq.model.errors import ProtocolError
from cometmq.model.numbers import number_of
from cometmq.protocol.bodies.timers import TimerMessage, TimerMessages
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.headers.timers import ListTimerMessagesRequest, ListTimerMessagesResponse
from cometmq.protocol.properties import decode_properties
from cometmq.protocol.record import split_record
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode
from cometmq.store.timers.index import TimerIndex
from cometmq.store.timers.timer_log import DELETE, Unit

LISTED_MAX: Final = 1_000
"""Messages in one response."""
UNITS_MAX: Final = 10_000
"""Messages and recalls that one request reads."""
POSITIONS_MAX: Final = 100_000
"""Messages and recalls of one slot that are looked at, also those of other topics."""
SLOTS_MAX: Final = 100_000
"""Slots that one request looks at."""
SHOWN_CHARS_MAX: Final = 300


class TimerListHandler:
    """Shows the messages that wait.

    Args:
        core: of the broker.
        index: of the timer topic.
        routing: makes the handles.
    """

    def __init__(self, core: Core, index: TimerIndex, routing: TimerRouting) -> None:
        self._store = core.store
        self._cold_reads = core.cold_reads
        self._index = index
        self._routing = routing

    async def messages(self, request: Request) -> Response:
        """Return the messages of the next slots."""
        header = request.header(ListTimerMessagesRequest)
        index, slices = self._index, Slices()
        most = max(1, min(header.max_num, LISTED_MAX))
        begin_ms = max(header.begin_ms, index.passed.read_ms)
        slot_ms = begin_ms - begin_ms % index.precision_ms
        end_ms = slot_ms + SLOTS_MAX * index.precision_ms
        found: list[TimerMessage] = []
        left_out = units = 0
        while slot_ms <= index.latest_ms and slot_ms < end_ms and len(found) < most:
            room = UNITS_MAX - units
            here, read, unread = await self._slot(slot_ms, header, room, slices)
            is_first = units == 0
            if not is_first and (unread or len(found) + len(here) > most):
                break  # the next response has it as a whole
            units += read
            found += here[:most]
            left_out += unread + len(here[most:])
            slot_ms += index.precision_ms
            await slices.pause()
        next_ms = slot_ms if slot_ms <= index.latest_ms else None
        return Response(
            header=ListTimerMessagesResponse(next_ms=next_ms, left_out=left_out),
            body=await encode(TimerMessages(messages=found), slices),
        )

    async def _slot(
        self, slot_ms: int, header: ListTimerMessagesRequest, room: int, slices: Slices
    ) -> tuple[list[TimerMessage], int, int]:
        """Return the messages of a slot, how many units were read, and how many were not."""
        index, topic = self._index, header.topic
        wanted_hash = None if not topic else java_hash(topic)
        found: list[TimerMessage] = []
        recallers = Recallers()
        read = unread = 0
        for number, position in enumerate(index.positions(slot_ms)):
            if number == POSITIONS_MAX or read == room:
                unread = max(1, index.count_in(slot_ms) - number)
                break
            await slices.pause()
            unit = index.unit(position)
            if wanted_hash is not None and unit.topic_hash != wanted_hash:
                continue
            read += 1
            cold = self._store.cold_record(unit.log_offset, unit.record_bytes)
            if cold is not None:
                await self._cold_reads.run(cold)
            message = self._message(unit, recallers)
            if message is None or (topic and message.topic != topic):
                continue
            if not header.key or header.key in (message.message_id, *message.keys.split(" ")):
                found.append(message)
        return found, read, unread

    def _message(self, unit: Unit, recallers: Recallers) -> TimerMessage | None:
        """Return what is shown of a message; note who recalls it, and return None for a recall."""
        data = self._store.record_at(unit.log_offset, unit.record_bytes)
        try:
            record = None if data is None else split_record(data)
        except ProtocolError:
            record = None
        if record is None:
            return None
        if unit.magic & DELETE:
            recallers.add(record.properties)
            return None
        properties = decode_properties(record.properties)
        out_ms = number_of(properties.get(names.TIMER_OUT_MS, "").encode()) or unit.slot_ms
        message_id = properties.get(names.UNIQ_KEY, "")
        return TimerMessage(
            topic=properties.get(names.REAL_TOPIC, ""),
            queue_id=queue_id_of(properties.get(names.REAL_QID, "")),
            message_id=message_id[:SHOWN_CHARS_MAX],
            keys=properties.get(names.KEYS, "")[:SHOWN_CHARS_MAX],
            due_ms=unit.due_ms or out_ms + self._index.precision_ms,
            is_recalled=recallers.recall(record.properties),
            sender=properties.get(names.TIMER_SENDER),
            store_ms=record.store_time_ms,
            body_bytes=len(record.body),
            handle=(
                self._routing.handle_for(properties) if len(message_id) <= SHOWN_CHARS_MAX else ""
            ),
        )
