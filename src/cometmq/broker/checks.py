"""Checks of names and numbers in requests, before they are used.

Refusals have the codes and remarks of RocketMQ. Source: the checks of PullMessageProcessor,
AbstractSendMessageProcessor, AdminBrokerProcessor and TopicValidator, RocketMQ 4.9 and 5.3.
RocketMQ does not check client ids.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.role import Role
from cometmq.model.errors import InvalidNameError, ResponseError
from cometmq.model.topic import (
    RETRY_PREFIX,
    TopicConfig,
    check_group_name,
    check_topic_name,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting import Request

CLIENT_ID_CHARS_MAX = 1024
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
"""The largest numbers of Java: tools, slaves and name servers of RocketMQ cannot read a table
with a larger one."""


def invalid(remark: str) -> ResponseError:
    """Return the refusal of a request with an invalid value: 29."""
    return ResponseError(ResponseCode.INVALID_PARAMETER, remark)


def check_group(name: str) -> None:
    """Refuse a group's name that breaks the rules.

    Raises:
        ResponseError: 29.
    """
    try:
        check_group_name(name)
    except InvalidNameError as problem:
        raise invalid(problem.remark) from problem


def check_subscribed_topic(name: str) -> None:
    """Refuse a subscribed topic's name that breaks the rules; a retry topic's follows its group's.

    Raises:
        ResponseError: 29.
    """
    try:
        if name.startswith(RETRY_PREFIX):
            check_group_name(name[len(RETRY_PREFIX) :])
        else:
            check_topic_name(name)
    except InvalidNameError as problem:
        raise invalid(problem.remark) from problem


def check_client_id(client_id: str) -> None:
    """Refuse a client id that is empty, too long or not printable.

    Raises:
        ResponseError: 29.
    """
    if not 0 < len(client_id) <= CLIENT_ID_CHARS_MAX or not client_id.isprintable():
        raise invalid(
            f"client id {client_id[:40]!r} of {len(client_id)} characters is illegal, expected "
            f"1 to {CLIENT_ID_CHARS_MAX} printable ones"
        )


def check_queue(topic: TopicConfig, queue_id: int) -> None:
    """Refuse a queue that the topic neither reads nor writes.

    Raises:
        ResponseError: 29.
    """
    queues = max(topic.read_queue_nums, topic.write_queue_nums)
    if not 0 <= queue_id < queues:
        raise invalid(
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] has {queues} queues"
        )


def check_number(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number outside its range.

    Raises:
        ResponseError: 29.
    """
    if not least <= value <= most:
        raise invalid(f"{name} is {str(value)[:40]}, expected {least} to {most}")


def check_body(request: Request, bytes_max: int) -> None:
    """Refuse a body that is larger than the limit of its request code.

    Raises:
        ResponseError: 29.
    """
    if len(request.body) > bytes_max:
        raise invalid(
            f"a body of {len(request.body)} bytes, expected at most {bytes_max}"
            f" in a request with code {request.code}"
        )


def check_is_master(role: Role) -> None:
    """Refuse a change of topics or groups on a slave, which copies them from its master.

    Raises:
        ResponseError: 1, this broker is a slave.
    """
    if role.is_slave:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR,
            "Can't modify topic or subscription group from slave broker, "
            "please execute it from master broker.",
        )


def sent_to_slave() -> ResponseError:
    """Return the error of a request that would store a message on a slave."""
    return ResponseError(
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: this broker is a slave, its master stores messages",
    )


def broker_stopping() -> ResponseError:
    """Return the error of a request that a stopping broker does not serve any more."""
    return ResponseError(
        ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now: the broker is stopping"
    )
