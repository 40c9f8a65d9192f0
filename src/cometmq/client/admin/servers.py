"""Calls about brokers, name servers and their connected clients; the base of all admin calls.

Source: DefaultMQAdminExtImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from cometmq.client._connection.broker_calls import QueueOffsets
from cometmq.client._connection.instance import ClientInstance, acquire_instance
from cometmq.client._connection.name_servers import HasNameServers
from cometmq.client._connection.routes import MASTER_ID, Route
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.errors import ClientError
from cometmq.client.options import ConnectionOptions
from cometmq.client.settings import ClientSettings, read_tables, resolve_settings
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.broker_admin import BrokerStatsData, HARuntimeInfo
from cometmq.protocol.bodies.client import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerTableInfo,
)
from cometmq.protocol.bodies.common import KVTable
from cometmq.protocol.bodies.group import ConsumeStatsList, GetConsumerStatusBody
from cometmq.protocol.bodies.route import ClusterInfo
from cometmq.protocol.bodies.timers import TimerMessage, TimerMessages
from cometmq.protocol.bodies.topic import TimerMetric, TimerMetricsSerializeWrapper
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.protocol.headers.broker_admin import (
    AddBrokerRequest,
    GetBrokerRuntimeInfoRequest,
    RemoveBrokerRequest,
    ResetMasterFlushOffsetRequest,
    SetCommitlogReadModeRequest,
    ViewBrokerStatsDataRequest,
)
from cometmq.protocol.headers.consumer import (
    ConsumeMessageDirectlyRequest,
    GetConsumerRunningInfoRequest,
    InvokeBrokerToGetConsumerStatusRequest,
)
from cometmq.protocol.headers.group import (
    GetBrokerConsumeStatsRequest,
    GetConsumerConnectionListRequest,
    GetProducerConnectionListRequest,
)
from cometmq.protocol.headers.namesrv import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    DeleteKvConfigRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetKvlistByNamespaceRequest,
    PutKvConfigRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)
from cometmq.protocol.headers.timers import (
    ListTimerMessagesRequest,
    ListTimerMessagesResponse,
)
from cometmq.remoting.errors import CallTimeoutError
from cometmq.remoting.tasks import side_by_side
from cometmq.system import java_properties

A = TypeVar("A")
T = TypeVar("T")


class AdminCore(Lifecycle):
    """Sends requests to brokers and name servers; the base of all families of calls."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | HasNameServers = "",
        *,
        client: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        config: Path | None = None,
        **options: Unpack[ConnectionOptions],
    ) -> None:
        super().__init__("admin client")
        tables = read_tables(config) if config else None
        settings = resolve_settings(ClientSettings, keywords=options, given=client, tables=tables)
        self._lease = acquire_instance(name_servers, settings=settings, instance=instance)
        self._instance = self._lease.instance
        self._offsets = QueueOffsets(self._instance.routes, self._instance.brokers)

    async def start(self) -> None:
        """Make the client ready. It connects on the first request."""
        await super().start()

    async def _start(self) -> None:
        await self._lease.open()

    async def close(self) -> None:
        """Close the connections."""
        await super().close()

    async def _close(self) -> None:
        await self._lease.close()

    @property
    def name_servers(self) -> list[str]:
        """The addresses of the name servers."""
        return list(self._instance.name_servers.addresses)

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Send a request that has no method of its own to one server.

        Args:
            address: the server.
            code: one of `cometmq.protocol.codes.RequestCode`.
            header: the fields of the request, from `cometmq.protocol.headers`.
            body: the body of the request.
            timeout: seconds for the response; None for the setting ``call_timeout_ms``.

        Returns:
            The response.

        Raises:
            ResponseError: the server refused.
        """
        self._instance.check_running()
        try:
            return await self._instance.brokers.call(address, code, header, body, timeout=timeout)
        except CallTimeoutError as error:
            raise CallTimeoutError(f"{address}: {error}") from None

    async def call_name_server(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """Send a request that has no method of its own to name servers until one responds.

        Only for requests that change nothing: name servers do not replicate.
        """
        self._instance.check_running()
        timeout = self._instance.settings.call_timeout_ms / 1000
        return await self._instance.name_servers.request(code, header, body, timeout=timeout)

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters, their brokers and the brokers' addresses."""
        response = await self.call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(response.body)

    async def _masters(self, brokers: Iterable[str] | None = None) -> list[str]:
        """Return the addresses of the masters of these brokers, or of all that are registered."""
        table = (await self.cluster_info()).broker_addr_table
        names = sorted(table) if brokers is None else list(brokers)
        if unknown := [name for name in names if name not in table]:
            raise ClientError(f"no such broker: {', '.join(unknown)}; known are {sorted(table)}")
        found = [table[name].broker_addrs.get(MASTER_ID) for name in names]
        masters = [address for address in found if address is not None]
        if not masters:
            raise ClientError("no broker is registered with the name server")
        return masters

    async def _route(self, topic: str) -> Route:
        """Return the route of a topic, from the cache if it is there."""
        self._instance.check_running()
        return await self._instance.routes.find(topic)

    async def _call_masters(
        self, code: int, header: Header, topic: str | None = None
    ) -> list[Command]:
        """Send the request to the masters of a topic, or to all masters."""
        found = await self._masters() if topic is None else (await self._route(topic)).masters()
        return await side_by_side(found, lambda address: self.call(address, code, header))

    async def _call_all_name_servers(
        self, code: int, header: Header, servers: Iterable[str] | None = None
    ) -> list[Command]:
        """Send the request to every name server, or to these: they do not replicate.

        Raises:
            CometError: the first failure, after the request was sent to the others as well.
        """
        self._instance.check_running()

        async def send(address: str) -> Command | CometError:
            try:
                return await self.call(address, code, header)
            except CometError as error:
                return error

        addresses = self.name_servers if servers is None else servers
        responses: list[Command] = []
        for each in await side_by_side(addresses, send):
            if isinstance(each, CometError):
                raise each
            responses.append(each)
        return responses

    async def _config_of(self, address: str, code: int) -> dict[str, str]:
        """Return the settings of a server, which a request code asks for."""
        response = await self.call(address, code)
        entries = java_properties.parse(java_properties.decode(response.body))
        return {entry.key: entry.value for entry in entries}

    async def _change_config(self, address: str, code: int, changes: Mapping[str, str]) -> None:
        """Change settings of a server with a request code."""
        await self.call(address, code, body=java_properties.render(changes).encode())

    async def kv_get(self, space: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table, or None."""
        header = GetKvConfigRequest(namespace=space, key=key)
        try:
            response = await self.call_name_server(RequestCode.GET_KV_CONFIG, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return response.header(GetKvConfigResponse).value

    async def kv_put(self, space: str, key: str, value: str) -> None:
        """Store a value in the key-value table of every name server."""
        header = PutKvConfigRequest(namespace=space, key=key, value=value)
        await self._call_all_name_servers(RequestCode.PUT_KV_CONFIG, header)

    async def kv_delete(self, space: str, key: str) -> None:
        """Delete a value from the key-value table of every name server."""
        header = DeleteKvConfigRequest(namespace=space, key=key)
        await self._call_all_name_servers(RequestCode.DELETE_KV_CONFIG, header)


class Brokers(AdminCore):
    """Calls about servers."""

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return a broker's runtime information: counts, rates, offsets, disk use.

        Brokers of CometMQ add the figures of half messages, ``halfMessagesUndecided`` and others.
        """
        header = GetBrokerRuntimeInfoRequest(half_messages=True)
        response = await self.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, header)
        return KVTable.decode(response.body).table

    async def broker_counter(self, address: str, name: str, key: str) -> BrokerStatsData:
        """Return one counter of a broker: sum and rate per minute, hour and day.

        Args:
            address: the broker.
            name: such as ``TOPIC_PUT_NUMS`` or ``GROUP_GET_NUMS``.
            key: a topic, or ``topic@group``.

        Raises:
            ResponseError: the broker has no such counter yet.
        """
        header = ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
        response = await self.call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.decode(response.body)

    async def broker_counters(
        self, addresses: Iterable[str], name: str, key: str
    ) -> tuple[float, int]:
        """Return the rate per second of a counter, and its sum of a day, over several brokers.

        Args:
            addresses: the brokers; one that has no such counter yet adds nothing.
            name, key: as in `broker_counter`.
        """

        async def read(address: str) -> tuple[float, int]:
            try:
                counter = await self.broker_counter(address, name, key)
            except ResponseError:
                return 0.0, 0  # there were no messages yet
            day = counter.stats_day.sum or counter.stats_hour.sum or counter.stats_minute.sum
            return counter.stats_minute.tps, day

        found = await side_by_side(addresses, read)
        return sum(tps for tps, _ in found), sum(day for _, day in found)

    async def broker_lag(
        self, address: str, *, ordered: bool = False, timeout: float | None = None
    ) -> ConsumeStatsList:
        """Return the offsets and lag of all groups of one broker.

        Args:
            address: the broker.
            ordered: only ordered topics.
            timeout: seconds for the response; None for the setting ``call_timeout_ms``.
        """
        header = GetBrokerConsumeStatsRequest(is_order=ordered)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        response = await self.call(address, code, header, timeout=timeout)
        return ConsumeStatsList.decode(response.body)

    async def replication(self, address: str) -> HARuntimeInfo:
        """Return the replication state of a broker.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        response = await self.call(address, RequestCode.GET_BROKER_HA_STATUS)
        return HARuntimeInfo.decode(response.body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return all settings of a broker."""
        return await self._config_of(address, RequestCode.GET_BROKER_CONFIG)

    async def set_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker.

        As with RocketMQ's brokers, a key that the broker does not know changes nothing and is no
        error.

        Raises:
            ResponseError: a setting cannot be changed, or not to that value; nothing was changed.
        """
        await self._change_config(address, RequestCode.UPDATE_BROKER_CONFIG, changes)

    async def name_server_config(self, address: str) -> dict[str, str]:
        """Return all settings of a name server."""
        return await self._config_of(address, RequestCode.GET_NAMESRV_CONFIG)

    async def set_name_server_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running name server.

        Raises:
            ResponseError: a setting cannot be changed, or not to that value; nothing was changed.
        """
        await self._change_config(address, RequestCode.UPDATE_NAMESRV_CONFIG, changes)

    async def clean_up(self, address: str) -> None:
        """Delete a broker's expired files and the queues of deleted topics now."""
        await self.delete_expired_logs(address)
        await self.delete_expired_queues(address)
        await self.delete_unused_topics(address)

    async def delete_expired_logs(self, address: str) -> None:
        """Delete the expired commit log files of a broker now."""
        await self.call(address, RequestCode.DELETE_EXPIRED_COMMITLOG)

    async def delete_expired_queues(self, address: str) -> None:
        """Delete the consume queue files of a broker whose messages are gone."""
        await self.call(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_unused_topics(self, address: str) -> None:
        """Delete what a broker stores of topics that no longer exist."""
        await self.call(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def set_flushed_of_master(self, address: str, offset: int) -> None:
        """Set on a slave of 5.0 or later how far its master is known to have flushed."""
        header = ResetMasterFlushOffsetRequest(master_flush_offset=offset)
        await self.call(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)

    async def add_broker(self, container: str, config_path: str) -> None:
        """Start a broker in a broker container, with a configuration file on its machine."""
        header = AddBrokerRequest(config_path=config_path)
        await self.call(container, RequestCode.ADD_BROKER, header)

    async def remove_broker(self, container: str, cluster: str, broker: str, number: int) -> None:
        """Stop a broker in a broker container, by its cluster, name and id."""
        header = RemoveBrokerRequest(
            broker_cluster_name=cluster, broker_name=broker, broker_id=number
        )
        await self.call(container, RequestCode.REMOVE_BROKER, header)

    async def cold_reads(self, address: str) -> dict[str, Any]:
        """Return how a broker of 5.1.3 or later limits reads of cold data; {} if it does not."""
        response = await self.call(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        found = fastjson.loads(bytes(response.body)) if response.body else {}
        return found if isinstance(found, dict) else {}

    async def set_cold_read_limit(self, address: str, group: str, limit: str) -> None:
        """Set how many bytes of cold data per second a broker lets a group read."""
        body = java_properties.render({group: limit}).encode()
        await self.call(address, RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=body)

    async def remove_cold_read_limit(self, address: str, group: str) -> None:
        """Remove a group's own limit for reads of cold data."""
        code = RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        await self.call(address, code, body=group.encode())

    async def set_read_ahead(self, address: str, mode: int) -> str:
        """Set how the kernel reads ahead in a commit log: 0 normal, 1 random access.

        Returns:
            The remark of the broker.
        """
        header = SetCommitlogReadModeRequest(read_ahead_mode=mode)
        response = await self.call(address, RequestCode.SET_COMMITLOG_READ_MODE, header)
        return response.remark or ""

    async def timer_counts(self, address: str) -> dict[str, TimerMetric]:
        """Return how many timed messages of each topic wait on a broker of 5.0 or later."""
        response = await self.call(address, RequestCode.GET_TIMER_METRICS)
        return TimerMetricsSerializeWrapper.decode(response.body).timing_count

    async def waiting_timers(
        self, address: str, *, topic: str | None = None, key: str | None = None, limit: int = 100
    ) -> list[TimerMessage]:
        """Return timed messages that wait on a broker of CometMQ, in the order of their times.

        Args:
            address: of the broker.
            topic: only messages of this topic.
            key: only messages with this unique id or key.
            limit: return at most so many; of one second at most 1,000.

        Raises:
            ResponseError: the broker refused, or is of RocketMQ, which does not show them.
        """
        found: list[TimerMessage] = []
        begin_ms: int | None = 0
        while begin_ms is not None and len(found) < limit:
            messages, begin_ms, _ = await self.waiting_timers_after(
                address, begin_ms, topic=topic, key=key, limit=limit - len(found)
            )
            found += messages
        return found[:limit]

    async def waiting_timers_after(
        self,
        address: str,
        begin_ms: int,
        *,
        topic: str | None = None,
        key: str | None = None,
        limit: int = 100,
    ) -> tuple[list[TimerMessage], int | None, int]:
        """Return timed messages that are due from a time on, and the time to go on with.

        Args:
            address: of the broker.
            begin_ms: in ms since 1970.
            topic, key, limit: as in `waiting_timers`.

        Returns:
            Messages, none if the broker has looked at many seconds without one; the ``begin_ms`` of
            the next call, or None at the end; and how many messages of the same second as the last
            one are left out.

        Raises:
            ResponseError: as in `waiting_timers`.
        """
        request = ListTimerMessagesRequest(topic=topic, key=key, begin_ms=begin_ms, max_num=limit)
        response = await self.call(address, RequestCode.LIST_TIMER_MESSAGES, request)
        messages = TimerMessages.decode(response.body).messages
        header = response.header(ListTimerMessagesResponse)
        is_end = header.next_ms is None or header.next_ms <= begin_ms
        return messages, None if is_end else header.next_ms, header.left_out

    async def stop_writing(self, broker: str, *, servers: Iterable[str] | None = None) -> int:
        """Remove the write permission of a broker, by its name, until `resume_writing`.

        Args:
            broker: the name of the broker.
            servers: the addresses of name servers; None for all.

        Returns:
            The number of affected topics, as the name servers count them. If the broker
            registers changed topics, producers send to it again.
        """
        code, header = RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequest
        responses = await self._call_all_name_servers(code, header(broker_name=broker), servers)
        return max(
            each.header(WipeWritePermOfBrokerResponse).wipe_topic_count for each in responses
        )

    async def resume_writing(self, broker: str, *, servers: Iterable[str] | None = None) -> int:
        """Restore the write permission of a broker; arguments and result as in `stop_writing`."""
        code, header = RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequest
        responses = await self._call_all_name_servers(code, header(broker_name=broker), servers)
        return max(each.header(AddWritePermOfBrokerResponse).add_topic_count for each in responses)

    async def kv_list(self, space: str) -> dict[str, str]:
        """Return all values of a namespace of the key-value table."""
        header = GetKvlistByNamespaceRequest(namespace=space)
        try:
            response = await self.call_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return KVTable.decode(response.body).table


DIRECTLY_S = 15.0
"""Timeout of `Clients.consume_directly`, in seconds."""


class Clients(AdminCore):
    """Calls about clients that are online."""

    async def consumer_connections(
        self, group: str, *, brokers: Iterable[str] | None = None
    ) -> ConsumerConnection:
        """Return the online members of a consumer group, and the group's subscriptions.

        Args:
            group: the group.
            brokers: addresses of brokers, of which the first that knows a member is enough; None
                for all masters.

        Raises:
            ResponseError: with code 206 if no member is online.
        """
        header = GetConsumerConnectionListRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        response = await self._call_any_broker(code, header, brokers)
        return ConsumerConnection.decode(response.body)

    async def producer_connections(
        self, group: str, *, brokers: Iterable[str] | None = None
    ) -> ProducerConnection:
        """Return the online members of a producer group.

        Args:
            group: the group.
            brokers: as in `consumer_connections`.

        Raises:
            ResponseError: no member is online.
        """
        header = GetProducerConnectionListRequest(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        response = await self._call_any_broker(code, header, brokers)
        return ProducerConnection.decode(response.body)

    async def producers(self, address: str) -> ProducerTableInfo:
        """Return all producers that are connected to one broker, by group."""
        response = await self.call(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return ProducerTableInfo.decode(response.body)

    async def running_info(
        self,
        group: str,
        client_id: str,
        *,
        stacks: bool = False,
        brokers: Iterable[str] | None = None,
    ) -> ConsumerRunningInfo:
        """Return one consumer's settings, queues and rates.

        Args:
            group: its group.
            client_id: one of those in `consumer_connections`.
            stacks: include the stacks of its tasks and threads.
            brokers: as in `consumer_connections`.

        Raises:
            ResponseError: the consumer is not online, or did not respond to its broker.
        """
        header = GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        response = await self._call_any_broker(code, header, brokers)
        return ConsumerRunningInfo.decode(response.body)

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
        response = await self._call_any_broker(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header, route.masters()
        )
        return GetConsumerStatusBody.decode(response.body).consumer_table

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
        response = await self.call(address, code, header, timeout=DIRECTLY_S)
        return ConsumeMessageDirectlyResult.decode(response.body)

    async def _broker_of(self, message: StoredMessage) -> str:
        """Return the address of the broker that stores a message."""
        try:
            route = await self._route(message.topic)
        except ClientError:
            return message.store_host
        return route.master(message.broker_name) or message.store_host

    async def _call_any_broker(
        self, code: int, header: Header, addresses: Iterable[str] | None = None
    ) -> Command:
        """Call brokers in turn until one succeeds."""
        failure: CometError | None = None
        for address in addresses if addresses is not None else await self._masters():
            try:
                return await self.call(address, code, header)
            except CometError as error:
                failure = _better(failure, error)
        raise failure or ClientError(
            "no broker address is known: no broker is registered with the name server"
        )


def _better(before: CometError | None, error: CometError) -> CometError:
    """Return the more specific error: a refusal of a broker before a missing response."""
    if before is None or not isinstance(before, ResponseError):
        return error
    if before.code == ResponseCode.CONSUMER_NOT_ONLINE and isinstance(error, ResponseError):
        return error
    return before
