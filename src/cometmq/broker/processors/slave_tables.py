"""Answers slaves, and those who ask about slaves.

The tables of topics, groups and consumer offsets are answered where they are kept.

Source: AdminBrokerProcessor.getAllDelayOffset and getBrokerHaStatus, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Callable

from cometmq.protocol.bodies import DataVersion, DelayOffsetSerializeWrapper, HARuntimeInfo
from cometmq.remoting import Request, Response
from cometmq.store import MessageStore


class DelayOffsetTable:
    """Answers GET_ALL_DELAY_OFFSET (45).

    Args:
        offsets: gives how far each delay level was delivered, and the version of that table.
    """

    def __init__(self, offsets: Callable[[], tuple[dict[int, int], DataVersion]]) -> None:
        self._offsets = offsets

    def all(self, request: Request) -> Response:
        """Answer the offset of each level that has one."""
        numbers, version = self._offsets()
        body = DelayOffsetSerializeWrapper(offset_table=numbers, data_version=version)
        return Response(body=body.encode())


class ReplicationStatus:
    """Answers GET_BROKER_HA_STATUS (907): this broker is a master, and no slave follows it.

    Args:
        store: tells how far the log has come.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def show(self, request: Request) -> Response:
        """Answer the state of replication."""
        body = HARuntimeInfo(master=True, master_commit_log_max_offset=self._store.written_to)
        return Response(body=body.encode())
