"""The file with the filter data."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cometmq.broker.address import Endpoint
from cometmq.broker.life import BrokerFeature
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every
from cometmq.store import StoreSettings

log = logging.getLogger(__name__)

PERSIST_S = 10.0


class FiltersFeature(BrokerFeature):
    """Writes the filter data; pulls, heartbeats and queries are served by their own features."""

    def serve(self, endpoint: Endpoint) -> Feature:
        """Build the job that writes the file."""
        self._warn_of_bit_maps()
        return Feature({}, [every(PERSIST_S, self._core.filters.persist, "persist-filter-data")])

    async def settings_changed(self, changes: Mapping[str, str]) -> None:
        """Warn of bit maps without a place."""
        if "enableCalcFilterBitMap" in changes:
            self._warn_of_bit_maps()

    def save(self) -> None:
        """Write the filter data."""
        self._core.filters.persist_now()

    def _warn_of_bit_maps(self) -> None:
        """Log that bit maps are switched on in vain."""
        store = self._core.configuration[StoreSettings]
        if self._core.settings().enable_calc_filter_bit_map and not store.consume_queue_ext_enabled:
            log.warning(
                "enableCalcFilterBitMap=true has no effect: bit maps are stored only with"
                " enableConsumeQueueExt=true, which counts from the next start on"
            )
