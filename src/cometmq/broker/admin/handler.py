"""Handles requests that show and change the settings of a running broker.

Source: AdminBrokerProcessor.getBrokerConfig, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from cometmq.broker.role import Role
from cometmq.protocol import fastjson
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.broker_admin import GetBrokerConfigResponse
from cometmq.remoting import Request, Response
from cometmq.remoting.config_update import ConfigUpdate
from cometmq.remoting.slices import off_loop
from cometmq.system.clock import Clock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files


class ConfigHandler:
    """Shows and changes the settings.

    Args:
        configuration: the settings of the process.
        role: what this broker is now, which need not be what it was at its start.
        resolved: returns key → text of the settings whose default is looked up.
        file: the configuration file, or None if the broker was started without one.
        files: the disk.
        clock: stamps the version of the settings.
        started_ms: when the broker started, which is their first version.
        on_change: called with the keys and values that were changed.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        role: Role,
        resolved: Callable[[], Mapping[str, str]],
        file: Path | None,
        files: Files,
        clock: Clock,
        started_ms: int,
        on_change: Callable[[Mapping[str, str]], Awaitable[None]],
    ) -> None:
        self._configuration = configuration
        self._role = role
        self._resolved = resolved
        self._clock = clock
        self._on_change = on_change
        self._changed_ms = started_ms
        self._update = ConfigUpdate(
            configuration,
            file=file,
            files=files,
            invalid=ResponseCode.INVALID_PARAMETER,
            on_change=self._changed,
        )

    async def show(self, request: Request) -> Response:
        """GET_BROKER_CONFIG (26): all settings as properties text, with what is in force."""
        role = {"brokerRole": self._role.name, "brokerId": str(self._role.broker_id)}
        text = await off_loop(partial(self._configuration.render, {**self._resolved(), **role}))
        version = {
            "counter": self._configuration.changes,
            "stateVersion": 0,
            "timestamp": self._changed_ms,
        }
        return Response(
            header=GetBrokerConfigResponse(version=fastjson.dumps(version).decode()),
            body=text.encode(),
        )

    async def update(self, request: Request) -> Response:
        """UPDATE_BROKER_CONFIG (25).

        Raises:
            ResponseError: see `ConfigUpdate`; 29, a value is out of its range. Nothing was
                changed then.
        """
        return await self._update.handle(request)

    async def _changed(self, changes: Mapping[str, str]) -> None:
        self._changed_ms = self._clock.now_ms()
        await self._on_change(changes)
