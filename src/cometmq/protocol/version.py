"""The version number of a command, and the release that it means.

Releases of 4.x.y are numbered 213 + 20x + 2y and those of 5.x.y are numbered 413 + 20x + 2y; the
even number below each belongs to its snapshot. Older releases have irregular numbers of no use
here but for the few limits below, which decide what a peer understands.

Source: MQVersion, RocketMQ 5.3.
"""

from typing import Final

CURRENT_VERSION: Final = 479
"""The number this implementation shows to its peers: that of release 5.3.3."""

STRICT_ROUTE_VERSION_MIN: Final = 401
"""Clients from here on (4.9.4) read a route body in strict JSON."""
REGISTER_BODY_VERSION_MIN: Final = 37
"""Brokers from here on (3.0.11) register with a RegisterBrokerBody."""
MAPPING_VERSION_MIN: Final = 413
"""Brokers from here on (5.0.0) append queue mappings to a compressed registration."""
RUNTIME_INFO_VERSION_MIN: Final = 413
"""Clients from here on (5.0.0) read the runtime information of release 5."""
LITE_PULL_VERSION_MIN: Final = 413
"""Brokers from here on (5.0.0) serve lite pulls by a separate request code."""
MAX_RECONSUME_VERSION_MIN: Final = 121
"""Clients from here on (3.4.9) may send a limit of retries."""
RUNNING_INFO_VERSION_MIN: Final = 62
"""Consumers from here on (3.1.8 snapshot) serve requests for their state."""
RESET_OFFSET_VERSION_MIN: Final = 28
"""Consumers from here on (3.0.7 snapshot) serve requests to reset their offsets."""
GO_AWAY_VERSION_MIN: Final = 476
"""Clients from here on (5.3.2 snapshot) understand GO_AWAY."""

_BASES: Final = {4: 212, 5: 412}
_HIGHER: Final = 612


def version_name(number: int) -> str:
    """Return RocketMQ's name of a wire number, such as ``V5_3_3`` or ``V4_9_8_SNAPSHOT``.

    Numbers past the table are ``HIGHER_VERSION``; those before 4.0.0 are shown as plain numbers.
    """
    if number >= _HIGHER:
        return "HIGHER_VERSION"
    for major, base in sorted(_BASES.items(), reverse=True):
        if number >= base:
            minor, rest = divmod(number - base, 20)
            patch, release = divmod(rest, 2)
            return f"V{major}_{minor}_{patch}{'' if release else '_SNAPSHOT'}"
    return f"V{number}"
