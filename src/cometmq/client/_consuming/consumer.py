"""The base of all consumers: group, subscriptions, connections, readiness and failure.

Source: DefaultMQPushConsumerImpl.copySubscription and subscribe, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from cometmq.client._connection.identity import Namespace
from cometmq.client._connection.instance import Lease, Membership
from cometmq.client._consuming.group_calls import GroupCalls
from cometmq.client._lifecycle import Lifecycle
from cometmq.client._supervision import SupervisedTasks, raise_permanent_refusal
from cometmq.client.allocation import AllocationStrategy
from cometmq.client.errors import ClientClosedError, TopicNotFoundError
from cometmq.client.filters import Filter
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import OffsetStore, StartFrom, consume_from_where
from cometmq.client.settings import (
    ClientSettings,
    PopSettings,
    PullSettings,
    PushSettings,
    SimpleSettings,
    Tables,
    read_tables,
    resolve_settings,
    split_options,
)
from cometmq.client.subscription_check import Difference, SubscriptionCheck
from cometmq.client.trace import ConsumeTrace, TraceDispatcher
from cometmq.model.arguments import check_callable, check_provides, check_several
from cometmq.model.errors import ConfigError, ResponseError
from cometmq.model.times import now_ms, timeout_s
from cometmq.model.topic import (
    check_consumer_group_name,
    check_group_name,
    check_topic_name,
    retry_topic,
)
from cometmq.protocol.bodies.heartbeat import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)


def newer(filter: Filter, before: Filter | None) -> Filter:
    """Return a filter as a subscription that is newer than the topic's one before.

    Brokers ignore a version that is not higher. The filter itself may have been made before that
    subscription, and clocks may go back.
    """
    return replace(filter, version=max(now_ms(), before.version + 1 if before is not None else 0))


class Subscriptions:
    """The subscriptions of one consumer. Names are as on brokers, unless said otherwise.

    A change is announced by the next heartbeat, and adopted after it: a broker refuses pulls with a
    subscription that is newer than those it knows.

    Args:
        namespace: puts names into the client's namespace.
        group: as brokers know it.
        retries: whether messages are redelivered through the group's retry topic.
    """

    def __init__(self, namespace: Namespace, group: str, *, retries: bool) -> None:
        self._namespace = namespace
        self._announced: dict[str, Filter] = {}
        self._adopted: dict[str, Filter] = {}
        self._changes = self._adopted_changes = 0
        """How often the announced filters have changed, and how often the adopted ones had."""
        self.retry_topic = retry_topic(group) if retries else None
        """The topic through which this group's messages are redelivered; None without retries."""
        if self.retry_topic is not None:
            self._announced[self.retry_topic] = Filter.tags("*")

    def add(self, topic: str, filter: str | Filter) -> str:
        """Announce a topic as applications know it, or a different filter of it.

        Returns:
            The topic's name as brokers know it.

        Raises:
            InvalidNameError: the name breaks the rules.
            ConfigError: the filter makes no sense.
        """
        check_topic_name(topic)
        name, chosen = self._namespace.wrap_topic(topic), Filter.of(filter)
        if self._announced.get(name) != chosen:
            self._announced[name] = newer(chosen, self._announced.get(name))
            self._changes += 1
        return name

    def restore(self, topic: str, before: Filter | None) -> None:
        """Announce a topic, as brokers know it, as it was before an `add` that a broker refused."""
        refused = self._announced.pop(topic, None)
        if before is not None:
            self._announced[topic] = newer(before, refused)
        self._changes += 1

    def remove(self, topic: str) -> bool:
        """End the subscription of a topic as applications know it; whether there was one."""
        self._changes += 1
        return self._announced.pop(self._namespace.wrap_topic(topic), None) is not None

    async def announce(self, heartbeat: Callable[[], Awaitable[object]]) -> None:
        """Send a heartbeat, and then use for pulls what it has announced: brokers know it.

        What changes meanwhile needs a heartbeat of its own. If that one ends first, this one
        adopts nothing.
        """
        changes, announced = self._changes, dict(self._announced)
        await heartbeat()
        if changes >= self._adopted_changes:
            self._adopted, self._adopted_changes = announced, changes

    @property
    def is_adopted(self) -> bool:
        """Whether pulls use what was announced last."""
        return self._adopted == self._announced

    def filter_of(self, topic: str) -> Filter | None:
        """Return the filter of a topic for pulls; None if it is not subscribed, or changes now."""
        adopted = self._adopted.get(topic)
        return adopted if adopted == self._announced.get(topic) else None

    def topics(self) -> Collection[str]:
        """Return all topics to pull, the retry topic included."""
        return list(self._adopted)

    def announced(self) -> Mapping[str, Filter]:
        """Return the announced filters by topic, without the retry topic."""
        return {
            topic: wanted for topic, wanted in self._announced.items() if topic != self.retry_topic
        }

    def shown(self) -> Mapping[str, Filter]:
        """Return the announced filters by the topics of applications, without the retry topic."""
        return {self._namespace.unwrap(topic): each for topic, each in self.announced().items()}

    def renew(self, topic: str) -> None:
        """Announce a topic's subscription as the group's newest one."""
        announced = self._announced.get(topic)
        if announced is not None:
            self._announced[topic] = newer(announced, announced)
            self._changes += 1

    def data(self) -> list[SubscriptionData]:
        """Return the announced subscriptions in the form of a heartbeat."""
        return [wanted.data(topic) for topic, wanted in sorted(self._announced.items())]


