"""Reads schemas from a registry with Confluent's interface, such as Karapace or Apicurio.

A body with a registered schema begins with a zero byte and the id of the schema (four bytes, big
endian). A schema never changes under its id, so each process keeps those it has met.

Source: the wire format and the paths ``/schemas/ids`` and ``/subjects`` in Confluent's
documentation.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.payloads.decoder import PayloadError

PREFIX_BYTES = 5
RESPONSE_BYTES_MAX = 4 << 20
SCHEMAS_MAX = 1_000
TIMEOUT_S = 10.0
_NOT_FOUND = 404


class Registered(NamedTuple):
    """A schema of a registry."""

    kind: str
    """``AVRO``, ``PROTOBUF`` or ``JSON``."""
    text: str
    """Avro's JSON, or a FileDescriptorProto in Base64."""


@dataclass(frozen=True)
class SchemaRegistry:
    """Requests schemas, and keeps them by id.

    Args:
        url: address of the registry: ``https://registry:8081``.
        user: user name of basic authentication; none if empty.
        password: its password.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise OptionError(f"payload.registry={self.url}: expected an http or https address")

    def schema(self, number: int) -> Registered:
        """Return the schema of an id.

        Raises:
            PayloadError: the registry has no schema with this id.
            SourceError: the registry does not respond, or refuses the request.
        """
        return _schema(self, number)

    def latest(self, subject: str) -> Registered:
        """Return the newest schema of a subject, always from the registry.

        Raises:
            OptionError: the registry has no such subject.
            SourceError: the registry does not respond, or refuses the request.
        """
        name = urllib.parse.quote(subject, safe="")
        try:
            found = self.request(f"/subjects/{name}/versions/latest", f"subject {subject}")
        except PayloadError as problem:
            raise OptionError(str(problem)) from None
        return self.schema(int(found["id"]))

    def request(self, path: str, what: str) -> dict[str, Any]:
        """Return the document at a path."""
        request = urllib.request.Request(self.url.rstrip("/") + path)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if self.user:
            pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {pair}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                data = response.read(RESPONSE_BYTES_MAX + 1)
        except urllib.error.HTTPError as problem:
            problem.close()
            if problem.code == _NOT_FOUND:
                raise PayloadError(f"{what} is not in the registry {self.url}") from None
            raise SourceError(f"registry {self.url}: {what}: {problem}") from None
        except OSError as problem:
            raise SourceError(f"registry {self.url} does not respond: {problem}") from None
        return self._document(data, what)

    def _document(self, data: bytes, what: str) -> dict[str, Any]:
        if len(data) > RESPONSE_BYTES_MAX:
            raise SourceError(
                f"registry {self.url}: {what} has more than {RESPONSE_BYTES_MAX} bytes"
            )
        try:
            found = json.loads(data)
        except ValueError as problem:
            raise SourceError(f"registry {self.url}: {what} is no JSON: {problem}") from None
        if not isinstance(found, dict):
            raise SourceError(
                f"registry {self.url}: {what}: met {type(found).__name__}, expected an object"
            )
        return found


@lru_cache(SCHEMAS_MAX)
def _schema(registry: SchemaRegistry, number: int) -> Registered:
    path, what = f"/schemas/ids/{number}", f"schema {number}"
    found = registry.request(path, what)
    kind = str(found.get("schemaType", "AVRO"))
    if kind == "PROTOBUF":
        found = registry.request(f"{path}?format=serialized", what)
    return Registered(kind, str(found["schema"]))


def divided(body: bytes) -> tuple[int, bytes]:
    """Return the id of a body's schema, and the body without it.

    Raises:
        PayloadError: the body does not begin as one with a registered schema.
    """
    if len(body) < PREFIX_BYTES or body[0] != 0:
        raise PayloadError(
            f"met {body[:PREFIX_BYTES].hex(' ')}, expected a zero byte and the id of a schema"
        )
    return int.from_bytes(body[1:PREFIX_BYTES], "big"), body[PREFIX_BYTES:]
