"""Handles the requests of brokers to a member of a consumer group, mostly for administrators.

     40   the members of the group changed  -> rebalance soon                       one-way
    220   continue at these offsets         -> move the queues that are assigned    one-way
    221   return the offsets in memory      -> by queue
    307   return the running info           -> settings, queues, rates, stacks
    309   consume this message now          -> call the handler; offsets do not change

`cometmq.client._connection.broker_requests` finds the member: `GROUP_OF` has a line for each code.

Source: ClientRemotingProcessor, MQClientInstance.resetOffset and
ConsumeMessageConcurrentlyService.consumeMessageDirectly, RocketMQ 5.3, where pull consumers ignore
220.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import cast

from cometmq.client._connection.identity import Namespace
from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.handler_calls import Ended, HandlerCalls
from cometmq.client._supervision import class_and_text
from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.client.hooks import ConsumeEnd
from cometmq.client.settings import Checked
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import retry_topic
from cometmq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
)
from cometmq.protocol.bodies.group import (
    GetConsumerStatusBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from cometmq.protocol.bodies.heartbeat import ConsumeType
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
)
from cometmq.protocol.record import decode_messages
from cometmq.protocol.version import CURRENT_VERSION, version_name
from cometmq.remoting import Request, RequestHandler, Response
from cometmq.system.settings import describe

log = logging.getLogger(__name__)

STACKS_CHARS_MAX = 512 * 1024

Offsets = Mapping[MessageQueue, QueueOffset]

_RESULTS = {
    Consumed.SUCCESS: ConsumeResult.CR_SUCCESS,
    Consumed.LATER: ConsumeResult.CR_LATER,
    ConsumedInOrder.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumedInOrder.SUSPEND: ConsumeResult.CR_LATER,
    ConsumedInOrder.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumedInOrder.ROLLBACK: ConsumeResult.CR_ROLLBACK,
}
_ENDS = {
    ConsumeResult.CR_SUCCESS: ConsumeEnd.SUCCESS,
    ConsumeResult.CR_COMMIT: ConsumeEnd.SUCCESS,
    ConsumeResult.CR_LATER: ConsumeEnd.FAILED,
    ConsumeResult.CR_ROLLBACK: ConsumeEnd.FAILED,
    ConsumeResult.CR_THROW_EXCEPTION: ConsumeEnd.EXCEPTION,
}


class RequestHandlers:
    """The request handlers of one consumer. A request that it cannot serve is refused.

    Args:
        instance: receives the requests.
        group: the group as brokers know it.
        rebalance: called when the members of the group change.
        running_info: returns what code 307 requests.
        offsets: returns the offsets in memory.
        move: continues assigned queues at other offsets; ignores other queues.
        handling: the handler.
    """

    def __init__(
        self,
        instance: ClientCore,
        group: str,
        *,
        rebalance: Callable[[], None],
        running_info: Callable[[], ConsumerRunningInfo],
        offsets: Callable[[], Offsets] | None = None,
        move: Callable[[Offsets], Awaitable[None]] | None = None,
        handling: HandlerCalls | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._rebalance = rebalance
        self._running_info = running_info
        self._offsets = offsets
        self._move = move
        self._handling = handling
        self._moving = asyncio.Lock()
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
        }
        if offsets is not None:
            self._handlers[RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT] = self._status
        if move is not None:
            self._handlers[RequestCode.RESET_CONSUMER_CLIENT_OFFSET] = self._reset
        if handling is not None:
            self._handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume

    def open(self) -> None:
        """Handle requests from now on."""
        self._instance.requests.register(self._group, self._handlers)

    def close(self) -> None:
        """Handle requests no longer."""
        self._instance.requests.unregister(self._group, self._handlers)

    def _members_changed(self, request: Request) -> None:
        self._rebalance()

    async def _reset(self, request: Request) -> Response | None:
        assert self._move is not None
        offsets = offsets_in(request.body)
        log.info("offsets reset by an administrator group=%s queues=%d", self._group, len(offsets))
        async with self._moving:
            await self._move(offsets)
        self._rebalance()
        return None

    def _status(self, request: Request) -> Response:
        assert self._offsets is not None
        topic = request.header(InvokeBrokerToGetConsumerStatusRequest).topic
        table = {
            queue: int(offset) for queue, offset in self._offsets().items() if queue.topic == topic
        }
        return Response(body=GetConsumerStatusBody(message_queue_table=table).encode())

    def _running(self, request: Request) -> Response:
        info = self._running_info()
        if request.header(GetConsumerRunningInfoRequest).jstack_enable:
            info.jstack = stacks()
        return Response(body=info.encode())

    async def _consume(self, request: Request) -> Response:
        assert self._handling is not None
        header = request.header(ConsumeMessageDirectlyRequest)
        message = _message_in(request, header, self._instance.namespace)
        ordered = self._handling.ordered
        context: OrderedContext | ConsumeContext
        if ordered:
            context = self._handling.ordered_context(message.queue)
        else:
            context = self._handling.context(message.queue)
        ended = await self._handling.run([message], context)
        consumed = _result_of(ended)
        self._handling.after(ended, _ENDS[consumed])
        result = ConsumeMessageDirectlyResult(
            order=ordered,
            auto_commit=context.auto_commit if isinstance(context, OrderedContext) else True,
            consume_result=consumed,
            remark=None if ended.error is None else class_and_text(ended.error),
            spent_time_mills=int(ended.seconds * 1000),
        )
        return Response(body=result.encode())


def _message_in(
    request: Request, header: ConsumeMessageDirectlyRequest, namespace: Namespace
) -> StoredMessage:
    found = decode_messages(request.body)
    if not found:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "the request holds no message")
    message = found[0]
    message.broker_name = header.broker_name or ""
    wire_group = namespace.wrap_group(header.consumer_group)
    namespace.unwrap_topics(found, retry_topic=retry_topic(wire_group))
    return message


def _result_of(ended: Ended) -> ConsumeResult:
    if isinstance(ended.error, ConsumeLater):
        return ConsumeResult.CR_LATER
    if ended.error is not None:
        return ConsumeResult.CR_THROW_EXCEPTION
    if isinstance(ended.result, Consumed | ConsumedInOrder):
        return _RESULTS[ended.result]
    return ConsumeResult.CR_SUCCESS


def offsets_in(body: bytes) -> dict[MessageQueue, QueueOffset]:
    """Read the offsets of a reset, in the form of a map or of a list.

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


