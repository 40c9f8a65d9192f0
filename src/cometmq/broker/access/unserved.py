"""The rights that requests need which RocketMQ's brokers serve, and this one does not.

An account without the right learns that it lacks it, and not what this broker serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.access.needs import Action, Needs
from cometmq.access.rights import (
    CHANGE,
    SIGNED,
    SUB_OR_GET,
    Lookups,
    Right,
    Rights,
    field,
    on_named,
)
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request


def _members(request: Request, lookups: Lookups) -> Needs:
    return lookups.of_cluster(Action.GET, field(request, "clusterName"))


RIGHTS: Final[Mapping[int, Rights]] = {
    RequestCode.TRIGGER_DELETE_FILES: CHANGE,
    RequestCode.ADD_BROKER: CHANGE,
    RequestCode.REMOVE_BROKER: CHANGE,
    # Name servers serve these.
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Rights(
        plain=SIGNED, users=on_named(Action.PUB | SUB_OR_GET, topic="topic")
    ),
    RequestCode.GET_BROKER_MEMBER_GROUP: Rights(plain=SIGNED, users=Right(_members)),
}
