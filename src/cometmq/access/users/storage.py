"""The databases of users and policies: folders of RocksDB that RocketMQ 5.3 reads and writes.

RocketMQ opens three column families, of which it uses the first one here. Each write is on the disk
when the call returns. One process at a time may have a folder open for changes.

After a write that failed, RocksDB refuses all others: the next change opens the folder again, and
takes back what the failed write has left on the disk. A folder that cannot be opened for changes
because its disk is full is only read, and opened for changes by the first of them.

Source: ConfigRocksDBStorage and ConfigHelper, RocketMQ 5.3.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.model.errors import ConfigError, StoreError

if TYPE_CHECKING:
    import rocksdict

log = logging.getLogger(__name__)

_FAMILIES: Final = ("kvDataVersion", "forbidden")
"""The column families beside the default one, which RocketMQ creates and expects."""
_TABLE_FORMAT: Final = 5
"""RocketMQ 5.3 has RocksDB 8.4, which reads this format and writes it."""
_MEMORY_BYTES: Final = 1024 * 1024
_LOG_BYTES_MAX: Final = 1024 * 1024
_LOGS_MAX: Final = 2
_ONLY_OWNER: Final = 0o700
_NO_ROOM: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class Database:
    """One folder.

    Args:
        folder: the folder; it is made, readable by its owner only.

    Raises:
        ConfigError: RocksDB is not installed.
        StoreError: the folder cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._library = _library()
        self._folder = folder
        self._durable = self._library.WriteOptions()
        self._durable.sync = True
        self._is_writable = True
        self._unsure: dict[str, bytes | None] = {}
        """Values before a write that failed, which may be on the disk or not; None for no value."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=_ONLY_OWNER)
            if stat.S_IMODE(folder.stat().st_mode) & 0o007:
                log.warning("users of this machine may read the secrets in %s: chmod 700", folder)
            self._database = self._open_or_read()
        except Exception as problem:  # the library has no class of its own for most errors
            raise StoreError(f"cannot open {folder}: {_reason(problem)}") from None

    def _open_or_read(self) -> rocksdict.Rdict:
        try:
            return self._open()
        except Exception as problem:
            if not any(text in str(problem) for text in _NO_ROOM):
                raise
            self._is_writable = False
            database = self._open(self._library.AccessType.read_only(False))
            log.warning("%s is only read: %s", self._folder, _reason(problem))
            return database

    def _open(self, access: rocksdict.AccessType | None = None) -> rocksdict.Rdict:
        families = {name: self._options() for name in _FAMILIES}
        access = access or self._library.AccessType.read_write()
        database: rocksdict.Rdict = self._library.Rdict(
            str(self._folder), self._options(), families, access_type=access
        )
        return database

    def _options(self) -> rocksdict.Options:
        library = self._library
        options: rocksdict.Options = library.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_compression_type(library.DBCompressionType.none())
        table = library.BlockBasedOptions()
        table.set_format_version(_TABLE_FORMAT)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(_MEMORY_BYTES)
        options.set_max_log_file_size(_LOG_BYTES_MAX)
        options.set_keep_log_file_num(_LOGS_MAX)
        options.set_stats_dump_period_sec(0)
        options.set_max_open_files(-1)
        return options

    def items(self) -> Iterable[tuple[str, bytes]]:
        """Return all keys with their values.

        Raises:
            StoreError: the disk refuses, or a key is no text.
        """
        try:
            return [(_bytes(key).decode(), _bytes(value)) for key, value in self._database.items()]
        except Exception as problem:
            raise self._error("read", problem) from None

    def put(self, key: str, value: bytes) -> None:
        """Write a value; it is on the disk then.

        Raises:
            StoreError: the disk refuses.
        """
        self._change(key, value)

    def delete(self, key: str) -> None:
        """Delete a value, if there is one; that is on the disk then.

        Raises:
            StoreError: the disk refuses.
        """
        self._change(key, None)

    def _change(self, key: str, value: bytes | None) -> None:
        try:
            if not self._is_writable:
                self._open_again()
            old = self._database.get(key.encode())
            self._unsure[key] = None if old is None else _bytes(old)
            self._write(key, value)
        except Exception as problem:
            self._is_writable = False
            raise self._error("write", problem) from None
        del self._unsure[key]

    def _open_again(self) -> None:
        """Open the folder for changes, and take back the write that failed."""
        self.close()
        self._database = self._open()
        for key, value in self._unsure.items():
            if self._database.get(key.encode()) != value:
                self._write(key, value)
        self._unsure.clear()
        self._is_writable = True
        log.info("%s is open for changes again", self._folder)

    def _write(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._database.delete(key.encode(), self._durable)
        else:
            self._database.put(key.encode(), value, self._durable)

    def close(self) -> None:
        """Close the folder, so that another process may open it."""
        try:
            self._database.close()
        except Exception as problem:
            # After a write that failed, closing fails, too, and says no more.
            level = logging.ERROR if self._is_writable else logging.DEBUG
            log.log(level, "%s", self._error("close", problem))

    def _error(self, verb: str, problem: Exception) -> StoreError:
        return StoreError(f"cannot {verb} {self._folder}: {_reason(problem)}")


def _library() -> Any:
    try:
        import rocksdict
    except ImportError as problem:
        raise ConfigError(
            "users and policies are kept in RocksDB, and the package rocksdict is not installed"
            f" ({problem}): pip install '.[users]'"
        ) from None
    return rocksdict


def _bytes(value: Any) -> bytes:
    assert isinstance(value, bytes)
    return value


def _reason(problem: Exception) -> str:
    """Return the text of an error of RocksDB, which names files but no values."""
    text = str(problem)
    if "lock" in text.lower():
        return f"another process has it open, or had ({text[:300]})"
    return text[:300]