REASONS_MAX = 3
"""Reasons in the error of a `ready` that timed out."""
TASKS_END_S = 1.0
"""Time for background tasks to end once they are cancelled."""


def check_flag(group: str, name: str, value: object) -> None:
    """Check an option that is on or off: of another type, such as text, all but "" would be on.

    Raises:
        ConfigError: it is no bool.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"consumer {group}: {name}={value!r}: expected True or False")


def subscriptions_of(
    group: str, topic: str | None, subscriptions: Mapping[str, str | Filter] | None
) -> Mapping[str, str | Filter]:
    """Return the topics with their filters, however the application has given them.

    Raises:
        ConfigError: they are something else, such as a list of topics.
    """
    if topic is not None and not isinstance(topic, str):
        raise ConfigError(f"consumer {group}: topic={topic!r}: expected the name of a topic")
    if not isinstance(subscriptions, Mapping | None):
        named = subscriptions if isinstance(subscriptions, list | tuple) else ["orders"]
        example = dict.fromkeys(named, "*") if all(isinstance(each, str) for each in named) else {}
        raise ConfigError(
            f"consumer {group}: subscriptions={subscriptions!r}: expected topics with their tags, "
            f"such as subscriptions={example or {'orders': '*'}}, or topic='orders'"
        )
    given = subscriptions or {}
    if topic in given:
        raise ConfigError(
            f"consumer {group}: topic={topic!r} is in subscriptions too: expected one"
        )
    return given if topic is None else {topic: "*", **given}


def check_parts(
    group: str,
    *,
    hooks: Sequence[ConsumeHook | FilterHook],
    strategy: AllocationStrategy | None = None,
    offset_store: OffsetStore | None = None,
    on_queues: QueueListener | None = None,
) -> None:
    """Check the objects that an application passes to a consumer.

    Raises:
        ConfigError: one is not what it has to be; it would fail later, or never be called.
    """
    owner = f"consumer {group}"
    check_several(owner, "hooks", hooks, ConsumeHook, FilterHook)
    if strategy is not None:
        check_provides(owner, "strategy", strategy, AllocationStrategy)
    if offset_store is not None:
        check_provides(owner, "offset_store", offset_store, OffsetStore)
    if on_queues is not None:
        check_callable(owner, "on_queues", on_queues)


S = TypeVar("S", PushSettings, PopSettings, PullSettings, SimpleSettings)


def resolve(
    kind: type[S],
    options: Mapping[str, Any],
    *,
    settings: S | None,
    client: ClientSettings | None,
    config: Path | None,
) -> tuple[S, ClientSettings, Tables | None]:
    """Return the settings of a consumer and of its connections, and the tables of its file."""
    tables = read_tables(config) if config else None
    own, connection = split_options(options, kind, ClientSettings)
    return (
        resolve_settings(kind, keywords=own, given=settings, tables=tables),
        resolve_settings(ClientSettings, keywords=connection, given=client, tables=tables),
        tables,
    )


class Consumer(Lifecycle):
    """The base of all consumers.

    Args:
        group: the consumer group, without a namespace.
        lease: the connections to use.
        settings: the settings of the consumer.
        tables: the tables of a file with settings.
        subscribed: returns the subscriptions by topic, without a namespace.
    """

    def __init__(
        self,
        group: str,
        lease: Lease,
        settings: PushSettings | PopSettings | PullSettings | SimpleSettings,
        tables: Tables | None,
        subscribed: Callable[[], Mapping[str, Filter]],
    ) -> None:
        check_group_name(group)
        super().__init__(f"consumer {group}")
        self._group = group
        self._lease = lease
        self._instance = lease.instance
        self._wire_group = self._instance.namespace.wrap_group(group)
        check_consumer_group_name(self._wire_group)
        self._tasks = SupervisedTasks(f"consumer {group}")
        self._check = SubscriptionCheck(self._instance, group, subscribed)
        self._traces: TraceDispatcher | None = None
        self._trace_hooks: list[ConsumeTrace] = []
        if not isinstance(settings, SimpleSettings) and settings.trace:
            self._traces = TraceDispatcher.of(self._instance, tables)
            self._trace_hooks.append(ConsumeTrace(self._traces, settings.trace_topic))
        self._traces_retained = False

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._group

    @property
    def client_id(self) -> str:
        """The id of this member at the brokers."""
        return self._instance.client_id

    @property
    def failure(self) -> BaseException | None:
        """The error after which the consumer cannot go on, or None."""
        return self._tasks.failure

    @property
    def healthy(self) -> bool:
        """Whether the consumer is running and can go on."""
        return self.running and self.failure is None

    async def ready(self, timeout: float | timedelta = 30.0) -> None:
        """Wait for the first assignment, when each assigned queue knows where it starts.

        A consumer that starts at the end of a queue misses messages that are sent before it knows
        where the end is. A start that is under way in another task is waited for.

        Args:
            timeout: seconds, or a timedelta, to wait.

        Raises:
            TimeoutError: the assignment is not complete. A subscribed topic may not exist.
            ClientClosedError: the consumer is not started, or was closed meanwhile.
            Exception: the consumer failed. It cannot go on.
        """
        limit_s = timeout_s(timeout)
        if self._start_task is None:
            await asyncio.sleep(0)  # a task that was created before may be about to start it
        if self._start_task is None:
            self._check_running()
        self._check_open()
        if not await self._wait_unless_ended(self._until_ready(), limit_s):
            self._check_open()
            if self.failure is not None:
                raise self.failure
            reason = self._missing() if self._started else "it is still starting"
            raise TimeoutError(f"{self._owner} is not ready after {limit_s:g} s: {reason}")

    async def _until_ready(self) -> None:
        if self._start_task is not None and not self._started:
            await asyncio.wait([self._start_task])
        if not self._started:
            await self._closing.wait()  # a failed start closes it
            self._check_open()
        await self._until_assigned()

    def subscription_mismatches(self) -> list[Difference]:
        """Return the subscriptions of other members that differ, as last seen."""
        return self._check.subscription_mismatches()

    @abstractmethod
    def membership(self) -> Membership:
        """Return this consumer's entry in the heartbeat."""

    @abstractmethod
    async def _until_assigned(self) -> None:
        """Wait until each assigned queue has a start."""

    @abstractmethod
    def _missing(self) -> str:
        """Return why `ready` still waits."""

    def _failures(self) -> list[str]:
        """Return what the consumer's requests to brokers fail with now, each with its subject."""
        return []

    def _without_route(self, topics: Iterable[str]) -> str:
        missing = [topic for topic in topics if self._instance.routes.known(topic) is None]
        if not missing:
            failures = self._failures() or self._instance.heartbeat_failures()
            return "; ".join(failures[:REASONS_MAX]) or "no response of a broker"
        names = ", ".join(map(self._instance.namespace.unwrap, missing))
        for error in map(self._instance.routes.error_of, missing):
            if error is not None and not isinstance(error, TopicNotFoundError):
                return f"no route of {names}: {error}"
        return f"no route of {names}: create each topic first, or send to it"

    async def _wait_unless_ended(
        self, work: Coroutine[Any, Any, None] | None = None, timeout: float | None = None
    ) -> bool:
        """Wait for ``work``, but not beyond the consumer's close or failure.

        Returns:
            Whether ``work`` has ended. Its error is raised.
        """
        ends = [self._closing.wait(), self._tasks.wait_failed()]
        tasks = [asyncio.ensure_future(each) for each in ([work, *ends] if work else ends)]
        try:
            await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if work is None or not tasks[0].done():
                return False
            tasks[0].result()
            return True
        finally:
            for task in tasks:
                task.cancel()

    async def _connect(self) -> None:
        """Open the connections. A consumer whose shared instance is closed cannot go on."""
        await self._lease.open(self)
        self._instance.on_close.append(self._instance_closed)

    def _instance_closed(self) -> None:
        error = ClientClosedError(
            f"client {self.client_id} was closed before {self._owner}: close its consumers first"
        )
        self._tasks.end(error)

    def _retain_traces(self) -> None:
        if self._traces is not None:
            self._traces.retain()
            self._traces_retained = True

    async def _release(self) -> None:
        """Release traces and connections."""
        if self._instance_closed in self._instance.on_close:
            self._instance.on_close.remove(self._instance_closed)
        await self._tasks.cancel(TASKS_END_S)
        try:
            if self._traces_retained and self._traces is not None:
                self._traces_retained = False
                await self._traces.release()
        finally:
            await self._lease.close(self)


