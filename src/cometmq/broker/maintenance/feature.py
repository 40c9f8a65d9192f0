"""Request handlers and jobs for the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cometmq.broker.maintenance.handler import StorageHandler, clean
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import Job
from cometmq.store import StoreSettings, StoreUnavailableError

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the handlers of requests about the store as a whole."""
    storage = StorageHandler(parts.store)
    return Feature(
        {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: exclusive(storage.clean_queues),
            RequestCode.DELETE_EXPIRED_COMMITLOG: exclusive(storage.clean_log),
            RequestCode.GET_BROKER_HA_STATUS: storage.replication_status,
        },
        _jobs(parts),
    )


def _jobs(parts: Parts) -> list[Job]:
    """The flush of log and queues, and the deletion of expired files."""
    stored = parts.configuration.view(StoreSettings)
    return [
        *[
            msgspec.structs.replace(job, run=_without_store_failure(job.run))
            for job in parts.flusher.jobs()
        ],
        Job("clean-store", lambda: stored().clean_interval_ms / 1000, partial(clean, parts.store)),
    ]


def _without_store_failure(run: Callable[[], object]) -> Callable[[], None]:
    """Return a run that ignores a failed sync: the store logs the failure, once."""

    def quiet() -> None:
        with contextlib.suppress(StoreUnavailableError):
            run()

    return quiet
