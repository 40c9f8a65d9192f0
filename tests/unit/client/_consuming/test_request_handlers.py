"""Orders to move offsets, in both forms that brokers send."""

from __future__ import annotations

import pytest

from cometmq.client._consuming.request_handlers import offsets_in
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.base import InvalidBodyError

QUEUES = {MessageQueue("T", "b", 0): 5, MessageQueue("T", "b", 1): 7}


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"b","queueId":1,"topic":"T"}:7}}',
        b'{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"},'
        b'{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}',
    ],
    ids=["map", "list"],
)
def test_offsets_are_read_from_a_map_and_from_a_list(body: bytes) -> None:
    assert offsets_in(body) == QUEUES


@pytest.mark.parametrize("body", [b"", b"{", b'{"offsetTable":3}'])
def test_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidBodyError):
        offsets_in(body)
