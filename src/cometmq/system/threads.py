"""Threads: how urgent one is.

Source: ours.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Final

_LEAST_URGENT: Final = 19


def yield_to_others() -> None:
    """Let the calling thread work only where no other thread wants the core; a hint.

    Where the system knows no priorities of threads, nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LEAST_URGENT)
