"""The entry point of the command line, and its exit codes.

0 done · 1 failed · 2 wrong usage: an unknown option or an invalid setting.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from cometmq.cli import quick
from cometmq.model.errors import CometError, ConfigError

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def main() -> NoReturn:
    """Run the command that the arguments name, and exit with its code."""
    try:
        sys.exit(_run(sys.argv[1:]))
    except ConfigError as error:
        _give_up(str(error), MISUSED)
    except CometError as error:
        _give_up(f"{type(error).__name__}: {error}", FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe; the interpreter must not try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


def _run(arguments: list[str]) -> int:
    call = quick.parse(arguments)
    if call is not None:
        return quick.run(call)
    from cometmq.cli.commands import app

    app(prog_name="cometmq")
    return 0


def _give_up(reason: str, code: int) -> NoReturn:
    print(f"cometmq: {reason}", file=sys.stderr)
    sys.exit(code)
