"""Answers LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42): who may consume a queue in order.

Queues of topics that this broker does not have are never granted.
Source: AdminBrokerProcessor.lockBatchMQ and unlockBatchMQ, RocketMQ 5.3; granting only queues of
real topics is ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from cometmq.broker.services.groups import GroupTable
from cometmq.broker.services.locks import QueueLocks
from cometmq.broker.services.names import check_client_id, known_group
from cometmq.broker.services.topics import TopicTable
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import LockBatchRequestBody, LockBatchResponseBody
from cometmq.remoting import Request, Response


class LockQueues:
    """Locks and unlocks queues for clients.

    Args:
        locks: the table.
        topics, groups: what exists.
    """

    def __init__(self, locks: QueueLocks, *, topics: TopicTable, groups: GroupTable) -> None:
        self._locks = locks
        self._topics = topics
        self._groups = groups

    def lock(self, request: Request) -> Response:
        """Grant what is free, expired or the client's own."""
        body = self._read(request)
        queues = dict.fromkeys(self._real(body.mq_set))
        granted = self._locks.lock(body.consumer_group, body.client_id, queues)
        return Response(body=LockBatchResponseBody(lock_ok_mq_set=granted).encode())

    def unlock(self, request: Request) -> Response:
        """Free the client's own locks."""
        body = self._read(request)
        self._locks.unlock(body.consumer_group, body.client_id, body.mq_set)
        return Response()

    def _read(self, request: Request) -> LockBatchRequestBody:
        body = LockBatchRequestBody.decode(request.body)
        check_client_id(body.client_id)
        known_group(self._groups, body.consumer_group)
        return body

    def _real(self, queues: Iterable[MessageQueue]) -> Iterable[MessageQueue]:
        for queue in queues:
            topic = self._topics.get(queue.topic)
            if topic is not None and queue.queue_id >= 0:
                yield queue
