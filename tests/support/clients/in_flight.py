"""Counts the requests of a client that are in flight."""

from __future__ import annotations

from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall


class InFlight:
    """A hook that counts the requests of one code for one topic.

    Args:
        code: of the requests.
        topic: what their field ``topic`` says.
    """

    def __init__(self, code: int, topic: str) -> None:
        self._code = code
        self._topic = topic
        self.begun = 0
        self.answered = 0

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Count a request that is sent."""
        self.begun += self._is_counted(call)

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Count a request that is answered."""
        self.answered += self._is_counted(call)

    def is_empty(self) -> bool:
        """Whether every request is answered."""
        return self.begun == self.answered

    def _is_counted(self, call: OutgoingCall) -> bool:
        return call.code == self._code and call.fields.get("topic") == self._topic
