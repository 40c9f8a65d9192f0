"""One call of a command: its flags, its client, and what commands have in common.

Source: CommandUtil and DefaultMQAdminExtImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from cometmq.cli.exit_codes import print_error
from cometmq.cli.mqadmin import command_line
from cometmq.client import AdminClient, ClientInstance
from cometmq.client.errors import QueueNotFoundError, TopicNotFoundError
from cometmq.model.errors import CometError, ResponseError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData, RegisteredBroker
from cometmq.protocol.codes import ResponseCode

NO_CLUSTER = (
    "[error] Make sure the specified clusterName exists or the name server connected to is correct."
)
TIME_FORMAT = "%Y-%m-%d#%H:%M:%S:%f"


class CommandError(CometError):
    """A command cannot do what its flags say."""


@dataclass(slots=True)
class Call:
    """A command with its flags and its client."""

    command: command_line.Command
    values: dict[str, str]
    line: int
    """The release line whose printouts are made: 4 for RocketMQ 4.9, 5 for 5.3."""
    admin: AdminClient
    instance: ClientInstance
    """The connections, which producers and consumers of the command share."""
    failed: bool = False

    @property
    def is_4(self) -> bool:
        """Whether the printout is the one of RocketMQ 4.9."""
        return self.line == 4

    def has(self, flag: str) -> bool:
        """Whether a flag is given."""
        return flag in self.values

    def text(self, flag: str, default: str = "") -> str:
        """Return the value of a flag."""
        return self.values.get(flag, default)

    def number(self, flag: str, default: int = 0) -> int:
        """Return the value of a flag as a whole number.

        Raises:
            CommandError: it is none.
        """
        text = self.values.get(flag)
        if text is None:
            return default
        try:
            return int(text)
        except ValueError:
            raise CommandError(f"-{flag} {text}: expected a whole number") from None

    def true(self, flag: str, default: bool = False) -> bool:
        """Return the value of a flag that is true or false."""
        text = self.values.get(flag)
        return default if text is None else text.lower() == "true"

    def fail(self, error: CometError) -> None:
        """Print an error; the command goes on, and ends with exit code 1."""
        self.failed = True
        print_error(f"cometmq mqadmin {self.command.name}: {described(error)}")

    def print_usage(self) -> None:
        """Print the flags of the command."""
        print("\n".join(self.command.usage()))

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """Return the brokers of a topic: the address of each master, or else of a slave, by name.

        Raises:
            ResponseError: there is no such topic.
        """
        route = await self.admin.route(topic)
        found = {broker.broker_name: address(broker) for broker in route.broker_datas}
        return {name: where for name, where in found.items() if where is not None}

    async def existing_queue(self, topic: str, broker: str, number: int) -> MessageQueue:
        """Return a queue of a broker.

        Raises:
            CommandError: the topic has no such broker.
        """
        route = await self.admin.route(topic)
        if broker not in {each.broker_name for each in route.broker_datas}:
            raise CommandError(f"The broker[{broker}] not exist")
        return MessageQueue(topic, broker, number)

    async def brokers(self, cluster: str) -> list[RegisteredBroker]:
        """Return the brokers of a cluster, each master before its slaves.

        If the cluster is unknown, print that and return none.
        """
        info = await self.admin.cluster_info()
        if cluster not in info.cluster_addr_table:
            print(NO_CLUSTER, end="")
        return info.registered(cluster)

    async def masters(self, cluster: str) -> list[str]:
        """Return the masters of a cluster, as `brokers` does."""
        return [each.address for each in await self.brokers(cluster) if each.is_master]

    async def chosen_masters(self) -> list[str]:
        """Return the broker of ``-b``, or the masters of the cluster of ``-c``."""
        if self.has("b"):
            return [self.text("b")]
        return await self.masters(self.text("c")) if self.has("c") else []

    async def chosen_brokers(self) -> list[str]:
        """Return the broker of ``-b``, or all of the cluster of ``-c``, masters before slaves."""
        if self.has("b"):
            return [self.text("b")]
        found = await self.brokers(self.text("c")) if self.has("c") else []
        return [each.address for each in found]

    async def repeat(self, show: Callable[[], Awaitable[None]]) -> None:
        """Show something; with ``-i`` again and again, that many seconds apart."""
        await show()
        while self.has("i"):
            await asyncio.sleep(self.number("i"))
            await show()


def address(broker: BrokerData) -> str | None:
    """Return the address of a master, or of any of its slaves if it has none."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses:
        return addresses[MASTER_ID]
    return random.choice(list(addresses.values())) if addresses else None


def described(error: CometError) -> str:
    """Return an error as RocketMQ's tool shows it: with its code, if a server refused."""
    if isinstance(error, ResponseError):
        return f"CODE: {error.code}  DESC: {error.remark}"
    if isinstance(error, TopicNotFoundError):
        return f"CODE: {int(ResponseCode.TOPIC_NOT_EXIST)}  DESC: {error}"
    if isinstance(error, QueueNotFoundError):
        return f"CODE: {int(ResponseCode.INVALID_PARAMETER)}  DESC: {error}"
    if isinstance(error, CommandError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def parsed_time(text: str, *, now: int) -> int:
    """Return a time in ms since 1970: ``now``, ms, or a local time such as 2026-01-31#18:00:00:000.

    Args:
        text: what a user has given.
        now: the value of ``now``.

    Raises:
        CommandError: the text is none of these.
    """
    if text == "now":
        return now
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return round(datetime.strptime(text, TIME_FORMAT).timestamp() * 1000)
    except ValueError:
        raise CommandError(
            f"{text}: expected now, ms since 1970 or a time as yyyy-MM-dd#HH:mm:ss:SSS"
        ) from None
