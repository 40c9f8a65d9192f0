"""Settings of the filter server.

Source: FiltersrvConfig, RocketMQ 4.2. There ``listenPort`` is the broker's port, because the server
reads the broker's file, and the server's own port is always a free one.
"""

from __future__ import annotations

from cometmq.model.errors import ConfigError
from cometmq.system.settings import ADDRESS, setting, settings_class

MIB = 1024 * 1024


@settings_class
class FilterServerSettings:
    """The settings of a filter server."""

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(0, key="listenPort", low=0, high=65535)
    """The TCP port; 0 lets the system choose one."""

    filter_server_ip: str = setting("", key="filterServerIP")
    """The address that clients are given. Default: the listen address, or the address of the
    machine if that is ``0.0.0.0``.
    """

    connect_which_broker: str = setting("127.0.0.1:10911", key="connectWhichBroker")
    """The broker whose messages are filtered, ``host:port``."""

    client_upload_filter_class_enable: bool = setting(False, key="clientUploadFilterClassEnable")
    """Whether clients may upload filters. If not, the server filters nothing. Off by default,
    unlike in RocketMQ, whose servers also fetch filters over HTTP.
    """

    compress_msg_body_over: int = setting(
        8 * 1024, key="compressMsgBodyOverHowmuch", unit="bytes", low=1
    )
    """Bodies of at least this size that are not compressed yet are compressed for the way to the
    client.
    """

    zip_compress_level: int = setting(5, key="zipCompressLevel", low=1, high=9)
    """The zlib level of that compression."""

    pulls_max: int = setting(2048, key="fsServerAsyncSemaphoreValue", low=1, high=1_000_000)
    """Maximum number of pulls in progress; further pulls are refused as busy. One client gets
    half of them at most, so that others can pull, too."""

    filters_max: int = setting(16, key="filterClassNumsMax", low=1, high=1_000)
    """Maximum number of filters, each in a process of its own. One more replaces the filter that
    has not been used for the longest time; its clients upload it again.
    """

    source_bytes_max: int = setting(
        256 * 1024, key="filterClassSourceSizeMax", unit="bytes", low=1, high=16 * MIB
    )
    """Maximum size of the source of a filter."""

    batch_ms_max: int = setting(
        2_000, key="filterClassTimeoutMills", unit="ms", low=10, high=600_000
    )
    """Time for a filter to match the messages of one pull. Then its process is killed, and started
    again for a later pull.
    """

    memory_bytes_max: int = setting(
        256 * MIB, key="filterClassMemorySizeMax", unit="bytes", low=16 * MIB, high=2**40
    )
    """Maximum memory of a filter's process, beyond that of the Python interpreter."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: the address of the broker is none.
        """
        broker = self.connect_which_broker
        if not ADDRESS.fullmatch(broker):
            raise ConfigError(f"connectWhichBroker={broker}: expected host:port")
