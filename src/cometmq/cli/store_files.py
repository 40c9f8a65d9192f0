"""Inspects the files of a store without changing them."""

from __future__ import annotations

import itertools
from pathlib import Path

from cometmq.broker.app import SETTINGS
from cometmq.cli.lines import line_of
from cometmq.model.errors import ConfigError
from cometmq.protocol.record import decode_record
from cometmq.store import StoreSettings
from cometmq.store.inspect import QueueSummary, StoreReader
from cometmq.system.configuration import load
from cometmq.system.rocketmq_keys import BROKER_KEYS

FINDINGS_MAX = 1_000
"""At most this many findings are printed."""


def list_queues(path: Path, config: Path | None) -> None:
    """Print the range of the commit log, and each queue with its bounds."""
    with _open(path, config) as reader:
        print(_log_line(reader))
        for line in _table(reader.queues()):
            print(line)


def show(
    path: Path, config: Path | None, topic: str, queue_id: int, offset: int | None, count: int
) -> None:
    """Print messages of one queue.

    Raises:
        ConfigError: the store has no such queue.
    """
    with _open(path, config) as reader:
        found = [queue for queue in reader.queues() if queue.topic == topic]
        if queue_id not in [queue.queue_id for queue in found]:
            there = ", ".join(str(queue.queue_id) for queue in found) or "none"
            raise ConfigError(
                f"{path} has no queue {queue_id} of topic {topic!r}; queues of the topic: {there}"
            )
        for log_offset, _, _ in reader.units(topic, queue_id, offset or 0, count):
            place = next(reader.records(log_offset), None)
            if place is None:
                print(f"no record at physical offset {log_offset}")
            else:
                print(line_of(decode_record(reader.record_bytes(place))))


def verify(path: Path, config: Path | None) -> bool:
    """Print all findings; return whether there are none."""
    with _open(path, config) as reader:
        findings = 0
        for finding in itertools.islice(reader.verify(), FINDINGS_MAX):
            findings += 1
            print(f"{finding.path}:{finding.position}: {finding.text}")
        records = sum(1 for _ in reader.records())
        queues, indexes = len(reader.queues()), len(reader.index_files())
        more = " or more" if findings == FINDINGS_MAX else ""
        print(f"records={records} queues={queues} index_files={indexes} findings={findings}{more}")
    return not findings


def _open(path: Path, config: Path | None) -> StoreReader:
    settings = load(
        SETTINGS,
        known_keys=BROKER_KEYS,
        file=config,
        command_line={"storePathRootDir": str(path)},
    )[StoreSettings]
    if not settings.commit_log.is_dir():
        raise ConfigError(f"no store in {path}: there is no folder {settings.commit_log}")
    return StoreReader(settings)


def _log_line(reader: StoreReader) -> str:
    files = reader.log_files()
    begin = files[0].base_offset if files else 0
    closed = "closed cleanly" if reader.was_closed() else "in use, or not closed cleanly"
    return f"commit log: files={len(files)} begin={begin} end={reader.end.offset}, {closed}"


def _table(queues: list[QueueSummary]) -> list[str]:
    width = max([len("TOPIC"), *(len(queue.topic) for queue in queues)])
    lines = [f"{'TOPIC':<{width}} {'QUEUE':>5} {'MIN':>12} {'MAX':>12} {'MESSAGES':>12}"]
    for queue in queues:
        count = queue.max_offset - queue.min_offset
        lines.append(
            f"{queue.topic:<{width}} {queue.queue_id:>5} {queue.min_offset:>12}"
            f" {queue.max_offset:>12} {count:>12}"
        )
    return lines
