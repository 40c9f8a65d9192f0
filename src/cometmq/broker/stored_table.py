"""Tables of the broker in JSON files: a change is visible once it is on disk.

    X.json            the whole table
    X.json.changes    := line ...
    line              := CRC-32 as 8 hexadecimal digits, blank, change, line feed
    change            := {"dataVersion": version, section: {name: entry, or null if it is gone}}

The CRC-32 is that of the version of X.json, as `DataVersion.encode` writes it, with the change
behind it. The first line of another one ends the changes: it is a write that was cut off, or was
left over by an X.json of another version.

The files are written in a thread, so the event loop never waits for the disk. Changes that arrive
during a write share the next one. A large table is not written for each change: its latest changes
are in a file of their own, which is merged some seconds later, and when the broker stops. So the
cost of a change does not grow with the table. A start reads both files. A change is a
function of the entry that it replaces, applied in the order of the requests: of two requests that
create one topic the first wins, and none overwrites what another has changed meanwhile. A change
that the disk refuses is not made, and its requester gets the reason.

`StoredTable` stores sections of entries; `ConfigTable` is the base of the tables of topics and
groups. Both are owned by the event loop's thread; before the loop runs, `change_now` and `put_now`
write at once.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from operator import attrgetter
from sys import intern
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol import fastjson
from cometmq.protocol.bodies.common import DataVersion
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson import FastJsonError
from cometmq.protocol.lenient import read_struct
from cometmq.remoting.slices import Slices
from cometmq.remoting.slow_requests import spent_on
from cometmq.store.config_files import JsonFile, entry_text, member_text, object_text
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

CHANGES_MAX: Final = 20_000
"""Changes that wait for a write; further requests are refused as busy."""
CLOSE_S_MAX: Final = 5.0
WHOLE_ENTRIES_MAX: Final = 300
"""The largest table that is always written as a whole, in entries."""
APART_MAX: Final = 250
"""Entries in the file of changes: its old lines are written again with each new one."""
MERGE_S: Final = 5.0
"""How soon changes are merged; later if that takes more than 5 percent of the time."""
KEPT_MAX: Final = 20_000
"""The latest changes of which `StoredTable.changed_since` knows the names."""

_WITHOUT_INDENTS: Final = {ord("\n"): None, ord("\t"): None}

C = TypeVar("C", bound=msgspec.Struct)
W = TypeVar("W", bound=msgspec.Struct)
Texts = dict[str, dict[str, str]]
Values = dict[tuple[str, str], Any]


class Change(NamedTuple):
    """One entry of a section is replaced."""

    section: str
    name: str
    make: Callable[[Any | None], Any | None]
    """Returns the new value for the present one; None means that there is, or will be, no entry."""


def put(section: str, name: str, value: object) -> Change:
    """An entry gets a value, whatever it was."""
    return Change(section, name, lambda _: value)


def create(section: str, name: str, value: object) -> Change:
    """An entry gets a value unless it exists."""
    return Change(section, name, lambda present: value if present is None else present)


def remove(section: str, name: str) -> Change:
    """An entry is removed, if it exists."""
    return Change(section, name, lambda _: None)


class _Waiting(NamedTuple):
    changes: list[Change]
    done: asyncio.Future[None]
    version: DataVersion | None
    """The version after these changes; None for the next one."""


class StoredTable:
    """Sections of entries by name, and the version of all of them.

    Args:
        file: where they are stored.
        sections: the names of the sections, members of the file's object.
        clock: stamps the version.
    """

    def __init__(self, file: JsonFile, sections: Iterable[str], *, clock: Clock) -> None:
        self.file = file
        self.sections: dict[str, dict[str, Any]] = {section: {} for section in sections}
        """The entries that are on disk; only this class changes them, in place."""
        self.version: DataVersion = DataVersion(timestamp=clock.now_ms())
        self.on_change: Callable[[], None] | None = None
        """Called after every change."""
        self._clock = clock
        self._texts: Texts = {section: {} for section in self.sections}
        self._kept: Values = {}
        self._changes_file = file.beside(f"{file.path.name}.changes")
        self._base: bytes | None = None
        """The version in the file of the whole table; None before the first write."""
        self._apart = b""
        """The lines in the file of changes."""
        self._apart_count = 0
        """The entries in them."""
        self._must_merge = False
        self._merge_timer: asyncio.TimerHandle | None = None
        self._whole_s = 0.0
        """How long the last write of the whole table took."""
        self._waiting: list[_Waiting] = []
        self._changes_waiting = 0
        self._changed: deque[tuple[str, str]] = deque(maxlen=KEPT_MAX)
        """The entries that the latest changes have replaced."""
        self.changes = 0
        """How many entries were replaced since the start."""
        self._writer: asyncio.Task[None] | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the content of the file, with the changes that are not merged; None for no file.

        Raises:
            StoreError: a file cannot be read.
        """
        content = self.file.load()
        if content is None or (version := _version_of(content)) is None:
            return content
        for changes in _changes_in(self._changes_file.read(), version.encode()):
            for section in self.sections:
                entries = content.setdefault(section, {})
                for name, value in (changes.get(section) or {}).items():
                    if value is None:
                        entries.pop(name, None)
                    else:
                        entries[name] = value
            content["dataVersion"] = changes["dataVersion"]
        return content

    def take(self, version: DataVersion, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what was read from the file."""
        self.version = version
        for section, entries in sections.items():
            self.sections[section].clear()
            self.sections[section].update((intern(name), entries[name]) for name in entries)
            self._texts[section] = {name: _text(name, value) for name, value in entries.items()}

    def change_now(self, changes: Iterable[Change]) -> None:
        """Make changes and write them before the event loop runs.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        values: Values = {}
        self._make(list(changes), values)
        version = self.version.next(self._clock.now_ms())
        self._apply(values, _save(self.file, self._texts, values, version), version)
        self._note_whole(version)

    async def change(self, changes: Iterable[Change], *, state_version: int | None = None) -> None:
        """Make changes, all of them or none; returns when they are on disk.

        Without any change the version is counted up.

        Args:
            changes: what to change.
            state_version: the state in the version from now on; None leaves it as it is.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
            ResponseError: 2, too many changes wait; or what a change raises.
        """
        version = None
        if state_version is not None:
            version = self.version.next(self._clock.now_ms(), state_version)
        await self._write_soon(list(changes), version)

    async def replace(
        self,
        version: DataVersion,
        sections: Mapping[str, Mapping[str, Any]],
        *,
        keeps: Callable[[str], bool],
        is_current: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Take over the entries and the version of another table; returns when they are on disk.

        Args:
            version: of that table.
            sections: its entries.
            keeps: returns whether an entry with a name stays if that table does not have it.
            is_current: returns whether the other table still has to be taken over.

        Returns:
            Whether it was taken over.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        slices = Slices()
        changes = []
        for section, entries in sections.items():
            async for name, value in slices.each(entries.items()):
                changes.append(put(section, name, value))
            async for name in slices.each(list(self.sections[section])):
                if name not in entries and not keeps(name):
                    changes.append(remove(section, name))
        if not is_current():
            return False
        await self._write_soon(changes, version)
        return True

    async def _write_soon(self, wanted: list[Change], version: DataVersion | None) -> None:
        if self._changes_waiting >= CHANGES_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self._changes_waiting} changes of {self.file.path.name} wait",
            )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(wanted, done, version))
        self._changes_waiting += len(wanted)
        self._start_writer()
        with spent_on("thread"):
            await done

    def keep(self, section: str, name: str, value: object) -> None:
        """Take an entry that can be made again at any time; the next write stores it."""
        self._kept[section, name] = value
        self._apply({(section, name): value}, self._texts, self.version)

    async def close(self) -> None:
        """Merge the latest changes, and return when no change is being written.

        It returns after a few seconds at most.
        """
        if self._merge_timer is not None:
            self._merge_timer.cancel()
        if self._apart:
            self._merge()
        if self._writer is not None and not self._writer.done():
            _, late = await asyncio.wait([self._writer], timeout=CLOSE_S_MAX)
            if late:
                log.error("a table is still being written path=%s", self.file.path)
        try:
            if not self._apart:
                self._changes_file.remove()
        except StoreError as problem:  # it does not count
            log.warning("a file is left over: %s", problem)
        self._changes_file.close()

    def _merge(self) -> None:
        """Write the whole table soon."""
        self._merge_timer = None
        self._must_merge = True
        self._start_writer()

    def _start_writer(self) -> None:
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write_waiting())

    async def _write_waiting(self) -> None:
        """Write until no change waits; the requesters of a write share its outcome."""
        while self._waiting or self._must_merge:
            if not self._waiting:
                await self._write_merged()
                continue
            waiting, self._waiting = self._waiting, []
            self._changes_waiting = 0
            error: Exception | None = None
            try:
                made = await self._write(waiting)
            except Exception as problem:
                made, error = waiting, problem
            for _, done, _ in made:
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(StoreError(str(error)))
        if self._apart and self._merge_timer is None:
            pause_s = max(MERGE_S, 20 * self._whole_s)
            self._merge_timer = asyncio.get_running_loop().call_later(pause_s, self._merge)

    async def _write_merged(self) -> None:
        """Write the whole table; if the disk refuses, its changes stay where they are."""
        try:
            await self._write_whole({}, self.version)
        except StoreError as problem:
            log.warning("changes of a table are not merged: %s", problem)

    async def _write_whole(self, values: Values, version: DataVersion) -> Texts:
        """Write the whole table with changed values; return its texts.

        Raises:
            StoreError: the disk refuses.
        """
        self._must_merge = False
        began_s = monotonic()
        loop = asyncio.get_running_loop()
        save = partial(_save, self.file, self._texts, values, version)
        texts = await loop.run_in_executor(None, save)
        self._whole_s = monotonic() - began_s
        self._note_whole(version)
        return texts

    def _note_whole(self, version: DataVersion) -> None:
        """Note that the whole table is written: the lines of the changes do not count any more."""
        self._base, self._apart, self._apart_count = version.encode(), b"", 0

    def _save_apart(self, values: Values, version: DataVersion) -> tuple[Texts, bytes]:
        """Write changed values into the file of changes; return their texts, and all its lines.

        From any thread, one at a time.
        """
        assert self._base is not None
        texts: Texts = {}
        for (section, name), value in values.items():
            texts.setdefault(section, {})[name] = _text(name, value)
        members = {"dataVersion": member_text("dataVersion", entry_text(version, depth=1), depth=0)}
        for section, entries in texts.items():
            members[section] = member_text(section, object_text(entries, depth=1), depth=0)
        # Texts have escapes for line feeds and tabs.
        change = object_text(members, depth=0).translate(_WITHOUT_INDENTS).encode()
        lines = b"%b%08x %b\n" % (self._apart, zlib.crc32(self._base + change), change)
        self._changes_file.overwrite(lines)
        return texts, lines

    def _goes_apart(self, values: Values) -> bool:
        """Return whether changed values are written into the file of changes."""
        return (
            self._base is not None
            and not self._must_merge
            and sum(map(len, self.sections.values())) > WHOLE_ENTRIES_MAX
            and self._apart_count + len(values) <= APART_MAX
        )

    async def _write(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Write the changes of some requesters; return those whose changes were made."""
        values: Values = {}
        made: list[_Waiting] = []
        is_touched = False
        slices = Slices()
        for entry in waiting:
            try:
                await self._make_in_slices(entry.changes, values, slices)
            except Exception as problem:  # only this requester's changes are not made
                if not entry.done.done():
                    entry.done.set_exception(problem)
            else:
                made.append(entry)
                is_touched |= not entry.changes or entry.version is not None
        made_values = values.items()
        values = {
            key: value
            async for key, value in slices.each(made_values)
            if self._present(key) != value
        }
        if values or is_touched:
            values = {**self._kept, **values}
            version = self._version_after(made)
            written = self._texts
            if self._goes_apart(values):
                loop = asyncio.get_running_loop()
                save = partial(self._save_apart, values, version)
                texts, self._apart = await loop.run_in_executor(None, save)
                self._apart_count += len(values)
                for (section, name), value in values.items():
                    if value is None:
                        self._texts[section].pop(name, None)
                    else:
                        self._texts[section][name] = texts[section][name]
            else:
                written = await self._write_whole(values, version)
            async for key, value in slices.each(values.items()):
                self._replace(key, value)
                self._kept.pop(key, None)
            self._note_written(written, version)
        await slices.clear(values)
        return made

    def _version_after(self, made: list[_Waiting]) -> DataVersion:
        """Return the version of the table after the changes of some requesters."""
        version = self.version
        for entry in made:
            version = entry.version or version
        if all(entry.version for entry in made):
            return version
        return version.next(self._clock.now_ms())  # it also has changes of its own

    def _present(self, key: tuple[str, str]) -> Any | None:
        section, name = key
        return self.sections[section].get(name)

    def _make(self, changes: list[Change], values: Values) -> None:
        """Apply changes to the values that a write is about to store, all of them or none."""
        new: Values = {}
        for change in changes:
            self._make_one(change, values, new)
        values.update(new)

    async def _make_in_slices(self, changes: list[Change], values: Values, slices: Slices) -> None:
        """Apply changes as `_make`, but in slices; what is stored does not change meanwhile."""
        new: Values = {}
        async for change in slices.each(changes):
            self._make_one(change, values, new)
        values.update(new)

    def _make_one(self, change: Change, values: Values, new: Values) -> None:
        key = change.section, change.name
        present = new[key] if key in new else values.get(key, self._present(key))
        new[key] = change.make(present)

    def _apply(self, values: Values, texts: Texts, version: DataVersion) -> None:
        for key, value in values.items():
            self._replace(key, value)
        self._note_written(texts, version)

    def changed_since(self, changes: int) -> set[tuple[str, str]] | None:
        """Return the sections and names of the entries that were replaced since a time.

        Args:
            changes: the value of `changes` then.

        Returns:
            None if there are too many to know.
        """
        new = self.changes - changes
        if new > len(self._changed):
            return None
        return set(islice(reversed(self._changed), new))

    def _replace(self, key: tuple[str, str], value: Any | None) -> None:
        self._changed.append(key)
        self.changes += 1
        section, name = key
        if value is None:
            self.sections[section].pop(name, None)
        else:
            self.sections[section][intern(name)] = value

    def _note_written(self, texts: Texts, version: DataVersion) -> None:
        self._texts, self.version = texts, version
        if self.on_change is None:
            return
        try:
            self.on_change()
        except Exception:
            log.exception("a change of a table could not be announced path=%s", self.file.path)


class ConfigTable(Generic[C]):
    """Settings of topics or groups by name: one section of a stored table.

    Args:
        file: where they are stored.
        section: the section of the settings.
        name_field: the field of the settings that contains the name.
        others: further sections of the file.
        clock: stamps the version.
    """

    def __init__(
        self,
        file: JsonFile,
        section: str,
        name_field: str,
        *,
        others: Iterable[str] = (),
        clock: Clock,
    ) -> None:
        self._stored = StoredTable(file, sorted([section, *others]), clock=clock)
        self._table: dict[str, C] = self._stored.sections[section]
        self._section = section
        self._name_field = name_field
        self._name_of: Callable[[C], str] = attrgetter(name_field)

    @property
    def version(self) -> DataVersion:
        """The version of the table."""
        return self._stored.version

    @property
    def changes(self) -> int:
        """How many entries were replaced since the start."""
        return self._stored.changes

    def changed_since(self, changes: int) -> dict[str, C | None] | None:
        """Return the entries that were replaced since a time, as they are now; None if removed.

        Args:
            changes: the value of `changes` then.

        Returns:
            None if there are too many to know.
        """
        keys = self._stored.changed_since(changes)
        if keys is None:
            return None
        return {name: self._table.get(name) for section, name in keys if section == self._section}

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call a function after every change."""
        self._stored.on_change = on_change

    async def close(self) -> None:
        """Return when no change is being written."""
        await self._stored.close()

    def get(self, name: str) -> C | None:
        """Return the settings with a name, or None."""
        return self._table.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __len__(self) -> int:
        return len(self._table)

    def all(self) -> Mapping[str, C]:
        """Return name → settings of every entry; not to be changed."""
        return self._table

    async def put(self, configs: Iterable[C]) -> bool:
        """Create or change entries, all of them or none; return whether anything changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        return await self.change({self._name_of(config): _always(config) for config in configs})

    async def change(self, changes: Mapping[str, Callable[[C | None], C]]) -> bool:
        """Change entries by functions of their present settings; return whether any changed.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
            ResponseError: what a function raises; nothing was changed.
        """
        if not changes:
            return False
        slices = Slices()
        before = {}
        wanted = []
        async for name, make in slices.each(changes.items()):
            before[name] = self._table.get(name)
            wanted.append(Change(self._section, name, make))
        await self._stored.change(wanted)
        async for name, config in slices.each(before.items()):
            if self._table.get(name) != config:
                return True
        return False

    async def _replace(
        self,
        version: DataVersion,
        sections: Mapping[str, Mapping[str, Any]],
        *,
        keeps: Callable[[str], bool],
        is_current: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Take over another table, if it has another version and is current; return whether so.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        if version == self.version:
            return False
        async for name, config in Slices().each(sections[self._section].items()):
            setattr(config, self._name_field, name)
        return await self._stored.replace(version, sections, keeps=keeps, is_current=is_current)

    def put_now(self, configs: Iterable[C]) -> None:
        """Create or change entries before the event loop runs.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        self._stored.change_now(
            put(self._section, self._name_of(config), config) for config in configs
        )

    def _load(
        self, kind: type[W], sections: Callable[[W], Mapping[str, Mapping[str, Any]]]
    ) -> bool:
        """Read the file; return whether there is one.

        Args:
            kind: the struct of its content, which has a ``data_version``.
            sections: returns the entries of each section.

        Raises:
            StoreError: the file cannot be read.
        """
        content = self._stored.load()
        if content is None:
            return False
        try:
            found: Any = read_struct(content, kind)
        except FastJsonError as problem:
            raise StoreError(
                f"{self._stored.file.path} has no {self._section}: {problem}"
            ) from problem
        entries = sections(found)
        for name, config in entries[self._section].items():
            setattr(config, self._name_field, name)
        self._stored.take(found.data_version, entries)
        return True


def _always(config: C) -> Callable[[C | None], C]:
    return lambda _: config


def _text(name: str, value: Any) -> str:
    """The text of an entry with its name: made once, and not for each write of the table."""
    return member_text(name, entry_text(value, depth=2), depth=1)


def _version_of(content: dict[str, Any]) -> DataVersion | None:
    try:
        return read_struct(content.get("dataVersion") or {}, DataVersion)
    except FastJsonError:  # reported by who reads all of the content
        return None


def _changes_in(lines: bytes, base: bytes) -> Iterator[dict[str, Any]]:
    """Yield the changes of a file that count for a version of the whole table."""
    for line in lines.split(b"\n")[:-1]:
        crc, _, change = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(base + change):
            return
        yield fastjson.loads(change)


def _save(file: JsonFile, known: Texts, values: Values, version: DataVersion) -> Texts:
    """Write the file with changed values; return its texts. From any thread, one at a time."""
    texts = {section: dict(entries) for section, entries in known.items()}
    for (section, name), value in values.items():
        if value is None:
            texts[section].pop(name, None)
        else:
            texts[section][name] = _text(name, value)
    members = {"dataVersion": member_text("dataVersion", entry_text(version, depth=1), depth=0)}
    for section, entries in texts.items():
        members[section] = member_text(section, object_text(entries, depth=1), depth=0)
    file.save_text(object_text(members, depth=0))
    return texts
