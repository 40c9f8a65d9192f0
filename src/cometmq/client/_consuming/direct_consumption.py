"""Calls a consumer's handler with one message that an administrator chose; offsets stay.

Source: ConsumeMessageConcurrentlyService.consumeMessageDirectly and its ordered twin, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client._connection.namespaces import Namespace
from cometmq.client._consuming.handler_calls import Ended, HandlerCalls
from cometmq.client.errors import ConsumeLater
from cometmq.client.handlers import ConsumeContext, Consumed, ConsumedInOrder, OrderedContext
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.topic import retry_topic
from cometmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumeResult
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import ConsumeMessageDirectlyRequest
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, Response

_RESULTS = {
    Consumed.SUCCESS: ConsumeResult.CR_SUCCESS,
    Consumed.LATER: ConsumeResult.CR_LATER,
    ConsumedInOrder.SUCCESS: ConsumeResult.CR_SUCCESS,
    ConsumedInOrder.SUSPEND: ConsumeResult.CR_LATER,
    ConsumedInOrder.COMMIT: ConsumeResult.CR_COMMIT,
    ConsumedInOrder.ROLLBACK: ConsumeResult.CR_ROLLBACK,
}


async def consume_directly(
    request: Request, handling: HandlerCalls, namespace: Namespace, *, ordered: bool
) -> Response:
    """Call the handler with the message in a request, and answer how that ended.

    Raises:
        ResponseError: the request holds no message.
    """
    header = request.header(ConsumeMessageDirectlyRequest)
    message = _message_in(request, header, namespace)
    queue = handling.shown(message.queue)
    context: OrderedContext | ConsumeContext
    if ordered:
        context = OrderedContext(handling.group, queue)
    else:
        context = ConsumeContext(handling.group, queue)
    ended = await handling.run([message], context)
    result = ConsumeMessageDirectlyResult(
        order=ordered,
        auto_commit=context.auto_commit if isinstance(context, OrderedContext) else True,
        consume_result=result_of(ended),
        remark=None if ended.error is None else f"{type(ended.error).__name__}: {ended.error}",
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
    if message.topic == retry_topic(namespace.wrap_group(header.consumer_group)):
        message.topic = message.properties.get(names.RETRY_TOPIC, message.topic)
    message.topic = namespace.unwrap(message.topic)
    return message


def result_of(ended: Ended) -> ConsumeResult:
    """Say how a call ended as administrators are told it; None is success."""
    if isinstance(ended.error, ConsumeLater):
        return ConsumeResult.CR_LATER
    if ended.error is not None:
        return ConsumeResult.CR_THROW_EXCEPTION
    if isinstance(ended.result, Consumed | ConsumedInOrder):
        return _RESULTS[ended.result]
    return ConsumeResult.CR_SUCCESS
