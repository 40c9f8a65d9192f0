"""A request of a broker reaches the member of the group, through a real connection."""

from __future__ import annotations

import pytest

from cometmq.client._connection.broker_requests import BrokerRequests
from cometmq.model import property_names as names
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command, encode_command
from cometmq.protocol.headers.base import Header, encode_fields
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
)
from cometmq.protocol.headers.offset import InvokeBrokerToResetOffsetRequest
from cometmq.remoting import Request, RequestHandler, Response
from support.wire.fake_transport import Wired
from support.wire.message_records import record

GROUP = "workers"
HEADERS: dict[int, Header] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: NotifyConsumerIdsChangedRequest(consumer_group=GROUP),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: InvokeBrokerToResetOffsetRequest(
        topic="t", group=GROUP, timestamp=0
    ),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: InvokeBrokerToGetConsumerStatusRequest(
        topic="t", group=GROUP
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfoRequest(
        consumer_group=GROUP, client_id="c"
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectlyRequest(consumer_group=GROUP),
}


class Member:
    """Responds with its own name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def answer(self, request: Request) -> Response:
        return Response(body=self._name.encode())


def asked(
    handlers: dict[int, RequestHandler], code: int, header: Header | None, body: bytes
) -> Command:
    wired = Wired(handlers)
    fields = encode_fields(header) if header is not None else None
    wired.transport.send(encode_command(Command(code, opaque=1, fields=fields, body=body)))
    return wired.answers[0]


def half_message(group: str | None) -> bytes:
    properties = {names.TRAN_MSG: "true"} | ({names.PGROUP: group} if group else {})
    return record(b"half", b"t", properties)


@pytest.mark.parametrize("code", HEADERS)
async def test_the_member_of_the_named_group_answers(code: int) -> None:
    handlers: dict[int, RequestHandler] = {}
    requests = BrokerRequests(handlers)
    for group in ("others", GROUP):
        requests.register(group, {code: Member(group).answer})

    assert asked(handlers, code, HEADERS[code], b"").body == GROUP.encode()


async def test_a_check_finds_its_group_in_the_message() -> None:
    handlers: dict[int, RequestHandler] = {}
    code = RequestCode.CHECK_TRANSACTION_STATE
    BrokerRequests(handlers).register(GROUP, {code: Member(GROUP).answer})

    assert asked(handlers, code, None, half_message(GROUP)).body == GROUP.encode()
    assert "PGROUP" in (asked(handlers, code, None, half_message(None)).remark or "")


async def test_a_group_that_left_is_answered_for_no_longer() -> None:
    handlers: dict[int, RequestHandler] = {}
    requests = BrokerRequests(handlers)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    handler: dict[int, RequestHandler] = {code: Member(GROUP).answer}
    requests.register(GROUP, handler)
    requests.unregister(GROUP, {code: Member(GROUP).answer})  # another member's
    assert asked(handlers, code, HEADERS[code], b"").code == 0
    requests.unregister(GROUP, handler)

    answer = asked(handlers, code, HEADERS[code], b"")
    assert (answer.code, answer.remark) == (
        1,
        f"no member of group {GROUP} in this client handles the request",
    )
