"""Request handlers and jobs for the store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from cometmq.broker.address import Endpoint
from cometmq.broker.core import Core
from cometmq.broker.life import BrokerFeature
from cometmq.broker.maintenance.flushing import Flusher, flush_pace
from cometmq.broker.maintenance.handler import StorageHandler, clean
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import exclusive
from cometmq.remoting.features import Deferred, Feature
from cometmq.remoting.jobs import Job
from cometmq.store import MessageStore, StoreSettings, StoreUnavailableError

if TYPE_CHECKING:
    from cometmq.broker.maintenance.cold_handler import ColdReadsHandler

log = logging.getLogger(__name__)

SLOTS_S = 0.25
SLOTS_FAILURE_S = 10.0


class IndexSlots:
    """Keeps the slots of the newest index file in memory while keys are added.

    Args:
        store: whose index it is.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.interval_s = SLOTS_S

    def read(self) -> None:
        """Read the slots that are not in memory."""
        try:
            self._store.bring_in_index_slots()
            self.interval_s = SLOTS_S
        except OSError as problem:
            self.interval_s = SLOTS_FAILURE_S
            log.error("cannot read the index: %s", problem)


class MaintenanceFeature(BrokerFeature):
    """Flushes and cleans the store."""

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the handlers of requests about the store as a whole."""
        core = self._core
        storage = StorageHandler(core.store)

        @Deferred
        def cold() -> ColdReadsHandler:
            from cometmq.broker.maintenance.cold_handler import ColdReadsHandler

            flow = core.cold_reads.flow
            assert flow is not None  # of a broker
            return ColdReadsHandler(flow.get(), core.configuration, core.settings, core.clock)

        return Feature(
            {
                RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: exclusive(storage.clean_queues),
                RequestCode.DELETE_EXPIRED_COMMITLOG: exclusive(storage.clean_log),
                RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: storage.compare_queues,
                RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: storage.export_tables,
                RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: cold.handler(lambda h: h.set_limits),
                RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: cold.handler(
                    lambda h: h.remove_limit
                ),
                RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: cold.handler(lambda h: h.show),
                RequestCode.SET_COMMITLOG_READ_MODE: cold.handler(lambda h: h.set_read_ahead),
            },
            _jobs(core),
        )

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Hand the settings of the store to it."""
        self._core.store.reconfigure(self._core.configuration[StoreSettings])


def _jobs(core: Core) -> list[Job]:
    """The flush of log and queues, the deletion of expired files, the slots of the index."""
    stored = core.configuration.reader_of(StoreSettings)
    slots = IndexSlots(core.store)
    flusher = Flusher(core.store, lambda: flush_pace(stored()), clock=core.clock)
    return [
        *[
            msgspec.structs.replace(job, run=_without_store_failure(job.run))
            for job in flusher.jobs()
        ],
        Job("clean-store", lambda: stored().clean_interval_ms / 1000, partial(clean, core.store)),
        Job("read-index-slots", lambda: slots.interval_s, slots.read, first_s=0.0, blocking=True),
    ]


def _without_store_failure(run: Callable[[], object]) -> Callable[[], None]:
    """Return a run that ignores a failed sync: the store logs the failure, once."""

    def quiet() -> None:
        with contextlib.suppress(StoreUnavailableError):
            run()

    return quiet
