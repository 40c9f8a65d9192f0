"""The recorded frames of clients, and what the load generator changes in them."""

import base64

import frames
import pytest
from wire import decode

SEND_CODES = (10, 310)


def patched(frame, opaque, queue, born):
    """The frame with the changes that ``loadgen.c`` makes for one request."""
    data = bytearray(frame.data)
    for patch in frame.patches.split(","):
        letter, _, at = patch.partition("=")
        new = {
            "o": b"%07d" % opaque,
            "O": opaque.to_bytes(4, "big"),
            "g": b"%013d" % born,
            "e": b"%d" % queue,
            "k": b"%011d" % 7,
            "u": b"%016X" % 7,
        }[letter]
        data[int(at) : int(at) + len(new)] = new
    return decode(bytes(data[4:]))


@pytest.mark.parametrize("client", frames.clients())
def test_the_frame_stays_what_the_client_wrote_but_for_the_fields_of_a_request(client):
    recorded = base64.b64decode(frames.recorded(client)["frame"])
    before = decode(recorded[4:])
    after = patched(frames.prepare(recorded), 1_234_567, 5, 1_799_999_999_999)
    assert after.code in SEND_CODES
    assert (after.code, after.language, after.flag) == (before.code, before.language, before.flag)
    assert after.opaque == 1_234_567
    assert after.body == before.body == frames.BODY
    assert list(after.fields) == list(before.fields)
    long = "queueId" in after.fields
    queue, born = ("queueId", "bornTimestamp") if long else ("e", "g")
    properties = "properties" if long else "i"
    assert int(after.fields[queue]) == 5
    assert int(after.fields[born]) == 1_799_999_999_999
    assert "K00000000007" in after.fields[properties]
    assert {name for name in before.fields if before.fields[name] != after.fields[name]} <= {
        queue,
        born,
        properties,
    }


def test_all_clients_are_recorded():
    assert frames.clients() == ["cpp", "go", "java", "java-binary", "node"]


def test_a_frame_without_a_queue_is_refused():
    header = b'{"code":310,"opaque":1,"extFields":{"g":"1"}}'
    frame = (4 + len(header) + 128).to_bytes(4, "big") + len(header).to_bytes(4, "big")
    with pytest.raises(frames.FrameError, match="no field e"):
        frames.prepare(frame + header + frames.BODY)


def test_a_frame_with_another_body_is_refused():
    with pytest.raises(frames.FrameError, match="3 bytes"):
        frames.prepare((4 + 3).to_bytes(4, "big") + (0).to_bytes(4, "big") + b"abc")
