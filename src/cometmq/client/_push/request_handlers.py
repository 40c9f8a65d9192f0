"""PullRequestHandlers what brokers ask a consumer, mostly on behalf of administrators.

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
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import cast

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.direct_consumption import consume_directly
from cometmq.client._consuming.subscriptions import Subscriptions
from cometmq.client._push.engine import Engine
from cometmq.client.settings import Checked
from cometmq.model.errors import ResponseError
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import (
    ConsumerRunningInfo,
    ConsumeType,
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
from cometmq.protocol.version import CURRENT_VERSION, version_name
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.system.settings import describe

log = logging.getLogger(__name__)

CODES = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)


class PushRequestHandlers:
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


STACKS_CHARS_MAX = 512 * 1024


def running_info(
    instance: ClientInstance, engine: Engine, subscriptions: Subscriptions
) -> ConsumerRunningInfo:
    """Put together what is known of a consumer."""
    return ConsumerRunningInfo(
        properties=common_properties(
            instance,
            engine.settings,
            group=engine.group,
            concurrency=engine.concurrency,
            started_ms=engine.started_ms,
            ordered=engine.wish.ordered,
        ),
        subscription_set=subscriptions.data(),
        mq_table={
            fetched.queue: fetched.info(engine.store.position(fetched.queue) or QueueOffset(0))
            for fetched in engine.queues.process_queues()
        },
        status_table={topic: engine.statistics.status(topic) for topic in subscriptions.topics()},
    )


def common_properties(
    instance: ClientInstance,
    settings: Checked,
    *,
    group: str,
    concurrency: int,
    started_ms: int,
    ordered: bool,
) -> dict[str, str]:
    """Say the settings by RocketMQ's names, and what else mqadmin shows of any consumer."""
    kind = cast(type, type(settings))
    options = {
        each.key: each.render(getattr(settings, each.name))
        for each in describe(kind)
        if not each.secret
    }
    addresses = "".join(f"{address};" for address in instance.name_servers.addresses)
    return options | {
        "consumerGroup": group,
        "PROP_NAMESERVER_ADDR": addresses,
        "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
        "PROP_CONSUME_TYPE": ConsumeType.CONSUME_PASSIVELY.value,
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }


def stacks() -> str:
    """Say where every thread and every task of this process is, in at most 512 Ki characters."""
    return "\n".join([*_threads(), *_tasks()])[:STACKS_CHARS_MAX]


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"


def _tasks() -> Iterator[str]:
    for task in asyncio.all_tasks():
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in task.get_stack(limit=8)
        ]
        yield "\n".join([f"task {task.get_name()}", *lines, ""])
