"""etcd as processes on loopback, each in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import toolchain

from cometmq.remoting.ports import free_port

START_S = 60.0


class Member:
    """One member of a cluster; it keeps its data while it is down.

    Args:
        folder: of its data and its log.
        arguments: further options of etcd.
        scheme: of its client port.
    """

    def __init__(self, folder: Path, arguments: Sequence[str] = (), scheme: str = "http") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._program = toolchain.command("etcd")
        self._log = folder / "etcd.log"
        self._folder, self._arguments = folder, arguments
        self.address = f"127.0.0.1:{free_port()}"
        self._client, self._peer = f"{scheme}://{self.address}", f"http://127.0.0.1:{free_port()}"
        self.entry = f"{folder.name}={self._peer}"
        """What the list of the members contains of it."""
        self._process: subprocess.Popen[bytes] | None = None
        self._logged = 0
        """Where the log of this start begins."""

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed since."""
        return self._process is not None

    def launch(self, members: str) -> None:
        """Start the process.

        Args:
            members: the entries of all members.
        """
        command = [
            self._program, "--name", self._folder.name, "--data-dir", str(self._folder / "data"),
            "--listen-client-urls", self._client, "--advertise-client-urls", self._client,
            "--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer,
            "--initial-cluster", members, "--logger", "zap", *self._arguments,
        ]  # fmt: skip
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def wait(self) -> None:
        """Wait until it serves clients, as its log says: it knows a leader then."""
        assert self._process is not None
        deadline = time.monotonic() + START_S
        while b"serving client traffic" not in (text := self._log.read_bytes()[self._logged :]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                shown = text[-3000:].decode(errors="replace")
                raise AssertionError(f"etcd did not start:\n{shown}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class EtcdCluster:
    """The members of a cluster."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members

    @property
    def addresses(self) -> list[str]:
        """Where clients reach the members."""
        return [member.address for member in self.members]

    def start(self) -> None:
        """Start the members that are down, and wait until they serve clients."""
        down = [member for member in self.members if not member.is_running]
        entries = ",".join(member.entry for member in self.members)
        for member in down:
            member.launch(entries)
        for member in down:
            member.wait()

    def kill(self) -> None:
        """Kill all members."""
        for member in self.members:
            member.kill()


class EtcdKeys:
    """All keys of an etcd, for tests that lose or restore its data.

    Args:
        address: ``host:port`` of a member.
    """

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/v3/kv/"

    def _call(self, name: str, **fields: str) -> Any:
        request = urllib.request.Request(self._url + name, json.dumps(fields).encode())
        with urllib.request.urlopen(request, timeout=START_S) as response:
            return json.load(response)

    def read(self, part: str) -> dict[str, str]:
        """Return the keys whose name has a part, as etcd's gateway encodes them."""
        found = self._call("range", key=_ALL, range_end=_ALL).get("kvs", [])
        return {one["key"]: one["value"] for one in found if part.encode() in b64decode(one["key"])}

    def restore(self, values: dict[str, str]) -> None:
        """Write keys as they were read."""
        for key, value in values.items():
            self._call("put", key=key, value=value)

    def clear(self) -> None:
        """Delete all keys."""
        self._call("deleterange", key=_ALL, range_end=_ALL)


_ALL = b64encode(b"\0").decode()


@contextmanager
def etcd(folder: Path, *arguments: str, scheme: str = "http") -> Iterator[str]:
    """Run one member, and give its address, ``host:port``.

    Args:
        folder: of its data and its log.
        arguments: further options of etcd.
        scheme: of its client port.
    """
    with _running(EtcdCluster([Member(folder, arguments, scheme)])) as cluster:
        yield cluster.addresses[0]


@contextmanager
def etcd_cluster(folder: Path, size: int) -> Iterator[EtcdCluster]:
    """Run a cluster, each member in a folder of its own below ``folder``."""
    members = [Member(folder / f"etcd{number}") for number in range(size)]
    with _running(EtcdCluster(members)) as cluster:
        yield cluster


@contextmanager
def _running(cluster: EtcdCluster) -> Iterator[EtcdCluster]:
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.kill()
