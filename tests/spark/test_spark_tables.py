"""Tables of Spark's own, written by the examples with the jars that the page of versions names."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import toolchain
from processes import Process, ProcessError

from cometmq.client import Message
from cometmq.client.blocking import Producer
from support.spark.spark_kills import kill_whole
from support.spark.spark_versions import spark_versions
from support.spark.topic_audit import stored

pytestmark = [pytest.mark.long, pytest.mark.local_only, pytest.mark.only_on("comet")]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = {each.minor: each for each in spark_versions()}
BATCH, PART = 200, 100
CHANGES = 400
PROGRESS_S, END_S = 600.0, 900.0
STARTS_MAX = 10
REPEATED = """
import json, runpy, sys
example, too_slow, starts = sys.argv[1], sys.argv[2], int(sys.argv[3])
main = runpy.run_path(example)["main"]
for line in sys.stdin:
    for start in range(starts):
        try:
            main(*json.loads(line))
            break
        except Exception as error:
            if too_slow not in str(error) or start + 1 == starts:
                raise
    print("ended", flush=True)
"""
"""Runs an example again and again in one JVM."""
TOO_SLOW = "Python worker failed to connect back"
"""A stream ends so if Python needs more than 10 s to start, which no setting of Spark changes."""
DAY_MS, LONG_AGO_S = 86_400_000, 40 * 86_400

Row = dict[str, Any]


class Table:
    """An example that streams a topic into a table of Spark.

    Args:
        example: its name.
        minor: the version of Spark that it runs on.
        format_name: of the table, as the page of versions has it.
        folder: of the table and of its checkpoint.
        checkpoint: within the folder.
    """

    def __init__(
        self, example: str, minor: str, format_name: str, folder: Path, checkpoint: str
    ) -> None:
        self._example = ROOT / "examples" / "spark" / f"{example}.py"
        self.folder = folder
        self.checkpoint = folder / checkpoint
        self._logs = count()
        coordinates = VERSIONS[minor].artifacts[format_name]
        jars = ",".join(map(str, toolchain.spark_jars(coordinates)))
        settings = {
            "spark.log.level": "ERROR",
            "spark.python.authenticate.socketTimeout": "300s",
            "spark.databricks.delta.snapshotPartitions": "2",
            # VACUUM lists files in as many tasks: 10,000 by default.
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
        }
        conf = " ".join(f"--conf {name}={value}" for name, value in settings.items())
        self._variables = os.environ | {
            "JAVA_HOME": str(toolchain.java_home()),
            "PYTHONPATH": str(toolchain.pyspark(minor)),
            "PYSPARK_SUBMIT_ARGS": f"--jars {jars} {conf} pyspark-shell",
        }

    def run(self, *words: object) -> None:
        """Run until the example ends by itself."""
        self._run(self._ended, words)

    def run_until(self, ready: Callable[[], bool], what: str, *words: object) -> None:
        """Run until something is true, and then kill the driver with all that it has started."""
        self._run(lambda process: process.wait_until(ready, what, PROGRESS_S), words)

    def _run(self, wait: Callable[[Process], None], words: Sequence[object]) -> None:
        """Run the example; again, as its owner would, where the machine was too slow for Spark."""
        for start in range(STARTS_MAX):
            log = self.folder.with_name(f"{self.folder.name}-{next(self._logs)}.log")
            command = [sys.executable, str(self._example), *map(str, words)]
            process = Process(command, log, env=self._variables)
            try:
                wait(process)
                return
            except ProcessError as error:
                if TOO_SLOW not in str(error) or start + 1 == STARTS_MAX:
                    raise
            finally:
                if process.is_running:
                    kill_whole(process)

    @contextmanager
    def repeated(self) -> Iterator[Callable[..., None]]:
        """Return a function that runs the example in one JVM: most of the time is its start."""
        log = self.folder.with_name(f"{self.folder.name}-{next(self._logs)}.log")
        command = [sys.executable, "-c", REPEATED, str(self._example), TOO_SLOW, str(STARTS_MAX)]
        process = Process(command, log, env=self._variables, talks=True)
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def run(*words: object) -> None:
            stdin.write(json.dumps([str(word) for word in words]).encode() + b"\n")
            stdin.flush()
            for line in stdout:
                if line == b"ended\n":
                    return
            raise process.error("ended before the example did")

        try:
            with closing(stdout):
                yield run
        finally:
            kill_whole(process)

    @staticmethod
    def _ended(process: Process) -> None:
        if status := process.wait(END_S):
            raise process.error(f"ended with {status}")

    def newest(self, kind: str) -> int:
        found = [int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*")]
        return max(found, default=-1)

    def forget_commit(self) -> None:
        """Leave the checkpoint as a driver does that dies behind the commit of the table."""
        newest = self.checkpoint / "commits" / str(self.newest("commits"))
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


class Delta(Table):
    """The example of Delta."""

    def __init__(self, folder: Path) -> None:
        super().__init__("16_topic_to_delta", "4.2", "Delta", folder, "_checkpoint")
        self.files = folder

    def rows(self) -> Iterator[Row]:
        yield from delta_rows(self.folder)

    def history(self) -> list[str]:
        """What each commit did, the oldest first: ``append``, ``compact`` or another word."""
        words = {"STREAMING UPDATE": "append", "OPTIMIZE": "compact"}
        done = [each["operation"] for each in reversed(delta_table(self.folder).history())]
        return [words.get(each, each) for each in done]

    def live_files(self) -> int:
        return len(delta_table(self.folder).file_uris())


class Iceberg(Table):
    """The example of Iceberg."""

    def __init__(self, folder: Path) -> None:
        super().__init__("17_topic_to_iceberg", "4.1", "Iceberg", folder, "checkpoints/orders")
        self.files = folder / "shop" / "orders" / "data"

    def _table(self) -> Any:
        from pyiceberg.table import StaticTable

        metadata = self.folder / "shop" / "orders" / "metadata"
        names = (path.name for path in metadata.glob("v*.metadata.json"))
        newest = max(names, key=lambda name: int(name[1:].partition(".")[0]))
        return StaticTable.from_metadata(f"file://{metadata}/{newest}")

    def rows(self) -> Iterator[Row]:
        yield from self._table().scan().to_arrow().to_pylist()

    def history(self) -> list[str]:
        """What each commit did, the oldest first: ``append``, ``compact`` or another word."""
        words = {"replace": "compact"}
        done = [each.summary.operation.value for each in self._table().snapshots()]
        return [words.get(each, each) for each in done]

    def live_files(self) -> int:
        return len(list(self._table().scan().plan_files()))


def delta_table(folder: Path) -> Any:
    from deltalake import DeltaTable

    return DeltaTable(str(folder))


def delta_rows(folder: Path) -> list[Row]:
    rows: list[Row] = delta_table(folder).to_pyarrow_table().to_pylist()
    return rows


def send(name_servers: str, topic: str, numbers: range, tags: str | None = None) -> None:
    with Producer(name_servers, group="tables") as producer:
        for start in range(numbers.start, numbers.stop, PART):
            part = range(start, min(start + PART, numbers.stop))
            bodies = [b"%d" % each for each in part]
            producer.send_batch([Message(topic=topic, body=each, tags=tags) for each in bodies])


def leave_an_orphan(folder: Path) -> Path:
    """Leave a data file as a task does whose job was killed long ago."""
    orphan = folder / "part-00000-of-a-killed-job.snappy.parquet"
    orphan.write_bytes(b"PAR1")
    long_ago = time.time() - LONG_AGO_S
    os.utime(orphan, (long_ago, long_ago))
    return orphan


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_each_message_is_in_a_compacted_table_of_spark_exactly_once_over_a_kill_of_the_driver(
    kind: type[Delta] | type[Iceberg], name_servers: str, topic: str, tmp_path: Path
) -> None:
    """The driver dies in a micro-batch after a compaction that ran beside the stream."""
    table = kind(tmp_path / "table")
    sent = 4 * BATCH
    send(name_servers, topic, range(sent))
    orphan: Path | None = None

    def is_time() -> bool:
        """Keep the stream busy; wait for an append behind a compaction, and another batch."""
        nonlocal orphan, sent
        done = table.newest("commits")
        if done < 1:
            return False
        orphan = orphan or leave_an_orphan(table.files)
        if sent < (done + 3) * BATCH:
            send(name_servers, topic, range(sent, sent + BATCH))
            sent += BATCH
        _, compact, behind = " ".join(table.history()).partition("compact")
        is_behind = bool(compact) and "append" in behind
        return is_behind and not orphan.exists() and table.newest("offsets") > done

    words = (name_servers, topic, table.folder, "always", BATCH, 1)
    table.run_until(is_time, "an append behind a compaction", *words)
    table.run(name_servers, topic, table.folder, "once", BATCH)
    appends = table.history().count("append")
    table.run(name_servers, topic, table.folder, "compact")
    assert table.live_files() < appends
    table.forget_commit()
    send(name_servers, topic, range(sent, sent + PART), tags="late")
    table.run(name_servers, topic, table.folder, "once", BATCH, 3600, "tags")

    found = Counter(
        (row["queue_id"], row["queue_offset"], row["body"], row["tags"]) for row in table.rows()
    )
    there = Counter(
        (queue, message.queue_offset, message.body.decode(), message.tags or None)
        for (_, queue), messages in stored(name_servers, topic, count=sent + PART).items()
        for message in messages
    )
    assert sum(there.values()) == sent + PART
    assert found == there
    assert sum(tags == "late" for *_, tags in found) == PART


class Database:
    """A table of a database, changed at random, and the envelopes of its changes.

    Args:
        seed: of the changes.
        read_ms: when the changes are read from the database.
    """

    COLUMNS = ("customer", "state", "amount")

    def __init__(self, seed: int, read_ms: int) -> None:
        self._chance = random.Random(seed)
        self.read_ms = read_ms
        self.rows: dict[int, Row] = {}
        self.deleted_at: dict[int, int] = {}
        self._number = 0

    def change(self) -> list[tuple[str, Row | None, Row | None]]:
        """Change a row once or twice in one millisecond; return kind, old row and new row."""
        self._number += 1
        key = self._chance.randrange(20)
        old = self.rows.pop(key, None)
        new = self._row(key)
        if old is None:
            changes = [("insert", None, new)]
        elif self._chance.random() < 0.3:
            changes = [("delete", old, None)]
        elif self._chance.random() < 0.15 and (free := key + 100) not in self.rows:
            changes = [("update", old, self._row(free))]
        else:
            changes = [("update", old, new), ("update", new, self._row(key))]
        for _, before, after in changes:
            if before is not None:
                self.rows.pop(before["id"], None)
                self.deleted_at[before["id"]] = self.read_ms
            if after is not None:
                self.rows[after["id"]] = after
                self.deleted_at.pop(after["id"], None)
        return changes

    def _row(self, key: int) -> Row:
        cents = self._chance.randrange(100_000)
        return {
            "id": key,
            "customer": f"c{self._chance.randrange(9)}",
            "state": self._chance.choice((None, "new", "paid")),
            "amount": Decimal(cents).scaleb(-2),
        }

    def debezium(self) -> list[tuple[int, Row]]:
        """Change, and return envelopes with their queues: the log's position alone orders them."""
        letters = {"insert": "c", "update": "u", "delete": "d"}
        found = []
        for kind, old, new in self.change():
            parts = [(letters[kind], old, new)]
            if old and new and old["id"] != new["id"]:
                parts = [("d", old, None), ("c", None, new)]
            for letter, before, after in parts:
                self._number += 1
                source = {"table": "orders", "lsn": self._number, "ts_ms": 7, "db": "shop"}
                rows = {"before": _plain(before), "after": _plain(after)}
                queue = self._chance.randrange(4)
                body = {"op": letter, "source": source, "ts_ms": self.read_ms, **rows}
                found.append((queue, body))
        return found

    def canal(self) -> list[tuple[int, Row]]:
        """Change, and return envelopes with their queues: each id has its own.

        Changes of some milliseconds have one time in the database's log, those of one
        millisecond the same time of reading, too: their place in the queue orders them.
        """
        changes = self.change()
        second_ms, read_ms = self._number // 8 * 1000, self.read_ms + self._number
        head = {"es": second_ms, "ts": read_ms, "table": "orders"}
        found = []
        for kind, old, new in changes:
            row = new or old
            assert row is not None
            changed = None
            if old and new:
                changed = [_texts({name: old[name] for name in old if old[name] != new[name]})]
            body = {"type": kind.upper(), "data": [_texts(row)], "old": changed, "isDdl": False}
            found.append((row["id"] % 4, {**head, **body}))
        return found


