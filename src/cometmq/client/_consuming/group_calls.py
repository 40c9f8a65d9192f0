"""Requests of a consumer to brokers: lock queues, check filters, request an assignment.

Source: RebalanceImpl.lock, lockAll, unlock and unlockAll, MQClientInstance.checkClientInBroker and
queryAssignment, RocketMQ 5.3."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.pulls import FilterServers
from cometmq.client._supervision import SupervisedFailureLog, raise_permanent_refusal
from cometmq.client.errors import TopicNotFoundError
from cometmq.client.filters import Filter
from cometmq.model.errors import CometError, ConfigError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.client import ConsumerRunningInfo
from cometmq.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, MessageModel
from cometmq.protocol.bodies.pop import (
    MessageQueueAssignment,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.consumer import GetConsumerRunningInfoRequest
from cometmq.protocol.subscription import TAG_KIND
from cometmq.remoting.tasks import raise_unless_failure
from cometmq.system.failure_log import log_text, log_trace

log = logging.getLogger(__name__)

_CANNOT_FILTER = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
"""Codes of brokers that do not filter by properties, or cannot parse an expression."""
_OFF = "does not support consumer to filter message by"
"""In the remark of brokers whose setting `_SWITCH` is off; only CometMQ's names the setting."""
_SWITCH = "enablePropertyFilter"

ASK_S = 2.0
"""The timeout of a question to another member."""
LOCK_S = 1.0
"""The timeout of a request that locks queues."""
UNLOCK_S = 2.0
"""The time limit of the requests that unlock queues."""


