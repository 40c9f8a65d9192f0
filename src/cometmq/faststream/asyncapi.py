"""AsyncAPI documents in which channels have RocketMQ's settings.

AsyncAPI knows no bindings of RocketMQ, and its schemas allow no other names than ``x-…``.
"""

from __future__ import annotations

import json
from typing import Any

from faststream.specification import AsyncAPI
from faststream.specification.base import Specification

from cometmq.faststream.publisher import Publisher
from cometmq.faststream.subscriber import Subscriber


class RocketAsyncAPI(AsyncAPI):
    """Writes ``x-rocketmq`` into the channels of `RocketBroker`; arguments as for ``AsyncAPI``.

    Example:
        app = FastStream(broker, specification=RocketAsyncAPI(title="Shop"))
    """

    def to_specification(self) -> Specification:
        """Return the document."""
        return _WithRocketMQ(super().to_specification(), self._settings())

    def _settings(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each channel, by its name."""
        found: dict[str, dict[str, Any]] = {}
        for broker in self.brokers:
            for sub in broker.subscribers:
                if isinstance(sub, Subscriber):
                    found[sub.specification.name] = _of_subscriber(sub)
            for pub in broker.publishers:
                if isinstance(pub, Publisher):
                    settings = {"topic": pub.topic} | _chosen(pub.options, "tags", "key", "batch")
                    found[pub.specification.name] = settings
        return found


class _WithRocketMQ:
    """A document with more settings in its channels."""

    def __init__(self, document: Specification, settings: dict[str, dict[str, Any]]) -> None:
        self._document = document
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._document, name)

    @property
    def title(self) -> str:
        """The title of the application."""
        return self._document.title

    def to_jsonable(self) -> Any:
        """Return the document as dicts and lists."""
        document = self._document.to_jsonable()
        settings = {_plain(name): found for name, found in self._settings.items()}
        for name, channel in document.get("channels", {}).items():
            if (found := settings.get(_plain(name))) is not None:
                channel["x-rocketmq"] = found
        return document

    def to_json(self) -> str:
        """Return the document as JSON."""
        return json.dumps(self.to_jsonable(), indent=2)

    def to_yaml(self) -> str:
        """Return the document as YAML."""
        from io import StringIO

        import yaml  # type: ignore[import-untyped]

        text = StringIO()
        yaml.dump(self.to_jsonable(), text, sort_keys=False)
        return text.getvalue()


def _plain(name: str) -> str:
    """Return the name of a channel as both generators and their key cleaning leave it."""
    return "".join(c for c in name if c.isalnum())


def _of_subscriber(sub: Subscriber) -> dict[str, Any]:
    names = ("tags", "sql", "ordered", "broadcast", "batch", "pop", "max_workers")
    return {"topic": sub.topic, "group": sub.group} | _chosen(sub.options, *names)


def _chosen(options: Any, *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if options.get(name)}
