"""Answers GET_BROKER_CONFIG (26) and UPDATE_BROKER_CONFIG (25).

Only settings that were declared as changeable can be changed, and a request that names another one
changes nothing. What was changed is also written into the broker's configuration file when it was
started with one.

Source: AdminBrokerProcessor.updateBrokerConfig and getBrokerConfig, RocketMQ 5.3; the list of what
can be changed is ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol import fastjson
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers import GetBrokerConfigResponse
from cometmq.remoting import Request, Response
from cometmq.system import java_properties
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration, ProtectedSettingError
from cometmq.system.files import Files, save_with_backup

log = logging.getLogger(__name__)

BODY_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 1000


class ConfigHandler:
    """Shows the settings and takes changes.

    Args:
        configuration: the settings of the process.
        file: the configuration file, or None when the broker was started without one.
        files: the way to it.
        clock: stamps the version of the settings.
        on_change: told the keys and values that were changed.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        file: Path | None,
        files: Files,
        clock: Clock,
        on_change: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        self._configuration = configuration
        self._file = file
        self._files = files
        self._clock = clock
        self._on_change = on_change
        self._changed_ms = clock.now_ms()
        self._one_at_a_time = asyncio.Lock()

    def show(self, request: Request) -> Response:
        """Answer all settings as properties text."""
        version = {
            "counter": self._configuration.changes,
            "stateVersion": 0,
            "timestamp": self._changed_ms,
        }
        return Response(
            header=GetBrokerConfigResponse(version=fastjson.dumps(version).decode()),
            body=self._configuration.render().encode(),
        )

    async def update(self, request: Request) -> Response:
        """Change settings.

        Raises:
            ResponseError: 16, a setting must not be changed; 29, a value is out of its range; 1,
                the text cannot be read. Nothing was changed then.
        """
        values = _values(request.body)
        peer = request.connection.peer_text
        try:
            applied = self._configuration.change(values, f"request of {peer}")
        except ProtectedSettingError as refusal:
            log.warning("configuration change refused peer=%s: %s", peer, refusal)
            raise ResponseError(
                ResponseCode.NO_PERMISSION, "Can not update config in black list."
            ) from refusal
        except ConfigError as problem:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(problem)) from problem
        if applied:
            log.info("configuration changed peer=%s keys=%s", peer, ",".join(sorted(applied)))
            self._changed_ms = self._clock.now_ms()
            await self._write(applied)
            await self._on_change(applied)
        return Response()

    async def _write(self, applied: Mapping[str, str]) -> None:
        if self._file is None:
            return
        loop = asyncio.get_running_loop()
        try:
            async with self._one_at_a_time:
                await loop.run_in_executor(None, self._write_file, self._file, applied)
        except OSError as problem:
            # The change holds; after a restart the old value would be back, so somebody must know.
            log.error("cannot write the changed configuration file=%s: %s", self._file, problem)

    def _write_file(self, file: Path, applied: Mapping[str, str]) -> None:
        """In a thread."""
        data = self._files.read(file) or b""
        text = java_properties.with_changes(java_properties.decode(data), applied)
        save_with_backup(self._files, file, text.encode())


def _values(body: bytes) -> dict[str, str]:
    if len(body) > BODY_BYTES_MAX:
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER,
            f"properties text of {len(body)} bytes, expected at most {BODY_BYTES_MAX}",
        )
    try:
        entries = java_properties.parse(java_properties.decode(body))
    except ValueError as problem:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}") from (
            problem
        )
    values = {entry.key: entry.value for entry in entries}
    if len(values) > KEYS_MAX:
        raise ResponseError(
            ResponseCode.INVALID_PARAMETER, f"{len(values)} keys, expected at most {KEYS_MAX}"
        )
    return values
