"""Records of static topics under the numbers that their topic knows them by."""

from __future__ import annotations

import pytest

from cometmq.model.errors import ProtocolError
from cometmq.protocol.record import decode_messages, encode_host, encode_record
from cometmq.spark.brokers.reading import renumbered

V4, V6 = encode_host("127.0.0.1", 1), encode_host("::1", 1)


def record(offset: int, *, body: bytes = b"x", host: bytes = V4) -> bytes:
    return encode_record(
        b"t",
        body,
        b"TAGS\x01a\x02",
        queue_id=5,
        queue_offset=offset,
        log_offset=77,
        born_time_ms=1,
        born_host=host,
        store_time_ms=2,
        store_host=host,
    )


def test_every_record_gets_its_numbers_and_keeps_all_else() -> None:
    data = b"".join(record(n, body=b"x" * n, host=V6 if n % 2 else V4) for n in range(1, 6))
    before, after = decode_messages(data), decode_messages(renumbered(data, 2, 2**40))
    assert [message.queue_offset for message in after] == [2**40 + n for n in range(1, 6)]
    assert {message.queue_id for message in after} == {2}
    for old, new in zip(before, after, strict=True):
        new.queue_id, new.queue_offset = old.queue_id, old.queue_offset
        assert new == old


def test_nothing_stays_nothing() -> None:
    assert renumbered(b"", 2, 3) == b""


@pytest.mark.parametrize("kept", [1, 3, 4, 27, -1])
def test_what_is_cut_is_refused(kept: int) -> None:
    data = record(1)
    with pytest.raises(ProtocolError, match=f"at byte {len(data)} of"):
        renumbered(data + data[:kept], 2, 3)
