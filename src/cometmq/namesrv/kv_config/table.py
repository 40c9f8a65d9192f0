"""The key-value table of a name server: namespace → key → value, stored in one file.

Tools put order configurations here (namespace ``ORDER_TOPIC_CONFIG``). The whole table is written
at every change, in a thread; a change whose write fails is not made.

    file := {"configTable": {namespace: {key: value}}}

Source: KVConfigManager, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cometmq.model.errors import ConfigError
from cometmq.remoting.slices import Slices
from cometmq.remoting.slow_requests import in_thread

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
        ConfigError: the content is not a key-value table.
    """

    def __init__(self, content: Any, save: Callable[[dict[str, Any]], None]) -> None:
        self._table = _table(content)
        self._count = sum(map(len, self._table.values()))
        self._save = save
        self._one_change = asyncio.Lock()

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None."""
        return self._table.get(namespace, {}).get(key)

    async def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all keys and values of a namespace, or None if it was never used."""
        async with self._one_change:
            found = self._table.get(namespace)
            if found is None:
                return None
            return {key: value async for key, value in Slices().each(found.items())}

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set one value.

        Raises:
            TableFullError: it would be one entry too many.
            StoreError: the file could not be written; the old value stays.
        """
        async with self._one_change:
            is_new = key not in self._table.get(namespace, {})
            if is_new and self._count >= ENTRIES_MAX:
                raise TableFullError(
                    f"the key-value table has {ENTRIES_MAX} entries, which is its limit;"
                    " delete some first"
                )
            await self._write(namespace, lambda entries: entries | {key: value})
            self._table.setdefault(namespace, {})[key] = value
            self._count += is_new

    async def delete(self, namespace: str, key: str) -> None:
        """Remove one value; nothing happens if there is none.

        Raises:
            StoreError: the file could not be written; the old value stays.
        """
        async with self._one_change:
            if key not in self._table.get(namespace, {}):
                return
            await self._write(
                namespace, lambda entries: {k: v for k, v in entries.items() if k != key}
            )
            del self._table[namespace][key]
            self._count -= 1

    async def _write(
        self, namespace: str, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Write the table with a change of one namespace; the thread makes the copy."""

        def save() -> None:
            changed = self._table | {namespace: change(self._table.get(namespace, {}))}
            self._save({"configTable": changed})

        await in_thread(save)


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
