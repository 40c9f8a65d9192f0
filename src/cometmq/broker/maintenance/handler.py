"""Handles requests about the store as a whole: clean it now.

RocketMQ 5 can keep queues and tables in RocksDB; requests about these have simple responses here.

Source: AdminBrokerProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio

from cometmq.remoting import Request, Response
from cometmq.store import MessageStore

_NOT_RIGHT = 1
"""The status of a comparison that did not find equal queues."""


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

    def compare_queues(self, request: Request) -> Response:
        """CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354): there is nothing to compare."""
        from cometmq.protocol.bodies.broker_admin import CheckRocksdbCqWriteResult

        result = CheckRocksdbCqWriteResult(
            check_result="this broker has no queues in RocksDB", check_status=_NOT_RIGHT
        )
        return Response(body=result.encode())

    def export_tables(self, request: Request) -> Response:
        """EXPORT_ROCKSDB_CONFIG_TO_JSON (355): the tables are JSON files already."""
        return Response(remark="export done.")


async def clean(store: MessageStore, *, expired_at_any_hour: bool = False) -> None:
    """Delete expired files, with other requests between the steps."""
    for _ in store.clean_in_steps(expired_at_any_hour=expired_at_any_hour):
        await asyncio.sleep(0)
