"""Times the codecs that every message passes: frames, headers, properties, records, hashes.

``python benchmarks/codec.py`` times the build at hand; with ``COMETMQ_BUILD=interpreted`` in the
environment, the interpreted one.
"""

from __future__ import annotations

from collections.abc import Iterator

from timing import Timing, measure

from cometmq.cli.build import version_line
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.command import command_at, encode_command, encode_head
from cometmq.protocol.command import request as make_request
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.protocol.hashing import java_hash
from cometmq.protocol.headers.base import encode_fields
from cometmq.protocol.headers.pull import PullMessageRequest
from cometmq.protocol.headers.send import SendMessageResponse, SendMessageV2Request
from cometmq.protocol.properties import decode_properties, index_keys_of, tags_code_of
from cometmq.protocol.record import decode_messages, encode_record

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4)
PROPERTIES = "KEYS\x01K00000000042\x02UNIQ_KEY\x017F000001000000000000000000000042\x02"
PROPERTIES += "WAIT\x01true\x02TAGS\x01TagA"
BODY = b"x" * 128


def main() -> None:
    """Time everything and print one line each."""
    print(version_line())
    for timing in (*_headers(), *_properties(), *_records()):
        print(timing)


def _headers() -> Iterator[Timing]:
    fields = {
        "a": "group", "b": "bench", "c": "TBW102", "d": "4", "e": "0", "f": "0",
        "g": "1700000000000", "h": "0", "i": PROPERTIES, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    send = encode_command(make_request(310, fields=fields, body=BODY, opaque=7))
    yield measure(
        "read a send's frame and header",
        lambda: command_at(send, 0, len(send), FRAME_BYTES_MAX).header(SendMessageV2Request),
    )
    pull_fields = {
        "consumerGroup": "group", "topic": "bench", "queueId": "0", "queueOffset": "42",
        "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    }  # fmt: skip
    pull = encode_command(make_request(11, fields=pull_fields, opaque=7))
    yield measure(
        "read a pull's frame and header",
        lambda: command_at(pull, 0, len(pull), FRAME_BYTES_MAX).header(PullMessageRequest),
    )
    answer = SendMessageResponse(
        msg_id="7F00000100002A9F0000000000000042", queue_id=0, queue_offset=42
    )
    yield measure(
        "write a send's answer",
        lambda: encode_head(0, opaque=7, flag=1, fields=encode_fields(answer)),
    )


def _properties() -> Iterator[Timing]:
    text = PROPERTIES.encode()
    yield measure("properties to a dictionary", lambda: decode_properties(text))
    yield measure("tag code of properties", lambda: tags_code_of(text))
    yield measure("index keys of properties", lambda: index_keys_of(text))
    key = "bench#7F000001000000000000000000000042"
    yield measure("Java hash of 38 characters", lambda: java_hash(key))


def _records() -> Iterator[Timing]:
    def write() -> bytes:
        return encode_record(
            b"bench", BODY, PROPERTIES.encode(), queue_id=0, queue_offset=42, log_offset=4200,
            born_time_ms=1_700_000_000_000, born_host=HOST, store_time_ms=1_700_000_000_001,
            store_host=HOST,
        )  # fmt: skip

    yield measure("write a record of 128 bytes", write)
    answer = write() * 32
    yield measure("read records of an answer", lambda: decode_messages(answer), per_call=32)
    items = [BatchItem(flag=0, body=BODY, properties=PROPERTIES.encode())] * 32
    batch = encode_batch(items)
    yield measure("write a batch", lambda: encode_batch(items), per_call=32)
    yield measure("read a batch", lambda: decode_batch(batch), per_call=32)


if __name__ == "__main__":
    main()
