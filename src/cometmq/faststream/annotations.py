"""Parameters of handlers that FastStream fills from its context."""

from typing import Annotated

from faststream._internal.context import Context
from faststream.annotations import ContextRepo, Logger
from faststream.params import NoCast

from cometmq.faststream.broker import RocketBroker as _RocketBroker
from cometmq.faststream.message import RocketMessage as _RocketMessage

__all__ = ["ContextRepo", "Logger", "NoCast", "RocketBroker", "RocketMessage"]

RocketMessage = Annotated[_RocketMessage, Context("message")]
RocketBroker = Annotated[_RocketBroker, Context("broker")]
