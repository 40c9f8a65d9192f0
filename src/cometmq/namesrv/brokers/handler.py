"""Handles requests of brokers, and of tools that change the permissions of a broker.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from cometmq.model.errors import ResponseError
from cometmq.namesrv.brokers.registrations import read_registration
from cometmq.namesrv.kv_config.table import ORDER_NAMESPACE
from cometmq.namesrv.registry import (
    BrokerKey,
    IncrementFirstError,
    RegistrationRefusedError,
)
from cometmq.protocol.bodies.common import DataVersion, KVTable
from cometmq.protocol.bodies.route import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.namesrv import (
    AddWritePermOfBrokerRequest,
    AddWritePermOfBrokerResponse,
    BrokerHeartbeatRequest,
    GetBrokerMemberGroupRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
    WipeWritePermOfBrokerRequest,
    WipeWritePermOfBrokerResponse,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import LENIENT_BYTES_MAX, Slices, encode, off_loop

if TYPE_CHECKING:
    from cometmq.namesrv.core import Core

log = logging.getLogger(__name__)


class BrokerHandler:
    """Handles registrations, heartbeats, members of groups and permissions.

    Args:
        core: of the name server.
    """

    def __init__(self, core: Core) -> None:
        self._registry = core.registry
        self._kv = core.kv
        self._settings = core.settings
        self._now_ms = core.now_ms
        self._notify = core.liveness.notify

    async def register(self, request: Request) -> Response:
        """REGISTER_BROKER (103)."""
        settings = self._settings()
        header = request.header(RegisterBrokerRequest)
        read = partial(
            read_registration,
            header,
            request.body,
            version=request.command.version,
            expiry_ms=settings.broker_expiry_ms,
        )
        small = len(request.body) <= LENIENT_BYTES_MAX
        registration = read() if small else await off_loop(read)
        is_new = registration.key not in self._registry.live
        try:
            result = await self._registry.register(
                registration,
                request.connection,
                self._now_ms(),
                deletes_absent_topics=(
                    settings.deletes_topics_with_registration and not header.is_part
                ),
                is_closed=lambda: request.connection.closed,
            )
        except IncrementFirstError:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "register broker failed") from None
        except RegistrationRefusedError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"registration refused: {problem}"
            ) from None
        if not result.accepted:
            log.warning(
                "registration refused, id taken by newer data broker=%s id=%d address=%s",
                registration.broker_name,
                registration.broker_id,
                registration.address,
            )
        elif is_new:
            log.info(
                "broker registered broker=%s id=%d address=%s topics=%d",
                registration.broker_name,
                registration.broker_id,
                registration.address,
                len(registration.topics),
            )
        if result.notice is not None:
            self._notify(result.notice)
        await Slices().clear(registration.topics)
        return Response(
            header=RegisterBrokerResponse(
                master_addr=result.master_address, ha_server_addr=result.ha_address
            ),
            body=await self._order_table() if settings.return_order_topic_config else b"",
        )

    async def _order_table(self) -> list[bytes] | bytes:
        table = await self._kv.namespace(ORDER_NAMESPACE)
        return await encode(KVTable(table=table)) if table is not None else b""

    async def unregister(self, request: Request) -> Response:
        """UNREGISTER_BROKER (104)."""
        header = request.header(UnregisterBrokerRequest)
        key = BrokerKey(header.cluster_name, header.broker_addr)
        notice = await self._registry.unregister(key, header.broker_name)
        if notice is not None:
            self._notify(notice)
        log.info(
            "broker unregistered broker=%s id=%d address=%s",
            header.broker_name[:80],
            header.broker_id,
            header.broker_addr[:80],
        )
        return Response()

    def query_data_version(self, request: Request) -> Response:
        """QUERY_DATA_VERSION (322); counts as a heartbeat."""
        header = request.header(QueryDataVersionRequest)
        key = BrokerKey(header.cluster_name, header.broker_addr)
        changed = self._registry.has_changed(key, DataVersion.decode(request.body))
        self._registry.touch(key, self._now_ms())
        known = self._registry.live.get(key)
        return Response(
            header=QueryDataVersionResponse(changed=changed),
            body=known.version.encode() if known is not None else b"",
        )

    def heartbeat(self, request: Request) -> Response:
        """BROKER_HEARTBEAT (904)."""
        header = request.header(BrokerHeartbeatRequest)
        self._registry.touch(BrokerKey(header.cluster_name, header.broker_addr), self._now_ms())
        return Response()

    async def members(self, request: Request) -> Response:
        """GET_BROKER_MEMBER_GROUP (901)."""
        header = request.header(GetBrokerMemberGroupRequest)
        addresses = self._registry.members(header.cluster_name, header.broker_name)
        group = BrokerMemberGroup(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_addrs=addresses or {},
        )
        return Response(
            body=await encode(GetBrokerMemberGroupResponseBody(broker_member_group=group))
        )

    async def wipe_write_perm(self, request: Request) -> Response:
        """WIPE_WRITE_PERM_OF_BROKER (205)."""
        name = request.header(WipeWritePermOfBrokerRequest).broker_name
        count = await self._registry.wipe_write_perm(name)
        log.info("write permission removed broker=%s topics=%d", name[:80], count)
        return Response(header=WipeWritePermOfBrokerResponse(wipe_topic_count=count))

    async def add_write_perm(self, request: Request) -> Response:
        """ADD_WRITE_PERM_OF_BROKER (327)."""
        name = request.header(AddWritePermOfBrokerRequest).broker_name
        count = await self._registry.add_write_perm(name)
        log.info("read and write permission restored broker=%s topics=%d", name[:80], count)
        return Response(header=AddWritePermOfBrokerResponse(add_topic_count=count))
