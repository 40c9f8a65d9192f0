"""The remote control of a Celery application that recalls revoked tasks from the broker's timer."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from celery.app.control import Control as CeleryControl

from cometmq.client import CometError
from cometmq.kombu import Transport

log = logging.getLogger(__name__)


class Control(CeleryControl):
    """Revokes tasks at the workers, and recalls those that wait in a broker's timer.

    Workers forget revoked tasks after three hours. A recalled task never runs, however far its ETA
    is. Needs brokers with ``recallMessageEnable=true``.

    Example:
        app = Celery("shop", broker="cometmq://127.0.0.1:9876", control="cometmq.celery:Control")
        result = remind.apply_async(countdown=86_400)
        result.revoke()
    """

    def revoke(self, task_id: str | Iterable[str], *arguments: Any, **named: Any) -> Any:
        """Revoke one or several tasks."""
        ids = [task_id] if isinstance(task_id, str) else list(task_id)
        with self.app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1)
            transport = connection.transport
            if isinstance(transport, Transport):
                self._recall(transport, ids)
        return super().revoke(task_id if isinstance(task_id, str) else ids, *arguments, **named)

    def _recall(self, transport: Transport, ids: Sequence[str]) -> None:
        """Recall tasks, and note in the result backend that they are revoked: no worker will."""
        try:
            recalled, failures = transport.recall_all(ids)
        except CometError as error:  # the workers still discard them
            recalled, failures = {}, [error]
        if failures:
            left = len(ids) - len(recalled)
            log.warning("up to %d tasks are not recalled error=%s", left, failures[0])
        for task_id in recalled:
            try:
                self.app.backend.mark_as_revoked(task_id, reason="revoked")
            except Exception as error:  # each backend has errors of its own; rpc:// cannot note it
                log.info("the result is not noted id=%s error=%r", task_id, error)
