"""Leads what brokers ask of a client to the member of the group that is meant.

Several members share one connection to a broker, so that a request of one code may concern any of
them; its header names the group, and a transaction check carries it in the message itself.

Source: ClientRemotingProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from cometmq.client._connection.namespaces import Namespace
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
    InvokeBrokerToResetOffsetRequest,
    NotifyConsumerIdsChangedRequest,
)
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, RequestHandler, Response

GroupOf = Callable[[Request], str]


def _transaction_group(request: Request) -> str:
    found = decode_messages(request.body)
    group = found[0].properties.get(names.PGROUP) if found else None
    if not group:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"the transaction check lacks the property {names.PGROUP}"
        )
    return group


GROUP_OF: dict[int, GroupOf] = {
    RequestCode.CHECK_TRANSACTION_STATE: _transaction_group,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda request: (
        request.header(NotifyConsumerIdsChangedRequest).consumer_group
    ),
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: lambda request: (
        request.header(InvokeBrokerToResetOffsetRequest).group
    ),
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: lambda request: (
        request.header(InvokeBrokerToGetConsumerStatusRequest).group
    ),
    RequestCode.GET_CONSUMER_RUNNING_INFO: lambda request: (
        request.header(GetConsumerRunningInfoRequest).consumer_group
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: lambda request: (
        request.header(ConsumeMessageDirectlyRequest).consumer_group
    ),
}
"""How to tell the group of each request that concerns one group."""


class BrokerRequests:
    """The answers of this client's members, by request code and group.

    Args:
        handlers: the client's table of handlers, which is added to.
        namespace: of the client; a group means the same with it and without.
    """

    def __init__(
        self, handlers: dict[int, RequestHandler], *, namespace: Namespace | None = None
    ) -> None:
        self._handlers = handlers
        self._namespace = namespace or Namespace()
        self._members: dict[tuple[int, str], RequestHandler] = {}

    def answer(self, code: int, group: str, processor: RequestHandler) -> None:
        """Let ``processor`` answer the requests of this code for this group from now on."""
        assert code in GROUP_OF, f"requests of code {code} name no group"
        self._members[int(code), self._namespace.wrap_group(group)] = processor
        self._handlers[int(code)] = self._lead

    def forget(self, group: str, *codes: int) -> None:
        """Answer requests of these codes for this group no longer."""
        for code in codes:
            self._members.pop((int(code), self._namespace.wrap_group(group)), None)

    def _lead(self, request: Request) -> Response | Awaitable[Response | None] | None:
        group = self._namespace.wrap_group(GROUP_OF[request.code](request))
        processor = self._members.get((request.code, group))
        if processor is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"no member of group {group} in this client handles the request",
            )
        return processor(request)
