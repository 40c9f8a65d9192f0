"""A process is killed while it appends; the next one finds all that it had confirmed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store.inspect import StoreReader
from support.stores.small_stores import TOPIC, all_messages, opened, put, small_settings

WRITER = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support.stores.small_stores import opened, put
store = opened(Path(sys.argv[1]))
number = store.bounds("orders", 0)[1]
while True:
    put(store, b"%d-" % number + b"x" * (number * 37 % 700), properties={"KEYS": f"k{number}"})
    print(number, flush=True)
    number += 1
"""


def write_until_killed(root: Path, least: int) -> int:
    """Have another process append; kill it at some point; return the last number it confirmed."""
    command = [sys.executable, "-c", WRITER, str(root), *filter(None, sys.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        confirmed = -1
        for line in writer.stdout:
            confirmed = int(line)
            if confirmed >= least:
                writer.kill()
                break
        rest = writer.stdout.read().split("\n")
        return max([confirmed, *(int(line) for line in rest[:-1] if line)])


@pytest.mark.parametrize("least", [0, 17, 64, 200])
def test_what_was_confirmed_is_there_after_a_kill(tmp_path: Path, least: int) -> None:
    confirmed = write_until_killed(tmp_path, least)
    confirmed = write_until_killed(tmp_path, confirmed + 30)
    store = opened(tmp_path)
    messages = all_messages(store)
    assert len(messages) in (confirmed + 1, confirmed + 2)
    for number, message in enumerate(messages):
        assert message.queue_offset == number
        assert message.body.startswith(b"%d-" % number)
        assert len(store.query(TOPIC, f"k{number}", 9, 0, 2**62).records) == 1
    assert put(store).queue_offset == len(messages)
    store.close()
    with StoreReader(small_settings(tmp_path)) as reader:
        assert list(reader.verify()) == []


WRITER_KILLED_IN_A_WRITE = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.store import NewRecord
from cometmq.system.files import MappedFile
from support.stores.small_stores import BROKER, PRODUCER, opened, put
store = opened(Path(sys.argv[1]), commit_log_file_bytes=2**16, index_entries=10_000)
for number in range(300):
    put(store, b"%d" % number, properties={"KEYS": f"k{number}"})
MappedFile.write = lambda *write: os.kill(os.getpid(), 9)
lost = encode_batch([BatchItem(0, b"lost", b"KEYS\\x01lost\\x02")] * 150)
hosts = {"born_host": PRODUCER, "store_host": BROKER}
store.append_batch(NewRecord("orders", 0, lost, born_time_ms=5, **hosts))
"""


def test_a_kill_before_the_log_is_written_does_not_cost_the_index(tmp_path: Path) -> None:
    """Else each start after a kill under load reads the whole log to make the index again."""
    command = [sys.executable, "-c", WRITER_KILLED_IN_A_WRITE, str(tmp_path)]
    assert subprocess.run([*command, *filter(None, sys.path)], check=False).returncode == -9
    before = [path.stat().st_ino for path in (tmp_path / "index").iterdir()]
    sizes = {"commit_log_file_bytes": 2**16, "index_entries": 10_000}
    store = opened(tmp_path, **sizes)
    assert [path.stat().st_ino for path in (tmp_path / "index").iterdir()] == before
    put(store, properties={"KEYS": "next"})
    for key, count in (("k0", 1), ("k299", 1), ("lost", 0), ("next", 1)):
        assert len(store.query(TOPIC, key, 9, 0, 2**62).records) == count
    store.close()
    with StoreReader(small_settings(tmp_path, **sizes)) as reader:
        assert list(reader.verify()) == []
