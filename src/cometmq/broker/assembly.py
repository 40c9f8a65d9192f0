"""Builds the features of a broker, each with the features that it depends on; nothing runs yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cometmq.broker.access.feature import AccessFeature
from cometmq.broker.acting_master.feature import ActingMasterFeature, OffsetTakeoverFeature
from cometmq.broker.admin.feature import AdminFeature
from cometmq.broker.clients.feature import ClientsFeature
from cometmq.broker.core import Core
from cometmq.broker.delay.feature import DelayFeature
from cometmq.broker.durability.feature import DurabilityFeature
from cometmq.broker.failover.feature import FailoverFeature, elect, forwarding
from cometmq.broker.filter_servers.feature import FilterServersFeature
from cometmq.broker.filters.feature import FiltersFeature
from cometmq.broker.groups.feature import GroupsFeature
from cometmq.broker.life import Life
from cometmq.broker.maintenance.feature import MaintenanceFeature
from cometmq.broker.offsets.feature import OffsetsFeature
from cometmq.broker.pop.feature import PopFeature
from cometmq.broker.producer_sessions.feature import ProducerSessionsFeature
from cometmq.broker.pulling.feature import PullingFeature
from cometmq.broker.queries.feature import QueriesFeature
from cometmq.broker.registration.feature import RegistrationFeature
from cometmq.broker.registration.name_servers import Registration
from cometmq.broker.replication.feature import ReplicationFeature
from cometmq.broker.replication.log_tls import LogTls
from cometmq.broker.sending.feature import SendingFeature
from cometmq.broker.static_topics.feature import StaticTopicsFeature
from cometmq.broker.stats.feature import StatsFeature
from cometmq.broker.stats.sources import Sources
from cometmq.broker.timers.feature import TimersFeature
from cometmq.broker.topics.feature import TopicsFeature
from cometmq.broker.transactions.feature import TransactionsFeature


class Features(NamedTuple):
    """The features of a broker, each behind the features that it depends on.

    Fast paths are tried in this order.
    """

    durability: DurabilityFeature
    delay: DelayFeature
    timers: TimersFeature
    access: AccessFeature
    offset_takeover: OffsetTakeoverFeature
    transactions: TransactionsFeature
    filter_servers: FilterServersFeature
    replication: ReplicationFeature
    acting_master: ActingMasterFeature
    stats: StatsFeature
    clients: ClientsFeature
    filters: FiltersFeature
    static_topics: StaticTopicsFeature
    offsets: OffsetsFeature
    producer_sessions: ProducerSessionsFeature
    sending: SendingFeature
    pulling: PullingFeature
    pop: PopFeature
    topics: TopicsFeature
    groups: GroupsFeature
    queries: QueriesFeature
    maintenance: MaintenanceFeature
    admin: AdminFeature
    registration: RegistrationFeature
    failover: FailoverFeature


def assemble(
    core: Core,
    *,
    log_tls: LogTls,
    name_servers: Callable[[], Sequence[str]],
    config_file: Path | None,
) -> tuple[Features, Life]:
    """Build the features, and what calls them.

    Args:
        core: of the broker.
        log_tls: of the connections over which slaves copy the log.
        name_servers: returns the addresses to register at.
        config_file: where changed settings are written, if anywhere.

    Raises:
        ConfigError: accounts or users cannot be used, or the store is another broker's.
        StoreError: a file of a feature cannot be read.
    """
    durability = DurabilityFeature(core)
    delay = DelayFeature(core, durability)
    timers = TimersFeature(core, durability, delay)
    elected = elect(core, durability, lambda log_end: life.before_truncation(log_end))
    access = AccessFeature(core)
    timers.routing.senders.access = access.control
    forwards = forwarding(core, access.control, elected)
    transactions = TransactionsFeature(core, durability, timers, access.control, forwards)
    filter_servers = FilterServersFeature(core)
    registration = Registration(
        core.client,
        core.topics,
        core.settings,
        role=core.role,
        filter_servers=filter_servers.servers.addresses,
        static_topics=core.static_topics,
    )
    filter_servers.servers.on_change = registration.wake
    replication = ReplicationFeature(
        core,
        durability,
        delay,
        timers,
        registration,
        elected,
        tls=log_tls,
        needs_greeting=access.control is not None,
    )
    producer_sessions = ProducerSessionsFeature(core, durability)
    clients = ClientsFeature(core, forwards)
    static_topics = StaticTopicsFeature(core, durability, registration.announce, name_servers)
    offsets = OffsetsFeature(core, forwards, static_topics)
    pulling = PullingFeature(
        core, durability, delay, timers, access.control, static_topics, offsets
    )
    pop = PopFeature(
        core, durability, pulling, access.control, forwards, lambda: registration.known
    )
    sources = Sources(
        core,
        durability.commit,
        delay.delivery,
        timers,
        transactions.half_queue,
        replication.master,
        replication.log_copy,
        None if elected is None else elected.role,
        producer_sessions.sessions,
        static_topics.brokers,
        pop,
        registration,
    )
    registers = RegistrationFeature(core, registration, replication, name_servers)
    features = Features(
        durability=durability,
        delay=delay,
        timers=timers,
        access=access,
        # Before the half queue is read, whose offsets are among them.
        offset_takeover=OffsetTakeoverFeature(core, delay, timers, name_servers),
        transactions=transactions,
        filter_servers=filter_servers,
        replication=replication,
        acting_master=ActingMasterFeature(
            core, registration, replication, delay, timers, transactions, pop
        ),
        stats=StatsFeature(sources),
        clients=clients,
        filters=FiltersFeature(core),
        static_topics=static_topics,
        offsets=offsets,
        producer_sessions=producer_sessions,
        sending=SendingFeature(
            core,
            durability,
            timers,
            clients,
            producer_sessions.sessions,
            access.control,
            forwards,
        ),
        pulling=pulling,
        pop=pop,
        topics=TopicsFeature(core, registration, pulling, static_topics, pop),
        groups=GroupsFeature(core, pop),
        queries=QueriesFeature(core),
        maintenance=MaintenanceFeature(core),
        admin=AdminFeature(
            core, replication, config_file, lambda changes: life.settings_changed(changes)
        ),
        registration=registers,
        failover=FailoverFeature(core, elected, registers.register),
    )
    life = Life(features)
    return features, life
