"""A consumer that pops with single requests, for tests of brokers in this process."""

from __future__ import annotations

from typing import Any

from cometmq.broker.app import Broker
from cometmq.client._pop.calls import ReceiptHandle, handles_of
from cometmq.model.message import StoredMessage
from cometmq.model.times import now_ms
from cometmq.protocol.bodies.pop import BatchAck, BatchAckMessageRequestBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import Command
from cometmq.protocol.headers.pop import (
    AckMessageRequest,
    PeekMessageRequest,
    PopMessageRequest,
    PopMessageResponse,
)
from cometmq.protocol.record import decode_messages
from cometmq.remoting import RemotingClient
from support.brokers.pairs import LIMIT_S

TOPIC, GROUP = "T", "G"


class PopClient:
    """Pops and acknowledges at one broker.

    Args:
        client: sends the requests.
        broker: the broker.
        group: for which it pops.
        topic: that it pops.
    """

    def __init__(
        self, client: RemotingClient, broker: Broker, *, group: str = GROUP, topic: str = TOPIC
    ) -> None:
        self._client = client
        self._broker = broker
        self._group = group
        self._topic = topic
        self._name = broker.core.settings().broker_name

    async def request(self, **fields: Any) -> Command:
        """Send a pop."""
        header = PopMessageRequest(
            **{
                **{"consumer_group": self._group, "topic": self._topic, "queue_id": -1},
                **{"max_msg_nums": 32, "invisible_time": 60_000, "poll_time": 0},
                **{"born_time": now_ms()},
                **{"init_mode": 0, "exp": "*", "exp_type": "TAG"},
                **fields,
            }
        )
        return await self._client.call(
            self._broker.address, RequestCode.POP_MESSAGE, header, timeout=LIMIT_S
        )

    async def peek(self) -> Command:
        """Ask for what a pop would deliver from any queue."""
        header = PeekMessageRequest(
            consumer_group=self._group, topic=self._topic, queue_id=-1, max_msg_nums=32
        )
        return await self._client.call(
            self._broker.address, RequestCode.PEEK_MESSAGE, header, timeout=LIMIT_S
        )

    async def pop(self, **fields: Any) -> list[tuple[StoredMessage, ReceiptHandle]]:
        """Pop messages; none if there are none."""
        response = await self.request(**fields)
        if response.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert response.code == 0, response
        messages = decode_messages(response.body)
        handles = handles_of(response.header(PopMessageResponse), messages, self._name)
        return list(zip(messages, handles, strict=True))

    async def ack(self, handle: ReceiptHandle) -> int:
        """Acknowledge a message; return the code of the response."""
        header = AckMessageRequest(
            consumer_group=self._group,
            topic=handle.topic(self._topic, self._group),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            offset=handle.offset,
        )
        response = await self._client.call(
            self._broker.address, RequestCode.ACK_MESSAGE, header, timeout=LIMIT_S
        )
        return response.code

    async def ack_together(self, *handles: ReceiptHandle) -> int:
        """Acknowledge messages with one request, as the Java client does."""
        acks = []
        for handle in handles:
            start = int(handle.text.split()[0])
            bits = 1 << (handle.offset - start)
            acks.append(
                BatchAck(
                    consumer_group=self._group,
                    topic=self._topic,
                    retry=handle.kind,
                    start_offset=start,
                    queue_id=handle.queue_id,
                    revive_queue_id=int(handle.text.split()[3]),
                    pop_time=handle.pop_time_ms,
                    invisible_time=handle.invisible_ms,
                    bit_set=bits.to_bytes(8, "little"),
                )
            )
        body = BatchAckMessageRequestBody(broker_name=self._name, acks=acks)
        response = await self._client.call(
            self._broker.address,
            RequestCode.BATCH_ACK_MESSAGE,
            body=body.encode(),
            timeout=LIMIT_S,
        )
        return response.code
