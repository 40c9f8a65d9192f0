"""Settings of the broker.

Names, keys and defaults are RocketMQ's; where 4.9 and 5.3 differ, the default is that of 5.3.
What the store and the network layer read from the same file stands in their own settings.

Source: BrokerConfig and BrokerIdentity, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

from cometmq.model.errors import ConfigError, InvalidNameError
from cometmq.model.topic import check_topic_name
from cometmq.system.settings import setting

_ADDRESS = re.compile(r"[^\s:;]+:[0-9]{1,5}|\[[0-9A-Fa-f:.%]+\]:[0-9]{1,5}")
_NAME = re.compile(r"(?!\.+$)[^\x00-\x20\x7f/\\]{1,127}")


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


@dataclass(frozen=True)
class BrokerSettings:
    """What can be set on a broker."""

    # --- who it is ------------------------------------------------------------------------------

    broker_cluster_name: str = setting("DefaultCluster", key="brokerClusterName")
    """The cluster that the broker belongs to."""

    broker_name: str = setting(factory=_host_name, key="brokerName")
    """The name that a master and its slaves share. By default the machine's host name."""

    broker_id: int = setting(0, key="brokerId", low=0, high=2**31 - 1)
    """0 is the master; slaves have ids above 0."""

    broker_ip1: str = setting("", key="brokerIP1")
    """The address that name servers give to clients. By default the address the broker listens
    on, or the machine's own when that is every address."""

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(10911, key="listenPort", low=0, high=65535)
    """The TCP port for all requests; 0 lets the system choose one."""

    fast_port_enable: bool = setting(True)
    """Whether the broker also listens on the port two below ``listenPort``, which serves all but
    pulling and which clients of 4.3 and 4.4 use."""

    namesrv_addr: tuple[str, ...] = setting((), key="namesrvAddr", environment="NAMESRV_ADDR")
    """Addresses of the name servers, ``host:port``; the broker registers at every one."""

    broker_permission: int = setting(6, key="brokerPermission", low=0, high=7, remote=True)
    """What the broker lets clients do: 4 read, 2 write, 6 both."""

    region_id: str = setting("DefaultRegion", key="regionId")
    """The region that messages and traces carry."""

    # --- registration ---------------------------------------------------------------------------

    register_name_server_period_ms: int = setting(
        30_000, key="registerNameServerPeriod", unit="ms", low=1, high=600_000, remote=True
    )
    """How often the broker registers; values outside 10 to 60 seconds are moved to the nearer
    end."""

    register_broker_timeout_ms: int = setting(
        24_000, key="registerBrokerTimeoutMills", unit="ms", low=10, high=600_000, remote=True
    )
    """How long one registration at one name server may take."""

    force_register: bool = setting(True, key="forceRegister", remote=True)
    """Whether every period registers; if not, only when a name server's version of the topics
    differs."""

    # --- topics and groups ----------------------------------------------------------------------

    auto_create_topic_enable: bool = setting(True, key="autoCreateTopicEnable", remote=True)
    """Whether a send to an unknown topic creates it, from ``TBW102``."""

    default_topic_queue_nums: int = setting(
        8, key="defaultTopicQueueNums", low=1, high=65535, remote=True
    )
    """Queues of ``TBW102`` and the most a created topic may have."""

    cluster_topic_enable: bool = setting(True, key="clusterTopicEnable")
    """Whether the topic named after the cluster can be used, and new ones be made from it."""

    broker_topic_enable: bool = setting(True, key="brokerTopicEnable")
    """Whether the topic named after the broker can be used, and new ones be made from it."""

    trace_topic_enable: bool = setting(False, key="traceTopicEnable")
    """Whether the broker keeps a topic for message traces."""

    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", key="msgTraceTopicName")
    """The topic for message traces."""

    trace_on: bool = setting(True, key="traceOn", remote=True)
    """Whether answers to sends ask the client for traces."""

    validate_system_topic_when_update: bool = setting(
        True, key="validateSystemTopicWhenUpdateTopic", remote=True
    )
    """Whether topics with names of the system's cannot be changed by requests."""

    enable_mixed_message_type: bool = setting(False, key="enableMixedMessageType", remote=True)
    """Whether topics of the type MIXED may be made."""

    auto_create_subscription_group: bool = setting(
        True, key="autoCreateSubscriptionGroup", remote=True
    )
    """Whether an unknown consumer group is created at its first use."""

    enable_create_sys_group: bool = setting(True, key="enableCreateSysGroup", remote=True)
    """Whether an unknown system group (``CID_RMQ_SYS_…``) is created at its first use, even when
    others are not."""

    # --- sending --------------------------------------------------------------------------------

    start_accept_send_request_ms: int = setting(
        0, key="startAcceptSendRequestTimeStamp", unit="ms since 1970", low=0, remote=True
    )
    """Sends are refused before this time."""

    store_reply_message_enable: bool = setting(True, key="storeReplyMessageEnable", remote=True)
    """Whether replies of request-reply are also stored."""

    send_queue_capacity: int = setting(
        10_000, key="sendThreadPoolQueueCapacity", low=1, high=10_000_000
    )
    """Sends that may wait for the disk or a slave; further ones are refused as too busy."""

    wait_time_in_send_queue_ms: int = setting(
        200, key="waitTimeMillsInSendQueue", unit="ms", low=1, high=600_000, remote=True
    )
    """A send that waited for longer before it was handled is refused as too busy."""

    broker_fast_failure_enable: bool = setting(True, key="brokerFastFailureEnable", remote=True)
    """Whether requests that waited for too long are refused."""

    # --- pulling --------------------------------------------------------------------------------

    long_polling_enable: bool = setting(True, key="longPollingEnable", remote=True)
    """Whether a pull that finds nothing is held as long as the client asks for."""

    short_polling_time_ms: int = setting(
        1_000, key="shortPollingTimeMills", unit="ms", low=0, high=600_000, remote=True
    )
    """How long such a pull is held when long polling is off."""

    pull_queue_capacity: int = setting(
        100_000, key="pullThreadPoolQueueCapacity", low=1, high=10_000_000
    )
    """Pulls that may be held at once; further ones are answered at once."""

    slave_read_enable: bool = setting(False, key="slaveReadEnable", remote=True)
    """Whether consumers far behind are sent to a slave."""

    lite_pull_message_enable: bool = setting(True, key="litePullMessageEnable", remote=True)
    """Whether lite pull consumers are served."""

    reject_pull_consumer_enable: bool = setting(False, key="rejectPullConsumerEnable", remote=True)
    """Whether pull consumers are refused."""

    enable_property_filter: bool = setting(False, key="enablePropertyFilter", remote=True)
    """Whether consumers may filter with SQL92 expressions over message properties."""

    # --- consumers ------------------------------------------------------------------------------

    notify_consumer_ids_changed_enable: bool = setting(
        True, key="notifyConsumerIdsChangedEnable", remote=True
    )
    """Whether consumers are told when a member of their group comes or goes."""

    channel_expired_timeout_ms: int = setting(
        120_000, key="channelExpiredTimeout", unit="ms", low=1_000, high=86_400_000
    )
    """A client that sent no heartbeat for longer is gone."""

    flush_consumer_offset_interval_ms: int = setting(
        5_000, key="flushConsumerOffsetInterval", unit="ms", low=10, high=600_000
    )
    """How often the offsets of consumer groups are written to their file."""

    use_server_side_reset_offset: bool = setting(True, key="useServerSideResetOffset", remote=True)
    """Whether the offset that a reset put down wins over what consumers commit afterwards."""

    def __post_init__(self) -> None:
        """Check what a range cannot say.

        Raises:
            ConfigError: a name or an address is not one.
        """
        for key, name in (
            ("brokerName", self.broker_name),
            ("brokerClusterName", self.broker_cluster_name),
        ):
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{key}={name}: expected 1 to 127 characters without blanks and slashes,"
                    " not dots alone"
                )
        for address in self.namesrv_addr:
            if not _ADDRESS.fullmatch(address):
                raise ConfigError(f"namesrvAddr={address}: expected host:port;host:port")
        try:
            check_topic_name(self.msg_trace_topic_name)
        except InvalidNameError as problem:
            raise ConfigError(f"msgTraceTopicName={self.msg_trace_topic_name}: {problem}") from None
