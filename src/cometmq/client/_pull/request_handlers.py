"""What a pull consumer answers when a broker asks its group: where it stands, how it is, to move.

    40   the group's members changed: divide the queues anew       oneway
    220  go on at these offsets: the administrator moved the group  oneway
    221  the offsets in memory
    307  settings, subscriptions, and what was fetched of each queue

Source: ClientRemotingProcessor, RocketMQ 5.3, where pull consumers do not heed 220.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from cometmq.client._connection.instance import ClientInstance
from cometmq.client._consuming.fetcher import Fetcher
from cometmq.client._pull.positions import Positions
from cometmq.client._push.request_handlers import offsets_in
from cometmq.client.filters import Filter
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies import (
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProcessQueueInfo,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import InvokeBrokerToGetConsumerStatusRequest
from cometmq.remoting import Request, RequestHandler, Response

log = logging.getLogger(__name__)

MIB = 1024 * 1024


class PullRequestHandlers:
    """PullRequestHandlers for one consumer.

    Args:
        instance: asked by the brokers.
        group: as brokers know it.
        fetcher: knows the queues and what was fetched of them.
        positions: knows how far they are consumed.
        filters: what is wanted of each topic.
        divide: divides the queues of the group anew.
        move: goes on in a queue elsewhere.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        *,
        fetcher: Fetcher,
        positions: Positions,
        filters: Callable[[], Mapping[str, Filter]],
        divide: Callable[[], None],
        move: Callable[[MessageQueue, QueueOffset], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._fetcher = fetcher
        self._positions = positions
        self._filters = filters
        self._divide = divide
        self._move = move
        self._begun_ms = 0
        self._table: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running,
        }

    def begin(self) -> None:
        """Answer from now on."""
        self._begun_ms = time.time_ns() // 1_000_000
        for code, processor in self._table.items():
            self._instance.requests.answer(code, self._group, processor)

    def end(self) -> None:
        """Answer no longer; what another member answers stays."""
        if self._begun_ms:
            self._begun_ms = 0
            self._instance.requests.forget(self._group, *self._table)

    def running_info(self) -> ConsumerRunningInfo:
        """Say how the consumer is."""
        properties = {
            "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses),
            "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
            "PROP_CONSUME_ORDERLY": "true",
            "PROP_THREADPOOL_CORE_SIZE": "0",
            "PROP_CONSUMER_START_TIMESTAMP": str(self._begun_ms),
        }
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=[wanted.data(topic) for topic, wanted in self._filters().items()],
            mq_table={queue: self._queue_info(queue) for queue in self._fetcher.queues},
        )

    def _queue_info(self, queue: MessageQueue) -> ProcessQueueInfo:
        held = self._fetcher.held_of(queue)
        place = self._positions.position(queue) or 0
        return ProcessQueueInfo(
            commit_offset=self._positions.finished(queue) or 0,
            cached_msg_min_offset=place if held.count else 0,
            cached_msg_max_offset=place + held.count - 1 if held.count else 0,
            cached_msg_count=held.count,
            cached_msg_size_in_mib=held.size_bytes // MIB,
            last_pull_timestamp=held.pulled_ms,
        )

    def _members_changed(self, request: Request) -> None:
        self._divide()

    def _reset(self, request: Request) -> None:
        for queue, offset in offsets_in(request.body).items():
            if queue in self._fetcher.queues:
                log.info("offset reset by an administrator queue=%s offset=%d", queue, offset)
                self._move(queue, offset)

    def _status(self, request: Request) -> Response:
        topic = request.header(InvokeBrokerToGetConsumerStatusRequest).topic
        table = {
            queue: offset
            for queue in self._fetcher.queues
            if queue.topic == topic and (offset := self._positions.finished(queue)) is not None
        }
        return Response(body=GetConsumerStatusBody(message_queue_table=dict(table)).encode())

    def _running(self, request: Request) -> Response:
        return Response(body=self.running_info().encode())
