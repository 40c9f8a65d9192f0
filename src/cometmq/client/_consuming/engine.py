"""The parts between the subscriptions of a consumer and its handler that push and pop share."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from cometmq.client._connection.instance import ClientCore
from cometmq.client._consuming.consumer import Subscriptions
from cometmq.client._consuming.handler_calls import CallLimits, FilterChain, HandlerCalls
from cometmq.client._consuming.rebalancer import QueueListenerCalls
from cometmq.client._consuming.retries import DeadLetterRule, Retries
from cometmq.client._consuming.statistics import Statistics
from cometmq.client._supervision import SupervisedTasks, class_and_text
from cometmq.client.handlers import QueueListener
from cometmq.client.hooks import ConsumeHook, FilterHook
from cometmq.client.offsets import StartFrom
from cometmq.client.settings import PopSettings, PushSettings
from cometmq.model.message import StoredMessage
from cometmq.model.times import now_ms
from cometmq.remoting.tasks import Supervisor, raise_unless_failure

log = logging.getLogger(__name__)

MINUTE_S = 60.0
ABORT_S = 1.0
"""Time for each step of a hard stop."""
CANCEL_S = 2.0
"""Time for handlers to end that are cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """The arguments of a consumer, checked."""

    group: str
    """Without a namespace."""
    handler: Callable[..., Any] | None
    batch_handler: Callable[..., Any] | None
    start_from: StartFrom | datetime | int
    on_queues: QueueListener | None
    hooks: Sequence[ConsumeHook | FilterHook] = ()
    ordered: bool = False


class Service(Protocol):
    """Calls the handler with messages."""

    def set_concurrency(self, count: int) -> None:
        """Change how many calls run at a time."""

    def runs_handlers(self, task: object) -> bool:
        """Return whether a task calls handlers."""

    async def stop(self, *, grace_s: float) -> None:
        """Start no further call, and cancel calls that run after ``grace_s`` seconds."""


class Engine(ABC):
    """The parts of one consumer that calls a handler.

    Args:
        instance: the connections to use.
        spec: what the application requests.
        settings: the settings of the consumer.
        subscriptions: the subscriptions, which may change.
        tasks: the background tasks without which the consumer cannot go on.
    """

    service: Service
    spec: ConsumerSpec

    def __init__(
        self,
        instance: ClientCore,
        spec: ConsumerSpec,
        settings: PushSettings | PopSettings,
        subscriptions: Subscriptions,
        tasks: SupervisedTasks,
    ) -> None:
        self.group = instance.namespace.wrap_group(spec.group)
        """The group as brokers know it."""
        self.suspended = False
        """Whether no message is fetched."""
        self.concurrency = settings.concurrency
        self.started_ms = 0
        """When it was started, in ms since 1970."""
        self.spec = spec
        self.tasks = tasks
        self.statistics = Statistics()
        self._dead_letters = DeadLetterRule.of(settings.retries_max, ordered=spec.ordered)
        self._instance = instance
        self._subscriptions = subscriptions
        self._loops = Supervisor(f"consumer {self.group}")
        self._listener = QueueListenerCalls(spec.on_queues, instance, spec.group, self._loops)
        self._filters = FilterChain(spec.hooks, spec.group, instance.namespace)
        self.handling = HandlerCalls(
            spec.handler,
            spec.batch_handler,
            group=spec.group,
            client_id=instance.client_id,
            hooks=spec.hooks,
            limits=_call_limits(settings),
            ordered=spec.ordered,
            namespace=instance.namespace,
        )

    async def load(self) -> None:
        """Read what was stored before the start."""
        return

    async def start(self) -> None:
        """Request queues, and start to fetch and to consume."""
        self.started_ms = now_ms()
        await self._start_fetching()

    async def stop(self, *, grace_s: float, step_s: float, hard: bool) -> BaseException | None:
        """Stop fetching, wait for running handlers, and release the queues.

        Args:
            grace_s: seconds for running handlers, which are cancelled after that.
            step_s: seconds for each other step.
            hard: leave locks to expire.

        Returns:
            The error of the offset store, if it raised one.
        """
        await bounded(self._stop_fetching(), step_s, "fetching")
        await bounded(self.service.stop(grace_s=grace_s), grace_s + CANCEL_S, "handlers")
        error = await self._release_queues(step_s, hard=hard)
        self._listener.close()
        await self._loops.cancel(ABORT_S)
        return error

    @abstractmethod
    def failures(self) -> list[str]:
        """Return what requests for queues and messages fail with now, each with its subject."""

    @abstractmethod
    async def until_assigned(self) -> None:
        """Wait until each assigned queue has a start."""

    @abstractmethod
    def rebalance(self) -> None:
        """Request queues soon, and fetch with a changed subscription."""

    def suspend(self) -> None:
        """Fetch nothing until `resume`."""
        self.suspended = True

    def resume(self) -> None:
        """Fetch again."""
        self.suspended = False

    def set_concurrency(self, count: int) -> None:
        """Change how many handler calls run at a time."""
        self.concurrency = count
        self.service.set_concurrency(count)

    @abstractmethod
    async def _start_fetching(self) -> None: ...

    @abstractmethod
    async def _stop_fetching(self) -> None: ...

    async def _release_queues(self, step_s: float, *, hard: bool) -> BaseException | None:
        return None

    async def dead_letter(self, message: StoredMessage, error: BaseException | None) -> bool:
        """Dead-letter a message that a handler has; return whether a broker accepted it."""
        return await self._make_retries().give_up(message, error)

    def _make_retries(self, on_first: Callable[[], None] | None = None) -> Retries:
        return Retries(
            self._instance,
            self.group,
            rule=self._dead_letters,
            wrap_topic=self._instance.namespace.wrap_topic,
            on_failed=self.handling.failed,
            on_first=on_first,
        )


def _call_limits(settings: PushSettings | PopSettings) -> CallLimits:
    if isinstance(settings, PopSettings):
        return CallLimits(settings.concurrency, settings.batch_max)
    timeout_s = settings.consume_minutes_max * MINUTE_S
    return CallLimits(settings.concurrency, settings.batch_max, timeout_s)


async def bounded(step: Awaitable[object], seconds: float, what: str) -> BaseException | None:
    """Do one step of a stop, and return the error that it failed with; the next step follows."""
    try:
        async with asyncio.timeout(seconds) as limit:
            await step
    except BaseException as error:
        raise_unless_failure(error)
        if limit.expired():
            log.warning("closing step timed out step=%s seconds=%.1f", what, seconds)
            return None
        log.warning("closing step failed step=%s error=%s", what, class_and_text(error))
        return error
    return None
