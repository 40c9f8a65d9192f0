"""Answers what brokers ask a consumer, mostly on behalf of administrators.

     40   the group has changed       -> divide the queues soon
    220   go on at these offsets      -> move the queues that are this member's
    221   where do you stand?         -> offsets in memory
    307   how do you run?             -> settings, queues, rates, stacks
    309   consume this message now    -> call the handler; offsets stay

Source: ClientRemotingProcessor and MQClientInstance.resetOffset, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.client.instance import ClientInstance
from cometmq.client.push.engine import Engine
from cometmq.client.push.handling import Ended
from cometmq.client.push.running import stacks
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import retry_topic
from cometmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
    InvokeBrokerToResetOffsetRequest,
)
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Processor, Request, Response

log = logging.getLogger(__name__)

CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)

_RESULTS = {
    Consumed.SUCCESS: ConsumeResult.CR_SUCCESS,
    Consumed.LATER: ConsumeResult.CR_LATER,
    ConsumedInOrder.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumedInOrder.SUSPEND: ConsumeResult.CR_LATER,
    ConsumedInOrder.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumedInOrder.ROLLBACK: ConsumeResult.CR_ROLLBACK,
}


class Questions:
    """The answers of one consumer.

    Args:
        instance: whose brokers ask.
        engine: of the consumer.
        running_info: gives what code 307 asks for.
    """

    def __init__(
        self,
        instance: ClientInstance,
        engine: Engine,
        running_info: Callable[[], ConsumerRunningInfo],
    ) -> None:
        self._instance = instance
        self._engine = engine
        self._running_info = running_info
        self._resetting = asyncio.Lock()

    def open(self) -> None:
        """Answer from now on."""
        answers: tuple[Processor, ...] = (
            self._changed,
            self._reset,
            self._status,
            self._running,
            self._consume,
        )
        for code, answer in zip(CODES, answers, strict=True):
            self._instance.requests.answer(code, self._engine.group, answer)

    def close(self) -> None:
        """Answer no longer."""
        self._instance.requests.forget(self._engine.group, *CODES)

    def _changed(self, request: Request) -> None:
        self._engine.rebalancer.wake()

    async def _reset(self, request: Request) -> Response | None:
        header = request.header(InvokeBrokerToResetOffsetRequest)
        wanted = offsets_in(request.body)
        owned = self._engine.queues.queues()
        moves = {queue: wanted[queue] for queue in owned if queue in wanted}
        log.info(
            "an administrator moves offsets group=%s topic=%s queues=%d mine=%d",
            *(self._engine.group, header.topic, len(wanted), len(moves)),
        )
        async with self._resetting:
            await self._engine.move(moves)
        self._engine.rebalancer.wake()
        return None

    def _status(self, request: Request) -> Response:
        header = request.header(InvokeBrokerToGetConsumerStatusRequest)
        table = {
            queue: int(offset)
            for queue, offset in self._engine.store.table().items()
            if queue.topic == header.topic
        }
        return Response(body=GetConsumerStatusBody(message_queue_table=table).encode())

    def _running(self, request: Request) -> Response:
        info = self._running_info()
        if request.header(GetConsumerRunningInfoRequest).jstack_enable:
            info.jstack = stacks()
        return Response(body=info.encode())

    async def _consume(self, request: Request) -> Response:
        header = request.header(ConsumeMessageDirectlyRequest)
        message = self._message_in(request, header.broker_name or "")
        ordered = self._engine.wish.ordered
        queue = self._engine.handling.shown(message.queue)
        context: OrderedContext | ConsumeContext
        if ordered:
            context = OrderedContext(self._engine.wish.group, queue)
        else:
            context = ConsumeContext(self._engine.wish.group, queue)
        ended = await self._engine.handling.run([message], context)
        result = ConsumeMessageDirectlyResult(
            order=ordered,
            auto_commit=context.auto_commit if isinstance(context, OrderedContext) else True,
            consume_result=result_of(ended),
            remark=_remark(ended),
            spent_time_mills=int(ended.seconds * 1000),
        )
        return Response(body=result.encode())

    def _message_in(self, request: Request, broker_name: str) -> StoredMessage:
        found = decode_messages(request.body)
        if not found:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "the request holds no message")
        message = found[0]
        message.broker_name = broker_name
        if message.topic == retry_topic(self._engine.group):
            message.topic = message.properties.get(names.RETRY_TOPIC, message.topic)
        message.topic = self._instance.namespace.unwrap(message.topic)
        return message


def offsets_in(body: bytes) -> dict[MessageQueue, QueueOffset]:
    """Read an order to move offsets, in the form of a map or of a list.

    Raises:
        InvalidBodyError: it is neither.
    """
    try:
        table = ResetOffsetBody.decode(body).offset_table
    except ResponseError:
        entries = ResetOffsetBodyForC.decode(body).offset_table
        return {
            MessageQueue(each.topic, each.broker_name, each.queue_id): QueueOffset(each.offset)
            for each in entries
        }
    return {queue: QueueOffset(offset) for queue, offset in table.items()}


def result_of(ended: Ended) -> ConsumeResult:
    """Say how a call ended as administrators are told it; None is success."""
    if isinstance(ended.error, ConsumeLater):
        return ConsumeResult.CR_LATER
    if ended.error is not None:
        return ConsumeResult.CR_THROW_EXCEPTION
    if isinstance(ended.result, Consumed | ConsumedInOrder):
        return _RESULTS[ended.result]
    return ConsumeResult.CR_SUCCESS


def _remark(ended: Ended) -> str | None:
    return None if ended.error is None else f"{type(ended.error).__name__}: {ended.error}"
