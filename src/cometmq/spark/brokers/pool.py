"""The sessions of this process: one for all readers and writers with equal connection options."""

from __future__ import annotations

import threading

from cometmq.spark.brokers.session import BrokerSession
from cometmq.spark.options.connection import ConnectionOptions
from cometmq.system.platforms import SYSTEM


class _Pool:
    """What a forked child makes anew."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sessions: dict[ConnectionOptions, BrokerSession] = {}


_pool = _Pool()


def connect(options: ConnectionOptions) -> BrokerSession:
    """Give the session for these options; it opens connections when they are needed.

    Args:
        options: of any format that has connection options. What else it has does not count.

    Raises:
        OptionError: a secret is not a reference, or what it refers to is not there.
    """
    key = options.connection()
    with _pool.lock:
        session = _pool.sessions.get(key)
        if session is None:
            session = _pool.sessions[key] = BrokerSession(key)
    return session


def disconnect_all() -> None:
    """Close the connections of every session of this process; using one opens them again."""
    with _pool.lock:
        sessions = list(_pool.sessions.values())
        _pool.sessions.clear()
    for session in sessions:
        session.close()


def _forget_in_child() -> None:
    global _pool
    _pool = _Pool()


SYSTEM.after_fork(_forget_in_child)
