"""Settings of the broker.

Names, keys and defaults are RocketMQ's; where 4.9 and 5.3 differ, the default is that of 5.3.
The store and the network layer have separate settings classes for the same file.

Source: BrokerConfig and BrokerIdentity, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import re
import socket
from ipaddress import ip_network
from pathlib import Path

from cometmq.broker.role import ASYNC_MASTER, ROLES, check_role
from cometmq.model.errors import ConfigError, InvalidNameError
from cometmq.model.topic import check_topic_name
from cometmq.system.settings import ADDRESS, setting, settings_class

_NAME = re.compile(r"(?!\.+$)[^\x00-\x20\x7f/\\]{1,127}")


@settings_class
class BrokerSettings:
    """The settings of a broker."""

    # --- identity -------------------------------------------------------------------------------

    broker_cluster_name: str = setting("DefaultCluster", key="brokerClusterName")
    """The cluster that the broker belongs to."""

    broker_name: str = setting(
        factory=lambda: socket.gethostname() or "DEFAULT_BROKER", key="brokerName"
    )
    """The name that a master and its slaves share. Default: the host name."""

    broker_id: int = setting(0, key="brokerId", low=-1, high=2**31 - 1)
    """0 for a master; each of its slaves has another number above 0. With
    ``enableControllerMode=true`` it has no effect.
    """

    broker_role: str = setting(ASYNC_MASTER, key="brokerRole", choices=ROLES)
    """``SLAVE`` copies log and tables of the master with the same ``brokerName``. A ``SYNC_MASTER``
    acknowledges a message when a slave has it, too; an ``ASYNC_MASTER`` does not wait for slaves.
    With ``enableControllerMode=true`` it has no effect.
    """

    ha_master_address: str = setting("", key="haMasterAddress")
    """``host:port`` at which the master of a slave sends its log. Default: as the name servers say.
    """

    ha_listen_port: int = setting(0, key="haListenPort", low=0, high=65535)
    """The TCP port at which slaves receive the log; 0 is ``listenPort`` plus 1."""

    ha_tls_enable: bool | None = setting(None, key="haTlsEnable")
    """Whether connections between master and slaves use TLS for the log; the same value on both.
    Default: true if ``tls.server.mode=enforcing``. RocketMQ needs false.
    """

    ha_unsigned_slaves: tuple[str, ...] = setting((), key="haUnsignedSlaves")
    """Addresses or networks of slaves whose connections for the log need no ticket, for example
    RocketMQ's: ``10.0.0.7;10.0.1.0/24``. With access control, or TLS for the log, other
    connections without a ticket are refused.
    """

    in_sync_replicas: int = setting(0, key="inSyncReplicas", low=0, high=65, remote=True)
    """How many brokers have a message, this one included, when a ``SYNC_MASTER`` acknowledges it.
    1 waits for no slave. 0 waits for one slave, and acknowledges at once with
    ``SLAVE_NOT_AVAILABLE`` if none is connected.
    """

    all_ack_in_sync_state_set: bool = setting(True, key="allAckInSyncStateSet")
    """Whether a master that a controller elected acknowledges a message when all members of the
    in-sync set have it, and shows consumers only such messages. An acknowledged message then
    survives every failover. With false, RocketMQ's default, ``inSyncReplicas`` decides.
    """

    min_in_sync_replicas: int = setting(1, key="minInSyncReplicas", low=1, high=65, remote=True)
    """A master that a controller elected refuses messages while the in-sync set has fewer members,
    itself included, and acknowledges none that it has stored already.
    """

    ha_max_time_slave_not_catchup_ms: int = setting(
        15_000, key="haMaxTimeSlaveNotCatchup", unit="ms", low=100, high=600_000, remote=True
    )
    """A slave that has not caught up for so long is removed from the in-sync set."""

    sync_from_last_file: bool = setting(False, key="syncFromLastFile")
    """Whether an empty slave copies only the last file of the log of a master that a controller
    elected, instead of the whole log.
    """

    async_learner: bool = setting(False, key="asyncLearner")
    """Whether this broker copies the log under a controller but never becomes a member of the
    in-sync set, and so never the master.
    """

    slave_timeout_ms: int = setting(
        3_000, key="slaveTimeout", unit="ms", low=1, high=600_000, remote=True
    )
    """How long a send waits for slaves before it is acknowledged with ``FLUSH_SLAVE_TIMEOUT``."""

    ha_slave_fallbehind_max: int = setting(
        256 * 1024 * 1024, key="haSlaveFallbehindMax", unit="bytes", low=1, high=2**40, remote=True
    )
    """A slave that lacks more bytes of the log than this does not count as connected."""

    ha_transfer_batch_size: int = setting(
        32 * 1024,
        key="haTransferBatchSize",
        unit="bytes",
        low=16,
        high=4 * 1024 * 1024,
        remote=True,
    )
    """Maximum size of one chunk of the log that a slave receives."""

    ha_send_heartbeat_interval_ms: int = setting(
        5_000, key="haSendHeartbeatInterval", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval of heartbeats between a master and a slave that have nothing else to send."""

    ha_housekeeping_interval_ms: int = setting(
        20_000, key="haHousekeepingInterval", unit="ms", low=20, high=600_000, remote=True
    )
    """A connection between master and slave on which nothing arrives for so long is closed."""

    enable_controller_mode: bool = setting(False, key="enableControllerMode")
    """Whether a controller decides which broker of this name is the master, and elects another one
    when it is lost.
    """

    controller_addr: tuple[str, ...] = setting((), key="controllerAddr")
    """``host:port`` of each controller."""

    fetch_controller_addr_by_dns_lookup: bool = setting(False, key="fetchControllerAddrByDnsLookup")
    """Whether the hosts in ``controllerAddr`` are looked up in the DNS at intervals, and each of
    their addresses is a controller.
    """

    controller_heartbeat_timeout_ms: int = setting(
        10_000,
        key="controllerHeartBeatTimeoutMills",
        unit="ms",
        low=100,
        high=3_600_000,
        remote=True,
    )
    """After so long without a heartbeat a controller takes this broker as lost; it does so at once
    when the connection of the heartbeats ends.
    """

    sync_broker_metadata_period_ms: int = setting(
        5_000, key="syncBrokerMetadataPeriod", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval at which the controller is asked for the master and the in-sync set, beside its
    notifications.
    """

    broker_election_priority: int = setting(
        2**31 - 1, key="brokerElectionPriority", low=0, high=2**31 - 1, remote=True
    )
    """If logs are equally long, the controller elects the broker with the smallest number."""

    broker_ip1: str = setting("", key="brokerIP1")
    """The address that name servers give to clients. Default: the listen address, or the address of
    the machine if that is ``0.0.0.0``.
    """

    bind_address: str = setting("127.0.0.1", key="bindAddress")
    """The local address to listen on; ``0.0.0.0`` is every IPv4 address of the machine."""

    listen_port: int = setting(10911, key="listenPort", low=0, high=65535)
    """The TCP port for all requests; 0 lets the system choose one."""

    fast_port_enable: bool = setting(True)
    """Whether the broker also listens on ``listenPort`` minus 2, which serves all requests except
    pulls and which clients of 4.3 and 4.4 use.
    """

    namesrv_addr: tuple[str, ...] = setting((), key="namesrvAddr", environment="NAMESRV_ADDR")
    """Addresses of the name servers, ``host:port``; the broker registers with each of them."""

    broker_permission: int = setting(6, key="brokerPermission", low=0, high=7, remote=True)
    """Permission of clients at this broker: 4 read, 2 write, 6 both."""

    region_id: str = setting("DefaultRegion", key="regionId")
    """The region in messages and traces."""

    # --- access control -------------------------------------------------------------------------

    acl_enable: bool = setting(False, key="aclEnable")
    """Whether requests need an account of ``conf/plain_acl.yml`` below ``rocketmqHome``, or of a
    file below ``conf/acl`` there, and its permissions."""

    rocketmq_home: Path | None = setting(None, key="rocketmqHome", environment="ROCKETMQ_HOME")
    """The directory above ``conf/plain_acl.yml``, for ``aclEnable=true``."""

    inner_client_credentials: str = setting(
        "", key="innerClientAuthenticationCredentials", secret=True
    )
    """The account that signs the requests of this broker to other servers, for example
    the requests of a slave to a master with access control: ``{"accessKey":"…","secretKey":"…"}``.
    """

    namesrv_acl_enable: bool = setting(False, key="namesrvAclEnable")
    """In ``cometmq standalone``: whether the name server checks requests, too, with the accounts or
    the users of the broker. It has no effect in ``cometmq broker``."""

    # --- registration ---------------------------------------------------------------------------

    register_name_server_period_ms: int = setting(
        30_000, key="registerNameServerPeriod", unit="ms", low=1, high=600_000, remote=True
    )
    """Interval of registrations; values are limited to 10 to 60 seconds."""

    register_broker_timeout_ms: int = setting(
        24_000, key="registerBrokerTimeoutMills", unit="ms", low=10, high=600_000, remote=True
    )
    """Timeout of one registration with one name server."""

    force_register: bool = setting(True, key="forceRegister", remote=True)
    """Whether the broker registers at every interval; if false, only when the topics at a name
    server are out of date.
    """

    compressed_register: bool = setting(False, key="compressedRegister", remote=True)
    """Whether registrations are deflated. Routes then lack the unit flags of topics. RocketMQ's
    name servers read them, but not deflated registrations of RocketMQ's own brokers of 5.x."""

    enable_split_registration: bool = setting(False, key="enableSplitRegistration", remote=True)
    """Whether a registration has at most ``splitRegistrationSize`` topics and is sent in several
    parts. A registration of more than 4 MiB is always sent in parts."""

    split_registration_size: int = setting(
        800, key="splitRegistrationSize", low=2, high=100_000, remote=True
    )
    """The topics in one part of a registration."""

    enable_single_topic_register: bool = setting(
        False, key="enableSingleTopicRegister", remote=True
    )
    """Whether a new or changed topic is registered by a request of its own, which name servers of
    RocketMQ 4.9 do not serve, instead of a registration of the broker with this topic."""

    # --- topics and groups ----------------------------------------------------------------------

    auto_create_topic_enable: bool = setting(True, key="autoCreateTopicEnable", remote=True)
    """Whether the first send to an unknown topic creates it (auto-creation), from ``TBW102``."""

    default_topic_queue_nums: int = setting(
        8, key="defaultTopicQueueNums", low=1, high=65535, remote=True
    )
    """Number of queues of ``TBW102``, and the maximum for a topic that is created automatically."""

    cluster_topic_enable: bool = setting(True, key="clusterTopicEnable")
    """Whether the topic with the name of the cluster exists and is a template for new topics."""

    broker_topic_enable: bool = setting(True, key="brokerTopicEnable")
    """Whether the topic with the name of the broker exists and is a template for new topics."""

    trace_topic_enable: bool = setting(False, key="traceTopicEnable")
    """Whether the broker creates the topic for message traces."""

    msg_trace_topic_name: str = setting("RMQ_SYS_TRACE_TOPIC", key="msgTraceTopicName")
    """The topic for message traces."""

    trace_on: bool = setting(True, key="traceOn", remote=True)
    """Whether clients record traces. The response to each send contains it."""

    validate_system_topic_when_update: bool = setting(
        True, key="validateSystemTopicWhenUpdateTopic", remote=True
    )
    """Whether requests that create or change a system topic are refused."""

    enable_mixed_message_type: bool = setting(False, key="enableMixedMessageType", remote=True)
    """Whether topics of the type MIXED can be created."""

    auto_create_subscription_group: bool = setting(
        True, key="autoCreateSubscriptionGroup", remote=True
    )
    """Whether an unknown consumer group is created on its first use."""

    enable_create_sys_group: bool = setting(True, key="enableCreateSysGroup", remote=True)
    """Whether an unknown system group (``CID_RMQ_SYS_…``) is created on its first use, even if
    other groups are not.
    """

    auto_create_topic_max: int = setting(
        100_000, key="autoCreateTopicMax", low=0, high=10_000_000, remote=True
    )
    """A send creates no further topic if the broker has this many, retry topics included."""

    auto_create_group_max: int = setting(
        50_000, key="autoCreateSubscriptionGroupMax", low=0, high=10_000_000, remote=True
    )
    """A heartbeat, a pull or a retry creates no further group if the broker has this many."""

    auto_create_account_max: int = setting(
        20_000, key="autoCreateAccountMax", low=0, high=10_000_000, remote=True
    )
    """How many topics and groups that still exist the requests of one account may have created by
    using them, since the start of the broker."""

    auto_create_connection_max: int = setting(
        20_000, key="autoCreateConnectionMax", low=0, high=10_000_000, remote=True
    )
    """How many topics and groups the requests of one connection may create by using them."""

    auto_create_acl_enable: bool = setting(False, key="autoCreateAclEnable", remote=True)
    """Whether an account needs a right of its own to create topics and groups by using them: with
    plain accounts ``autoCreate: true`` in its file, with users the action ``Create`` on the topic
    or the group. By default the right to use them is enough, as in RocketMQ."""

    # --- sending --------------------------------------------------------------------------------

    start_accept_send_request_ms: int = setting(
        0, key="startAcceptSendRequestTimeStamp", unit="ms since 1970", low=0, remote=True
    )
    """Time before which sends are refused."""

    store_reply_message_enable: bool = setting(True, key="storeReplyMessageEnable", remote=True)
    """Whether replies of request-reply are stored too."""

    send_queue_capacity: int = setting(
        10_000, key="sendThreadPoolQueueCapacity", low=1, high=10_000_000
    )
    """Maximum number of sends that wait for the disk; further sends are refused as busy."""

    wait_time_in_send_queue_ms: int = setting(
        200, key="waitTimeMillsInSendQueue", unit="ms", low=1, high=600_000, remote=True
    )
    """A send that waits longer than this before it is handled is refused as busy."""

    broker_fast_failure_enable: bool = setting(True, key="brokerFastFailureEnable", remote=True)
    """Whether requests that have waited too long are refused."""

    producer_sessions_max: int = setting(
        100_000, key="producerSessionsMax", low=4, high=10_000_000, remote=True
    )
    """How many producer sessions the broker keeps; one topic may have a fourth of them. Programs
    that write with Spark have one for each topic, job and partition."""

    producer_session_expiry_ms: int = setting(
        604_800_000, key="producerSessionExpiryMs", unit="ms", low=60_000, remote=True
    )
    """A producer session that is not used for so long is forgotten: a task that is repeated later
    stores its messages again."""

    # --- transactions ---------------------------------------------------------------------------

    reject_transaction_message: bool = setting(False, key="rejectTransactionMessage", remote=True)
    """Whether half messages are refused."""

    transaction_timeout_ms: int = setting(
        6_000, key="transactionTimeOut", unit="ms", low=1, high=86_400_000, remote=True
    )
    """An undecided half message that is older than this is checked."""

    transaction_check_interval_ms: int = setting(
        30_000, key="transactionCheckInterval", unit="ms", low=10, high=86_400_000, remote=True
    )
    """Interval at which undecided half messages are checked."""

    transaction_check_max: int = setting(
        15, key="transactionCheckMax", low=1, high=1_000_000, remote=True
    )
    """After this many checks an undecided half message is discarded: it is moved to
    ``TRANS_CHECK_MAX_TIME_TOPIC``.
    """

    # --- pulling --------------------------------------------------------------------------------

    long_polling_enable: bool = setting(True, key="longPollingEnable", remote=True)
    """Whether a pull without messages is held for as long as the client requests (long polling)."""

    short_polling_time_ms: int = setting(
        1_000, key="shortPollingTimeMills", unit="ms", low=0, high=600_000, remote=True
    )
    """How long a pull without messages is held if long polling is off."""

    pull_queue_capacity: int = setting(
        100_000, key="pullThreadPoolQueueCapacity", low=1, high=10_000_000
    )
    """Maximum number of held pulls; further pulls get a response at once."""

    cold_data_flow_control_enable: bool = setting(
        False, key="coldDataFlowControlEnable", remote=True
    )
    """Whether ``globalColdReadThreshold`` and ``cgColdReadThreshold`` limit how fast pulls read
    messages that are not in memory, so that sends keep their latency beside a consumer that reads
    an old backlog.
    """

    global_cold_read_threshold: int = setting(
        100 * 1024 * 1024,
        key="globalColdReadThreshold",
        unit="bytes",
        low=64 * 1024,
        high=2**40,
        remote=True,
    )
    """How many bytes all pulls together may read from the disk in five seconds. Reads are spread
    over this time. A pull that would wait for more than five seconds is refused with SYSTEM_BUSY.
    """

    cg_cold_read_threshold: int = setting(
        3 * 1024 * 1024,
        key="cgColdReadThreshold",
        unit="bytes",
        low=64 * 1024,
        high=2**40,
        remote=True,
    )
    """How many bytes the pulls of each consumer group may read from the disk in five seconds; a
    request may set another limit for a group (``mqadmin updateColdDataFlowCtrGroupConfig``).
    """

    recall_message_enable: bool = setting(False, key="recallMessageEnable", remote=True)
    """Whether producers may recall timer messages before they are due."""

    allow_recall_when_not_writable: bool = setting(
        True, key="allowRecallWhenBrokerNotWriteable", remote=True
    )
    """Whether timer messages may be recalled while ``brokerPermission`` allows no sends."""

    slave_read_enable: bool = setting(False, key="slaveReadEnable", remote=True)
    """Whether pulls of messages that have left the memory of the master are redirected to a slave.
    A slave redirects them to the master again when they have caught up.
    """

    enable_slave_acting_master: bool = setting(False, key="enableSlaveActingMaster")
    """Whether name servers with ``supportActingMaster=true`` show clients the slave with the
    smallest id as the master while there is none; the same value on master and slaves.
    """

    enable_remote_escape: bool = setting(False, key="enableRemoteEscape", remote=True)
    """Whether a slave that acts as the master sends scheduled messages that are due, undecided half
    messages, and popped messages that are due, to other brokers of their topics; else they wait for
    the master.
    """

    broker_heartbeat_interval_ms: int = setting(
        1_000, key="brokerHeartbeatInterval", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval of heartbeats: to name servers with ``enableSlaveActingMaster=true``, to controllers
    with ``enableControllerMode=true``.
    """

    broker_not_active_timeout_ms: int = setting(
        10_000, key="brokerNotActiveTimeoutMillis", unit="ms", low=100, high=86_400_000, remote=True
    )
    """After so long without a heartbeat name servers take this broker as lost, if it has
    ``enableSlaveActingMaster=true``.
    """

    sync_broker_member_group_period_ms: int = setting(
        1_000, key="syncBrokerMemberGroupPeriod", unit="ms", low=10, high=600_000, remote=True
    )
    """Interval at which a slave with ``enableSlaveActingMaster=true`` asks name servers which
    brokers of its name there are, beside their notifications.
    """

    forward_timeout_ms: int = setting(
        3_000, key="forwardTimeout", unit="ms", low=100, high=60_000, remote=True
    )
    """Timeout of requests about static topics that another broker has to serve."""

    lite_pull_message_enable: bool = setting(True, key="litePullMessageEnable", remote=True)
    """Whether lite pull consumers are allowed."""

    reject_pull_consumer_enable: bool = setting(False, key="rejectPullConsumerEnable", remote=True)
    """Whether pull consumers are refused."""

    enable_property_filter: bool = setting(False, key="enablePropertyFilter", remote=True)
    """Whether consumers may filter with SQL92 expressions. If not, they are refused."""

    filter_support_retry: bool = setting(False, key="filterSupportRetry", remote=True)
    """Whether messages that a consumer sent back are filtered again when they are redelivered, by
    the SQL92 expression that its group has for their first topic.
    """

    filter_server_nums: int = setting(0, key="filterServerNums", low=0, high=1_000)
    """The filter servers that RocketMQ's broker starts. This broker starts none, and warns if it is
    not 0: start them with ``cometmq filtersrv``.
    """

    enable_calc_filter_bit_map: bool = setting(False, key="enableCalcFilterBitMap", remote=True)
    """Whether a message is compared with the SQL92 expressions of its topic when it is stored. The
    result, a bit map, saves consumers most of the reads of messages that do not match. It needs
    ``enableConsumeQueueExt``.
    """

    expect_consumer_num_use_filter: int = setting(
        32, key="expectConsumerNumUseFilter", low=1, high=1_000
    )
    """Number of groups per topic with SQL92 expressions for which bit maps are large enough. After
    a change the bit maps that are stored have no effect.
    """

    max_error_rate_of_bloom_filter: int = setting(
        20, key="maxErrorRateOfBloomFilter", unit="%", low=1, high=99
    )
    """Share of the messages that a bit map lets pass although they do not match."""

    filter_data_clean_time_span_ms: int = setting(
        24 * 3_600_000, key="filterDataCleanTimeSpan", unit="ms", low=0, high=2**53, remote=True
    )
    """How long the expression of a group without members is kept."""

    # --- consumers ------------------------------------------------------------------------------

    notify_consumer_ids_changed_enable: bool = setting(
        True, key="notifyConsumerIdsChangedEnable", remote=True
    )
    """Whether consumers are notified when the members of their group change."""

    channel_expired_timeout_ms: int = setting(
        120_000, key="channelExpiredTimeout", unit="ms", low=1_000, high=86_400_000
    )
    """A client without a heartbeat for longer than this is removed."""

    flush_consumer_offset_interval_ms: int = setting(
        5_000, key="flushConsumerOffsetInterval", unit="ms", low=10, high=600_000
    )
    """Interval at which committed offsets are written to their file."""

    use_server_side_reset_offset: bool = setting(True, key="useServerSideResetOffset", remote=True)
    """Whether an offset that was reset takes precedence over later commits of consumers."""

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
            if not ADDRESS.fullmatch(address):
                raise ConfigError(f"namesrvAddr={address}: expected host:port;host:port")
        for allowed in self.ha_unsigned_slaves:
            try:
                ip_network(allowed)
            except ValueError as problem:
                raise ConfigError(
                    f"haUnsignedSlaves={allowed}: {problem}; expected addresses or networks such as"
                    " 10.0.0.7;10.0.1.0/24"
                ) from None
        if self.ha_master_address and not ADDRESS.fullmatch(self.ha_master_address):
            raise ConfigError(f"haMasterAddress={self.ha_master_address}: expected host:port")
        if self.acl_enable and self.rocketmq_home is None:
            raise ConfigError(
                "aclEnable=true without rocketmqHome: expected the directory above"
                " conf/plain_acl.yml"
            )
        if self.enable_controller_mode:
            self._check_controllers()
        else:
            check_role(self.broker_role, self.broker_id)
        try:
            check_topic_name(self.msg_trace_topic_name)
        except InvalidNameError as problem:
            raise ConfigError(f"msgTraceTopicName={self.msg_trace_topic_name}: {problem}") from None

    def _check_controllers(self) -> None:
        if not self.controller_addr:
            raise ConfigError(
                "enableControllerMode=true without controllerAddr: expected the addresses of the"
                " controllers, host:port;host:port"
            )
        for address in self.controller_addr:
            if not ADDRESS.fullmatch(address):
                raise ConfigError(f"controllerAddr={address}: expected host:port;host:port")
        if self.ha_master_address:
            raise ConfigError(
                f"haMasterAddress={self.ha_master_address} with enableControllerMode=true: remove"
                " it, the controller names the master"
            )
        if self.enable_slave_acting_master:
            raise ConfigError(
                "enableSlaveActingMaster=true with enableControllerMode=true: choose one of them"
            )
