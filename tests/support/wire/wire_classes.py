"""The header and body class of each request, for tests that read whatever was recorded.

A header is named after its request. The docstring of a body names its requests, with their codes.
"""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from types import ModuleType

import msgspec

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.protocol import bodies, headers
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers.base import Header, RpcHeader


def _structs(package: ModuleType) -> dict[str, type[msgspec.Struct]]:
    names = [each.name for each in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")]
    return {
        kind.__name__: kind
        for name in names
        for kind in vars(import_module(name)).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == name
    }


HEADERS: dict[str, type[Header]] = {
    name.lower(): kind
    for name, kind in _structs(headers).items()
    if issubclass(kind, Header) and name.endswith(("Request", "Response"))
}
"""All headers by name in lower case: the request's name without underscores, and its end."""

_LIKE = {
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    RequestCode.SEND_MESSAGE_V2: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_BATCH_MESSAGE: RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_REPLY_MESSAGE: RequestCode.SEND_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2: RequestCode.SEND_MESSAGE_V2,
    RequestCode.LITE_PULL_MESSAGE: RequestCode.PULL_MESSAGE,
    RequestCode.PEEK_MESSAGE: RequestCode.POP_MESSAGE,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: RequestCode.UPDATE_AND_CREATE_TOPIC,
}
"""Requests that have the headers of another one, unless they have their own."""

_NAMED = re.compile(r"\b([A-Z][A-Z0-9_]+) \((\d+)\)")
_BODIES: dict[tuple[int, bool], type[msgspec.Struct]] = {
    (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, False): SubscriptionGroupConfig,
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, True): SubscriptionGroupConfig,
}
for _kind in _structs(bodies).values():
    _text = " ".join((_kind.__doc__ or "").split())
    for _name, _number in _NAMED.findall(_text):
        assert RequestCode[_name] == int(_number), _text
        if "The response to" in _text:
            _BODIES[RequestCode[_name], True] = _kind
        else:
            _BODIES[RequestCode[_name], False] = _kind
            _BODIES.setdefault((RequestCode[_name], True), _kind)


def header_class(code: RequestCode, *, is_response: bool) -> type[Header] | None:
    """Return the header of a request or of its response; None for a response without fields."""
    end = "response" if is_response else "request"
    found = HEADERS.get(code.name.replace("_", "").lower() + end)
    if found is None and code in _LIKE:
        return header_class(_LIKE[code], is_response=is_response)
    return found or (None if is_response else RpcHeader)


def body_class(code: RequestCode, *, is_response: bool) -> type[msgspec.Struct] | None:
    """Return the JSON body of a request or of its response; None if it has none."""
    return _BODIES.get((code, is_response))


def recorded_classes(name: str) -> tuple[type[Header] | None, type[msgspec.Struct] | None]:
    """Return the header and the body of what was recorded as a request, or ``NAME_RESPONSE``."""
    is_response = name.endswith("_RESPONSE")
    code = RequestCode[name.removesuffix("_RESPONSE")]
    return header_class(code, is_response=is_response), body_class(code, is_response=is_response)
