"""The shared parts of the features of a name server; nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq.namesrv.brokers.liveness import BrokerLiveness
from cometmq.namesrv.config import NameServerSettings
from cometmq.namesrv.kv_config.table import KvTable
from cometmq.namesrv.registry import Registry
from cometmq.remoting import RemotingClient, Supervisor
from cometmq.store.config_files import JsonFile
from cometmq.system.configuration import Configuration
from cometmq.system.files import Files


class Core(msgspec.Struct, frozen=True):
    """The shared parts of the features of one name server."""

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


def open_core(
    configuration: Configuration,
    *,
    client: RemotingClient,
    supervisor: Supervisor,
    files: Files,
    now_ms: Callable[[], int],
    up_ms: Callable[[], int],
) -> Core:
    """Read the key-value table, and build what the features share.

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
    return Core(
        configuration=configuration,
        settings=settings,
        files=files,
        registry=registry,
        kv=KvTable(kv_file.load(), kv_file.save),
        liveness=BrokerLiveness(registry, client, supervisor, settings, now_ms=now_ms),
        now_ms=now_ms,
        up_ms=up_ms,
    )
