"""The identity of a client: its id, its addresses, and the namespace of its topics and groups.

Source: ClientConfig.buildMQClientId, MixAll.brokerVIPChannel and NamespaceUtil, RocketMQ 5.3.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Iterable
from ipaddress import ip_address

from cometmq.client.settings import ClientSettings
from cometmq.model.address import bracketed
from cometmq.model.message import StoredMessage
from cometmq.model.namespace import namespace_of, without_namespace, wrap_namespace
from cometmq.model.property_names import RETRY_TOPIC
from cometmq.model.queue import MessageQueue
from cometmq.protocol.command import Command
from cometmq.remoting import ConnectError, OutgoingCall
from cometmq.remoting.client import split_address

_instances = itertools.count(1)
LOOPBACK = "127.0.0.1"
STREAM_SUFFIX = "@STREAM"
_DISCARD_PORT = 9
_FAR_AWAY = (f"192.0.2.1:{_DISCARD_PORT}", f"[2001:db8::1]:{_DISCARD_PORT}")
"""Addresses of documentation (RFC 5737, RFC 3849), which no machine has: the default route."""


def client_id(
    settings: ClientSettings, name_servers: Iterable[str], *, keep_name: bool = False
) -> str:
    """Make the id of a new client.

    The instance name ``DEFAULT`` becomes process id, time and a running number, so that every
    client of a machine has an id of its own; with ``keep_name`` it stays, so that the id is the
    same after a restart.
    """
    name = settings.instance_name
    if name == "DEFAULT" and not keep_name:
        name = f"{os.getpid()}#{time.monotonic_ns()}{next(_instances)}"
    unit = f"@{settings.unit_name}" if settings.unit_name.strip() else ""
    stream = STREAM_SUFFIX if settings.stream else ""
    return f"{settings.client_ip or outward_address(name_servers)}@{name}{unit}{stream}"


def outward_address(peers: Iterable[str]) -> str:
    """Return this machine's own address towards the first peer that has a route.

    A loopback address is returned only if there is no other one. IPv6 addresses have brackets.
    Nothing is sent: the kernel chooses the address when a datagram socket is connected.
    """
    found = [own for peer in [*peers, *_FAR_AWAY] if (own := _own_address(peer)) is not None]
    outward = [own for own in found if not ip_address(own).is_loopback]
    chosen = next(iter(outward or found), LOOPBACK)
    return bracketed(chosen)


def _own_address(peer: str) -> str | None:
    """This machine's address towards a peer; None if it has a name, which is not looked up."""
    host = peer.rpartition(":")[0].strip("[]")
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _DISCARD_PORT))
            return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, ValueError):
        return None


VIP_PORT_STEP = 2


def vip_address(address: str) -> str:
    """Return the address of a broker's second port, which takes sends and no pulls.

    Source: MixAll.brokerVIPChannel, RocketMQ 5.3.
    """
    try:
        _, port = split_address(address)
    except ConnectError:
        return address  # connecting to it says what is wrong with it
    return f"{address.rpartition(':')[0]}:{port - VIP_PORT_STEP}"


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
        """Return a topic's name as brokers know it; wrapping twice changes nothing."""
        return wrap_namespace(self.name, name)

    def wrap_group(self, name: str) -> str:
        """Return a group's name as brokers know it; wrapping twice changes nothing."""
        return wrap_namespace(self.name, name)

    def unwrap(self, name: str) -> str:
        """Return a name as applications know it; a name of another namespace stays as it is."""
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

    def unwrap_topics(
        self, messages: Iterable[StoredMessage], *, retry_topic: str | None = None
    ) -> None:
        """Give messages the topic that they were sent to, as applications know it.

        Args:
            messages: messages as brokers sent them.
            retry_topic: the group's retry topic, if messages may come from there.
        """
        if not self.name and retry_topic is None:
            return
        for message in messages:
            if message.topic == retry_topic:
                message.topic = message.properties.get(RETRY_TOPIC, message.topic)
            message.topic = self.unwrap(message.topic)

    def owns(self, name: str) -> bool:
        """Whether a name as brokers know it lies in this namespace."""
        return bool(self.name) and namespace_of(name) == self.name


def namespace_of_endpoint(address: str) -> str:
    """Return the namespace that the host of a name server's address names, or nothing.

    Hosts of the form ``MQ_INST_<account>_<instance>.<domain>`` name one.
    """
    found = _INSTANCE_HOST.match(address.rpartition("/")[2])
    return found[1] if found else ""


class NamespaceHook:
    """Adds the namespace to each request, and that the names contain it already.

    Args:
        name: the namespace.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def before_request(self, address: str, call: OutgoingCall) -> None:
        """Add the two fields."""
        call.fields["nsd"] = "true"
        call.fields["ns"] = self._name

    def after_response(self, address: str, call: OutgoingCall, response: Command) -> None:
        """Do nothing."""
