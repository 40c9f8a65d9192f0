"""Handles NOTIFICATION (200054) and POLLING_INFO (200055).

A notification is answered when there is a message to pop; it takes none. RocketMQ's proxy waits
with it. Source: NotificationProcessor and PollingInfoProcessor, RocketMQ 5.3.
"""

from __future__ import annotations

from cometmq.broker.pop.held_pops import NOTIFICATION, POLL_MS_MAX, HeldPop, PollingFullError
from cometmq.broker.pop.part import PopPart, PopState
from cometmq.broker.pop.pops import QUEUES_AT_ONCE, PopHandler
from cometmq.broker.pop.receipts import retry_topic_of
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.protocol.headers.pop import (
    NotificationRequest,
    NotificationResponse,
    PollingInfoRequest,
    PollingInfoResponse,
)
from cometmq.remoting import Request, Response
from cometmq.remoting.connection import respond_with_failure


class _Notification(HeldPop):
    """A request that waits until there is a message to pop."""

    def __init__(
        self,
        handler: NotificationHandler,
        request: Request,
        header: NotificationRequest,
        ends_ms: int,
    ) -> None:
        super().__init__(
            header.consumer_group,
            header.topic,
            header.queue_id,
            request.connection,
            ends_ms,
            NOTIFICATION,
        )
        self.handler = handler
        self.request = request
        self.header = header
        self.first_queue = 0

    def rerun(self) -> None:
        """Look again."""
        self.handler.rerun(self)

    def fail(self, problem: Exception) -> None:
        """Respond with an error."""
        if not self.request.connection.closed:
            respond_with_failure(self.request, problem)


class NotificationHandler(PopPart):
    """Handles notifications.

    Args:
        state: what it shares with the other handlers.
        pops: checks what they name.
    """

    def __init__(self, state: PopState, pops: PopHandler) -> None:
        super().__init__(state)
        self._pops = pops
        self.notify = with_prerequisites(self._notify)
        """Handles NOTIFICATION."""
        self.info = with_prerequisites(self._info)
        """Handles POLLING_INFO."""

    def _notify(self, request: Request) -> Response | None:
        header = request.header(NotificationRequest)
        self._pops.check(header.topic, header.consumer_group, header.queue_id)
        now_ms = self._clock.now_ms()
        poll_ms = min(max(header.poll_time, 0), POLL_MS_MAX)
        ends_ms = min(header.born_time or now_ms, now_ms) + poll_ms
        return self._run(_Notification(self, request, header, ends_ms))

    def rerun(self, waiting: _Notification) -> None:
        """Look again whether there is a message; respond if its time is over."""
        self._held.runs(waiting)
        if waiting.request.connection.closed:
            self._held.notify(waiting.group, waiting.name, waiting.queue_id)
            return
        waiting.request.is_held = True
        response = self._run(waiting)
        if response is not None:
            waiting.request.reply(response)

    def _run(self, waiting: _Notification) -> Response | None:
        header = waiting.header
        has_message = self._has_message(waiting)
        is_full = False
        is_deleted = self._topics.get(header.topic) is None
        if not has_message and header.poll_time > 0 and not is_deleted:
            try:
                if self._held.hold(waiting, self._clock.now_ms()):
                    return None
            except PollingFullError:
                is_full = True
        elif waiting.was_held and (has_message or is_deleted):
            self._held.notify(waiting.group, waiting.name, waiting.queue_id)
        return Response(header=NotificationResponse(has_msg=has_message, polling_full=is_full))

    def _has_message(self, waiting: _Notification) -> bool:
        header = waiting.header
        group = header.consumer_group
        if not header.order:
            for is_second_form in (False, True):
                name = retry_topic_of(group, header.topic, is_second_form=is_second_form)
                if self._topics.get(name) is not None and self._is_behind(group, name, 0):
                    return True
        config = self._topics.get(header.topic)
        if config is None:
            return False
        if header.queue_id >= 0:
            return self._may_pop(header, header.queue_id)
        # A topic of very many queues is looked at in parts; one that is looked at in vain is held,
        # and a message notifies it.
        count = config.read_queue_nums
        for number in range(min(count, QUEUES_AT_ONCE)):
            if self._may_pop(header, (waiting.first_queue + number) % count):
                return True
        waiting.first_queue = (waiting.first_queue + QUEUES_AT_ONCE) % max(count, 1)
        return False

    def _may_pop(self, header: NotificationRequest, queue_id: int) -> bool:
        if not self._is_behind(header.consumer_group, header.topic, queue_id):
            return False
        return not header.order or not self._orders.blocked_to_ms(
            header.consumer_group, header.topic, queue_id, header.attempt_id
        )

    def _is_behind(self, group: str, topic: str, queue_id: int) -> bool:
        low, high = self._store.bounds(topic, queue_id)
        committed = self._offsets.committed(group, topic, queue_id)
        return high > max(committed or 0, low)

    def _info(self, request: Request) -> Response:
        header = request.header(PollingInfoRequest)
        self._pops.check(header.topic, header.consumer_group, header.queue_id)
        held = self._held.count(header.consumer_group, header.topic, header.queue_id)
        return Response(header=PollingInfoResponse(polling_num=held))
