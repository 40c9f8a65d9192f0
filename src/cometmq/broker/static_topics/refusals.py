"""The refusals of requests about logical queues, with the codes and remarks of RocketMQ."""

from __future__ import annotations

from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode

_NAME_SHOWN_MAX = 300


def not_leader(topic: str, queue_id: int, broker: str, code: int) -> ResponseError:
    """Return the refusal of a broker that does not lead a logical queue: 501."""
    queue = f"{topic[:_NAME_SHOWN_MAX]}-{queue_id}"
    if code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        text = f"{queue} cannot find mapping item in request process of current broker {broker}"
    elif code == RequestCode.GET_MIN_OFFSET:
        text = f"{queue} is not leader in broker {broker}, request code {code}"
    else:
        text = f"{queue} does not exit in request process of current broker {broker}"
    return ResponseError(ResponseCode.NOT_LEADER_FOR_QUEUE, text)


def undecided(topic: str, queue_id: int) -> ResponseError:
    """Return the refusal of a request about a queue that has no logical offsets yet: 1."""
    return ResponseError(
        ResponseCode.SYSTEM_ERROR,
        f"{topic[:_NAME_SHOWN_MAX]}-{queue_id}: the offset of its only item is undecided, expected"
        " a mapping with logicOffset >= 0: finish the creation of the topic",
    )


def elsewhere_failed(broker: str, problem: str) -> ResponseError:
    """Return the error of a request whose broker of an item has not served it: 1."""
    return ResponseError(ResponseCode.SYSTEM_ERROR, f"broker {broker}: {problem}")
