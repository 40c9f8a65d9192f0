"""The key-value table of a name server: namespace → key → value, stored in one file.

Tools put order configurations here (namespace ``ORDER_TOPIC_CONFIG``). The whole table is written
at every change, in a thread; a change whose write fails is not made.

    file := {"configTable": {namespace: {key: value}}}

Source: KVConfigManager, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from cometmq.model.errors import ConfigError

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"

ENTRIES_MAX = 1_000_000
"""Limit of the whole table, so that no client can fill the memory."""


class TableFullError(ConfigError):
    """The table has as many entries as it may have."""


class KvTable:
    """The table.

    Args:
        content: the content of the file, None if there is none.
        save: writes the content of the file; called in a thread at every change.

    Raises:
        ConfigError: the content is not that of such a file.
    """

    def __init__(self, content: Any, save: Callable[[dict[str, Any]], None]) -> None:
        self._table = _table(content)
        self._save = save
        self._one_change = asyncio.Lock()

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace, or None if it was never used."""
        found = self._table.get(namespace)
        return dict(found) if found is not None else None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value.

        Raises:
            TableFullError: it would be one entry too many.
            StoreError: the file could not be written; the old value stays.
        """
        async with self._one_change:
            before = self._table.get(namespace, {})
            if key not in before and sum(map(len, self._table.values())) >= ENTRIES_MAX:
                raise TableFullError(
                    f"the key-value table has {ENTRIES_MAX} entries, which is its limit;"
                    " delete some first"
                )
            await self._replace(namespace, before | {key: value})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove one value; nothing happens if there is none.

        Raises:
            StoreError: the file could not be written; the old value stays.
        """
        async with self._one_change:
            before = self._table.get(namespace)
            if before is not None and key in before:
                await self._replace(namespace, {k: v for k, v in before.items() if k != key})

    async def _replace(self, namespace: str, entries: Mapping[str, str]) -> None:
        changed = self._table | {namespace: dict(entries)}
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._save, {"configTable": changed})
        self._table = changed


def _table(content: Any) -> dict[str, dict[str, str]]:
    if content is None:
        return {}
    table = content.get("configTable") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise ConfigError(
            'the file of the key-value table has no object "configTable" of namespaces, each an'
            " object of keys and values"
        )
    return {
        str(namespace): {str(key): str(value) for key, value in entries.items()}
        for namespace, entries in table.items()
    }
