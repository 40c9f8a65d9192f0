"""What may look at, and add to, every request that a client sends.

Hooks see the fields as they will travel, so that one of them can sign them; it must come last.
Source: RPCHook, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header, encode_fields


@dataclass(slots=True)
class OutgoingCall:
    """One request on its way: its code, its fields as text, its body."""

    code: int
    fields: dict[str, str]
    """The header's fields; a hook may add to them and change them."""
    body: bytes

    @classmethod
    def of(
        cls, code: int, header: Header | None, body: bytes, fields: Mapping[str, str] | None
    ) -> OutgoingCall:
        """Put together what a request consists of."""
        every = encode_fields(header) if header is not None else {}
        return cls(int(code), {**every, **(fields or {})}, body)


class RpcHook(Protocol):
    """Is told of every request of a client, oneway ones included, and of every answer.

    What a hook raises before a request ends the call: nothing is sent. Hooks are plain functions
    and must not block.
    """

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """A request is about to be sent to ``address``; its fields may still change."""

    def after_answer(self, address: str, call: OutgoingCall, answer: Command) -> None:
        """The answer has come, whatever its code; never called for oneway requests."""
