"""Raw sends of the tests are repeated while a real broker says that it is busy."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing

import kit
import messages
import pytest
from codes import Request as RequestNumber
from servers import connect

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.headers.send import SendMessageResponse, SendMessageV2Request
from cometmq.remoting import Request, Response
from support.brokers.scripted import OFFSET_ID, ScriptedBroker

BUSY = ResponseCode.SYSTEM_BUSY


class Storing(ScriptedBroker):
    """Says what it is told to, and gives what it stores the next offset of its queue."""

    def __init__(self, *script: int) -> None:
        super().__init__("a", *script)
        self.stored: Counter[tuple[str, int]] = Counter()

    def _send(self, request: Request) -> Response | None:
        answer = super()._send(request)
        assert answer is not None
        if answer.code != ResponseCode.SUCCESS:
            return answer
        header = request.header(SendMessageV2Request)
        queue = header.topic, header.queue_id
        self.stored[queue] += 1
        offset = self.stored[queue] - 1
        place = SendMessageResponse(msg_id=OFFSET_ID, queue_id=header.queue_id, queue_offset=offset)
        return Response(ResponseCode.SUCCESS, header=place)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BUSY_PAUSE_SECONDS", 0)


async def test_a_busy_broker_gets_the_messages_again() -> None:
    """Of a pipeline every message is stored once."""
    broker = Storing(0, BUSY, BUSY, 0, BUSY)
    await broker.start()
    ledger = messages.Ledger()
    try:
        await asyncio.to_thread(
            messages.fill, broker.address, ledger, ["t"], seed=1, singles=40, batches=0
        )
    finally:
        await broker.stop()

    assert ledger.count == sum(broker.stored.values()) == 40
    assert len(broker.sends) == 43


@pytest.mark.parametrize(
    ("busy", "code"),
    [(messages.SEND_ATTEMPTS_MAX - 1, 0), (messages.SEND_ATTEMPTS_MAX, BUSY)],
)
async def test_a_broker_that_stays_busy_is_given_up(busy: int, code: int) -> None:
    broker = Storing(*[BUSY] * busy)
    await broker.start()

    def send() -> int:
        with closing(connect(broker.address)) as connection:
            header = kit.send_fields("t")
            return messages.send(connection, RequestNumber.SEND_MESSAGE_V2, header, b"x").code

    try:
        assert await asyncio.to_thread(send) == code
    finally:
        await broker.stop()

    assert len(broker.sends) == messages.SEND_ATTEMPTS_MAX
