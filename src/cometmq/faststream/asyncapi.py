"""AsyncAPI documents in which channels have RocketMQ's settings.

AsyncAPI has no bindings of RocketMQ, and its schemas allow no other names than ``x-…``.
"""

from __future__ import annotations

from typing import Any

from faststream.specification import AsyncAPI
from faststream.specification.asyncapi.utils import clear_key

from cometmq.faststream.publisher import Publisher
from cometmq.faststream.subscriber import Subscriber

NAMES = ("tags", "sql", "key", "ordered", "broadcast", "batch", "pop", "max_workers")


class RocketAsyncAPI(AsyncAPI):
    """Writes ``x-rocketmq`` into the channels of `RocketBroker`; arguments as for ``AsyncAPI``.

    Example:
        app = FastStream(broker, specification=RocketAsyncAPI(title="Shop"))
    """

    def to_specification(self) -> Any:
        """Return the document."""
        document: Any = super().to_specification()
        for broker in self.brokers:
            for each in [*broker.subscribers, *broker.publishers]:
                if isinstance(each, Subscriber | Publisher):
                    name, channels = each.specification.name, document.channels
                    if found := channels.get(clear_key(name)) or channels.get(name):
                        setattr(found, "x-rocketmq", _settings(each))
        return document


def _settings(endpoint: Subscriber | Publisher) -> dict[str, Any]:
    options: Any = endpoint.options
    group = {"group": endpoint.group} if isinstance(endpoint, Subscriber) else {}
    given = {name: options[name] for name in NAMES if options.get(name)}
    return {"topic": endpoint.topic} | group | given
