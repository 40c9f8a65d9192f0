"""Shows the right line for a name that a public module does not have.

`cometmq`, `cometmq.client` and `cometmq.embedded` call it for a name that is missing, so that it
costs nothing until then.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_OPEN = 'async with cometmq.embedded.open("data") as broker:'
_CONSUMER = 'PushConsumer(broker, topic="orders", group="billing", handler=bill)'
_SEND = 'await producer.send("orders", b"hello")'
_LINES = {
    _OPEN: (
        "Broker Client Connection Database Embedded EmbeddedBroker Queue Server Store broker "
        "connect create create_engine init launch new open open_broker run serve server start"
    ),
    f"await {_CONSUMER}.run()": (
        "Consumer KafkaConsumer Listener Receiver Subscriber Subscription Worker consume consumer "
        "listen receive subscribe subscriber"
    ),
    f"async with Producer(broker) as producer: {_SEND}": (
        "KafkaProducer Publisher Sender Topic enqueue produce producer publish publisher send topic"
    ),
    "from cometmq.testing import Cluster": "Cluster",
    "from cometmq.client import blocking": "blocking sync synchronous",
}
"""By line to write instead, the names that people guess."""
_INSTEAD = {name: line for line, names in _LINES.items() for name in names.split()}


def missing_name(module: str, name: str) -> AttributeError | ImportError:
    """Return the error that a module's ``__getattr__`` raises.

    For a ``from`` import it is an ImportError: Python replaces an AttributeError by a text of its
    own there, without the line.

    Args:
        module: the module.
        name: the name that it does not have.
    """
    line = _INSTEAD.get(name)
    found = sys.modules[module]
    if line is None or (hasattr(found, "__path__") and find_spec(f"{module}.{name}")):
        # For a `from` import of a submodule, such as `blocking`, Python goes on and imports it.
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=found)
    if sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap":
        return ImportError(f"cannot import {name!r} from {module!r}: write {line}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}: write {line}", name=name)
