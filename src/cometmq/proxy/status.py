"""The codes that responses have, and the error that makes one.

Source: Code of definition.proto, and ResponseBuilder, RocketMQ 5.3.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

from cometmq.client.errors import TopicNotFoundError
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.proxy.messages import TYPES
from cometmq.remoting import CallTimeoutError


class Code(IntEnum):
    """The code of a status."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    UNRECOGNIZED_CLIENT_TYPE = 40015
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    PROXY_TIMEOUT = 50400
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    FAILED_TO_CONSUME_MESSAGE = 60000


OF_RESPONSES: Mapping[int, Code] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
}
"""The code for what a broker responds; INTERNAL_SERVER_ERROR for the rest."""


class StatusError(CometError):
    """A request is refused with a code.

    Args:
        code: of the status.
        text: its message.
    """

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def status_of(code: Code, text: str = "") -> Any:
    """Return a status; without a text it has the name of the code."""
    return TYPES["Status"](code=code, message=text or code.name)


def status_of_all(entries: Sequence[Any]) -> Any:
    """Return the status of a response with a status in each of its entries."""
    codes = {entry.status.code for entry in entries}
    return entries[0].status if len(codes) == 1 else status_of(Code.MULTIPLE_RESULTS)


OK = status_of(Code.OK)


def code_of(error: BaseException) -> Code:
    """Return the code for a failure."""
    if isinstance(error, StatusError):
        return error.code
    if isinstance(error, TopicNotFoundError):
        return Code.TOPIC_NOT_FOUND
    if isinstance(error, CallTimeoutError | TimeoutError):
        return Code.PROXY_TIMEOUT
    if isinstance(error, ResponseError):
        return OF_RESPONSES.get(error.code, Code.INTERNAL_SERVER_ERROR)
    return Code.INTERNAL_SERVER_ERROR
