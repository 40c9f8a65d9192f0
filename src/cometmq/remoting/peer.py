"""The connection of a request as handlers see it."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.protocol.command import Command
from cometmq.protocol.headers.base import Header
from cometmq.remoting.wire import Wire


class Peer(Wire):
    """The connection of a request; `Connection` implements it."""

    language: str | None
    """The language of its last request."""
    version: int
    """The version of its last request."""

    @property
    def ready(self) -> bool:
        """Whether a request can be written now: the peer takes what is sent to it."""
        raise NotImplementedError

    async def until_writable(self, timeout: float) -> None:
        """Return once the peer takes what is written to it."""
        raise NotImplementedError

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float,
        fields: Mapping[str, str] | None = None,
    ) -> Command:
        """Send a request and wait for its response of any code."""
        raise NotImplementedError

    def oneway(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: Mapping[str, str] | None = None,
        remark: str | None = None,
    ) -> None:
        """Send a one-way request."""
        raise NotImplementedError
