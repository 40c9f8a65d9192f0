"""The body of a registration with a name server: as JSON, or deflated.

deflated := zlib of
    length:i32 data version as JSON
    count:i32 { length:i32 "name readQueues writeQueues perm filterType [attributes as JSON]" }
    length:i32 list of filter servers as JSON
    [ count:i32 { length:i32 mapping as JSON } ]          only from version 5.0.0 on

Order and flags of topics are lost in the deflated form. Source: RegisterBrokerBody, RocketMQ 5.3.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import ClassVar

import msgspec
from msgspec import field

from cometmq.model.errors import CometError
from cometmq.model.topic import TopicConfig
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.base import Body, InvalidBodyError
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.bodies.route import TopicQueueMappingInfo
from cometmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from cometmq.protocol.lenient import read_struct
from cometmq.protocol.version import MAPPING_VERSION_MIN

INFLATED_BYTES_MAX = 64 * 1024 * 1024
_I32 = struct.Struct(">i")
_ZLIB_FIRST_BYTE = 0x78
_TOPIC_WORDS = 5
_DEFLATE_LEVEL = 9


class RegisterBrokerBody(Body, kw_only=True):
    """REGISTER_BROKER (103); maps of static topics have bare keys."""

    bare_keys: ClassVar[bool] = True

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)


def decode_register_body(data: bytes, version: int) -> RegisterBrokerBody:
    """Read a registration from either form.

    The first byte decides the form: brokers of 5.x announce a deflated body as a plain one.

    Raises:
        InvalidBodyError: the body is of neither form, cut short, or too large once inflated.
    """
    if data[:1] != bytes([_ZLIB_FIRST_BYTE]):
        return RegisterBrokerBody.decode(data)
    reader = _Reader(_inflated(data))
    try:
        return _read_body(reader, version)
    except (CometError, ValueError, struct.error, msgspec.MsgspecError) as error:
        raise InvalidBodyError(f"a deflated registration: {error}") from None


def _read_body(reader: "_Reader", version: int) -> RegisterBrokerBody:
    data_version = DataVersion.decode(reader.sized())
    topics = [_topic(str(reader.sized(), "utf-8")) for _ in range(reader.count())]
    filter_servers = fastjson.loads(reader.sized())
    mappings: dict[str, TopicQueueMappingInfo] | None = None
    if version >= MAPPING_VERSION_MIN:
        infos = [
            read_struct(fastjson.loads(reader.sized()), TopicQueueMappingInfo)
            for _ in range(reader.count())
        ]
        mappings = {info.topic: info for info in infos}
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
            data_version=data_version,
            topic_config_table={topic.topic_name: topic for topic in topics},
            topic_queue_mapping_info_map=mappings,
        ),
        filter_server_list=[str(server) for server in filter_servers or ()],
    )


def deflate_register_body(
    topics: Iterable[TopicConfig],
    version: DataVersion,
    filter_servers: Iterable[str],
    mappings: Mapping[str, TopicQueueMappingInfo],
) -> bytes:
    """Return a registration in the deflated form, which name servers of 4.9 and 5.3 read.

    It has neither the attributes nor the flags of topics: those of 4.9 do not read the attributes
    that brokers of 5.x append, and ignore the topic then.
    """
    pieces = [
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
        f" {topic.topic_filter_type}".encode()
        for topic in topics
    ]
    deflater = zlib.compressobj(_DEFLATE_LEVEL)
    deflated = [deflater.compress(_sized(version.encode()) + _I32.pack(len(pieces)))]
    deflated += [deflater.compress(_sized(piece)) for piece in pieces]
    servers = _sized(fastjson.dumps(list(filter_servers)))
    deflated.append(deflater.compress(servers + _I32.pack(len(mappings))))
    deflated += [deflater.compress(_sized(fastjson.dumps_odd(each))) for each in mappings.values()]
    return b"".join([*deflated, deflater.flush()])


def _sized(piece: bytes) -> bytes:
    return _I32.pack(len(piece)) + piece


class _Reader:
    """Reads pieces with a length from inflated bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def count(self) -> int:
        (count,) = _I32.unpack_from(self._data, self._pos)
        self._pos += _I32.size
        if not 0 <= count <= (len(self._data) - self._pos) // _I32.size:
            raise ValueError(f"a count of {count} with {len(self._data) - self._pos} bytes left")
        return int(count)

    def sized(self) -> bytes:
        (length,) = _I32.unpack_from(self._data, self._pos)
        start = self._pos + _I32.size
        if not 0 <= length <= len(self._data) - start:
            raise ValueError(f"a piece of {length} bytes with {len(self._data) - start} left")
        self._pos = start + length
        return self._data[start : self._pos]


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, INFLATED_BYTES_MAX)
    except zlib.error as error:
        raise InvalidBodyError(f"a deflated registration: {error}") from None
    if not inflater.eof:
        raise InvalidBodyError(
            f"a deflated registration is cut short or exceeds {INFLATED_BYTES_MAX} bytes"
        )
    return plain


def _topic(text: str) -> TopicConfig:
    words = text.split(" ", _TOPIC_WORDS)
    if len(words) < _TOPIC_WORDS:
        raise ValueError(f"a topic is written as {text[:80]!r}, expected at least 5 words")
    attributes = fastjson.loads(words[_TOPIC_WORDS]) if len(words) > _TOPIC_WORDS else {}
    return TopicConfig(
        topic_name=words[0],
        read_queue_nums=int(words[1]),
        write_queue_nums=int(words[2]),
        perm=int(words[3]),
        topic_filter_type=words[4],
        attributes={name: str(value) for name, value in (attributes or {}).items()},
    )
