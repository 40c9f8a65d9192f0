"""Handles requests of tools for the key-value table.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.namesrv.kv_config.table import KvTable
from cometmq.protocol.bodies.common import KVTable
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.namesrv import (
    DeleteKvConfigRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetKvlistByNamespaceRequest,
    PutKvConfigRequest,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.slices import encode

log = logging.getLogger(__name__)


class KvHandler:
    """Handles requests for the key-value table.

    Args:
        kv: the table.
    """

    def __init__(self, kv: KvTable) -> None:
        self._kv = kv

    async def put(self, request: Request) -> Response:
        """PUT_KV_CONFIG (100)."""
        if not {"namespace", "key"} <= request.command.fields.keys():
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        header = request.header(PutKvConfigRequest)
        return await _changed(self._kv.put(header.namespace, header.key, header.value))

    def get(self, request: Request) -> Response:
        """GET_KV_CONFIG (101)."""
        header = request.header(GetKvConfigRequest)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return Response(header=GetKvConfigResponse(value=value))

    async def delete(self, request: Request) -> Response:
        """DELETE_KV_CONFIG (102)."""
        header = request.header(DeleteKvConfigRequest)
        return await _changed(self._kv.delete(header.namespace, header.key))

    async def namespace(self, request: Request) -> Response:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        namespace = request.header(GetKvlistByNamespaceRequest).namespace
        table = await self._kv.namespace(namespace)
        if table is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return Response(body=await encode(KVTable(table=table)))


async def _changed(change: Awaitable[None]) -> Response:
    try:
        await change
    except (StoreError, ConfigError) as problem:
        log.error("cannot change the key-value table: %s", problem)
        raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem
    return Response()
