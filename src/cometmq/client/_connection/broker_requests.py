"""Passes the requests of brokers to the member of the group that they name.

Several members share one connection to a broker. The header of a request names the group; in a
transaction check, a property of the message does. A new request of brokers needs a line in
`GROUP_OF`, and a handler: of consumers in `cometmq.client._consuming.request_handlers`, of
producers in `cometmq.client.transactions`.

Source: ClientRemotingProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from cometmq.client._connection.identity import Namespace
from cometmq.model import property_names as names
from cometmq.model.errors import ResponseError
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
    NotifyConsumerIdsChangedRequest,
)
from cometmq.protocol.headers.offset import InvokeBrokerToResetOffsetRequest
from cometmq.protocol.record import decode_messages
from cometmq.remoting import Request, RequestHandler, Response

GroupOf = Callable[[Request], str]


def _transaction_group(request: Request) -> str:
    found = decode_messages(request.body, decompress=False)
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
"""How each request names its group, by request code."""


class BrokerRequests:
    """The request handlers of this client's members, by request code and group.

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

    def register(self, group: str, handlers: Mapping[int, RequestHandler]) -> None:
        """Call these handlers, by request code, for requests of this group."""
        for code, handler in handlers.items():
            assert code in GROUP_OF, f"no rule in GROUP_OF for request code {code}"
            self._members[int(code), self._namespace.wrap_group(group)] = handler
            self._handlers[int(code)] = self._dispatch

    def unregister(self, group: str, handlers: Mapping[int, RequestHandler]) -> None:
        """Call these handlers no longer; handlers that another member registered remain."""
        for code, handler in handlers.items():
            key = int(code), self._namespace.wrap_group(group)
            if self._members.get(key) == handler:
                del self._members[key]

    def _dispatch(self, request: Request) -> Response | Awaitable[Response | None] | None:
        named = GROUP_OF[request.code](request)
        if not named and request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:  # to all groups
            for (code, _), notified in list(self._members.items()):
                if code == request.code:
                    notified(request)
            return None
        group = self._namespace.wrap_group(named)
        handler = self._members.get((request.code, group))
        if handler is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"no member of group {group} in this client handles the request",
            )
        return handler(request)
