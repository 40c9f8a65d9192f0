"""Answers CLEAN_EXPIRED_CONSUMEQUEUE (306) and DELETE_EXPIRED_COMMITLOG (329): clean up now.

Source: AdminBrokerProcessor.cleanExpiredConsumeQueue and deleteExpiredCommitLog, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.remoting import Request, Response
from cometmq.store import MessageStore


class CleanStore:
    """Deletes what has expired.

    Args:
        store: where it is.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def queues(self, request: Request) -> Response:
        """Delete the queue files whose messages are gone from the log."""
        self._store.clean()
        return Response()

    def log(self, request: Request) -> Response:
        """Delete the log files that have expired, whatever the hour."""
        self._store.clean(expired_at_any_hour=True)
        return Response()
