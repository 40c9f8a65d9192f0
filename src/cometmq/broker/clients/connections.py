"""Handles requests for the clients that are online: members of groups, and all producers.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from cometmq.broker.clients.members import Member
from cometmq.broker.core import Core
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies.client import (
    ConsumerConnection,
    MemberSubscription,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
)
from cometmq.protocol.bodies.common import Connection
from cometmq.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.group import (
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import Slices, encode

E = TypeVar("E", bound=StrEnum)


class ConnectionsHandler:
    """Returns members of consumer groups (203), of producer groups (204) and all producers (328).

    Args:
        core: of the broker.
    """

    def __init__(self, core: Core) -> None:
        self._consumers = core.consumers
        self._producers = core.producers

    async def of_consumers(self, request: Request) -> Response:
        """Return the members of a consumer group, its subscriptions, and the subscriptions of each.

        The latter is an addition that RocketMQ's clients ignore.
        """
        name = request.header(GetConsumerConnectionListRequest).consumer_group
        group = self._consumers.group(name)
        if group is None:
            raise ResponseError(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        slices = Slices()
        members = list(group.members.values())
        views = group.views.by_client()
        body = ConsumerConnection(
            connection_set=[_connection(member) async for member in slices.each(members)],
            subscription_table={
                topic: subscription.data for topic, subscription in group.subscriptions.items()
            },
            consume_type=_member(ConsumeType, group.kind),
            message_model=_member(MessageModel, group.model),
            consume_from_where=_member(ConsumeFromWhere, group.consume_from),
            subscriptions_by_client={
                client_id: {
                    wanted.topic: MemberSubscription(
                        sub_string=wanted.expression,
                        expression_type=wanted.kind,
                        class_filter_mode=wanted.is_class,
                    )
                    async for wanted in slices.each(view)
                }
                async for client_id, view in slices.each(views.items())
            },
        )
        return Response(body=await encode(body, slices))

    async def of_producers(self, request: Request) -> Response:
        """Return the members of a producer group."""
        name = request.header(GetProducerConnectionListRequest).producer_group
        members = self._producers.members(name)
        if not members:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        slices = Slices()
        body = ProducerConnection(
            connection_set=[_connection(member) async for member in slices.each(members)]
        )
        return Response(body=await encode(body, slices))

    async def of_all_producers(self, request: Request) -> Response:
        """Return every producer group with its members."""
        slices = Slices()
        body = ProducerTableInfo(
            data={
                group: [
                    _producer(member)
                    async for member in slices.each(self._producers.members(group))
                ]
                async for group in slices.each(self._producers.names())
            }
        )
        return Response(body=await encode(body, slices))


def _member(kind: type[E], name: str | None) -> E | None:
    """Return a name of a heartbeat as a member of an enumeration; None if it is no member."""
    return kind[name] if name is not None and name in kind.__members__ else None


def _connection(member: Member) -> Connection:
    return Connection(
        client_id=member.client_id,
        client_addr=member.connection.peer_text,
        language=member.language or "OTHER",
        version=member.version,
    )


def _producer(member: Member) -> ProducerInfo:
    return ProducerInfo(
        client_id=member.client_id,
        # With the slash that Java puts before an address without a host name.
        remote_ip=f"/{member.connection.peer_text}",
        language=member.language or "OTHER",
        version=member.version,
        last_update_timestamp=member.seen_ms,
    )
