"""The namespace of a client: put into names on the wire, and taken out for applications.

Clients of 4.x wrap names, ``ns%name`` and ``%RETRY%ns%group``; names of the system have no
namespace. Clients of 5.x may instead leave names as they are and say the namespace beside each
request.

Source: NamespaceUtil and NamespaceRpcHook, RocketMQ 5.3.
"""

from __future__ import annotations

import re

from cometmq.model.namespace import namespace_of, without_namespace, wrap_namespace
from cometmq.model.queue import MessageQueue
from cometmq.protocol.command import Command
from cometmq.remoting import OutgoingCall

_INSTANCE_HOST = re.compile(r"(MQ_INST_\w+_\w+)\.")


class Namespace:
    """Wraps the names of topics and groups, and takes them out again.

    Args:
        name: the namespace; empty leaves every name as it is.

    Example: ``Namespace("shop").wrap_topic("orders")`` is ``"shop%orders"``.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __bool__(self) -> bool:
        return bool(self.name)

    def wrap_topic(self, name: str) -> str:
        """Give a topic's name as brokers know it; wrapping twice changes nothing."""
        return wrap_namespace(self.name, name)

    def wrap_group(self, name: str) -> str:
        """Give a group's name as brokers know it; wrapping twice changes nothing."""
        return wrap_namespace(self.name, name)

    def unwrap(self, name: str) -> str:
        """Give a name as applications know it; a name of another namespace stays as it is."""
        return without_namespace(name, self.name) if self.name else name

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as brokers know it."""
        if not self.name:
            return queue
        return MessageQueue(self.wrap_topic(queue.topic), queue.broker_name, queue.queue_id)

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as applications know it."""
        if not self.name:
            return queue
        return MessageQueue(self.unwrap(queue.topic), queue.broker_name, queue.queue_id)

    def owns(self, name: str) -> bool:
        """Whether a name as brokers know it lies in this namespace."""
        return bool(self.name) and namespace_of(name) == self.name


def namespace_of_endpoint(address: str) -> str:
    """Give the namespace that the host of a name server's address names, or nothing.

    Hosts of the form ``MQ_INST_<account>_<instance>.<domain>`` name one.
    """
    found = _INSTANCE_HOST.match(address.rpartition("/")[2])
    return found[1] if found else ""


class NamespaceHook:
    """Says the namespace beside each request, and that names carry it already.

    Args:
        name: the namespace.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Add the two fields."""
        call.fields["nsd"] = "true"
        call.fields["ns"] = self._name

    def after_answer(self, address: str, call: OutgoingCall, answer: Command) -> None:
        """Nothing is left to do."""
