"""The stored form of a message of Kombu: JSON, with the body as base64.

Any client may send to the topics of queues and exchanges. What has another form is refused here,
before Kombu reads it: an error in a worker's loop would end the worker.
"""

from __future__ import annotations

import binascii
from typing import Any

import msgspec

_TEXT = (str, type(None))
_SHAPE = {
    "body": _TEXT,
    "content-type": _TEXT,
    "content-encoding": _TEXT,
    "headers": (dict,),
    "properties": (dict,),
}
_PROPERTIES = {"delivery_info": (dict,), "body_encoding": _TEXT, "expires_ms": (int, type(None))}


class MalformedMessageError(ValueError):
    """A stored message does not have the form of Kombu's."""


def decode_json(body: bytes) -> Any:
    """Return what JSON says.

    Raises:
        MalformedMessageError: it is no JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MalformedMessageError(f"{body[:40]!r} is not JSON: {error}") from None


def check_message(raw: Any) -> dict[str, Any]:
    """Return a decoded message, if it has the form that Kombu reads.

    Raises:
        MalformedMessageError: it has another form.
    """
    _check(raw, _SHAPE, "message")
    properties = raw["properties"]
    _check(properties, _PROPERTIES, "properties")
    encoding = (properties.get("body_encoding") or "utf-8").lower()
    if encoding == "base64":
        try:
            binascii.a2b_base64(raw.get("body") or "")
        except ValueError as error:
            raise MalformedMessageError(f"the body is not base64: {error}") from None
    elif encoding != "utf-8":
        raise MalformedMessageError(f"body_encoding={encoding!r}: expected base64 or utf-8")
    found: dict[str, Any] = raw
    return found


def decode_message(body: bytes) -> dict[str, Any]:
    """Return a stored message.

    Raises:
        MalformedMessageError: it has another form.
    """
    return check_message(decode_json(body))


def milliseconds_of(properties: Any, name: str) -> int:
    """Return a time in ms since 1970 from a property; 0 if there is none.

    Raises:
        MalformedMessageError: it is no such time.
    """
    text = properties.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**53))):
        raise MalformedMessageError(f"property {name}={text[:40]!r}: expected ms since 1970")
    return int(text)


def _check(found: Any, shape: dict[str, tuple[type, ...]], name: str) -> None:
    if not isinstance(found, dict):
        raise MalformedMessageError(f"{name} is {type(found).__name__}: expected dict")
    for field, types in shape.items():
        value = found.get(field)
        if not isinstance(value, types):
            raise MalformedMessageError(
                f"{field} is {type(value).__name__}: expected {types[0].__name__}"
            )
