"""A scripted broker that keeps half messages and checks them; a listener that decides them."""

from __future__ import annotations

from cometmq.client import LocalState, Message
from cometmq.model import property_names as names
from cometmq.model.message import StoredMessage
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.transaction import CheckTransactionStateRequest, EndTransactionRequest
from cometmq.protocol.properties import decode_properties
from cometmq.remoting import Connection, Peer, Request, Response
from support.brokers.scripted import OFFSET_ID, Act, SentBroker
from support.wire.message_records import record

LOG_OFFSET = 0x1000
QUEUE_OFFSET = 7


class Commits:
    """A transaction listener whose local transactions all commit."""

    async def execute(self, message: Message, argument: object) -> LocalState:
        return LocalState.COMMIT

    async def check(self, message: StoredMessage) -> LocalState:
        return LocalState.COMMIT


class TransactionBroker(SentBroker):
    """Takes half messages and ends of transactions; a test lets it ask."""

    def __init__(self, name: str = "a", *script: int | Act) -> None:
        super().__init__(name, *script)
        self.ends: list[EndTransactionRequest] = []
        self.end_commands: list[Command] = []
        self.ended_by: list[Peer] = []
        """The connections over which the ends came."""
        self.half_from: Connection | None = None
        """The connection over which the last half message came."""
        self.handlers[RequestCode.END_TRANSACTION] = self._end

    def _send(self, request: Request) -> Response | None:
        self.half_from = request.connection
        return super()._send(request)

    def _end(self, request: Request) -> None:
        self.ends.append(request.header(EndTransactionRequest))
        self.end_commands.append(request.command)
        self.ended_by.append(request.connection)
        self.moved.set()

    async def until_ended(self, count: int) -> EndTransactionRequest:
        """Give the newest end, once there are so many."""
        await self.until(lambda: len(self.ends) >= count)
        return self.ends[-1]

    def ask(self, *, body: bytes | None = None) -> str:
        """Ask what became of the last half message; gives its unique id."""
        assert self.half_from is not None, "no half message has come"
        header = self.sends[-1]
        properties = header.properties or ""
        message_id = decode_properties(properties)[names.UNIQ_KEY]
        half = record(
            self.commands[-1].body if body is None else body,
            header.topic.encode(),
            properties.encode(),
            queue_id=header.queue_id,
            queue_offset=QUEUE_OFFSET,
            log_offset=LOG_OFFSET,
            born_time_ms=header.born_timestamp,
        )
        asked = CheckTransactionStateRequest(
            tran_state_table_offset=QUEUE_OFFSET + 10,
            commit_log_offset=LOG_OFFSET + 10,
            msg_id=message_id,
            transaction_id=message_id,
            offset_msg_id=OFFSET_ID,
            bname=self.name,
        )
        self.half_from.oneway(RequestCode.CHECK_TRANSACTION_STATE, asked, half)
        return message_id
