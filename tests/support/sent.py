"""A scripted broker that keeps every request for storing a message as it came."""

from __future__ import annotations

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.remoting import Request, Response
from support.scripted import Act, ScriptedBroker


class SentBroker(ScriptedBroker):
    """Remembers the commands of sends, beside their headers."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        self.commands: list[Command] = []
        super().__init__(name, *script)
        self.handlers[RequestCode.SEND_REPLY_MESSAGE_V2] = self._send

    def _send(self, request: Request) -> Response | None:
        self.commands.append(request.command)
        return super()._send(request)
