"""Programs of the interop tests: what one wrote before it was killed is not lost."""

import sys
from pathlib import Path

from programs import Program

# The pipe holds all lines, so that most of them are still in it when the program is killed.
WRITES = """
import fcntl, json, os, sys
fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 20)
number = json.loads(sys.stdin.readline())["id"]
lines = [{"reply": number}, *({"event": "message", "n": n} for n in range(20_000))]
whole = "".join(json.dumps(line) + "\\n" for line in lines)
os.write(1, (whole + '{"event": "mess').encode())
sys.stdin.readline()
"""


def test_whole_lines_are_received_and_half_a_line_is_not_when_a_program_is_killed(
    tmp_path: Path,
) -> None:
    program = Program([sys.executable, "-c", WRITES], tmp_path / "log")
    program.ask("write")
    program.kill()
    assert [event["n"] for event in program.received] == list(range(20_000))
