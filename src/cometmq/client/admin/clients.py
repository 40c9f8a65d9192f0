"""Producers and consumers that are online: who they are, how they do, and one message tried out.

Source: the client commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.client.admin.core import AdminCore
from cometmq.client.errors import ClientError
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerTableInfo,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers import (
    ConsumeMessageDirectlyRequest,
    GetConsumerConnectionListRequest,
    GetConsumerRunningInfoRequest,
    GetProducerConnectionListRequest,
    Header,
    InvokeBrokerToGetConsumerStatusRequest,
)

DIRECTLY_S = 15.0
"""Time for a consumer to consume a message that it is handed out of turn."""


class Clients(AdminCore):
    """Calls about clients that are online."""

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return the online members of a consumer group, and the group's subscriptions.

        Raises:
            ResponseError: with code 206 if no member is online.
        """
        header = GetConsumerConnectionListRequest(consumer_group=group)
        answer = await self._ask_any(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return ConsumerConnection.decode(answer.body)

    async def producer_connections(self, group: str) -> ProducerConnection:
        """Return the online members of a producer group.

        Raises:
            ResponseError: no member is online.
        """
        header = GetProducerConnectionListRequest(producer_group=group)
        answer = await self._ask_any(RequestCode.GET_PRODUCER_CONNECTION_LIST, header)
        return ProducerConnection.decode(answer.body)

    async def producers(self, address: str) -> ProducerTableInfo:
        """Return all producers that are connected to one broker, by group."""
        answer = await self._ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return ProducerTableInfo.decode(answer.body)

    async def running_info(
        self, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """Return one consumer's settings, queues and rates.

        Args:
            group: its group.
            client_id: one of those in `consumer_connections`.
            stacks: include the stacks of its tasks and threads.

        Raises:
            ResponseError: the consumer is not online, or did not respond to its broker.
        """
        header = GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        answer = await self._ask_any(RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        return ConsumerRunningInfo.decode(answer.body)

    async def consumer_status(
        self, group: str, topic: str, client_id: str = ""
    ) -> dict[str, dict[MessageQueue, int]]:
        """Return the offsets that members have in memory, by client id.

        Args:
            group: the group.
            topic: the topic.
            client_id: only this member; empty for all.

        Raises:
            ResponseError: no member is online.
        """
        header = InvokeBrokerToGetConsumerStatusRequest(
            topic=topic, group=group, client_addr=client_id or None
        )
        route = await self._route(topic)
        answer = await self._ask_any(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, route.masters()
        )
        return GetConsumerStatusBody.decode(answer.body).consumer_table

    async def consume_directly(
        self, group: str, client_id: str, message: StoredMessage
    ) -> ConsumeMessageDirectlyResult:
        """Pass one message to one consumer now. Offsets do not change.

        Args:
            group: its group.
            client_id: one of those in `consumer_connections`.
            message: a message that a query returned.

        Returns:
            The handler's result, its duration, and its exception if there was one.

        Raises:
            ResponseError: the consumer is not online, or did not respond to its broker.
        """
        header = ConsumeMessageDirectlyRequest(
            consumer_group=group,
            client_id=client_id,
            msg_id=message.offset_message_id,
            topic=message.topic,
            broker_name=message.broker_name or None,
        )
        code, address = RequestCode.CONSUME_MESSAGE_DIRECTLY, await self._broker_of(message)
        answer = await self._ask(address, code, header, timeout=DIRECTLY_S)
        return ConsumeMessageDirectlyResult.decode(answer.body)

    async def _broker_of(self, message: StoredMessage) -> str:
        """Give the address of the broker that stores a message."""
        try:
            route = await self._route(message.topic)
        except ClientError:
            return message.store_host
        return route.master(message.broker_name) or message.store_host

    async def _ask_any(
        self, code: int, header: Header, addresses: list[str] | None = None
    ) -> Command:
        """Ask brokers one after the other until one knows the answer."""
        failure: CometError | None = None
        for address in addresses if addresses is not None else await self._masters():
            try:
                return await self._ask(address, code, header)
            except CometError as error:
                failure = _better(failure, error)
        raise failure or ClientError(
            "no broker address is known: no broker is registered with the name server"
        )


def _better(before: CometError | None, error: CometError) -> CometError:
    """Give the failure that says more: a broker's refusal rather than its silence."""
    if before is None or not isinstance(before, ResponseError):
        return error
    if before.code == ResponseCode.CONSUMER_NOT_ONLINE and isinstance(error, ResponseError):
        return error
    return before
