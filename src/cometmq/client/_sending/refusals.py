"""Sends that brokers refuse for a reason that no retry cures: the account, a right, a setting."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cometmq.client._supervision import SupervisedFailureLog
from cometmq.protocol.refusals import permanent_refusal

log = logging.getLogger(__name__)


class SendRefusals:
    """Logs when sends of a topic begin to be refused, and when they are accepted again.

    After `PERMANENT_FAILURES` refusals of a topic in a row, over at least `REFUSED_S` seconds, the
    last of them is the failure of the producer, until a send of that topic succeeds.

    Args:
        group: the producer's group.
    """

    def __init__(self, group: str) -> None:
        self._log = SupervisedFailureLog(
            log,
            fails="sends are refused",
            works="sends are accepted again",
            name="topic",
            more=f"group={group}",
            on_permanent=self._is_permanent,
        )
        self.failure: BaseException | None = None
        """The refusal after which no retry helps; None while there is none."""
        self._topic = self._failed_topic = ""
        self.on_refused: Callable[[], object] = _ignore
        """Called after a refusal."""

    @property
    def is_failing(self) -> bool:
        """Whether sends of any topic are refused: then `accepted` needs to be called."""
        return self._log.is_failing

    def failed(self, topic: str, error: BaseException) -> None:
        """Note the error of a send; all but permanent refusals are ignored."""
        if permanent_refusal(error) is not None:
            self._topic = topic
            self._log.failed(topic, error)
            self.on_refused()

    def accepted(self, topic: str) -> None:
        """Note that a send of a topic has succeeded."""
        self._log.succeeded(topic)
        if topic == self._failed_topic:
            self.failure = None

    def _is_permanent(self, error: BaseException) -> None:
        self.failure, self._failed_topic = error, self._topic


def _ignore() -> None:
    """Do nothing: there is no fast path."""
