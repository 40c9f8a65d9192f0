"""The exit codes of commands.

0 done · 1 failed · 2 wrong usage: an unknown option or an invalid setting.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn

from cometmq.model.errors import CometError, ConfigError
from cometmq.system.standard_streams import open_closed_streams

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def exit_with(run: Callable[[], int], name: str) -> NoReturn:
    """Run a command and exit with its code, or with the code of its error.

    Args:
        run: gives the exit code.
        name: stands before the message of an error.
    """
    open_closed_streams()
    try:
        sys.exit(run())
    except ConfigError as error:
        _give_up(f"{name}: {error}", MISUSED)
    except CometError as error:
        _give_up(f"{name}: {type(error).__name__}: {error}", FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe; the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _give_up(reason: str, code: int) -> NoReturn:
    print_error(reason)
    sys.exit(code)


def print_error(reason: str) -> None:
    """Print an error to standard error; servers choose parts of its text, which control nothing."""
    from cometmq.system.log_format import printable_lines

    print(printable_lines(reason), file=sys.stderr)
