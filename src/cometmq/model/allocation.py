"""The rules by which clients and brokers divide the queues of a topic among the members of a group.

Source: AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle, RocketMQ 5.3.
"""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def averagely(queues: Sequence[T], index: int, members: int) -> list[T]:
    """Return the queues of one member: consecutive ones; the first members get one more.

    Args:
        queues: all queues, sorted.
        index: the position of the member among all members, which are sorted.
        members: how many there are.
    """
    each, more = divmod(len(queues), members)
    start = index * each + min(index, more)
    return list(queues[start : start + each + (index < more)])


def by_circle(queues: Sequence[T], index: int, members: int) -> list[T]:
    """Return the queues of one member in rotation; the arguments are those of `averagely`."""
    return list(queues[index::members])
