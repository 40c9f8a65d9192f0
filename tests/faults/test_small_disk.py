"""A broker on a small real file system that fills up: refusals, reads, restarts, room again.

What writes to a mapping where the file system has no block left gets a signal, which no seam of
ours can show. So the store lies on a tmpfs of a few MiB, which a ballast file fills up to the byte.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import kit
import pytest
from codes import Answer, Request
from wire import Command, Connection

from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.user import User, UserStatus, UserType
from cometmq.model.errors import StoreError
from support.processes.root import mounted_in_memory
from support.processes.server import Standalone

DISK_MIB = 24
TOPIC, GROUP, QUEUES = "small-disk", "readers", 4
SENDS_MAX = 20_000
CREATE_USER, DELETE_USER, GET_USER = 3001, 3003, 3004
SETTINGS = {
    "brokerIP1": "127.0.0.1",
    "mappedFileSizeCommitLog": 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 300,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "diskMaxUsedSpaceRatio": 95,
    "cleanResourceInterval": 100,
}
LARGE_FILES = {**SETTINGS, "mappedFileSizeConsumeQueue": 20 * 30_000, "maxIndexNum": 200_000}
"""Files of which most is never reserved: there, not even a read of a mapping finds a block."""


class Disk:
    """A file system in memory, with a file that takes its room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, free_bytes: int) -> None:
        """Leave so many bytes free."""
        disk = os.statvfs(self.path)
        room = disk.f_bavail * disk.f_frsize - free_bytes
        if room > 0:
            with self._ballast.open("ab") as file:
                os.posix_fallocate(file.fileno(), file.tell(), room)

    def clear(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "store"
    path.mkdir()
    with mounted_in_memory(path, f"size={DISK_MIB}m"):
        yield Disk(path)


class Sender:
    """Sends messages, each with many keys, and remembers those that were acknowledged."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], bytes] = {}
        self._number = 0

    def send(self, connection: Connection) -> Command:
        self._number += 1
        body = b"%d-" % self._number + b"x" * (self._number % 3000)
        keys = " ".join(f"k{self._number}-{at}" for at in range(self._number % 200))
        header = kit.send_fields(TOPIC, e=self._number % QUEUES, i=f"KEYS\x01{keys}\x02")
        answer = connection.request(Request.SEND_MESSAGE_V2, header, body)
        if answer.code == Answer.SUCCESS:
            place = answer.number("queueId"), answer.number("queueOffset")
            assert self.stored.setdefault(place, body) == body, f"{place} was given twice"
        return answer

    def until_refused(self, connection: Connection) -> Command:
        for _ in range(SENDS_MAX):
            answer = self.send(connection)
            if answer.code != Answer.SUCCESS:
                return answer
        raise AssertionError(f"the disk took {SENDS_MAX} messages")

    def check(self, connection: Connection) -> None:
        """Everything that was acknowledged can be read."""
        for queue in range(QUEUES):
            end = kit.max_offset(connection, TOPIC, queue)
            messages = kit.read_queue(connection, GROUP, TOPIC, end, queue=queue, timeout=60.0)
            found = {(queue, message.queue_offset): message.body for message in messages}
            known = {place: body for place, body in self.stored.items() if place[0] == queue}
            assert known.items() <= found.items()


@pytest.mark.parametrize(
    ("free_bytes", "settings"),
    [
        (0, SETTINGS),
        (4096, LARGE_FILES),
        (20_000, SETTINGS),
        (100_000, LARGE_FILES),
        (1_300_000, SETTINGS),
    ],
    ids=["0", "4096", "20000", "100000", "1300000"],
)
def test_a_full_disk_refuses_sends_and_nothing_else(
    free_bytes: int, settings: Mapping[str, object], disk: Disk, tmp_path: Path
) -> None:
    server, sender = Standalone(tmp_path, settings=settings), Sender()
    server.start()
    with connected(server) as connection:
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        for _ in range(500):
            kit.ok(sender.send(connection))
        disk.fill(free_bytes)
        refused = sender.until_refused(connection)
        assert refused.code == Answer.SERVICE_NOT_AVAILABLE, str(refused)
        assert "disk" in str(refused.remark)
        assert "full" in str(refused.remark)
        sender.check(connection)

    for _ in range(3):  # no loop of starts: each of them serves what is there
        server.kill()
        disk.fill(0)
        server.start()
        with connected(server) as connection:
            sender.check(connection)
            sender.until_refused(connection)

    disk.clear()
    with connected(server) as connection:
        kit.eventually(lambda: sender.send(connection).code == Answer.SUCCESS, timeout=60.0)
        for _ in range(500):
            kit.ok(sender.send(connection))
        sender.check(connection)
    assert server.stop() == 0
    server.start()
    with connected(server) as connection:
        sender.check(connection)
    server.stop()


@pytest.mark.parametrize("damage", ["no checkpoint", "sparse", "sparse after a power cut"])
def test_a_start_on_a_full_disk_needs_neither_blocks_nor_a_checkpoint(
    damage: str, disk: Disk, tmp_path: Path
) -> None:
    """A power cut may take the blocks of what was not synced; RocketMQ's files never had them."""
    settings = {
        **SETTINGS,
        "enableConsumeQueueExt": "true",
        "mappedFileSizeConsumeQueueExt": 64 * 1024,
        "flushIntervalConsumeQueue": 50,
        "flushConsumeQueueThoroughInterval": 1,
    }
    server, sender = Standalone(tmp_path, settings=settings), Sender()
    server.start()
    with connected(server) as connection:
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        for _ in range(500):
            kit.ok(sender.send(connection))
        kit.eventually((disk.path / "checkpoint").exists, timeout=60.0)
        disk.fill(0)
        sender.until_refused(connection)
    server.kill()
    if damage == "no checkpoint":
        (disk.path / "checkpoint").unlink()
    else:
        for folder in ("consumequeue", "consumequeue_ext", "index"):
            for path in (disk.path / folder).rglob("*"):
                if path.is_file():
                    subprocess.run(["fallocate", "--dig-holes", path], check=True)
    if damage == "sparse after a power cut":
        (disk.path / "abort").write_bytes(b"1\nanother boot")
    for free_bytes in (0, 8192, 0):
        disk.fill(free_bytes)
        server.start()
        with connected(server) as connection:
            if damage != "sparse after a power cut":
                sender.check(connection)
            sender.until_refused(connection)
        server.kill()
    disk.clear()
    server.start()
    with connected(server) as connection:
        kit.eventually(lambda: sender.send(connection).code == Answer.SUCCESS, timeout=60.0)
        sender.check(connection)
    assert server.stop() == 0


SUPER, ALICE = User("root", "root-secret", UserType.SUPER), User("alice", "alice-secret")


def test_users_are_changed_again_once_a_full_disk_has_room(disk: Disk) -> None:
    users = UserAccounts(disk.path / "config", [SUPER, ALICE], authorizes=True)
    with closing(users):
        disk.fill(0)
        known = users_until_refused(users)
        for change in (
            lambda: users.delete("alice"),
            lambda: users.update("alice", password="new", type=None, status=UserStatus.DISABLE),
            lambda: users.create(User("bob", "bob-secret")),
        ):
            with pytest.raises(StoreError, match="No space left"):
                change()
        assert users.users() == known
        disk.clear()
        users.create(User("bob", "bob-secret"))
        users.update("alice", password="new", type=None, status=UserStatus.DISABLE)
        users.delete("user-0")
        known = users.users()
    with closing(UserAccounts(disk.path / "config", authorizes=True)) as users:
        assert users.users() == known


def test_users_are_read_at_a_start_on_a_full_disk(disk: Disk) -> None:
    users = UserAccounts(disk.path / "config", [SUPER, ALICE], authorizes=True)
    with closing(users):
        disk.fill(0)
        known = users_until_refused(users)
    for _ in range(2):
        disk.fill(0)
        with closing(UserAccounts(disk.path / "config", [SUPER], authorizes=True)) as users:
            assert users.users() == known
            with pytest.raises(StoreError, match="No space left"):
                users.delete("alice")
            assert users.user("alice") == ALICE
    with closing(UserAccounts(disk.path / "config", [SUPER], authorizes=True)) as users:
        disk.clear()
        users.delete("alice")
        known.remove(ALICE)
        assert users.users() == known
    with closing(UserAccounts(disk.path / "config", authorizes=True)) as users:
        assert users.users() == known


def users_until_refused(users: UserAccounts) -> list[User]:
    """Create users until the disk refuses one; return those that are there."""
    known = users.users()
    for number in range(SENDS_MAX):
        user = User(f"user-{number}", "p" * 200)
        try:
            users.create(user)
        except StoreError:
            assert number > 0, "the disk takes none"
            return sorted(known, key=lambda user: user.name)
        known.append(user)
    raise AssertionError(f"the disk took {SENDS_MAX} users")


def test_a_broker_with_users_starts_on_a_full_disk(disk: Disk, tmp_path: Path) -> None:
    provider = "org.apache.rocketmq.auth.authentication.provider"
    settings = {
        **SETTINGS,
        "authenticationMetadataProvider": f"{provider}.LocalAuthenticationMetadataProvider",
    }
    server, sender = Standalone(tmp_path, settings=settings), Sender()
    server.start()
    with connected(server) as connection:
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        kit.ok(connection.request(CREATE_USER, {"username": "alice"}, b'{"password":"secret"}'))
        kit.ok(sender.send(connection))
    for _ in range(2):
        server.kill()
        disk.fill(0)
        server.start()
        with connected(server) as connection:
            kit.ok(connection.request(GET_USER, {"username": "alice"}))
            sender.check(connection)
            refused = connection.request(DELETE_USER, {"username": "alice"})
            assert "No space left" in str(refused.remark)
    disk.clear()
    with connected(server) as connection:
        kit.ok(connection.request(DELETE_USER, {"username": "alice"}))
        assert not connection.request(GET_USER, {"username": "alice"}).body
    assert server.stop() == 0


@contextmanager
def connected(server: Standalone) -> Iterator[Connection]:
    with closing(Connection(server.broker, timeout=60.0)) as connection:
        yield connection
