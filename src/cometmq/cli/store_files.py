"""Inspects the files of a store without changing them, and makes backups of them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from datetime import datetime
from pathlib import Path

from cometmq.broker.app import SETTINGS
from cometmq.cli.lines import line_of
from cometmq.model.errors import ConfigError
from cometmq.protocol.lazy_record import decode_lazily
from cometmq.protocol.wrapped_batch import WRAPPED, unwrapped
from cometmq.store import StoreSettings, kept_log_file_bytes
from cometmq.store.backup import LAYOUT, Backup, read_backup, restore_backup, take_backup
from cometmq.store.inspect import QueueSummary, StoreReader
from cometmq.system.clock import Clock
from cometmq.system.configuration import load
from cometmq.system.files import Files
from cometmq.system.platforms import SERVERS
from cometmq.system.rocketmq_keys import BROKER_KEYS
from cometmq.system.settings import describe

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
                [message] = decode_lazily(reader.record_bytes(place))
                is_batch = message.sys_flag & WRAPPED == WRAPPED
                for each in unwrapped(message, {}) if is_batch else [message]:
                    print(line_of(each))


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


def backup(path: Path, target: Path, config: Path | None, *, link: bool) -> None:
    """Make a backup of a store and print what it contains.

    Raises:
        ConfigError: there is no store, or the target exists.
        StoreError: the store is damaged, or a disk refused.
    """
    began_s = time.monotonic()
    settings = _settings(path, config)
    made = take_backup(settings, target, now_ms=Clock().now_ms, link=link)
    print(f"backup={target} {_contents(made)} seconds={time.monotonic() - began_s:.1f}")


def restore(path: Path, target: Path, config: Path | None) -> None:
    """Make a store of a backup and print what it contains.

    Raises:
        ConfigError: there is no backup, the store exists, or the configuration does not fit.
        StoreError: the backup is damaged, or a disk refused.
    """
    began_s = time.monotonic()
    settings = _loaded(target, config)
    described = read_backup(path)
    if config is not None and described is not None:
        _check_layout(config, settings, described)
    made = restore_backup(path, settings)
    print(f"store={target} {_contents(made)} seconds={time.monotonic() - began_s:.1f}")


def _check_layout(config: Path, settings: StoreSettings, described: Backup) -> None:
    """Refuse a configuration with which a broker could not read the files.

    Raises:
        ConfigError: names the key.
    """
    expected = described.read_settings(settings.root)
    for setting in describe(StoreSettings):
        met, value = getattr(settings, setting.name), getattr(expected, setting.name)
        if setting.key in LAYOUT and met != value:
            raise ConfigError(
                f"{config}: {setting.key}: met {met}, expected {value} as in the backup"
            )


def _contents(made: Backup) -> str:
    last = "none"
    if made.last_store_ms:
        last = datetime.fromtimestamp(made.last_store_ms / 1000).isoformat(timespec="milliseconds")
    return (
        f"taken={datetime.fromtimestamp(made.taken_ms / 1000).isoformat(timespec='milliseconds')}"
        f" begin={made.begin} end={made.end} last_message={last} files={len(made.files)}"
    )


def _loaded(path: Path, config: Path | None) -> StoreSettings:
    SERVERS.allow_many_files()  # each file of the log is mapped
    settings = load(
        SETTINGS,
        known_keys=BROKER_KEYS,
        file=config,
        command_line={"storePathRootDir": str(path)},
    )[StoreSettings]
    kept = kept_log_file_bytes(settings, Files())
    return dataclasses.replace(settings, commit_log_file_bytes=kept)


def _settings(path: Path, config: Path | None) -> StoreSettings:
    """Return the settings of a store that exists; a backup has its own."""
    described = read_backup(path) if config is None else None
    settings = _loaded(path, config) if described is None else described.read_settings(path)
    if not settings.commit_log.is_dir():
        raise ConfigError(f"no store in {path}: there is no folder {settings.commit_log}")
    return settings


def _open(path: Path, config: Path | None) -> StoreReader:
    return StoreReader(_settings(path, config))


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
