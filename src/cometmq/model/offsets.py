"""Types of offsets, so that a type checker finds offsets that are mixed up."""

from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""The number of a message in its queue; the first one ever has 0."""

LogOffset = NewType("LogOffset", int)
"""The physical offset: the position of a record in the commit log, from its first byte ever."""
