"""A broker inside the application: processes share it, and it stops with the last of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing.spawn
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq import embedded
from cometmq.cli.embedded_server import LOG_BYTES_MAX, BoundedLog
from cometmq.client import ConfigError, Producer, PushConsumer, StartFrom, StoredMessage, blocking
from cometmq.embedded import EmbeddedError
from cometmq.system.files import Files
from cometmq.testing import ServerProcess
from support.processes.root import mounted_in_memory

IN_TIME_S = 60.0
NOBODY = 65_534

SENDS = """
import sys
from cometmq import embedded
from cometmq.client import blocking
with embedded.open(sys.argv[1]) as broker, blocking.Producer(broker) as producer:
    print(broker.name_servers, flush=True)
    for line in sys.stdin:
        producer.send("orders", line.strip().encode())
        print(line.strip(), flush=True)
"""
SENDS_UNDER_LOAD = """
import asyncio, os, sys
from cometmq import embedded
from cometmq.client import Producer

async def send(producer, task):
    for number in range(1_000_000):
        body = f"{task}-{number}"
        await producer.send("orders", body.encode())
        os.write(1, f"{body}\\n".encode())

async def main():
    async with embedded.open(sys.argv[1]) as broker, Producer(broker) as producer:
        await asyncio.gather(*(send(producer, task) for task in range(16)))

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextlib.contextmanager
def process(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another application that opens the folder."""
    running = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def told(running: subprocess.Popen[str], line: str = "") -> str:
    """Give another application a line, and return its next line."""
    assert running.stdin is not None
    assert running.stdout is not None
    if line:
        running.stdin.write(f"{line}\n")
        running.stdin.flush()
    return running.stdout.readline().strip()


def address_of(folder: Path) -> embedded.Address:
    """The content of the address file."""
    data = (folder / embedded.FILES / embedded.ADDRESS).read_bytes()
    return msgspec.json.decode(data, type=embedded.Address)


def runs(folder: Path) -> bool:
    """Whether a process is the broker of the folder."""
    try:
        Files().lock(folder / embedded.FILES / embedded.SERVER_LOCK, b"").release()
    except BlockingIOError:
        return True
    return False


def wait_until_ended(folder: Path) -> None:
    """Wait until no process is the broker of the folder."""
    deadline = time.monotonic() + IN_TIME_S
    while runs(folder):
        assert time.monotonic() < deadline, "the broker still runs"
        time.sleep(0.02)


def bodies(folder: Path) -> set[str]:
    """All messages in the topic of a folder."""
    found = set()
    with (
        embedded.open(folder) as running,
        blocking.PullConsumer(
            running, topic="orders", group="reader", start_from=StartFrom.FIRST
        ) as consumer,
    ):
        consumer.ready()
        while messages := consumer.poll(1.0):
            found |= {message.body.decode() for message in messages}
    return found


async def test_a_message_is_sent_and_handled_and_the_broker_ends_with_the_block(
    folder: Path,
) -> None:
    handled: asyncio.Queue[StoredMessage] = asyncio.Queue()
    async with embedded.open(folder) as running, Producer(running) as producer:
        await producer.send("orders", b"hello")
        async with PushConsumer(running, topic="orders", group="g", handler=handled.put):
            message = await asyncio.wait_for(handled.get(), IN_TIME_S)
        assert running.alive
    assert message.body == b"hello"
    assert not running.alive
    assert not runs(folder)
    assert not (folder / embedded.FILES / embedded.ADDRESS).exists()
    with pytest.raises(EmbeddedError, match="is not open: use it within `with` or `async with`"):
        _ = running.name_servers


def test_processes_share_one_broker_and_the_last_one_out_stops_it(folder: Path) -> None:
    with process(SENDS, folder) as first, process(SENDS, folder) as second:
        address = told(first)
        assert told(second) == address
        assert told(second, "one") == "one"
        first.kill()
        first.wait()
        assert told(second, "two") == "two"
        with embedded.open(folder) as third:
            assert third.name_servers == address
            second.communicate()
            assert runs(folder)
        assert not runs(folder)
    assert bodies(folder) == {"one", "two"}


def test_a_killed_application_loses_nothing_acknowledged_and_leaves_no_process(
    folder: Path,
) -> None:
    with process(SENDS_UNDER_LOAD, folder) as running:
        acknowledged = {told(running) for _ in range(500)}
        running.kill()
        rest, _ = running.communicate()
    acknowledged |= set(rest.split("\n")[:-1])
    wait_until_ended(folder)

    assert acknowledged - {""} <= bodies(folder)


def test_an_application_that_is_killed_during_the_start_leaves_no_process(folder: Path) -> None:
    files = folder / embedded.FILES
    with process(SENDS, folder) as running:
        deadline = time.monotonic() + IN_TIME_S
        while not (files / embedded.SERVER_LOCK).exists() or not runs(folder):
            assert time.monotonic() < deadline, "no broker was started"
            time.sleep(0.005)
        running.kill()
        running.wait()
        wait_until_ended(folder)

    with embedded.open(folder) as again:
        assert again.alive


def test_a_killed_broker_is_noticed_and_the_folder_opens_again(folder: Path) -> None:
    with embedded.open(folder) as running:
        with blocking.Producer(running) as producer:
            producer.send("orders", b"before")
        _kill_broker(folder)
        deadline = time.monotonic() + IN_TIME_S
        while running.alive and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running.alive

    assert bodies(folder) == {"before"}


def _kill_broker(folder: Path) -> None:
    os.kill(address_of(folder).pid, signal.SIGKILL)


def test_an_address_file_of_the_time_before_a_power_loss_is_not_trusted(folder: Path) -> None:
    """Another program listens now where the broker of the file listened."""
    with embedded.open(folder):
        data = (folder / embedded.FILES / embedded.ADDRESS).read_bytes()
        address = address_of(folder)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        old = f"127.0.0.1:{stranger.getsockname()[1]}"
        (folder / embedded.FILES / embedded.ADDRESS).write_bytes(
            data.replace(address.lease.encode(), old.encode())
        )
        with embedded.open(folder) as running, blocking.Producer(running) as producer:
            producer.send("orders", b"after")
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):  # the token is for the broker alone
            stranger.accept()
    (folder / embedded.FILES / embedded.ADDRESS).write_bytes(b"torn {")

    assert bodies(folder) == {"after"}


def test_a_copied_folder_has_a_broker_of_its_own(folder: Path) -> None:
    with embedded.open(folder) as running:
        files = folder.parent / "copy" / embedded.FILES
        shutil.copytree(folder / embedded.FILES, files)
        with embedded.open(files.parent) as copy:
            assert copy.name_servers != running.name_servers


def test_other_users_cannot_read_the_settings_of_a_broker(folder: Path) -> None:
    account = '{"accessKey":"orders","secretKey":"12345678"}'
    with embedded.open(folder, settings={"innerClientAuthenticationCredentials": account}):
        shown = Path(f"/proc/{address_of(folder).pid}/cmdline").read_text()
    assert str(folder) in shown
    assert "12345678" not in shown


def test_a_lease_needs_the_token_of_the_folder(folder: Path) -> None:
    with embedded.open(folder) as running:
        address = address_of(folder)
        host, _, port = address.lease.rpartition(":")
        for token in (b"wrong\n", b"x" * 10_000):
            stranger = socket.create_connection((host, int(port)), timeout=IN_TIME_S)
            with stranger, contextlib.suppress(OSError):
                stranger.sendall(token)
                assert stranger.recv(1) == b""
        assert running.alive


def test_a_stalled_application_does_not_stop_the_broker(folder: Path) -> None:
    """This process holds its interpreter lock, as a long call of a C library may."""
    holds = ctypes.PyDLL(None)
    with embedded.open(folder), process(SENDS, folder) as other:
        assert told(other)
        assert other.stdin is not None
        other.stdin.write("".join(f"{number}\n" for number in range(50)))
        other.stdin.flush()
        began = time.monotonic()
        holds.usleep(900_000)
        held_s = time.monotonic() - began
        assert held_s > 0.8
        began = time.monotonic()
        assert [told(other) for _ in range(50)] == [str(number) for number in range(50)]
        assert time.monotonic() - began < held_s  # they were stored meanwhile


async def test_a_cancelled_start_leaves_no_process(folder: Path) -> None:
    for pause_s in (0, 0.05, 0.15):
        opening = asyncio.ensure_future(embedded.open(folder).__aenter__())
        await asyncio.sleep(pause_s)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await asyncio.to_thread(wait_until_ended, folder)

    async with embedded.open(folder) as running:
        assert running.alive


def test_a_forked_child_does_not_hold_the_broker(folder: Path) -> None:
    read, write = os.pipe()
    with embedded.open(folder) as running:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.close(write)
                running.close()
                os.read(read, 1)  # until the parent has closed the broker
            os._exit(0)
        assert running.alive
    try:
        assert not runs(folder)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_during_a_start_does_not_hold_the_folder(folder: Path) -> None:
    files = folder / embedded.FILES
    files.mkdir(parents=True)
    held = Files().lock(files / embedded.SERVER_LOCK, b"")  # the start waits for it
    running = embedded.open(folder)
    with contextlib.ExitStack() as started:
        starting = threading.Thread(target=lambda: started.enter_context(running))
        starting.start()
        deadline = time.monotonic() + IN_TIME_S
        while running._process is None:
            assert time.monotonic() < deadline, "no broker was started"
            time.sleep(0.005)
        child = os.fork()
        if child == 0:
            held.release()
            signal.pause()
        try:
            held.release()
            starting.join()
            Files().lock(files / embedded.START_LOCK, b"").release()
            started.close()
            assert not runs(folder)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_the_broker_ignores_the_environment_if_the_application_does(folder: Path) -> None:
    (folder.parent / "json.py").write_text("raise SystemExit('a module of another program')")
    subprocess.run(
        [sys.executable, "-E", "-c", SENDS, str(folder)],
        input="", text=True, check=True, timeout=IN_TIME_S,
        env=os.environ | {"PYTHONPATH": str(folder.parent)},
    )  # fmt: skip


def test_a_python_without_a_program_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", None)
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(EmbeddedError, match=r"sys\.executable is empty, expected the path"):
        embedded.open(folder).start()


def test_a_frozen_application_does_not_start_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = folder.parent / "started"
    application = folder.parent / "application"
    application.write_text(f"#!/bin/sh\ntouch {started}\n")
    application.chmod(0o755)
    python, spawn = sys.executable, multiprocessing.spawn
    monkeypatch.setattr(sys, "executable", str(application))
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", None)
    with pytest.raises(EmbeddedError, match=r"application ended with exit code 0 and wrote noth"):
        embedded.open(folder).start()
    started.unlink()

    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(EmbeddedError, match=r"a frozen application, expected a Python: name a"):
        embedded.open(folder).start()
    assert not started.exists()

    monkeypatch.setitem(sys.modules, "multiprocessing.spawn", spawn)
    monkeypatch.setattr(spawn, "_python_exe", os.fsencode(python))  # by `set_executable`
    with embedded.open(folder) as running:
        assert running.alive


def test_a_full_disk_is_the_reason_of_a_failed_start(folder: Path) -> None:
    folder.mkdir()
    with mounted_in_memory(folder, "size=1m"):
        with (folder / "ballast").open("ab") as ballast:
            disk = os.statvfs(folder)
            os.posix_fallocate(ballast.fileno(), 0, disk.f_bavail * disk.f_frsize)
        with pytest.raises(EmbeddedError, match=r"did not start: .*No space left on device"):
            embedded.open(folder).start()
        assert (folder / embedded.FILES / embedded.SERVER_LOG).read_text() == ""
        shutil.rmtree(folder / embedded.FILES)
        with (
            mounted_in_memory(folder, "size=1m,nr_inodes=1"),
            pytest.raises(EmbeddedError, match="device: expected room on the disk; delete"),
        ):
            embedded.open(folder).start()


def test_a_large_log_is_continued_in_a_new_file(folder: Path) -> None:
    log = folder / embedded.FILES / embedded.SERVER_LOG
    log.parent.mkdir(parents=True)
    log.write_bytes(b"x" * LOG_BYTES_MAX)
    with pytest.raises(EmbeddedError, match="no such setting"):
        embedded.open(folder, settings={"nothingLikeIt": "1"}).start()
    assert "no such setting" in log.read_text()
    assert log.stat().st_size < 1000
    assert log.with_name("server.log.1").stat().st_size == LOG_BYTES_MAX


def test_a_log_does_not_grow_without_bound_while_the_broker_runs(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    line = f"{'warning ' * 10_000}\n"
    with path.open("ab", buffering=0) as file:
        log = BoundedLog(path, file.fileno())
        for number in range(40):
            print(number, line, file=log)
        os.write(file.fileno(), b"from C")
        files = list(tmp_path.iterdir())
        assert len(files) == 2
        assert sum(each.stat().st_size for each in files) < 2 * (LOG_BYTES_MAX + len(line))
        assert "39 warning" in path.read_text()
        assert path.read_text().endswith("from C")
        shutil.rmtree(tmp_path)  # with the broker of a folder that was removed
        for _ in range(40):
            print(line, file=log)
        assert os.fstat(file.fileno()).st_size <= LOG_BYTES_MAX + len(line)
    print("lost", file=log)  # a log that cannot be written ends nothing
    tmp_path.mkdir()


def test_threads_may_close_at_once_and_each_waits_for_the_end(folder: Path) -> None:
    together, one_by_one = threading.Barrier(4), threading.Lock()
    running = embedded.open(folder)
    running.start()

    def close() -> bool:
        together.wait()
        running.close()
        with one_by_one:
            return runs(folder) or running.alive

    with ThreadPoolExecutor(4) as threads:
        closing = [threads.submit(close) for _ in range(4)]
        assert [each.result() for each in closing] == [False] * 4


async def test_tasks_may_leave_at_once_and_each_waits_for_the_end(folder: Path) -> None:
    running = await embedded.open(folder).__aenter__()

    async def leave() -> bool:
        await running.__aexit__(None, None, None)
        return runs(folder)

    assert await asyncio.gather(*(leave() for _ in range(3))) == [False] * 3


def test_a_close_ends_a_start_in_another_thread(folder: Path) -> None:
    files = folder / embedded.FILES
    files.mkdir(parents=True)
    running = embedded.open(folder)
    held = Files().lock(files / embedded.START_LOCK, b"")  # the start waits for it
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(running.start)
        deadline = time.monotonic() + IN_TIME_S
        while running not in embedded._open_brokers:
            assert time.monotonic() < deadline, "no start"
            time.sleep(0.005)
        running.close()
        with pytest.raises(EmbeddedError, match=r"the start .* was cancelled"):
            starting.result(IN_TIME_S)
    held.release()
    with running:
        assert running.alive


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match=r"cannot use the folder .*/file: .*: expected a"):
        embedded.open(tmp_path / "file").start()


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:  # root may write everywhere
        os.seteuid(NOBODY)
    try:
        with pytest.raises(EmbeddedError, match="Permission denied: expected a folder that this"):
            embedded.open(tmp_path / "data").start()
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("name", [embedded.ADDRESS, embedded.SERVER_LOG, embedded.SERVER_LOCK])
def test_a_file_that_cannot_be_used_is_named(folder: Path, name: str) -> None:
    path = folder / embedded.FILES / name
    path.mkdir(parents=True)
    if name == embedded.ADDRESS:
        held = Files().lock(path.with_name(embedded.SERVER_LOCK), b"")
    try:
        with pytest.raises(EmbeddedError, match=f"cannot use the folder .*/{name}: Is a directory"):
            embedded.open(folder).start()
    finally:
        if name == embedded.ADDRESS:
            held.release()


def test_a_wrong_setting_is_named(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"did not start: .*no such setting: nothingLikeIt"):
        embedded.open(folder, settings={"nothingLikeIt": "1"}).start()
    with pytest.raises(ConfigError, match="settings: a=1: expected text"):
        embedded.open(folder, settings={"a": 1})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="storePathRootDir: the folder is the store"):
        embedded.open(folder, settings={"storePathRootDir": "/elsewhere"})
    assert not runs(folder)


@pytest.mark.parametrize("given", ["", "a\0b", b"data", 5, None])
def test_a_folder_that_is_no_path_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"folder=.*: expected a path: embedded.open\('data'\)"):
        embedded.open(given)


def test_a_warning_says_that_the_broker_has_other_settings(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"fileReservedTime": "168", "deleteWhen": "05"}
    with embedded.open(folder, settings=settings):
        for alike in (settings, dict(reversed(settings.items())), None):
            with embedded.open(folder, settings=alike):
                assert not caplog.messages
        with embedded.open(folder, settings={"fileReservedTime": "1"}):
            assert f"settings have no effect: the broker of {folder} was started" in caplog.text


async def test_a_broker_of_its_own_takes_the_folder_over_and_locks_it(folder: Path) -> None:
    """Moving to servers: the same folder, and one changed setting."""
    async with embedded.open(folder) as running, Producer(running) as producer:
        await producer.send("orders", b"before")
    log = folder.parent / "servers.log"
    async with await ServerProcess.start("namesrv", "--port", "0", log=log) as names:
        servers = names.addresses["namesrv"]
        started = ["broker", "--port", "0", "--store", str(folder), "--namesrv", servers]
        async with await ServerProcess.start(*started, log=log) as taken:
            with pytest.raises(EmbeddedError, match=r"did not start: .*lock is held by another"):
                await asyncio.to_thread(embedded.open(folder).start)
            async with embedded.open(folder, name_servers=servers) as moved:
                assert moved.alive
                async with Producer(moved) as producer:
                    await producer.send("orders", b"after")
            await taken.stop()

    assert await asyncio.to_thread(bodies, folder) == {"before", "after"}


def test_the_environment_moves_an_application_to_servers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMETMQ_EMBEDDED_NAME_SERVERS", "127.0.0.1:1")
    with embedded.open(folder) as moved:
        assert moved.name_servers == "127.0.0.1:1"
    assert not folder.exists()