class GroupCalls:
    """Sends the requests of a group's member to the brokers of queues and topics.

    Args:
        instance: the connections and routes to use.
        on_permanent: called with the error of a permanent failure to lock queues.
    """

    def __init__(
        self,
        instance: ClientCore,
        *,
        on_permanent: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._instance = instance
        self._locking = SupervisedFailureLog(
            log,
            fails="cannot lock queues",
            works="queues locked again",
            name="address",
            on_permanent=on_permanent,
        )

    async def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> set[MessageQueue]:
        """Lock queues at the masters of their brokers, or renew their locks.

        Returns:
            The queues that are locked for this client now. One whose broker has no master, refuses
            or does not respond within a second is not among them.
        """
        by_address = await self._by_master(queues)
        responses = await asyncio.gather(
            *(self._lock(address, group, client_id, part) for address, part in by_address.items())
        )
        return {queue for locked in responses for queue in locked}

    async def _lock(
        self, address: str, group: str, client_id: str, queues: list[MessageQueue]
    ) -> list[MessageQueue]:
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=queues)
        code, brokers = RequestCode.LOCK_BATCH_MQ, self._instance.brokers
        where = f"{address} group={group}"
        try:
            response = await brokers.call(address, code, body=body.encode(), timeout=LOCK_S)
            locked = LockBatchResponseBody.decode(response.body).lock_ok_mq_set
        except BaseException as error:
            raise_unless_failure(error)
            self._locking.failed(where, error)
            return []
        self._locking.succeeded(where)
        return locked

    async def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of queues; no response is waited for.

        A lock whose broker cannot be reached within two seconds expires.
        """
        try:
            async with asyncio.timeout(UNLOCK_S):
                by_address = await self._by_master(queues)
                await asyncio.gather(
                    *(self._unlock(each, group, client_id, by_address[each]) for each in by_address)
                )
        except TimeoutError:
            log.warning("cannot unlock queues in time group=%s seconds=%.1f", group, UNLOCK_S)

    async def _unlock(
        self, address: str, group: str, client_id: str, queues: list[MessageQueue]
    ) -> None:
        body = UnlockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=queues)
        code = RequestCode.UNLOCK_BATCH_MQ
        try:
            await self._instance.remoting.oneway(address, code, body=body.encode())
        except BaseException as error:
            raise_unless_failure(error)
            log.warning(
                "cannot unlock queues address=%s group=%s error=%s",
                address,
                group,
                log_text(error),
                exc_info=log_trace(error),
            )

    async def _by_master(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        """Group queues by the address of their broker's master; skip queues without a master."""
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                address = (await self._instance.routes.find(queue.topic)).master(queue)
            except BaseException as error:
                raise_unless_failure(error)
                log.warning(
                    "a queue has no route queue=%s error=%s",
                    queue,
                    log_text(error),
                    exc_info=log_trace(error),
                )
                continue
            if address is None:
                log.warning("a queue's broker has no master queue=%s", queue)
                continue
            found.setdefault(address, []).append(queue)
        return found

    async def queues_of(
        self, group: str, member: str, topic: str
    ) -> Collection[MessageQueue] | None:
        """Return the queues that another member of a group has; None if it does not say."""
        header = GetConsumerRunningInfoRequest(consumer_group=group, client_id=member)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        try:
            address = (await self._instance.routes.find(topic)).any_broker()
            if address is None:
                return None
            response = await self._instance.brokers.call(address, code, header, timeout=ASK_S)
            return ConsumerRunningInfo.decode(response.body).mq_table.keys()
        except BaseException as error:
            raise_unless_failure(error)
            log.info(
                "a member does not say which queues it has group=%s member=%s error=%s",
                group,
                member,
                log_text(error),
            )
            return None

    async def check_filter(self, group: str, client_id: str, topic: str, wanted: Filter) -> None:
        """Check with every broker of a topic that it supports a filter; tags need no check.

        A class filter is uploaded to every filter server of the topic.

        Raises:
            TopicNotFoundError: no broker serves the topic.
            ConfigError: a broker does not support the filter, or cannot parse the expression.
            ResponseError: a broker refused for another reason.
            RemotingError: a broker did not respond.
        """
        if wanted.class_source is not None:
            await self._upload(group, topic, wanted)
        if wanted.kind == TAG_KIND:
            return
        body = CheckClientRequestBody(
            client_id=client_id, group=group, subscription_data=wanted.data(topic)
        )
        code, route = RequestCode.CHECK_CLIENT_CONFIG, await self._instance.routes.find(topic)
        for name in sorted(route.brokers):
            address = route.readable(name)
            if address is None:
                continue
            try:
                await self._instance.brokers.call(address, code, body=body.encode())
            except ResponseError as error:
                if error.code not in _CANNOT_FILTER:
                    raise
                is_off = _OFF in error.remark and _SWITCH not in error.remark
                hint = f"; set {_SWITCH}=true there" if is_off else ""
                raise ConfigError(
                    f"broker {name} cannot filter {topic} by {wanted.expression!r:.200}: "
                    f"{error.remark}{hint}"
                ) from error

    async def _upload(self, group: str, topic: str, wanted: Filter) -> None:
        try:
            await FilterServers.of(self._instance).upload_to_all(group, topic, wanted)
        except ResponseError as error:
            raise ConfigError(
                f"a filter server refused the class filter {wanted.expression}: {error.remark}"
            ) from error

    async def assignment(
        self, group: str, client_id: str, topic: str, strategy: str, model: MessageModel
    ) -> list[MessageQueueAssignment] | None:
        """Request this member's assignment from a broker of the topic, which allocates its queues.

        Returns:
            The member's queues, each with its message request mode; None if the broker could not
            allocate them.

        Raises:
            TopicNotFoundError: no broker serves the topic.
            ResponseError: the broker refused, or is too old to allocate queues.
            RemotingError: no response.
        """
        address = (await self._instance.routes.find(topic)).any_broker()
        if address is None:
            raise TopicNotFoundError(topic, "its route names no broker")
        body = QueryAssignmentRequestBody(
            topic=topic,
            consumer_group=group,
            client_id=client_id,
            strategy_name=strategy,
            message_model=model,
        )
        code = RequestCode.QUERY_ASSIGNMENT
        response = await self._instance.brokers.call(address, code, body=body.encode())
        return QueryAssignmentResponseBody.decode(response.body).message_queue_assignments


async def check_filters(instance: ClientCore, group: str, filters: Mapping[str, Filter]) -> None:
    """Check that the brokers support the filters of topics; skip unknown topics.

    Raises:
        ConfigError, ResponseError, RemotingError: as for `GroupCalls.check_filter`.
    """
    calls = GroupCalls(instance)
    checked: dict[str, Filter] = {}
    while asked := {each: filters[each] for each in filters if checked.get(each) != filters[each]}:
        checked |= asked  # the caller may add more while this waits
        for topic, wanted in asked.items():
            try:
                await calls.check_filter(group, instance.client_id, topic, wanted)
            except TopicNotFoundError:
                log.warning("a topic does not exist yet topic=%s group=%s", topic, group)


async def join(instance: ClientCore, topics: Iterable[str]) -> None:
    """Send a heartbeat to the brokers of these topics. A topic without a route is logged.

    Raises:
        ResponseError: a server refuses the account or a setting; a retry does not help.
    """
    for topic in topics:
        try:
            await instance.routes.find(topic)
        except CometError as error:
            raise_permanent_refusal(error)
            log.warning("a topic cannot be read yet topic=%s error=%s", topic, error)
    await instance.heartbeat()
    instance.check_heartbeats()
