"""The rights that requests about topics need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, needs_of, topic_need
from cometmq.access.rights import (
    ADMINISTRATION,
    CHANGE,
    READ,
    SIGNED,
    Lookups,
    Right,
    Rights,
    on_named,
)
from cometmq.protocol.bodies.topic import TopicConfigList
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request


def _topic_list(request: Request, _: Lookups) -> Needs:
    configs = TopicConfigList.decode(request.body).topic_config_list
    return needs_of(topic_need(config.topic_name, Action.CREATE) for config in configs)


RIGHTS: Final = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Rights(
        plain=ADMINISTRATION, users=on_named(Action.CREATE, topic="topic")
    ),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Rights(
        plain=ADMINISTRATION, users=Right(_topic_list, in_body=True)
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Rights(
        plain=ADMINISTRATION, users=on_named(Action.DELETE, topic="topic")
    ),
    RequestCode.CLEAN_UNUSED_TOPIC: CHANGE,
    RequestCode.GET_TOPIC_CONFIG: Rights(plain=SIGNED, users=on_named(Action.GET, topic="topic")),
    # What slaves and controllers read.
    RequestCode.GET_ALL_TOPIC_CONFIG: READ,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: READ,
}
