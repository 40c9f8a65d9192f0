"""One receipt for a batch, and one for each of its messages."""

from __future__ import annotations

from cometmq.client._sending.batches import split_receipt
from cometmq.client.receipt import SendReceipt, SendStatus
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue


def batch_receipt(offset_ids: str) -> SendReceipt:
    return SendReceipt(
        status=SendStatus.FLUSH_DISK_TIMEOUT,
        message_id="A,B,C",
        offset_message_id=offset_ids,
        queue=MessageQueue("t", "a", 2),
        queue_offset=QueueOffset(7),
        region_id="r",
        traced=False,
    )


def test_each_message_has_its_own_ids_and_offset() -> None:
    receipts = split_receipt(batch_receipt("X,Y,Z"), 3)

    assert [one.message_id for one in receipts] == ["A", "B", "C"]
    assert [one.offset_message_id for one in receipts] == ["X", "Y", "Z"]
    assert [one.queue_offset for one in receipts] == [7, 8, 9]
    assert {(one.status, one.queue, one.region_id, one.traced) for one in receipts} == {
        (SendStatus.FLUSH_DISK_TIMEOUT, MessageQueue("t", "a", 2), "r", False)
    }


def test_an_id_for_the_whole_batch_is_that_of_each_message() -> None:
    receipts = split_receipt(batch_receipt("X"), 3)

    assert [one.offset_message_id for one in receipts] == ["X", "X", "X"]
    assert [one.message_id for one in receipts] == ["A", "B", "C"]
