"""Opens standard input, output and error where a process was started with them closed.

Some supervisors close them (``<&- >&- 2>&-``). The next file or socket that a process opens gets
the lowest free descriptor. So an event loop or a log file would become standard input or error:
what is printed would go there, and what closes standard input would close it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def open_closed_streams() -> None:
    """Open each of the descriptors 0 to 2 that is closed on the null device.

    Call it before anything else is opened.
    """
    for descriptor in (_STDIN, _STDOUT, _STDERR):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest that is free, so this one
            os.set_inheritable(opened, True)
    # Python has no object for a stream that was closed when it started.
    if sys.stdin is None:
        sys.stdin = _text(_STDIN, "r")
    if sys.stdout is None:
        sys.stdout = _text(_STDOUT, "w")
    if sys.stderr is None:
        sys.stderr = _text(_STDERR, "w")


def _text(descriptor: int, mode: str) -> Any:
    return os.fdopen(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)
