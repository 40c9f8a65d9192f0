"""Records ``make demo`` as ``demo.svg``: what a terminal shows at its end.

Run: ``.venv/bin/python docs/images/record_demo.py``, with the extra ``bench``. The demo runs on a
terminal of this program; an emulator keeps its screen, and rich draws it.
"""

from __future__ import annotations

import os
import pty
import re
import sys
from itertools import groupby
from pathlib import Path

import pyte
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

COLUMNS, ROWS = 104, 30
COMMAND = [sys.executable, "-m", "cometmq", "demo", "--seconds", "20"]
PROMPT = "$ make demo"
TARGET = Path(__file__).with_name("demo.svg")
UNIQUE_ID = "demo"
"""Names the styles in the file; a random one would change each line in each recording."""
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Without fonts from another host: the reader's own are used."""


def main() -> None:
    """Run the demo, which takes 20 seconds, and write the picture."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    status = pty.spawn(COMMAND, lambda descriptor: _fed(stream, os.read(descriptor, 65_536)))
    if status:
        sys.exit(f"the demo ended with status {status}: no picture is written")
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        console.print(Text(PROMPT, "bold"))
        for line in _lines(screen):
            console.print(line)
        picture = console.export_svg(title="CometMQ", unique_id=UNIQUE_ID, code_format=FORMAT)
    TARGET.write_text("\n".join(map(str.rstrip, picture.splitlines())) + "\n")
    print(f"written: {TARGET}")


def _fed(stream: pyte.ByteStream, data: bytes) -> bytes:
    stream.feed(data)
    return data


def _lines(screen: pyte.Screen) -> list[Text]:
    """The lines of a screen in their colours, without empty ones at its end."""
    lines = []
    for row in range(ROWS):
        cells = [screen.buffer[row][column] for column in range(COLUMNS)]
        line = Text()
        for style, run in groupby(cells, _style):
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return lines


def _style(cell: pyte.screens.Char) -> str:
    colour = "" if cell.fg == "default" else cell.fg
    return " ".join(["bold"] * cell.bold + [colour]).strip()


if __name__ == "__main__":
    main()