def _plain(row: Row | None) -> Row | None:
    return row and {**row, "amount": str(row["amount"])}


def _texts(row: Row) -> Row:
    return {name: None if value is None else str(value) for name, value in row.items()}


def send_envelopes(
    name_servers: str, topic: str, changes: Iterable[Sequence[tuple[int, Row]]]
) -> None:
    envelopes = [each for change in changes for each in change]
    with Producer(name_servers, group="database") as producer:
        for queue in range(4):
            bodies = [json.dumps(body).encode() for at, body in envelopes if at == queue]
            if bodies:
                messages = [Message(topic=topic, body=body) for body in bodies]
                producer.send_batch(messages, order_key=str(queue))


@pytest.mark.parametrize("envelope", ["debezium", "canal"])
def test_changes_of_a_database_are_merged_once_and_in_order_whatever_comes_again(
    envelope: str, name_servers: str, topic: str, tmp_path: Path
) -> None:
    now_ms = time.time_ns() // 1_000_000
    database = Database(5, now_ms - 60 * DAY_MS)
    envelopes = getattr(database, envelope)
    table = Table("18_changes_to_delta", "4.2", "Delta", tmp_path / "table", "_checkpoint")

    marks: set[int] = set()
    first = [envelopes() for _ in range(CHANGES)]

    def merged(run: Callable[..., None], compact_every: int) -> dict[int, Row]:
        """Merge what is new; return the rows that are there, and note the marks of the others."""
        run(envelope, name_servers, topic, table.folder, "once", CHANGES, compact_every)
        rows = delta_rows(table.folder)
        assert len(rows) == len({row["id"] for row in rows})
        for row in rows:
            assert not row["deleted"] or all(row[name] is None for name in Database.COLUMNS)
        marks.clear()
        marks.update(row["id"] for row in rows if row["deleted"])
        return {
            row["id"]: {name: row[name] for name in ("id", *Database.COLUMNS)}
            for row in rows
            if not row["deleted"]
        }

    with table.repeated() as run:
        send_envelopes(name_servers, topic, first)
        assert merged(run, 1000) == database.rows
        assert marks == set(database.deleted_at)

        # The whole topic comes again, old changes are in it twice, and something else is in it.
        shutil.rmtree(table.checkpoint)
        send_envelopes(name_servers, topic, first[: CHANGES // 3])
        send_envelopes(name_servers, topic, [[(0, {"op": 7})]])
        assert merged(run, 1000) == database.rows

        # A micro-batch comes again with new changes behind it, and old marks are removed.
        table.forget_commit()
        database.read_ms = now_ms
        database.deleted_at.clear()
        send_envelopes(name_servers, topic, (envelopes() for _ in range(CHANGES // 4)))
        assert merged(run, 1) == database.rows
        assert marks == set(database.deleted_at)
    done = {each["operation"] for each in delta_table(table.folder).history()}
    assert done >= {"MERGE", "DELETE", "VACUUM END"}
    damaged = delta_rows(table.folder.with_name("table_damaged"))
    assert [row["body"] for row in damaged] == [b'{"op": 7}']
