"""Tells hooks of what a pull consumer hands out: fetched messages, and when they are finished.

Source: DefaultLitePullConsumerImpl.poll, RocketMQ 5.3, which tells hooks that all went well before
the application has seen anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)


class Deliveries:
    """Calls the hooks of one consumer; what they raise is logged and changes nothing."""

    def __init__(
        self,
        hooks: Sequence[ConsumeHook | FilterHook],
        *,
        group: str,
        client_id: str,
        namespace: str,
    ) -> None:
        self._consume = [hook for hook in hooks if isinstance(hook, ConsumeHook)]
        self._filter = [hook for hook in hooks if isinstance(hook, FilterHook)]
        self._group = group
        self._client_id = client_id
        self._namespace = namespace
        self._open: DeliveryContext | None = None
        self._begun = 0.0

    def keep(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Give the messages that every filter lets pass."""
        for hook in self._filter:
            try:
                messages = hook.keep(self._group, queue, messages)
            except Exception:
                log.exception("a filter failed and lets all pass group=%s", self._group)
        return messages

    def begin(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> None:
        """These messages are handed out."""
        if not self._consume:
            return
        self._begun = time.monotonic()
        self._open = DeliveryContext(
            group=self._group,
            client_id=self._client_id,
            queue=queue,
            messages=messages,
            ordered=True,
            namespace=self._namespace,
        )
        for hook in self._consume:
            self._call(hook.before, self._open)

    def end(self, end: ConsumeEnd = ConsumeEnd.SUCCESS) -> None:
        """What was handed out is finished, or ended otherwise."""
        context, self._open = self._open, None
        if context is None:
            return
        context.cost_ms = (time.monotonic() - self._begun) * 1000
        context.end = end
        for hook in self._consume:
            self._call(hook.after, context)

    def _call(self, method: object, context: DeliveryContext) -> None:
        try:
            method(context)  # type: ignore[operator]
        except Exception:
            log.exception("a hook failed group=%s", self._group)
