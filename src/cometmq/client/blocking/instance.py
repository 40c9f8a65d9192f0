"""Connections that several blocking objects share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cometmq.client as asynchronous
from cometmq.client.blocking.base import Blocking
from cometmq.client.settings import ClientSettings, read_tables, resolve_settings


class ClientInstance(Blocking):
    """The connections of one client, like `cometmq.client.ClientInstance`.

    Args:
        name_servers: ``host:port;host:port``, or a sequence of addresses.
        settings: the client's settings.
        config: a TOML file with a table ``[client]``.
        options: settings of `ClientSettings` by name.

    Example:
        ``with ClientInstance("127.0.0.1:9876") as instance:``
        ``    with Producer(instance=instance, group="billing") as producer: ...``
    """

    _inner: asynchronous.ClientInstance

    def __init__(
        self,
        name_servers: str | Sequence[str] = "",
        *,
        settings: ClientSettings | None = None,
        config: Path | None = None,
        **options: Any,
    ) -> None:
        tables = read_tables(config) if config else None
        used = resolve_settings(ClientSettings, keywords=options, given=settings, tables=tables)
        super().__init__(asynchronous.ClientInstance(name_servers, settings=used))

    @property
    def client_id(self) -> str:
        """The id of this client at the brokers."""
        return self._inner.client_id


def inner_instance(instance: ClientInstance | None) -> asynchronous.ClientInstance | None:
    """Give the asyncio object behind an instance."""
    return None if instance is None else instance._inner
