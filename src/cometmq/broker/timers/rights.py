"""The rights that requests for timers need: a recall needs the right to send to the topic."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, needs_of, topic_need
from cometmq.access.rights import LOOK, READ, Lookups, Right, field, same
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Request


def _recall(request: Request, _: Lookups) -> Needs:
    return needs_of(topic_need(field(request, "topic"), Action.PUB))


RIGHTS: Final = {
    RequestCode.RECALL_MESSAGE: same(Right(_recall)),
    RequestCode.GET_TIMER_CHECK_POINT: READ,
    RequestCode.GET_TIMER_METRICS: READ,
    RequestCode.LIST_TIMER_MESSAGES: LOOK,
}
