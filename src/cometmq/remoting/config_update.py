"""Handles requests that show and change the settings of a running server.

Only settings that are declared as changeable can be changed, and a request that names another one
changes nothing. A change is written to the configuration file first, then applied: what is in force
is still in force after a restart. A change that cannot be written is refused.

Source: AdminBrokerProcessor.updateBrokerConfig, DefaultRequestProcessor.updateConfig and
ControllerRequestProcessor.handleUpdateControllerConfig, RocketMQ 5.3, which apply a change before
they write it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.model.errors import ConfigError, ResponseError
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.requests import Request, Response
from cometmq.remoting.slices import off_loop
from cometmq.remoting.slow_requests import in_thread
from cometmq.system import java_properties
from cometmq.system.configuration import Configuration, ProtectedSettingError, write_changes
from cometmq.system.files import Files
from cometmq.system.rocketmq_keys import PROTECTED_KEYS

log = logging.getLogger(__name__)

BLACK_LIST: Final = "Can not update config in black list."
"""RocketMQ's remark."""

BODY_BYTES_MAX: Final = 256 * 1024
KEYS_MAX: Final = 1000


class ConfigUpdate:
    """Shows settings, and changes them, one request at a time.

    Args:
        configuration: the settings of the process.
        file: where changes are written; None if the server was started without a file.
        files: the disk.
        invalid: the response code for a value that a setting does not allow.
        on_change: called with the keys and values that were changed.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        file: Path | None,
        files: Files,
        invalid: int,
        on_change: Callable[[Mapping[str, str]], Awaitable[None]] | None = None,
    ) -> None:
        self._configuration = configuration
        self._file = file
        self._files = files
        self._invalid = invalid
        self._on_change = on_change
        self._one_change = asyncio.Lock()

    async def show(self, _request: Request) -> Response:
        """Return all settings as properties text."""
        text = await off_loop(self._configuration.render)
        return Response(body=text.encode())

    async def handle(self, request: Request) -> Response:
        """Change the settings that a request names.

        Raises:
            ResponseError: 16, a setting must not be changed; the code for invalid values; 1, the
                text cannot be read, or the change cannot be written. Nothing was changed then.
        """
        values = await off_loop(partial(properties_of, request.body, self._invalid))
        peer = request.connection.peer_text
        async with self._one_change:
            try:
                accepted = self._configuration.accepted(values)
            except ProtectedSettingError as refusal:
                log.warning("configuration change refused peer=%s: %s", peer, refusal)
                raise ResponseError(ResponseCode.NO_PERMISSION, _remark(refusal.keys)) from refusal
            except ConfigError as problem:
                raise ResponseError(self._invalid, str(problem)) from problem
            unknown = sorted(values.keys() - accepted.keys())
            if unknown:
                log.warning("unknown settings ignored peer=%s keys=%.500r", peer, unknown)
            if accepted:
                await self._write(accepted)
                self._configuration.change(accepted, f"request of {peer}")
                log.info("configuration changed peer=%s keys=%s", peer, ",".join(sorted(accepted)))
        if accepted and self._on_change is not None:
            await self._on_change(accepted)
        return Response()

    async def _write(self, values: Mapping[str, str]) -> None:
        if self._file is None:
            return
        try:
            await in_thread(partial(write_changes, self._file, values, self._files))
        except ConfigError as problem:
            log.error("cannot write changed settings, the change is refused: %s", problem)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(problem)) from problem


def _remark(keys: Iterable[str]) -> str:
    """Return RocketMQ's words, which are about its black list, and what to do about other keys."""
    fixed = [key for key in keys if key not in PROTECTED_KEYS]
    if not fixed:
        return BLACK_LIST
    return (
        f"{BLACK_LIST} {', '.join(fixed)} cannot be changed while the server runs: change it in its"
        " configuration file and restart"
    )


def properties_of(body: bytes, invalid: int) -> dict[str, str]:
    """Return the keys and values of properties text in a request.

    Args:
        body: the text.
        invalid: the response code for a text that is too long.

    Raises:
        ResponseError: that code; 1, the text cannot be read.
    """
    if len(body) > BODY_BYTES_MAX:
        raise ResponseError(
            invalid, f"properties text of {len(body)} bytes, expected at most {BODY_BYTES_MAX}"
        )
    try:
        entries = java_properties.parse(java_properties.decode(body))
    except ValueError as problem:
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"string2Properties error: {problem}"
        ) from problem
    values = {entry.key: entry.value for entry in entries}
    if len(values) > KEYS_MAX:
        raise ResponseError(invalid, f"{len(values)} keys, expected at most {KEYS_MAX}")
    return values
