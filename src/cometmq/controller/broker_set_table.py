"""The broker sets in etcd: one key for each, changed only by compare-and-set."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from cometmq.controller.broker_set import BrokerSet
from cometmq.controller.etcd import Compare, Delete, Etcd, KeyValue, Put
from cometmq.model.errors import CometError, ResponseError
from cometmq.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

ATTEMPTS: Final = 10
"""How often a change is decided anew because another controller was faster."""

T = TypeVar("T")
Decision = tuple[BrokerSet | None, T]
"""The next state, None to delete the set, and what the caller gets once it is stored."""


class BrokerSetTable:
    """Reads and changes broker sets.

    Args:
        etcd: where they are kept.
        prefix: of all keys of one group of controllers; it ends with a slash.
        note: called with each set that was read or written, before a method returns.
    """

    def __init__(
        self, etcd: Etcd, prefix: str, *, note: Callable[[BrokerSet], None] = lambda _known: None
    ) -> None:
        self._etcd = etcd
        self._note = note
        self._prefix = f"{prefix}brokerSets/"
        self._unreadable: set[str] = set()
        """The keys that could not be read the last time, so that each is logged once."""

    async def get(self, name: str) -> BrokerSet | None:
        """Return a broker set, or None if it is unknown.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """
        found = await self._etcd.get(self._prefix + name)
        return None if found is None else self._read(found)

    async def all(self) -> list[BrokerSet]:
        """Return all broker sets that can be read; one that cannot must not stop the others.

        Raises:
            EtcdUnavailableError: etcd gave no response.
        """
        sets: list[BrokerSet] = []
        unreadable: set[str] = set()
        for found in await self._etcd.range(self._prefix):
            try:
                sets.append(self._read(found))
            except CometError as problem:
                unreadable.add(found.key)
                if found.key not in self._unreadable:
                    log.error("no elections for a broker set: %s", problem)
        self._unreadable = unreadable
        return sets

    async def change(self, name: str, decide: Callable[[BrokerSet | None], Decision[T]]) -> T:
        """Store what ``decide`` makes of a broker set, and return its result.

        ``decide`` runs again if the set changed meanwhile, so it must depend on nothing that a run
        of it has changed. If it leaves the set as it is, nothing is written.

        Raises:
            ResponseError: raised by ``decide``; or 2007 if other controllers were always faster.
            EtcdUnavailableError: etcd gave no response; the change may be stored or not.
        """
        key = self._prefix + name
        for _ in range(ATTEMPTS):
            found = await self._etcd.get(key)
            before = None if found is None else self._read(found)
            after, result = decide(before)
            if after == before:
                return result
            operation = Delete(key) if after is None else Put(key, msgspec.json.encode(after))
            revision = found.mod_revision if found is not None else 0
            if await self._etcd.transact([Compare(key, revision)], [operation]):
                if after is not None:
                    self._note(after)
                return result
        raise ResponseError(
            ResponseCode.CONTROLLER_NOT_LEADER,
            f"broker set {name} was changed by other controllers {ATTEMPTS} times in a row",
        )

    def _read(self, found: KeyValue) -> BrokerSet:
        try:
            known = msgspec.json.decode(found.value, type=BrokerSet)
        except msgspec.MsgspecError as error:
            raise CometError(
                f"etcd key {found.key} holds no broker set of this release: {error}"
            ) from None
        master = () if known.master_id is None else (known.master_id,)
        named = {*master, *known.in_sync, *known.in_sync_before}
        if strange := sorted(named - known.replicas.keys()):
            raise CometError(
                f"etcd key {found.key} names the brokers {strange} as the master or as members,"
                f" expected only brokers of the set: {sorted(known.replicas)}; restore a backup of"
                " etcd"
            )
        self._note(known)
        return known
