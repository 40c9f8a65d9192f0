"""``cometmq proxy``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.model.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.proxy.service import Listening


def run_proxy(
    name_servers: str,
    client_config: Path | None,
    *,
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
) -> None:
    """Serve gRPC clients until SIGTERM or Ctrl-C.

    Raises:
        ConfigError: a package is missing, or an option cannot be used.
    """
    from cometmq.cli.event_loop import run

    try:
        from cometmq.proxy.service import Listening
    except ImportError as missing:
        raise ConfigError(
            f"the proxy needs the extra grpc (no module {missing.name}): pip install '.[grpc]'"
        ) from None
    listening = Listening(host, port, certificate, key)
    run(_serve(name_servers, client_config, listening), small=True)


async def _serve(name_servers: str, client_config: Path | None, listening: Listening) -> None:
    from cometmq.cli.account import connection_settings
    from cometmq.client import AdminClient, ClientInstance
    from cometmq.proxy.service import serve
    from cometmq.system.platforms import SYSTEM

    def ready(address: str) -> None:
        print(f"proxy ready at {address}", flush=True)

    stopped = asyncio.Event()
    restore = SYSTEM.on_signals(asyncio.get_running_loop(), stopped.set)
    try:
        settings = connection_settings(client_config)
        async with (
            ClientInstance(name_servers, settings=settings) as instance,
            AdminClient(instance=instance) as admin,
        ):
            await serve(admin, name_servers, settings, listening, ready, stopped)
    finally:
        restore()
