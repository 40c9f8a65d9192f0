"""Scripted brokers for pop: one assigns queues and holds pops, the other has messages."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.pop import MessageQueueAssignment, QueryAssignmentResponseBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.pop import (
    AckMessageRequest,
    ChangeMessageInvisibletimeRequest,
    ChangeMessageInvisibletimeResponse,
    NotificationResponse,
    PopMessageRequest,
    PopMessageResponse,
)
from cometmq.remoting import Request, Response
from support.brokers.scripted import ScriptedBroker
from support.wire.message_records import record

QUEUE = MessageQueue("t", "a", 0)


class PopBroker(ScriptedBroker):
    """Assigns queues to every member that asks, and holds every pop."""

    def __init__(self) -> None:
        super().__init__()
        self.assigned = [QUEUE]
        self.pops: Counter[int] = Counter()
        """How often each queue was popped, by its number."""
        self.handlers[RequestCode.QUERY_ASSIGNMENT] = self._assign
        self.handlers[RequestCode.POP_MESSAGE] = self._pop

    def _assign(self, request: Request) -> Response:
        entries = [MessageQueueAssignment(message_queue=queue) for queue in self.assigned]
        return Response(
            body=QueryAssignmentResponseBody(message_queue_assignments=entries).encode()
        )

    def _pop(self, request: Request) -> Response | None:
        header = request.header(PopMessageRequest)
        if not header.max_msg_nums:
            return Response(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        self.pops[header.queue_id] += 1
        self.moved.set()
        return None


class Shop(ScriptedBroker):
    """Has messages of topic ``t``, and gives each of them once; the test can stop each request."""

    def __init__(self, name: str = "a") -> None:
        super().__init__(name)
        self.pops: list[PopMessageRequest] = []
        self.acks: list[AckMessageRequest] = []
        self.changes: list[ChangeMessageInvisibletimeRequest] = []
        self.holds = self.holds_max = self.popping = self.popping_max = 0
        """Requests that are held, and pops that are served, now and at most."""
        self.may_pop, self.may_change, self.may_ack = (asyncio.Event() for _ in range(3))
        for gate in (self.may_pop, self.may_change, self.may_ack):
            gate.set()
        self.surplus = 0
        """Messages of a pop beyond those it asked for."""
        self.refusal: Response | None = None
        """The response to pops, if they are refused."""
        self._stock: deque[tuple[bytes, str, int]] = deque()
        self._came = asyncio.Condition()
        self._offset = 0
        self.handlers |= {
            RequestCode.POP_MESSAGE: self._pop,
            RequestCode.NOTIFICATION: self._hold,
            RequestCode.ACK_MESSAGE: self._ack,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self._change,
        }

    async def put(self, *bodies: bytes, tags: str = "", reconsume_times: int = 0) -> None:
        """Get messages, and wake one held request."""
        self._stock += [(body, tags, reconsume_times) for body in bodies]
        async with self._came:
            self._came.notify()

    @property
    def real_pops(self) -> list[PopMessageRequest]:
        """The pops that asked for messages."""
        return [pop for pop in self.pops if pop.max_msg_nums]

    async def _pop(self, request: Request) -> Response:
        header = request.header(PopMessageRequest)
        self.pops.append(header)
        self.moved.set()
        if self.refusal is not None:
            return self.refusal
        if not header.max_msg_nums:
            return Response(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        self.popping += 1
        self.popping_max = max(self.popping_max, self.popping)
        await self.may_pop.wait()
        self.popping -= 1
        count = min(header.max_msg_nums + self.surplus, len(self._stock))
        if not count:
            return Response(ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
        first = self._offset
        body = b"".join(self._record() for _ in range(count))
        answer = PopMessageResponse(
            pop_time=1_700_000_000_000,
            invisible_time=header.invisible_time,
            revive_qid=3,
            rest_num=len(self._stock),
            start_offset_info=f"0 0 {first}",
        )
        return Response(header=answer, body=body)

    def _record(self) -> bytes:
        body, tags, reconsume_times = self._stock.popleft()
        properties = {"UNIQ_KEY": f"ID{self._offset}", **({"TAGS": tags} if tags else {})}
        self._offset += 1
        facts = {"queue_offset": self._offset - 1, "reconsume_times": reconsume_times}
        return record(body, b"t", properties, queue_id=0, **facts)

    async def _hold(self, request: Request) -> Response:
        self.holds += 1
        self.holds_max = max(self.holds_max, self.holds)
        self.moved.set()
        async with self._came:
            if not self._stock:
                await self._came.wait()
        self.holds -= 1
        return Response(header=NotificationResponse(has_msg=True, polling_full=False))

    async def _ack(self, request: Request) -> Response:
        await self.may_ack.wait()
        self.acks.append(request.header(AckMessageRequest))
        self.moved.set()
        return Response()

    async def _change(self, request: Request) -> Response:
        header = request.header(ChangeMessageInvisibletimeRequest)
        self.changes.append(header)
        self.moved.set()
        await self.may_change.wait()
        answer = ChangeMessageInvisibletimeResponse(
            pop_time=1_700_000_000_000 + len(self.changes),
            invisible_time=header.invisible_time,
            revive_qid=3,
        )
        return Response(header=answer)
