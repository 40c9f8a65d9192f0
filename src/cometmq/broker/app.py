"""A broker: composed, started and stopped here.

Start: open the store, listen, deliver delayed messages, register at the name servers. Stop, in
reverse: take no new connections, leave the name servers, answer what waits, write everything down.

Source: BrokerController, RocketMQ 5.3; registered before it says that it is ready is ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cometmq.broker.assembly import Parts, assemble, intake_rules
from cometmq.broker.config import BrokerSettings
from cometmq.broker.jobs import jobs
from cometmq.broker.routes import ONLY_ON_THE_MAIN_PORT, routes
from cometmq.broker.services.housekeeping import Housekeeping
from cometmq.broker.services.registration import Registration
from cometmq.remoting import (
    Connection,
    RemotingClient,
    RemotingServer,
    RemotingSettings,
    TlsSettings,
)
from cometmq.store import StoreSettings
from cometmq.system.clock import Clock, SystemClock
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files, SystemFiles

log = logging.getLogger(__name__)
