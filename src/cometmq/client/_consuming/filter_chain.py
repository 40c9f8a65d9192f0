"""Runs the filter hooks of a consumer over received messages."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cometmq.client._connection.namespaces import Namespace
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.remoting.tasks import is_call_failure

log = logging.getLogger(__name__)


class FilterChain:
    """Keeps the messages that every filter hook keeps. A hook that raises drops no message.

    Args:
        hooks: the hooks of the consumer; those that are no filter hooks are ignored.
        group: the consumer group, without a namespace.
        namespace: removed from queues before hooks see them.
    """

    def __init__(
        self, hooks: Sequence[ConsumeHook | FilterHook], group: str, namespace: Namespace
    ) -> None:
        self._hooks = [hook for hook in hooks if isinstance(hook, FilterHook)]
        self._group = group
        self._namespace = namespace

    def keep(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """Return the messages that every hook keeps."""
        for hook in self._hooks:
            try:
                messages = hook.keep(self._group, self._namespace.unwrap_queue(queue), messages)
            except BaseException as error:
                if not is_call_failure(error):
                    raise
                log.exception("filter hook failed group=%s queue=%s", self._group, queue)
        return messages
