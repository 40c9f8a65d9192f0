"""Brokers of a pair with RocketMQ: either may be ours, and the slave starts again as the master."""

from __future__ import annotations

from pathlib import Path

from servers import CometBroker, RealBroker, Settings
from wire import Connection

from support.brokers.replicas import Registered

VERSION = "5.3.3"
SLAVE: Settings = {"brokerRole": "SLAVE", "brokerId": 1}
WAIT_S = 150.0


class Comet(Registered, CometBroker):
    """Our broker, with any id."""


class Real(Registered, RealBroker):
    """RocketMQ's broker, with any id."""


Broker = Comet | Real


def connect(broker: Broker) -> Connection:
    return Connection(("127.0.0.1", int(broker.address.rpartition(":")[2])), timeout=WAIT_S)


def made(name: str, folder: Path, namesrv: str, settings: Settings) -> Broker:
    """A broker of ours or of RocketMQ; its store is that of the folder."""
    store = folder.with_name(f"{folder.name}-store")
    if name == "comet":
        return Comet(folder, namesrv, store=store, settings=settings)
    return Real(VERSION, folder, namesrv, store=store, settings=settings)
