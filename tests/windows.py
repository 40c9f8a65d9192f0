"""Runs the client's unit tests on Windows: ``python tests/windows.py``, with Python 3.11 or newer.

This is what ``make quick`` is elsewhere: it makes ``.venv``, compiles the hot modules if it finds a
compiler, and runs the tests of what the client consists of.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ("client", "model", "protocol", "remoting", "sql92", "system/test_client_system.py")
"""Below ``tests/unit``."""


def main() -> int:
    """Run the steps until one fails; return its exit code."""
    scripts = sysconfig.get_path("scripts", "venv", vars={"base": str(ROOT / ".venv")})
    python = str(Path(scripts, "python"))
    tests = [str(Path("tests", "unit", name)) for name in TESTS]
    for command in (
        [sys.executable, "make_venv.py", "test"],
        [python, "build_ext.py"],
        [python, "-m", "pytest", "-q", *tests],
    ):
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