class SubscribingConsumer(Consumer):
    """The base of consumers that only subscribe to topics.

    Args:
        group, lease, settings, tables: as for `Consumer`.
        subscriptions: topic to tags or `Filter`.
        start_from: where a new group starts.
        retries: whether messages are redelivered through the group's retry topic.
    """

    _consume_type = ConsumeType.CONSUME_PASSIVELY
    _has_class_filters = False
    """Whether its pulls can go through filter servers."""
    _message_model = MessageModel.CLUSTERING

    def __init__(
        self,
        group: str,
        lease: Lease,
        settings: PushSettings | PopSettings | SimpleSettings,
        tables: Tables | None,
        *,
        subscriptions: Mapping[str, str | Filter],
        start_from: StartFrom | datetime | int,
        retries: bool = False,
    ) -> None:
        check_group_name(group)
        namespace = lease.instance.namespace
        self._subscriptions = Subscriptions(namespace, namespace.wrap_group(group), retries=retries)
        super().__init__(group, lease, settings, tables, self._subscriptions.shown)
        self._start_from = start_from
        for topic, each in subscriptions.items():
            self._subscriptions.add(topic, self._checked(each))

    def membership(self) -> Membership:
        """Return this consumer's entry in the heartbeat."""
        data = ConsumerData(
            group_name=self._wire_group,
            consume_type=self._consume_type,
            message_model=self._message_model,
            consume_from_where=consume_from_where(self._start_from),
            subscription_data_set=self._subscriptions.data(),
        )
        return Membership(consumers=[data])

    async def subscribe(self, topic: str, filter: str | Filter = "*") -> None:
        """Subscribe to a topic, or change its filter.

        Args:
            topic: the topic.
            filter: tags such as ``a || b``, or a `Filter`.

        Raises:
            ClientClosedError: the consumer was closed.
            InvalidNameError: the topic name is invalid.
            ConfigError: the filter is invalid, or a broker does not support it. The subscription
                is unchanged.
            ResponseError: a broker refused. The subscription is unchanged.
        """
        self._check_open()
        chosen = self._checked(filter)
        if self.running:
            name = self._instance.namespace.wrap_topic(topic)
            await self._look_up(name, chosen)
            await self._prepare(name, chosen)
        before = self._subscriptions.shown().get(topic)
        name = self._subscriptions.add(topic, chosen)
        await self._announce()
        try:
            self._instance.check_heartbeats()
        except ResponseError:  # brokers would forget the member, which then receives nothing
            self._subscriptions.restore(name, before)
            await self._announce()
            raise

    async def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic. The committed offsets remain.

        Raises:
            ClientClosedError: the consumer was closed.
        """
        self._check_open()
        if self._subscriptions.remove(topic):
            await self._announce()

    def _checked(self, filter: str | Filter) -> Filter:
        chosen = Filter.of(filter)
        if chosen.class_source is not None and not self._has_class_filters:
            raise ConfigError(
                f"{self._owner}: class filter {chosen.expression}: expected tags or SQL; filter"
                " servers serve PushConsumer and PullConsumer"
            )
        return chosen

    async def _prepare(self, topic: str, filter: Filter) -> None:
        """Do what is needed before a running consumer announces a subscription."""
        return

    async def _look_up(self, topic: str, filter: Filter) -> None:
        """Fetch the route of a topic, and check that its brokers support a filter."""
        if await self._instance.routes.refresh(topic) is not None:
            calls = GroupCalls(self._instance)
            await calls.check_filter(self._wire_group, self.client_id, topic, filter)
        else:
            raise_permanent_refusal(self._instance.routes.error_of(topic))

    async def _run_start(self) -> None:
        await super()._run_start()
        while self.running and not self._subscriptions.is_adopted:  # changed during the start
            for topic, each in self._subscriptions.announced().items():
                await self._look_up(topic, each)
                await self._prepare(topic, each)
            await self._announce()

    async def _join(self) -> None:
        """Announce the subscriptions of a start.

        Raises:
            ResponseError: a server refuses the account or a setting; a retry does not help.
        """
        for topic, each in self._subscriptions.announced().items():
            await self._look_up(topic, each)
        await self._subscriptions.announce(self._instance.heartbeat)
        self._instance.check_heartbeats()

    async def _announce(self) -> None:
        if self.running:
            await self._subscriptions.announce(self._instance.heartbeat)
            self._check.wake()
            self._subscriptions_changed()

    @abstractmethod
    def _subscriptions_changed(self) -> None:
        """Fetch from the topics that are subscribed now."""
