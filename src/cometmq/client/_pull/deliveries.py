"""Tells hooks what a pull consumer delivers, and when it is finished.

Source: DefaultLitePullConsumerImpl.poll, RocketMQ 5.3, which tells hooks that all went well before
the application has seen anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cometmq.client.hooks import ConsumeEnd, ConsumeHook, DeliveryContext, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What hooks know of messages that were handed out, and when that was."""

    context: DeliveryContext
    begun_s: float


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
        self._group = group
        self._client_id = client_id
        self._namespace = namespace

    def begin(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> Delivery | None:
        """These messages are handed out; None if no hook has to know."""
        if not self._consume:
            return None
        context = DeliveryContext(
            group=self._group,
            client_id=self._client_id,
            queue=queue,
            messages=messages,
            ordered=True,
            namespace=self._namespace,
        )
        delivery = Delivery(context, time.monotonic())
        for hook in self._consume:
            self._call(hook.before, context)
        return delivery

    def end(self, delivery: Delivery | None, end: ConsumeEnd = ConsumeEnd.SUCCESS) -> None:
        """What was handed out is finished, or ended otherwise."""
        if delivery is None:
            return
        context = delivery.context
        context.cost_ms = (time.monotonic() - delivery.begun_s) * 1000
        context.end = end
        for hook in self._consume:
            self._call(hook.after, context)

    def _call(self, method: object, context: DeliveryContext) -> None:
        try:
            method(context)  # type: ignore[operator]
        except Exception:
            log.exception("a hook failed group=%s", self._group)
