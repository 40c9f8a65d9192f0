"""The right that opening a producer session needs: the right to send to its topic."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, needs_of, topic_need
from cometmq.access.rights import Lookups, Right, same
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.producer_session import OpenProducerSessionRequest
from cometmq.remoting import Request


def _open(request: Request, _: Lookups) -> Needs:
    return needs_of(topic_need(request.header(OpenProducerSessionRequest).topic, Action.PUB))


RIGHTS: Final = {RequestCode.OPEN_PRODUCER_SESSION: same(Right(_open))}
