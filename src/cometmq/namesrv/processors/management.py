"""What tools ask of a name server itself: its key-value table and its settings.

Source: DefaultRequestProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from cometmq.model.errors import ConfigError, ResponseError, StoreError
from cometmq.namesrv.kv_config import KvConfig
from cometmq.protocol.bodies import KVTable
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import (
    DeleteKvConfigRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetKvlistByNamespaceRequest,
    PutKvConfigRequest,
)
from cometmq.remoting import Request, Response
from cometmq.system import java_properties
from cometmq.system.configuration import Configuration, ProtectedSettingError

log = logging.getLogger(__name__)


class KvRequests:
    """Answers tools about the key-value table."""

    def __init__(self, kv: KvConfig) -> None:
        self._kv = kv

    def put(self, request: Request) -> Response:
        """PUT_KV_CONFIG (100)."""
        if not {"namespace", "key"} <= request.command.fields.keys():
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        header = request.header(PutKvConfigRequest)
        self._change(lambda: self._kv.put(header.namespace, header.key, header.value))
        return Response()

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

    def delete(self, request: Request) -> Response:
        """DELETE_KV_CONFIG (102)."""
        header = request.header(DeleteKvConfigRequest)
        self._change(lambda: self._kv.delete(header.namespace, header.key))
        return Response()

    def namespace(self, request: Request) -> Response:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        namespace = request.header(GetKvlistByNamespaceRequest).namespace
        table = self._kv.namespace(namespace)
        if table is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return Response(body=KVTable(table=table).encode())

    def _change(self, change: Callable[[], None]) -> None:
        try:
            change()
        except (StoreError, ConfigError) as problem:
            log.error("cannot change the key-value table: %s", problem)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem


class ConfigRequests:
    """Answers tools about the settings.

    Args:
        configuration: the settings.
        persist: keeps what was changed for the next start.
    """

    def __init__(
        self, configuration: Configuration, persist: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._configuration = configuration
        self._persist = persist

    def update(self, request: Request) -> Response:
        """UPDATE_NAMESRV_CONFIG (318)."""
        try:
            entries = java_properties.parse(java_properties.decode(request.body))
        except ValueError as problem:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}"
            ) from problem
        peer = request.connection.peer_text
        try:
            applied = self._configuration.change(
                {entry.key: entry.value for entry in entries}, f"request of {peer}", self._persist
            )
        except ProtectedSettingError as problem:
            log.warning("change of a protected setting refused peer=%s: %s", peer, problem)
            raise ResponseError(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            ) from problem
        except ConfigError as problem:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem
        log.info("configuration changed peer=%s keys=%s", peer, ",".join(applied) or "none")
        return Response()

    def show(self, request: Request) -> Response:
        """GET_NAMESRV_CONFIG (319)."""
        return Response(body=self._configuration.render().encode())
