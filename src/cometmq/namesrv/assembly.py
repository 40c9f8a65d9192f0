"""Assembles the parts of a name server; nothing runs yet.

`FEATURES` lists the features; what one of them serves and runs is in its own folder, in
``feature.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from cometmq.namesrv.admin import feature as admin
from cometmq.namesrv.brokers import feature as brokers
from cometmq.namesrv.brokers.liveness import BrokerLiveness
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.kv_config import feature as kv_config
from cometmq.namesrv.kv_config.table import KvTable
from cometmq.namesrv.registry import Registry
from cometmq.namesrv.routes import feature as routes
from cometmq.namesrv.topics import feature as topics
from cometmq.remoting import RemotingClient, Supervisor
from cometmq.remoting.features import Feature
from cometmq.store.config_files import JsonFile
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files


class Parts(msgspec.Struct, frozen=True):
    """All parts of one name server that its features share."""

    configuration: Configuration
    settings: Callable[[], NameServerSettings]
    files: Files
    registry: Registry
    kv: KvTable
    liveness: BrokerLiveness
    now_ms: Callable[[], int]
    """Returns the time of a monotonic clock."""
    up_ms: Callable[[], int]
    """Returns how long the name server has been running."""


FEATURES: Sequence[Callable[[Parts], Feature]] = (
    brokers.build,
    routes.build,
    topics.build,
    kv_config.build,
    admin.build,
)
"""What a name server consists of."""


def assemble(
    configuration: Configuration,
    *,
    client: RemotingClient,
    supervisor: Supervisor,
    files: Files,
    now_ms: Callable[[], int],
    up_ms: Callable[[], int],
) -> Parts:
    """Read the key-value table and build the parts.

    Args:
        configuration: all settings.
        client: sends notifications to brokers.
        supervisor: owns the tasks that send them.
        files: the disk.
        now_ms: returns the time of a monotonic clock.
        up_ms: returns how long the name server has been running.

    Raises:
        StoreError: the file of the key-value table cannot be read.
        ConfigError: the file of the key-value table has another content.
    """
    settings = configuration.reader_of(NameServerSettings)
    registry = Registry()
    kv_file = JsonFile(settings().kv_config_path, files)
    return Parts(
        configuration=configuration,
        settings=settings,
        files=files,
        registry=registry,
        kv=KvTable(kv_file.load(), kv_file.save),
        liveness=BrokerLiveness(registry, client, supervisor, settings, now_ms=now_ms),
        now_ms=now_ms,
        up_ms=up_ms,
    )
