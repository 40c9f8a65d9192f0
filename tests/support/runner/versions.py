"""The versions of RocketMQ whose servers tests run with."""

from __future__ import annotations

VERSIONS = ("4.9.7", "5.3.3")
"""Those of every run."""
NEWEST = "5.5.0"
"""The one that only the tier ``all`` runs the client's tests with."""
ALL_VERSIONS = (*VERSIONS, NEWEST)
VERSIONS_5 = tuple(version for version in ALL_VERSIONS if version.startswith("5."))
"""Those with pop consumption and a timer wheel."""
POP_SERVERS = ("comet", *VERSIONS_5)
"""The clusters with pop consumption."""
