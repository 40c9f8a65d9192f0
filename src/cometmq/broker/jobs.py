"""The list of what a broker does by the clock.

Source: BrokerController.initialize and DefaultMessageStore.addScheduleTask, RocketMQ 5.3.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from cometmq.broker.assembly import Parts
from cometmq.broker.services.flow_control import LOOK_INTERVAL_S
from cometmq.broker.services.housekeeping import Job, every
from cometmq.store import StoreSettings, StoreUnavailableError

DELAY_OFFSETS_S = 10.0
CLIENT_SWEEP_S = 10.0
COUNTERS_S = 10.0
RATES_S = 1.0
IDLE_COUNTERS_S = 600.0


def jobs(parts: Parts) -> list[Job]:
    """The jobs of a broker made of these parts."""
    return [*_writing(parts), *_sweeping(parts), *_counting(parts)]


def _writing(parts: Parts) -> list[Job]:
    stored = parts.configuration.view(StoreSettings)
    flushing = parts.flusher.jobs()
    if parts.sync_flush:
        flushing = [job for job in flushing if job.name != "flush-commit-log"]
        flushing.append(_sync_of_the_rest(parts))
    return [
        *[replace(job, turn=_told_by_the_store(job.turn)) for job in flushing],
        Job(
            "persist-consumer-offsets",
            lambda: parts.settings().flush_consumer_offset_interval_ms / 1000,
            parts.offsets.persist,
            first_s=10.0,
            blocking=True,
        ),
        Job(
            "persist-delay-offsets",
            lambda: DELAY_OFFSETS_S,
            parts.delay.persist,
            blocking=True,
        ),
        Job(
            "clean-store",
            lambda: stored().clean_interval_ms / 1000,
            parts.store.clean,
        ),
    ]


def _told_by_the_store(turn: Callable[[], object]) -> Callable[[], None]:
    """The same without its failure: the store says once that a sync failed, and stays so."""

    def quiet() -> None:
        with contextlib.suppress(StoreUnavailableError):
            turn()

    return quiet


def _sync_of_the_rest(parts: Parts) -> Job:
    """With synchronous flush sends have their own syncs; this is for what nobody waits for."""
    stored = parts.configuration.view(StoreSettings)
    return Job(
        "flush-commit-log",
        lambda: stored().flush_interval_ms / 1000,
        parts.store.flush,
        blocking=True,
    )


def _sweeping(parts: Parts) -> list[Job]:
    def sweep_clients() -> None:
        for member in (*parts.consumers.sweep(), *parts.producers.sweep()):
            member.connection.close()

    return [
        every(CLIENT_SWEEP_S, sweep_clients, "sweep-clients"),
        every(CLIENT_SWEEP_S, parts.locks.sweep, "sweep-locks"),
        every(LOOK_INTERVAL_S, parts.flow.look, "watch-flow"),
    ]


def _counting(parts: Parts) -> list[Job]:
    return [
        every(COUNTERS_S, parts.stats.sample, "sample-counters"),
        every(RATES_S, parts.throughput.sample, "sample-rates"),
        every(IDLE_COUNTERS_S, parts.stats.drop_idle, "drop-idle-counters"),
    ]
