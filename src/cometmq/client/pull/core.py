"""What all calls of a pull consumer stand on: its settings, its fetched messages, its places.

Inside, topics and groups have the names that brokers know; what applications hand over and are
shown is put into the namespace and taken out of it at the edge.

Source: DefaultLitePullConsumerImpl, RocketMQ 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cometmq.client.config import (
    MIB,
    ClientSettings,
    PullSettings,
    layered,
    read_tables,
    shared_out,
)
from cometmq.client.errors import ClientClosedError
from cometmq.client.fetching import Fetcher
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.instance import ClientInstance
from cometmq.client.lifetime import Lifetime
from cometmq.client.offsets import OffsetStore, StartFrom
from cometmq.client.offsets.local import LocalOffsetStore
from cometmq.client.offsets.remote import RemoteOffsetStore
from cometmq.client.pull.assignment import Chosen
from cometmq.client.pull.deliveries import Deliveries
from cometmq.client.pull.places import Places
from cometmq.client.pull.positions import Positions, check_assigned
from cometmq.client.pulling import Pull, PullResult, pull_once
from cometmq.client.queue_offsets import QueueOffsets
from cometmq.client.queues.replicas import ReplicaChoice
from cometmq.client.registry import lease
from cometmq.client.subscription import Filter
from cometmq.client.trace import ConsumeTrace, TraceDispatcher
from cometmq.model.offsets import QueueOffset
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import check_group_name


class PullCore(Lifetime):
    """Fetches queues and counts places; which queues, and for whom, is for others to say."""

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        start_from: StartFrom | datetime,
        broadcast: bool,
        offset_store: OffsetStore | None,
        hooks: Sequence[ConsumeHook | FilterHook],
        settings: PullSettings | None,
        client: ClientSettings | None,
        instance: ClientInstance | None,
        config: Path | None,
        options: dict[str, Any],
    ) -> None:
        check_group_name(group)
        own, connection = shared_out(options, PullSettings, ClientSettings)
        tables = read_tables(config) if config else None
        self._settings = layered(PullSettings, keywords=own, given=settings, tables=tables)
        used = layered(ClientSettings, keywords=connection, given=client, tables=tables)
        self._lease = lease(
            name_servers, settings=_as_stream(used), instance=instance, keep_name=broadcast
        )
        self._instance = self._lease.instance
        self._names = self._instance.namespace
        self._plain_group = group
        self._group = self._names.wrap_group(group)
        self._open = False
        self._chosen = Chosen()
        self._filters: dict[str, Filter] = {}
        self._positions = Positions()
        self._committing = asyncio.Lock()
        self._replicas = ReplicaChoice()
        self._offsets = QueueOffsets(self._instance.routes, self._instance.brokers)
        store = offset_store or self._own_store(broadcast=broadcast)
        self._places = Places(self._group, self._offsets, store, start_from)
        self._traces = TraceDispatcher.of(self._instance, tables) if self._settings.trace else None
        self._traced = False
        if self._traces is not None:
            hooks = [*hooks, ConsumeTrace(self._traces, self._settings.trace_topic)]
        self._deliveries = Deliveries(
            hooks,
            group=self._group,
            client_id=self._instance.client_id,
            namespace=self._names.name,
        )
        self._fetcher = Fetcher(
            self._pull_next,
            self._places.first,
            fetched_max=self._settings.fetched_max,
            queue_messages_max=self._settings.queue_messages_max,
            queue_bytes_max=self._settings.queue_mib_max * MIB,
            span_max=self._settings.span_max,
            retry_s=self._settings.retry_ms / 1000,
            name=f"pull consumer {group}",
        )

    def _own_store(self, *, broadcast: bool) -> OffsetStore:
        if not broadcast:
            return RemoteOffsetStore(self._instance, self._group)
        folder = self._settings.offset_folder
        return LocalOffsetStore(
            Path(folder) if folder else None, self._instance.client_id, self._group
        )

    def _traces_begin(self) -> None:
        if self._traces is not None:
            self._traces.retain()
            self._traced = True

    async def _traces_end(self) -> None:
        if self._traced and self._traces is not None:
            self._traced = False
            await self._traces.release()

    def _check_running(self) -> None:
        """Refuse calls of a consumer that was not started, or was closed."""
        if not self._open:
            raise ClientClosedError(
                f"the consumer of {self._plain_group} is not running: start it first"
            )

    @property
    def group(self) -> str:
        """The consumer's group."""
        return self._plain_group

    @property
    def client_id(self) -> str:
        """The id by which brokers know this member."""
        return self._instance.client_id

    @property
    def settings(self) -> PullSettings:
        """The settings in force, from wherever they came."""
        return self._settings

    @property
    def running(self) -> bool:
        """Whether it was started and is not being closed."""
        return self._open

    async def _pull(self, request: Pull, timeout: float) -> PullResult:
        queue = request.queue
        address = await self._offsets.address(queue, self._replicas.of(queue))
        if request.lite and not self._instance.broker_version(address):
            await self._instance.ensure_heartbeat(address)  # its answer tells the version
        result = await pull_once(
            self._instance.brokers,
            address,
            request,
            timeout=timeout,
            broker_version=self._instance.broker_version(address),
        )
        self._replicas.advise(queue, result.suggested_broker_id)
        return result

    def _shown(self, result: PullResult) -> PullResult:
        """Take the namespace out of messages."""
        if self._names:
            for message in result.messages:
                message.topic = self._names.unwrap(message.topic)
        return result

    async def _commit_due(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Commit what is finished; a queue whose broker is no help does not keep others back."""
        async with self._committing:
            due = self._positions.due(queues)
            failures = await self._places.commit(due)
            for queue in due.keys() - failures.keys():
                self._positions.committed(queue, due[queue])
        for failure in failures.values():
            raise failure

    def _finish_handed_out(self) -> None:
        self._positions.finish()
        self._deliveries.end()

    def _move(self, queue: MessageQueue, offset: QueueOffset) -> None:
        check_assigned(queue, self._fetcher.queues)
        self._positions.move(queue, offset)
        self._fetcher.begin(queue, offset)

    def _inner(self, queue: MessageQueue) -> MessageQueue:
        """Give a queue as brokers know it."""
        if not self._names:
            return queue
        return MessageQueue(self._names.wrap_topic(queue.topic), queue.broker_name, queue.queue_id)

    def _plain(self, queue: MessageQueue) -> MessageQueue:
        """Give a queue as the application knows it."""
        if not self._names:
            return queue
        return MessageQueue(self._names.unwrap(queue.topic), queue.broker_name, queue.queue_id)

    def _own(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Give queues as brokers know them.

        Raises:
            ClientClosedError: the consumer is not running.
            NotAssignedError: one is not this consumer's.
        """
        self._check_running()
        found = [self._inner(queue) for queue in queues]
        for queue in found:
            check_assigned(queue, self._fetcher.queues)
        return found

    async def _pull_next(self, queue: MessageQueue, offset: QueueOffset) -> PullResult:
        request = Pull(
            group=self._group,
            queue=queue,
            offset=offset,
            wanted=self._filters[queue.topic],
            max_messages=self._settings.pull_batch,
            hold_ms=self._settings.hold_ms,
            lite=True,
        )
        timeout = (self._settings.hold_ms + self._settings.answer_margin_ms) / 1000
        result = self._shown(await self._pull(request, timeout))
        kept = self._deliveries.keep(queue, result.messages)
        return result if kept is result.messages else replace(result, messages=kept)


def _as_stream(settings: ClientSettings) -> ClientSettings:
    """Say that requests are a stream's, as pull consumers do unless they are told otherwise."""
    if "stream" in settings.given:
        return settings
    return layered(ClientSettings, keywords={"stream": True}, given=settings)
