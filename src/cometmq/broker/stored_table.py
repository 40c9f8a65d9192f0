"""A table of the broker in its JSON file: a change is visible once it is on disk.

The file is written in a thread, so the event loop never waits for the disk. Changes that arrive
during a write share the next one: ten thousand new topics cost a few dozen writes. A change is a
function of the entry that it replaces, applied in the order of the requests: of two requests that
create one topic the first wins, and none overwrites what another has changed meanwhile. A change
that the disk refuses is not made, and its requester gets the reason.

Owned by the event loop's thread; before the loop runs, `change_now` writes at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from cometmq.model.errors import ResponseError, StoreError
from cometmq.protocol.bodies import DataVersion
from cometmq.protocol.codes import ResponseCode
from cometmq.store.config_files import JsonFile, entry_text, object_text
from cometmq.system.clock import Clock

log = logging.getLogger(__name__)

CHANGES_MAX: Final = 20_000
"""Changes that wait for a write; further requests are refused as busy."""
CLOSE_S_MAX: Final = 5.0

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
        self._waiting: list[_Waiting] = []
        self._changes_waiting = 0
        self._writer: asyncio.Task[None] | None = None

    def take(self, version: DataVersion, sections: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what was read from the file."""
        self.version = version
        for section, entries in sections.items():
            self.sections[section].clear()
            self.sections[section].update(entries)
            self._texts[section] = {name: _text(value) for name, value in entries.items()}

    def change_now(self, changes: Iterable[Change]) -> None:
        """Make changes and write them before the event loop runs.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
        """
        values: Values = {}
        self._make(list(changes), values)
        version = self.version.next(self._clock.now_ms())
        self._apply(values, _save(self.file, self._texts, values, version), version)

    async def change(self, changes: Iterable[Change]) -> None:
        """Make changes, all of them or none; returns when they are on disk.

        Without any change the version is counted up.

        Raises:
            StoreError: the file cannot be written; nothing was changed.
            ResponseError: 2, too many changes wait; or what a change raises.
        """
        wanted = list(changes)
        if self._changes_waiting >= CHANGES_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]{self._changes_waiting} changes of {self.file.path.name} wait",
            )
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(wanted, done))
        self._changes_waiting += len(wanted)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write_waiting())
        await done

    def keep(self, section: str, name: str, value: object) -> None:
        """Take an entry that can be made again at any time; the next write stores it."""
        self._kept[section, name] = value
        self._apply({(section, name): value}, self._texts, self.version)

    async def close(self) -> None:
        """Return when no change is being written, but not later than after a few seconds."""
        if self._writer is not None and not self._writer.done():
            _, late = await asyncio.wait([self._writer], timeout=CLOSE_S_MAX)
            if late:
                log.error("a table is still being written path=%s", self.file.path)

    async def _write_waiting(self) -> None:
        """Write until no change waits; the requesters of a write share its outcome."""
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            self._changes_waiting = 0
            error: Exception | None = None
            try:
                made = await self._write(waiting)
            except Exception as problem:
                made, error = waiting, problem
            for _, done in made:
                if done.done():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(StoreError(str(error)))

    async def _write(self, waiting: list[_Waiting]) -> list[_Waiting]:
        """Write the changes of some requesters; return those whose changes were made."""
        values: Values = {}
        made: list[_Waiting] = []
        is_touched = False
        for entry in waiting:
            try:
                self._make(entry.changes, values)
            except Exception as problem:  # only this requester's changes are not made
                if not entry.done.done():
                    entry.done.set_exception(problem)
            else:
                made.append(entry)
                is_touched |= not entry.changes
        values = {key: value for key, value in values.items() if self._present(key) != value}
        if values or is_touched:
            values = {**self._kept, **values}
            texts, version = self._texts, self.version.next(self._clock.now_ms())
            loop = asyncio.get_running_loop()
            written = await loop.run_in_executor(
                None, lambda: _save(self.file, texts, values, version)
            )
            self._apply(values, written, version)
            for key in values:
                self._kept.pop(key, None)
        return made

    def _present(self, key: tuple[str, str]) -> Any | None:
        section, name = key
        return self.sections[section].get(name)

    def _make(self, changes: list[Change], values: Values) -> None:
        """Apply changes to the values that a write is about to store, all of them or none."""
        new: Values = {}
        for section, name, make in changes:
            key = section, name
            present = new[key] if key in new else values.get(key, self._present(key))
            new[key] = make(present)
        values.update(new)

    def _apply(self, values: Values, texts: Texts, version: DataVersion) -> None:
        for (section, name), value in values.items():
            if value is None:
                self.sections[section].pop(name, None)
            else:
                self.sections[section][name] = value
        self._texts, self.version = texts, version
        if self.on_change is None:
            return
        try:
            self.on_change()
        except Exception:
            log.exception("a change of a table could not be announced path=%s", self.file.path)


def _text(value: Any) -> str:
    return entry_text(value, depth=2)


def _save(file: JsonFile, known: Texts, values: Values, version: DataVersion) -> Texts:
    """Write the file with changed values; return its texts. From any thread, one at a time."""
    texts = {section: dict(entries) for section, entries in known.items()}
    for (section, name), value in values.items():
        if value is None:
            texts[section].pop(name, None)
        else:
            texts[section][name] = _text(value)
    members = {"dataVersion": entry_text(version, depth=1)}
    for section, entries in texts.items():
        members[section] = object_text(entries, depth=1)
    file.save_text(object_text(members, depth=0))
    return texts
