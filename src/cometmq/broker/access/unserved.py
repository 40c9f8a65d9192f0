"""The rights that requests need which RocketMQ's brokers serve, and this one does not.

An account without the right learns that it lacks it, and not what this broker serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action, Need, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import (
    ADMINISTRATION,
    CHANGE,
    SIGNED,
    SUB_OR_GET,
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


def _recall(request: Request, _: Lookups) -> Needs:
    return needs_of(topic_need(field(request, "topic"), Action.PUB))


def _pop(request: Request, _: Lookups) -> Needs:
    group, topic = field(request, "consumerGroup"), field(request, "topic")
    return needs_of(group_need(group), topic_need(topic, Action.SUB))


def _batch_ack(request: Request, _: Lookups) -> Needs:
    needs: list[Need] = []
    for each in BatchAckMessageRequestBody.decode(request.body).acks:
        needs += (group_need(each.consumer_group), topic_need(each.topic, Action.SUB))
    return needs_of(needs)


def _members(request: Request, lookups: Lookups) -> Needs:
    return lookups.of_cluster(Action.GET, field(request, "clusterName"))


_POP: Final = Rights(
    plain=Right(_pop), users=on_named(Action.SUB, topic="topic", group="consumerGroup")
)

RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.RECALL_MESSAGE: same(Right(_recall)),
    RequestCode.POP_MESSAGE: _POP,
    RequestCode.PEEK_MESSAGE: _POP,
    RequestCode.ACK_MESSAGE: _POP,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _POP,
    RequestCode.NOTIFICATION: _POP,
    RequestCode.POLLING_INFO: Rights(
        plain=Right(_pop), users=on_named(Action.GET, topic="topic", group="consumerGroup")
    ),
    RequestCode.BATCH_ACK_MESSAGE: Rights(plain=SIGNED, users=Right(_batch_ack, in_body=True)),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: Rights(
        plain=ADMINISTRATION, users=on_named(Action.CREATE, topic="topic")
    ),
    RequestCode.TRIGGER_DELETE_FILES: CHANGE,
    RequestCode.SET_MESSAGE_REQUEST_MODE: CHANGE,
    RequestCode.ADD_BROKER: CHANGE,
    RequestCode.REMOVE_BROKER: CHANGE,
    # Name servers serve these.
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rights(
        plain=SIGNED, users=on_named(Action.PUB | SUB_OR_GET, topic="topic")
    ),
    RequestCode.GET_BROKER_MEMBER_GROUP: Rights(plain=SIGNED, users=Right(_members)),
}
