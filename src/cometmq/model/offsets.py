"""Three kinds of places that are all numbers and must not be mixed up.

Source: ours; RocketMQ calls them queue offset and physical offset.
"""

from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""Counts messages in one queue, from its beginning of time."""

LogOffset = NewType("LogOffset", int)
"""Counts bytes in the commit log, from its beginning of time."""
