"""Handles requests about the store as a whole: clean it now, show the state of replication.

Source: AdminBrokerProcessor.cleanExpiredConsumeQueue, deleteExpiredCommitLog and getBrokerHaStatus,
RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio

from cometmq.protocol.bodies import HARuntimeInfo
from cometmq.remoting import Request, Response
from cometmq.store import MessageStore


class StorageHandler:
    """Handles requests about the store.

    Args:
        store: the store of this broker.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    async def clean_queues(self, request: Request) -> Response:
        """CLEAN_EXPIRED_CONSUMEQUEUE (306): delete queue files whose messages left the log."""
        await clean(self._store)
        return Response()

    async def clean_log(self, request: Request) -> Response:
        """DELETE_EXPIRED_COMMITLOG (329): delete expired log files, at any hour.

        What a start after a power cut would read stays, so everything is written out before.
        """
        await asyncio.to_thread(self._store.write_out)
        await clean(self._store, expired_at_any_hour=True)
        return Response()

    def replication_status(self, request: Request) -> Response:
        """GET_BROKER_HA_STATUS (907): this broker is a master and has no slaves."""
        body = HARuntimeInfo(master=True, master_commit_log_max_offset=self._store.written_to)
        return Response(body=body.encode())


async def clean(store: MessageStore, *, expired_at_any_hour: bool = False) -> None:
    """Delete expired files, with other requests between the steps."""
    for _ in store.clean_in_steps(expired_at_any_hour=expired_at_any_hour):
        await asyncio.sleep(0)
