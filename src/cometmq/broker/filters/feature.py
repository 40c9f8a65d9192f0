"""The job that writes the filter data to its file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cometmq.broker.config import BrokerSettings
from cometmq.remoting.features import Feature
from cometmq.remoting.jobs import every
from cometmq.store import StoreSettings

if TYPE_CHECKING:
    from cometmq.broker.assembly import Endpoint, Parts

log = logging.getLogger(__name__)

PERSIST_S = 10.0


def build(parts: Parts, _endpoint: Endpoint) -> Feature:
    """Build the job; pulls, heartbeats and queries are served by their own features."""
    warn_of_bit_maps(parts.settings(), parts.store.settings)
    return Feature({}, [every(PERSIST_S, parts.filters.persist, "persist-filter-data")])


def warn_of_bit_maps(settings: BrokerSettings, store: StoreSettings) -> None:
    """Log that bit maps are switched on in vain."""
    if settings.enable_calc_filter_bit_map and not store.consume_queue_ext_enabled:
        log.warning(
            "enableCalcFilterBitMap=true has no effect: bit maps are stored only with"
            " enableConsumeQueueExt=true, which counts from the next start on"
        )
