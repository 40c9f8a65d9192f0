"""Replaces clocks, secrets, disks and network of the product, for all processes of a simulation."""

from __future__ import annotations

import importlib
import pkgutil
import random
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, ModuleType
from typing import Any

import pytest

import cometmq.broker
import cometmq.client
import cometmq.controller
import cometmq.namesrv
from cometmq.broker import opening
from cometmq.broker.durability import feature as durability
from cometmq.remoting import arrivals, listener, wire
from cometmq.store import MessageStore, StoreSettings
from cometmq.system.platforms import posix
from simulation.kernel import EPOCH_MS, PROCESS, SimulatedLoop
from simulation.machines import SimulatedCommit
from support.stores.timer_stores import shrink_wheel

WHEEL_SLOTS = 6 * 3600
"""The timer wheel of a broker: more than the clocks of two processes differ by."""
_now: list[SimulatedLoop] = []


@contextmanager
def replaced(loop: SimulatedLoop) -> Iterator[None]:
    """Let the product have its time, disk, network and secrets from a simulated loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durability, "GroupCommit", SimulatedCommit)
        patch.setattr(opening, "MessageStore", _store)
        patch.setattr(listener, "listening_socket", _listen)
        patch.setattr(wire, "write_batch_of", _write_batch)
        patch.setattr(arrivals, "SYSTEM", posix)  # the loop reports each socket by itself
        shrink_wheel(patch, WHEEL_SLOTS)
        for clock_user, name, replacement in _CLOCKS:
            patch.setattr(clock_user, name, replacement)
        # `token_hex` calls it, too. Names of broker sets are in errors, and so in histories.
        patch.setattr(secrets, "token_bytes", random.Random(loop.chance.seed).randbytes)
        patch.setattr(time, "monotonic", _monotonic)
        patch.setattr(time, "perf_counter", _monotonic)
        patch.setattr(time, "time_ns", _time_ns)
        _now.append(loop)
        try:
            yield
        finally:
            _now.pop()


def _import_all() -> None:
    """Import what a broker imports later: it would keep the clock of this simulation."""
    for package in (cometmq.broker, cometmq.client, cometmq.controller, cometmq.namesrv):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)


def _monotonic() -> float:
    return _now[-1].now_s


def _time_ns() -> int:
    process = PROCESS.get()
    ahead_ms = process.ahead_ms if process is not None else 0
    return (EPOCH_MS + ahead_ms) * 1_000_000 + int(_now[-1].now_s * 1e9)


_REPLACED = {time.monotonic: _monotonic, time.perf_counter: _monotonic, time.time_ns: _time_ns}


def _clocks() -> list[tuple[ModuleType, str, Any]]:
    """Return all names of modules that are clocks, with what replaces them."""
    return [
        (module, name, _REPLACED[value])
        for path, module in list(sys.modules.items())
        if path.startswith("cometmq.")
        for name, value in vars(module).items()
        if isinstance(value, BuiltinFunctionType) and value in _REPLACED
    ]


_import_all()
_CLOCKS = _clocks()


class _CheckedStore(MessageStore):
    """A store of which no confirmed record is erased, unless a folder beside the log has it."""

    def truncate_log(self, offset: int, prepare: Callable[[int], object] = lambda _: None) -> None:
        confirmed_to, parts, at = self.confirmed_to if self.confirms else 0, [], offset
        while at < confirmed_to and (data := self.log_bytes(at, confirmed_to - at)) is not None:
            parts.append(bytes(data))
            at += len(data)
        super().truncate_log(offset, prepare)
        root = self.paths.aside
        kept = [
            self._files.read(root / folder / "commitlog" / entry.name) or b""
            for folder in (self.folders_aside if parts else ())
            for entry in self._files.entries(root / folder / "commitlog")
        ]
        if any(not any(part in data for data in kept) for part in parts):
            found = f"erased: the log has lost what was confirmed from {offset} to {confirmed_to}"
            _now[-1].failures.append(found)


def _store(settings: StoreSettings, *, threaded: bool, **parts: Any) -> MessageStore:
    return _CheckedStore(settings, **parts)


def _write_batch(loop: Any) -> wire.WriteBatch:
    """Return the write batch of a process, which has the loop for itself."""
    process = PROCESS.get()
    assert process is not None
    if process.write_batch is None:
        process.write_batch = wire.WriteBatch(loop)
    batch: wire.WriteBatch = process.write_batch
    return batch


def _listen(host: str, port: int, backlog: int) -> Any:
    return _now[-1].network.listen(host, port, backlog)
