"""Brokers and name servers: figures, settings, who may be written to, what is kept for all.

Source: the broker and name server commands of DefaultMQAdminExt, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.client.admin.core import AdminCore
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies import (
    BrokerStatsData,
    ConsumeStatsList,
    HARuntimeInfo,
    KVTable,
)
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    GetBrokerConsumeStatsRequest,
    GetKvlistByNamespaceRequest,
    ViewBrokerStatsDataRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)
from cometmq.system import java_properties


class Brokers(AdminCore):
    """Calls about servers."""

    async def broker_figures(self, address: str) -> dict[str, str]:
        """Return a broker's runtime information: counts, rates, offsets, disk use."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return KVTable.decode(answer.body).table

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
        answer = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        return BrokerStatsData.decode(answer.body)

    async def broker_progress(self, address: str, *, ordered: bool = False) -> ConsumeStatsList:
        """Return the offsets and lag of all groups of one broker.

        Args:
            address: the broker.
            ordered: only ordered topics.
        """
        header = GetBrokerConsumeStatsRequest(is_order=ordered)
        answer = await self._ask(address, RequestCode.GET_BROKER_CONSUME_STATS, header)
        return ConsumeStatsList.decode(answer.body)

    async def replication(self, address: str) -> HARuntimeInfo:
        """Return the replication state of a broker.

        Raises:
            ResponseError: the broker is older than 5.0.
        """
        answer = await self._ask(address, RequestCode.GET_BROKER_HA_STATUS)
        return HARuntimeInfo.decode(answer.body)

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return all settings of a broker."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        entries = java_properties.parse(java_properties.decode(answer.body))
        return {entry.key: entry.value for entry in entries}

    async def set_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker.

        As with RocketMQ's brokers, a key that the broker does not know changes nothing and is no
        error.

        Raises:
            ResponseError: a setting cannot be changed, or not to that value; nothing was changed.
        """
        body = java_properties.render(changes).encode()
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def clean_up(self, address: str) -> None:
        """Delete a broker's expired files and the queues of deleted topics now."""
        for code in (
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,
        ):
            await self._ask(address, code)

    async def stop_writing(self, broker: str) -> int:
        """Remove the write permission of a broker, by its name, until `resume_writing`.

        Returns:
            The number of affected topics, as the name servers count them. If the broker
            registers changed topics, producers send to it again.
        """
        code, header = RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePermOfBrokerRequest
        answers = await self._tell_name_servers(code, header(broker_name=broker))
        return max(a.header(WipeWritePermOfBrokerResponse).wipe_topic_count for a in answers)

    async def resume_writing(self, broker: str) -> int:
        """Restore the write permission of a broker; returns the number of affected topics."""
        code, header = RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePermOfBrokerRequest
        answers = await self._tell_name_servers(code, header(broker_name=broker))
        return max(a.header(AddWritePermOfBrokerResponse).add_topic_count for a in answers)

    async def kv_get(self, space: str, key: str) -> str | None:
        """Return a value of the name servers' key-value table, or None."""
        return await self._kv_value(space, key)

    async def kv_put(self, space: str, key: str, value: str) -> None:
        """Store a value in the key-value table of every name server."""
        await self._put_kv(space, key, value)

    async def kv_delete(self, space: str, key: str) -> None:
        """Delete a value from the key-value table of every name server."""
        await self._put_kv(space, key, None)

    async def kv_list(self, space: str) -> dict[str, str]:
        """Return all values of a namespace of the key-value table."""
        header = GetKvlistByNamespaceRequest(namespace=space)
        try:
            answer = await self._ask_name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return {}
            raise
        return KVTable.decode(answer.body).table
