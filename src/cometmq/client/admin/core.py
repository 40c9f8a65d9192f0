"""What every family of admin calls stands on: whom to ask, and how to put the question.

Source: DefaultMQAdminExtImpl, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Unpack

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._connection.leases import acquire_instance
from cometmq.client._connection.queue_offsets import QueueOffsets
from cometmq.client._connection.routes import MASTER_ID, Route
from cometmq.client._lifecycle import Lifecycle
from cometmq.client.errors import ClientError
from cometmq.client.options import ConnectionOptions
from cometmq.client.settings import ClientSettings, read_tables, resolve_settings
from cometmq.model.errors import ResponseError
from cometmq.protocol.bodies import ClusterInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers import (
    DeleteKvConfigRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    Header,
    PutKvConfigRequest,
)
from cometmq.remoting import check


class AdminCore(Lifecycle):
    """Asks brokers and name servers; each family of calls is a class on top of it."""

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
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

    async def cluster_info(self) -> ClusterInfo:
        """Return the clusters, their brokers and the brokers' addresses."""
        answer = await self._ask_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        return ClusterInfo.decode(answer.body)

    async def _masters(self, brokers: Iterable[str] | None = None) -> list[str]:
        """Give the addresses of the masters of these brokers, or of all that are registered."""
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
        """Give the route of a topic; the one kept is good enough."""
        self._instance.check_running()
        return await self._instance.routes.find(topic)

    async def _ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Ask one server and give its answer, which says success."""
        self._instance.check_running()
        return await self._instance.brokers.call(address, code, header, body, timeout=timeout)

    async def _ask_name_server(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> Command:
        """Ask whichever name server answers; for questions only."""
        self._instance.check_running()
        timeout = self._instance.settings.call_timeout_ms / 1000
        names = self._instance.name_servers
        return check(await names.call(code, header, body, timeout=timeout))

    async def _tell_name_servers(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> list[Command]:
        """Tell every name server, since none of them tells another; gives their answers."""
        self._instance.check_running()
        addresses = self._instance.name_servers.addresses
        return [await self._ask(address, code, header, body) for address in addresses]

    async def _put_kv(self, space: str, key: str, value: str | None) -> None:
        """Let every name server keep a value, or forget it."""
        if value is None:
            forget = DeleteKvConfigRequest(namespace=space, key=key)
            await self._tell_name_servers(RequestCode.DELETE_KV_CONFIG, forget)
        else:
            keep = PutKvConfigRequest(namespace=space, key=key, value=value)
            await self._tell_name_servers(RequestCode.PUT_KV_CONFIG, keep)

    async def _kv_value(self, space: str, key: str) -> str | None:
        """Give a value that the name servers keep."""
        header = GetKvConfigRequest(namespace=space, key=key)
        try:
            answer = await self._ask_name_server(RequestCode.GET_KV_CONFIG, header)
        except ResponseError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.header(GetKvConfigResponse).value
