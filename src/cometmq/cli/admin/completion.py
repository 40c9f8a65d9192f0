"""The names that a shell offers: it asks the name server, and offers nothing if that fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from cometmq.cli.account import connection_settings
from cometmq.cli.admin.names import group_names, topic_names
from cometmq.client import AdminClient

COMPLETION_S = 1.0
"""Time for the name server to respond to a shell that completes a word."""


def names(kind: str, name_servers: str, config: Path | None) -> list[str]:
    """Return the names of a kind, in order; none if the name server does not respond in time.

    Args:
        kind: ``topics``, ``groups``, ``brokers`` or ``clusters``.
        name_servers: the value of ``--namesrv``; empty if there is none.
        config: the value of ``--config``.
    """
    logging.disable()  # a line of the log would disturb the line that the user edits
    try:
        return asyncio.run(asyncio.wait_for(_names(kind, name_servers, config), COMPLETION_S))
    except Exception:  # a completion must never fail
        return []
    finally:
        logging.disable(logging.NOTSET)


async def _names(kind: str, name_servers: str, config: Path | None) -> list[str]:
    async with AdminClient(name_servers, client=connection_settings(config)) as admin:
        if kind in ("brokers", "clusters"):
            info = await admin.cluster_info()
            return sorted(info.broker_addr_table if kind == "brokers" else info.cluster_addr_table)
        if kind == "groups":
            return await group_names(admin)
        return await topic_names(admin)
