"""Hooks that see every request of a client and may add fields to it.

Hooks see the fields as they are sent, so that one of them can sign them; it must come last.
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
    """One outgoing request: its code, its header fields as text, its body.

    Example:
        class Codes:
            def before_request(self, address: str, call: OutgoingCall) -> None:
                call.fields["traceId"] = "7"

            def after_response(self, address, call, response):
                pass

        ClientInstance(name_server, hooks=[Codes()])
    """

    code: int
    """The request code."""
    fields: dict[str, str]
    """The header fields; a hook may add and change fields."""
    body: bytes
    """The body."""

    @classmethod
    def of(
        cls, code: int, header: Header | None, body: bytes, fields: Mapping[str, str] | None
    ) -> OutgoingCall:
        """Make a call from a request's code, header and body."""
        every = encode_fields(header) if header is not None else {}
        return cls(int(code), {**every, **(fields or {})}, body)


class RpcHook(Protocol):
    """Runs around every request of a client, including one-way requests.

    If ``before_request`` raises, the request is not sent and the caller receives the error. If the
    client itself sends the request, such as a heartbeat, it logs the error and sends the
    request again later. Hooks are plain functions and must not block.

    Example:
        class Codes:
            def before_request(self, address, call):
                print(address, call.code)

            def after_response(self, address, call, response):
                print(address, response.code)

        hook: RpcHook = Codes()
        async with ClientInstance(name_server, hooks=[hook]) as instance:
            async with AdminClient(instance=instance) as admin:
                await admin.topics()
    """

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Runs before a request is sent to ``address``; may change its fields."""

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Runs after a response of any code; does not run for one-way requests."""
