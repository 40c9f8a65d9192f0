"""The rights that requests of pop consumption need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Need, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import (
    CHANGE,
    READ,
    SIGNED,
    Lookups,
    Right,
    Rights,
    field,
    on_named,
    same,
)
from cometmq.protocol.bodies.pop import BatchAckMessageRequestBody
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request


def _pop(request: Request, _: Lookups) -> Needs:
    group, topic = field(request, "consumerGroup"), field(request, "topic")
    return needs_of(group_need(group), topic_need(topic, Action.SUB))


def _batch_ack(request: Request, _: Lookups) -> Needs:
    needs: list[Need] = []
    for each in BatchAckMessageRequestBody.decode(request.body).acks:
        needs += (group_need(each.consumer_group), topic_need(each.topic, Action.SUB))
    return needs_of(needs)


_POP: Final = Rights(
    plain=Right(_pop), users=on_named(Action.SUB, topic="topic", group="consumerGroup")
)

RIGHTS: Final = {
    RequestCode.POP_MESSAGE: _POP,
    RequestCode.PEEK_MESSAGE: _POP,
    RequestCode.ACK_MESSAGE: _POP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    RequestCode.NOTIFICATION: _POP,
    RequestCode.POLLING_INFO: Rights(
        plain=Right(_pop), users=on_named(Action.GET, topic="topic", group="consumerGroup")
    ),
    RequestCode.BATCH_ACK_MESSAGE: same(Right(_batch_ack, in_body=True)),
    RequestCode.QUERY_ASSIGNMENT: same(SIGNED),
    RequestCode.SET_MESSAGE_REQUEST_MODE: CHANGE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: READ,
    RequestCode.POP_ROLLBACK: CHANGE,
}
