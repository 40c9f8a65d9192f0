"""The databases of users and policies: folders of RocksDB that RocketMQ 5.3 reads and writes.

RocketMQ opens three column families, of which it uses the first one here. Each write is on the disk
when the call returns. One process at a time may have a folder open.

Source: ConfigRocksDBStorage and ConfigHelper, RocketMQ 5.3.
"""

from __future__ import annotations

import logging
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
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=_ONLY_OWNER)
            if stat.S_IMODE(folder.stat().st_mode) & 0o007:
                log.warning("users of this machine may read the secrets in %s: chmod 700", folder)
            families = {name: self._options() for name in _FAMILIES}
            self._database = self._library.Rdict(str(folder), self._options(), families)
        except Exception as problem:  # the library has no class of its own for most errors
            raise StoreError(f"cannot open {folder}: {_reason(problem)}") from None
        self._durable = self._library.WriteOptions()
        self._durable.sync = True

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
        try:
            self._database.put(key.encode(), value, self._durable)
        except Exception as problem:
            raise self._error("write", problem) from None

    def delete(self, key: str) -> None:
        """Delete a value, if there is one; that is on the disk then.

        Raises:
            StoreError: the disk refuses.
        """
        try:
            self._database.delete(key.encode(), self._durable)
        except Exception as problem:
            raise self._error("write", problem) from None

    def close(self) -> None:
        """Close the folder, so that another process may open it."""
        try:
            self._database.close()
        except Exception as problem:
            log.error("%s", self._error("close", problem))

    def _error(self, verb: str, problem: Exception) -> StoreError:
        return StoreError(f"cannot {verb} {self._folder}: {_reason(problem)}")


def _library() -> Any:
    try:
        import rocksdict
    except ImportError as problem:
        raise ConfigError(
            "users and policies are kept in RocksDB, and the package rocksdict is not installed"
            f" ({problem}): install cometmq[users]"
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
