"""The rights that pulls need."""

from __future__ import annotations

from typing import Final

from cometmq.access.needs import Action, Needs, group_need, needs_of, topic_need
from cometmq.access.rights import Lookups, Right, same
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.remoting import Request


def _pull(request: Request, _: Lookups) -> Needs:
    header = request.header(PullMessageRequest)
    return needs_of(topic_need(header.topic, Action.SUB), group_need(header.consumer_group))


_PULL: Final = Right(_pull)

RIGHTS: Final = {
    RequestCode.PULL_MESSAGE: same(_PULL),
    RequestCode.LITE_PULL_MESSAGE: same(_PULL),
}
