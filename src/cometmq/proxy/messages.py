"""The classes of the messages in ``messages.proto``.

They are made when this is imported, in a pool of their own: RocketMQ's Python client registers the
same names in the default pool, and both may be in one process. No generated code means that no
version of a generator has to fit the installed protobuf.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import duration_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"/{PACKAGE}.MessagingService/"
FILE = Path(__file__).with_name("messages.proto")
_LINE = re.compile(
    r"message (?P<message>\w+) {|oneof (?P<choice>\w+) {"
    r"|(?P<label>optional |repeated )?(?P<type>[\w.]+) (?P<name>\w+) = (?P<number>\d+);|}"
)
_SCALARS = {
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
_IMPORTED = (duration_pb2, timestamp_pb2)


def _described(text: str) -> FileDescriptorProto:
    """Return the description of a file as protobuf has it.

    It reads as much of the language as ``messages.proto`` uses: a declaration on each line.
    """
    file = FileDescriptorProto(name=FILE.name, package=PACKAGE, syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in _IMPORTED)
    optional: list[tuple[Any, FieldDescriptorProto]] = []
    message, is_choice = None, False
    for line in text.partition("import ")[2].splitlines()[2:]:
        found = _LINE.fullmatch(line.strip())
        if found is None:
            assert not line.strip(), f"{FILE.name}: a line that is not understood: {line}"
        elif found["message"]:
            message, is_choice = file.message_type.add(name=found["message"]), False
        elif found["choice"]:
            assert message is not None
            message.oneof_decl.add(name=found["choice"])
            is_choice = True
        elif found["name"]:
            assert message is not None
            field = message.field.add(name=found["name"], number=int(found["number"]))
            field.label = (
                FieldDescriptorProto.LABEL_REPEATED
                if found["label"] == "repeated "
                else FieldDescriptorProto.LABEL_OPTIONAL
            )
            if found["type"] in _SCALARS:
                field.type = _SCALARS[found["type"]]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                kind = found["type"]
                is_imported = kind.startswith("google.")
                field.type_name = f".{kind}" if is_imported else f".{PACKAGE}.{kind}"
            if is_choice:
                field.oneof_index = 0
            if found["label"] == "optional ":
                optional.append((message, field))
        else:
            is_choice = False
    for owner, field in optional:  # each is a choice of its own, behind the others
        field.proto3_optional = True
        field.oneof_index = len(owner.oneof_decl)
        owner.oneof_decl.add(name=f"_{field.name}")
    return file


def _made() -> dict[str, Any]:
    pool = DescriptorPool()
    for module in _IMPORTED:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    described = _described(FILE.read_text())
    pool.Add(described)
    return {
        each.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{each.name}")
        )
        for each in described.message_type
    }


TYPES: dict[str, Any] = _made()
"""The class of each message by its name."""
