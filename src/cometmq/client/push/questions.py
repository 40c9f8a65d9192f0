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

from cometmq.client.instance import ClientInstance
from cometmq.client.push.direct import consume_directly
from cometmq.client.push.engine import Engine
from cometmq.client.push.running import stacks
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import (
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import (
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
    InvokeBrokerToResetOffsetRequest,
)
from cometmq.remoting import Request, RequestHandler, Response

log = logging.getLogger(__name__)

CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


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
        answers: tuple[RequestHandler, ...] = (
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
            "offsets reset by an administrator group=%s topic=%s queues=%d assigned=%d",
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
        return await consume_directly(
            request,
            self._engine.handling,
            self._instance.namespace,
            ordered=self._engine.wish.ordered,
        )


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