def common_properties(
    instance: ClientCore,
    settings: Checked,
    *,
    group: str,
    concurrency: int,
    started_ms: int,
    ordered: bool,
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY,
) -> dict[str, str]:
    """Return the settings by RocketMQ's names, and what else mqadmin shows of any consumer."""
    kind = cast(type, type(settings))
    options = {
        each.key: each.render(getattr(settings, each.name))
        for each in describe(kind)
        if not each.secret
    }
    addresses = "".join(f"{address};" for address in instance.name_servers.addresses)
    return options | {
        "consumerGroup": group,
        "namespace": instance.namespace.name,
        "PROP_NAMESERVER_ADDR": addresses,
        "PROP_THREADPOOL_CORE_SIZE": str(concurrency),
        "PROP_CONSUMEORDERLY": "true" if ordered else "false",
        "PROP_CONSUME_TYPE": consume_type.value,
        "PROP_CLIENT_VERSION": version_name(CURRENT_VERSION),
        "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
    }


def stacks() -> str:
    """Return the stacks of all threads and tasks of this process, at most 512 Ki characters."""
    return "\n".join([*_threads(), *_tasks()])[:STACKS_CHARS_MAX]


def _threads() -> Iterator[str]:
    names_by_id = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names_by_id.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"


def _tasks() -> Iterator[str]:
    for task in asyncio.all_tasks():
        lines = [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in task.get_stack(limit=8)
        ]
        yield "\n".join([f"task {task.get_name()}", *lines, ""])
