"""The durability of writes: the modes of the option ``delivery``.

A mode decides what `write` of a task sends, and what the commit and the abort of a whole write do.
There is one mode today:

    at-least-once   a task sends its rows and awaits all acknowledgements; commit and abort do
                    nothing, for what was sent stays sent. A row that is sent again, because a task
                    or a batch was repeated, has the same unique id.
"""

from __future__ import annotations

from cometmq.spark.errors import OptionError

AT_LEAST_ONCE = "at-least-once"
NOT_YET = ("idempotent", "transactional")
"""Modes that need what brokers do not offer yet."""


def check_delivery(name: str) -> None:
    """Refuse a mode that does not exist.

    Raises:
        OptionError: it is another than `AT_LEAST_ONCE`.
    """
    if name in NOT_YET:
        raise OptionError(
            f"option delivery is {name!r}, which would need brokers that refuse or hold back what "
            f"they have already: only {AT_LEAST_ONCE!r} is offered; repeated rows have equal "
            "unique ids, by which a reader can drop them"
        )
    if name != AT_LEAST_ONCE:
        raise OptionError(f"option delivery is {name!r}: {AT_LEAST_ONCE!r} is expected")
