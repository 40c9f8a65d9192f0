"""The features of a name server; what one of them serves and runs is in its own folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cometmq.access.needs import StatedNeeds
from cometmq.namesrv.admin import feature as admin
from cometmq.namesrv.brokers import feature as brokers
from cometmq.namesrv.core import Core
from cometmq.namesrv.kv_config import feature as kv_config
from cometmq.namesrv.routes import feature as routes
from cometmq.namesrv.topics import feature as topics
from cometmq.remoting.features import Feature

FEATURES: Sequence[Callable[[Core], Feature]] = (
    brokers.build,
    routes.build,
    topics.build,
    kv_config.build,
    admin.build,
)
"""The features of a name server."""

NEEDS = StatedNeeds(
    "cometmq.namesrv, feature.py of its feature,",
    {**brokers.NEEDS, **routes.NEEDS, **topics.NEEDS, **kv_config.NEEDS, **admin.NEEDS},
)
"""The needs of all requests with ``aclEnable``."""
