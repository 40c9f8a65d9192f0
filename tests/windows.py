"""Runs the client's unit tests on Windows: ``python tests/windows.py``, with Python 3.11 or newer.

This is what ``make quick`` is elsewhere: it makes ``.venv``, compiles the hot modules if it finds a
compiler, and runs the tests of the client.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("client", "model", "protocol", "remoting", "sql92", "system/platforms/test_interface.py")
"""Folders and files below ``tests/unit``."""
LEFT_OUT = (
    "client/blocking/test_clients.py::test_a_signal_handler_may_close_what_it_interrupts",
    "client/blocking/test_portal.py::test_a_forked_child_opens_its_own",
    "client/blocking/test_portal.py::test_an_interrupt_cancels_the_call_and_the_portal_goes_on",
    "protocol/test_message_id_time.py",
    "remoting/test_ports.py::test_a_fork_has_another_block",
)
"""Tests that fork, set time zones or send signals to threads."""


def main() -> int:
    """Run the steps until one fails; return its exit code."""
    scripts = sysconfig.get_path("scripts", "venv", vars={"base": str(ROOT / ".venv")})
    python = str(Path(scripts, "python"))
    tests = [f"tests/unit/{name}" for name in TESTS]
    left_out = [f"--deselect=tests/unit/{name}" for name in LEFT_OUT]
    for command in (
        [sys.executable, "make_venv.py", "test"],
        [python, "build_ext.py"],
        [python, "-m", "pytest", "-q", *tests, *left_out],
    ):
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
