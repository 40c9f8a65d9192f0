"""The epochs of the log: which master wrote which part of it.

    epoch file    := count "\\n" checksum "\\n" line*    (``epochFileCheckpoint`` in the store)
    line          := epoch "-" start_offset "\\n"
    checksum      := CRC-32 of the lines, without the highest bit; 0 is not checked

Epochs ascend; their start offsets never descend. An epoch in which nothing was written has a line,
too; it starts where the next epoch starts. Without the line, a replica that wrote in an older epoch
beyond that offset could not see that its log differs. RocketMQ 5.3 leaves this line out. If there
are too many epochs, the oldest empty ones are dropped, except the first: the epochs around them end
and begin at the same offset, which shows the difference as well.

The backup lacks the newest epoch. It is read only if the file is missing, or was torn while it was
written, as RocketMQ writes it: then no byte of the newest epoch was stored. In any other case, the
bytes of the newest epoch would count for the epoch before it.

Two replicas find their common point in the newest epoch that both have with the same start offset:
up to the end of that epoch on either side, their logs are equal.

Source: EpochFileCache, EpochEntry and CheckpointFile, RocketMQ 5.3.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.model.errors import StoreError
from cometmq.system.files import Files, load_with_backup, save_with_backup

FILE_NAME: Final = "epochFileCheckpoint"
NO_EPOCH: Final = -1
"""The last epoch of a list that has none."""
UNKNOWN_EPOCH: Final = 0
"""The epoch of what was written before a controller elected a master; elections begin with 1."""
ENTRIES_MAX: Final = 1000
"""How many epochs are kept: a handshake has room for no more."""
EPOCH_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
_CHECKSUM_MASK: Final = 0x7FFFFFFF


class Epoch(NamedTuple):
    """The mastership with a number, and the log offset at which it begins."""

    number: int
    start: int


class Common(NamedTuple):
    """How far the log of a replica agrees with that of a master."""

    point: int
    """The log offset up to which both logs are equal."""
    epochs: list[Epoch]
    """The epochs of the replica that remain when its log ends at the point."""


def check_epochs(epochs: Sequence[Epoch]) -> None:
    """Refuse a list that no series of masters can have made.

    Raises:
        ValueError: a number is out of range, or they do not ascend.
    """
    number, start = NO_EPOCH, 0
    for epoch in epochs:
        if not number < epoch.number <= EPOCH_MAX or not start <= epoch.start <= OFFSET_MAX:
            raise ValueError(
                f"met epoch {epoch.number} from log offset {epoch.start} on, expected an epoch"
                f" above {number} from {start} or more on"
            )
        number, start = epoch


def common_point(
    own: Sequence[Epoch], own_end: int, master: Sequence[Epoch], master_end: int
) -> Common | None:
    """Return up to where a replica agrees with a master; None if no epoch is common to them.

    Args:
        own: the epochs of the replica; at least one.
        own_end: the end of its log.
        master: the epochs of the master.
        master_end: the end of its log.
    """
    ends = _ends(master, master_end)
    for at in range(len(own) - 1, -1, -1):
        end = ends.get(own[at])
        if end is None:
            continue
        own_epoch_end = own[at + 1].start if at + 1 < len(own) else own_end
        # The end of a log is before a start if its last bytes were lost with the power.
        point = min(own_epoch_end, own_end, end)
        return Common(point, [epoch for epoch in own[: at + 1] if epoch.start <= point])
    return None


def _ends(epochs: Sequence[Epoch], log_end: int) -> dict[Epoch, int]:
    """Return where each epoch ends."""
    stops = [epoch.start for epoch in epochs[1:]] + [log_end]
    return dict(zip(epochs, stops, strict=True)) if epochs else {}


class EpochFile:
    """The epochs of one store, in memory and in their file.

    Args:
        folder: the root of the store.
        files: the file system.

    Raises:
        StoreError: the file is damaged, or torn and has no backup.
    """

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / FILE_NAME
        self._files = files
        try:
            data = files.read(self._path)
            if data and not is_torn(data):
                found: list[Epoch] | None = parse(data)
            else:
                found = load_with_backup(files, self._path, parse)
        except (OSError, ValueError) as problem:
            raise StoreError(f"cannot read the epochs of {self._path}: {problem}") from problem
        self._epochs = found or []

    @property
    def epochs(self) -> list[Epoch]:
        """The epochs, the oldest first."""
        return list(self._epochs)

    @property
    def last(self) -> int:
        """The number of the newest epoch; `NO_EPOCH` if there is none."""
        return self._epochs[-1].number if self._epochs else NO_EPOCH

    def begin(self, number: int, start: int) -> None:
        """Let this broker be the master of an epoch from a log offset on.

        A master that starts again in its epoch waits for a newer one. RocketMQ moves the epoch to
        the new end of the log: then what was written in it before counts for the older epoch, in
        which another replica has other bytes there.

        Raises:
            ValueError: the last epoch is as new or newer.
            StoreError: the disk refused; nothing has changed.
        """
        if number <= self.last:
            raise ValueError(f"met epoch {number}, expected {self.last + 1} or more")
        older = [epoch for epoch in self._epochs if epoch.start <= start]
        if not self._epochs and start > 0:
            older = [Epoch(UNKNOWN_EPOCH, 0)]
        self._replace([*older, Epoch(number, start)])

    def received(self, *epochs: Epoch) -> None:
        """Take the epochs that a master sent with its log, except epochs that are known; one write.

        Raises:
            ValueError: they do not ascend, or start before the last one.
            StoreError: the disk refused; nothing has changed.
        """
        new = [epoch for epoch in epochs if epoch.number > self.last]
        if new:
            self._replace([*self._epochs, *new])

    def keep(self, epochs: Sequence[Epoch]) -> None:
        """Keep these epochs only, the epochs of `Common`, after the log was truncated.

        Raises:
            StoreError: the disk refused; nothing has changed.
        """
        if list(epochs) != self._epochs:
            self._replace(epochs)

    def deleted_before(self, log_start: int) -> None:
        """Remove the epochs of which the log has no byte any more, and never the last one.

        Raises:
            StoreError: the disk refused; nothing has changed.
        """
        ends = [epoch.start for epoch in self._epochs[1:]]
        gone = sum(end < log_start for end in ends)
        if gone:
            self._replace(self._epochs[gone:])

    def number_at(self, log_end: int) -> int:
        """Return the number of the epoch in which a log ends; `NO_EPOCH` if there is none.

        That is not the last one if the power took the end of the log, with the start of that epoch.
        """
        found = self.covering(log_end)
        return NO_EPOCH if found is None else found[0].number

    def covering(self, offset: int) -> tuple[Epoch, int] | None:
        """Return the epoch in which a byte of the log was written, and where it ends.

        The end of the newest epoch is `OFFSET_MAX`. None if the list begins behind the offset.
        """
        end = OFFSET_MAX
        for epoch in reversed(self._epochs):
            if epoch.start <= offset:
                return epoch, end
            end = epoch.start
        return None

    def _replace(self, epochs: Sequence[Epoch]) -> None:
        changed = _limited(epochs)
        check_epochs(changed)
        try:
            if changed:
                save_with_backup(self._files, self._path, file_text(changed).encode())
            else:  # RocketMQ leaves the old epochs in the file then, and reads none as damage
                self._remove()
        except OSError as problem:
            raise StoreError(f"cannot write {self._path}: {problem}") from problem
        self._epochs = changed

    def _remove(self) -> None:
        # The backup first: it must not come to life when the file is gone.
        self._files.remove(self._path.with_name(FILE_NAME + ".bak"))
        self._files.remove(self._path)
        self._files.sync_dir(self._path.parent)


def _limited(epochs: Sequence[Epoch]) -> list[Epoch]:
    """Return the epochs that have room; epochs in which nothing was written are left out first.

    Without the epoch of the first byte no empty slave could copy the log.
    """
    surplus = len(epochs) - ENTRIES_MAX
    kept: list[Epoch] = []
    for at, epoch in enumerate(epochs):
        if surplus > 0 and 0 < at < len(epochs) - 1 and epoch.start == epochs[at + 1].start:
            surplus -= 1
        else:
            kept.append(epoch)
    return kept[-ENTRIES_MAX:]


def file_text(epochs: Sequence[Epoch]) -> str:
    """Return the text of the epoch file."""
    lines = "".join(f"{epoch.number}-{epoch.start}\n" for epoch in epochs)
    return f"{len(epochs)}\n{zlib.crc32(lines.encode()) & _CHECKSUM_MASK}\n{lines}"


def parse(data: bytes) -> list[Epoch]:
    """Return the epochs of an epoch file.

    Raises:
        ValueError: it is damaged.
    """
    text = data.decode("ascii")
    count_text, _, rest = text.partition("\n")
    checksum_text, _, lines = rest.partition("\n")
    count, checksum = _number(count_text), _number(checksum_text)
    found = zlib.crc32(lines.encode()) & _CHECKSUM_MASK
    if checksum not in (0, found):
        raise ValueError(f"met lines with the checksum {found}, expected {checksum}")
    epochs = [_epoch(line) for line in lines.splitlines()]
    if not epochs or len(epochs) != count:
        raise ValueError(f"met {len(epochs)} epochs, expected {count}, and at least 1")
    check_epochs(epochs)
    return epochs


def is_torn(data: bytes) -> bool:
    """Return whether bytes are the first ones of an epoch file."""
    written = data.rstrip(b"\0")
    count, _, rest = written.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    if written.strip(b"0123456789-\n"):
        return False
    is_complete = count.isdigit() and checksum.isdigit() and lines.endswith(b"\n")
    found = zlib.crc32(lines) & _CHECKSUM_MASK
    return not is_complete or (lines.count(b"\n") < int(count) and found != int(checksum))


def _epoch(line: str) -> Epoch:
    number, _, start = line.partition("-")
    return Epoch(_number(number), _number(start))


def _number(text: str) -> int:
    if not text.isdigit():  # int() would also take signs, spaces and underscores
        raise ValueError(f"met {text[:40]!r}, expected a number")
    return int(text)
