"""Commands as a user gives them, each as a process of its own.

The demo's commands start from nothing, as a user's do; so do the commands of `test_start.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from cometmq.cli.build import build
from support.processes import forks
from support.processes.server import Standalone, standalone
from support.stores.small_stores import opened, put


async def start(
    *arguments: str, folder: Path | None = None, python: tuple[str, ...] | None = None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(python or forks.python()), "-m", "cometmq", *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
        cwd=folder,
    )  # fmt: skip


async def run(
    *arguments: str,
    given: bytes = b"",
    timeout: float = 120.0,
    python: tuple[str, ...] | None = None,
) -> tuple[str, str, int]:
    """Run a command to its end: what it printed, what it complained of, its exit code."""
    process = await start(*arguments, python=python)
    async with asyncio.timeout(timeout):
        output, errors = await process.communicate(given)
    assert process.returncode is not None
    return output.decode(), errors.decode(), process.returncode


async def test_what_is_sent_is_shown(name_servers: str, topic: str) -> None:
    sent, _, code = await run(
        "send", topic, "a green hat", "--tag", "new", "--key", "k1", "--key", "k2",
        "-n", name_servers,
    )  # fmt: skip
    assert code == 0
    assert re.fullmatch(rf"SEND_OK queue={topic}@\S+:\d offset=0 id=[0-9A-F]{{32}}\n", sent)

    shown, errors, code = await run("tail", topic, "--count", "1", "-n", name_servers)
    assert (code, errors) == (0, "")
    assert shown.endswith("offset=0 tag=new keys=k1,k2 'a green hat'\n")


async def test_each_line_of_the_input_is_a_message(name_servers: str, topic: str) -> None:
    given = b"one\n\ntwo\r\nthree"
    sent, _, code = await run(
        "send", topic, "-", "--order-key", "k", "-n", name_servers, given=given
    )
    assert (code, sent.count("SEND_OK")) == (0, 3)

    shown, _, _ = await run("tail", topic, "--count", "3", "-n", name_servers)
    assert re.findall(r"'(.*)'", shown) == ["one", "two", "three"]


async def test_tail_shows_new_messages_as_they_come_until_it_is_interrupted(
    name_servers: str, topic: str
) -> None:
    await run("send", topic, "old", "-n", name_servers)
    tail = await start("tail", topic, "--tag", "a || b", "--last", "5", "-n", name_servers)
    assert tail.stdout is not None
    try:
        for tag in ("a", "c", "b"):
            await run("send", topic, f"with {tag}", "--tag", tag, "-n", name_servers)
        async with asyncio.timeout(120):
            lines = [await tail.stdout.readline() for _ in range(2)]
        tail.send_signal(signal.SIGINT)
        async with asyncio.timeout(120):
            assert await tail.wait() == 130
    finally:
        if tail.returncode is None:
            tail.kill()
            await tail.wait()

    assert sorted(re.findall(r"'(.*)'", b"".join(lines).decode())) == ["with a", "with b"]


async def test_nobody_there_is_told_in_one_line() -> None:
    output, errors, code = await run("send", "t", "x", "-n", "127.0.0.1:1", "--timeout", "2")

    assert (output, code) == ("", 1)
    assert errors.startswith("cometmq: NameServerError: no name server responded: 127.0.0.1:1")
    assert "Traceback" not in errors


async def test_a_wrong_address_is_a_misuse() -> None:
    _, errors, code = await run("send", "t", "x", "-n", "nonsense")

    assert (errors, code) == ("cometmq: a name server address 'nonsense': expected host:port\n", 2)


async def test_the_version_names_the_build_that_runs() -> None:
    output, _, code = await run("--version")

    assert code == 0
    assert re.fullmatch(rf"cometmq \S+ \({build()}.*\), Python \S+\n", output)


@pytest.fixture(scope="module")
def closed_store(tmp_path_factory: pytest.TempPathFactory) -> Standalone:
    """A server that stored three messages of one key and was stopped."""
    with standalone(tmp_path_factory.mktemp("closed")) as server:
        host, port = server.namesrv
        given = b"one\ntwo\nthree\n"
        words = ("send", "t", "-", "--order-key", "k", "--key", "k1", "-n", f"{host}:{port}")
        output, errors, _ = asyncio.run(run(*words, given=given))
        assert output.count("SEND_OK") == 3, errors
        assert server.stop() == 0
    return server


@pytest.fixture
def store(closed_store: Standalone) -> Path:
    return closed_store.folder / "store"


async def test_a_store_lists_its_queues(store: Path) -> None:
    output, _, code = await run("store", "list", str(store))

    assert code == 0
    first, heading, *rows = output.splitlines()
    assert re.fullmatch(r"commit log: files=1 begin=0 end=\d+, closed cleanly", first)
    assert heading.split() == ["TOPIC", "QUEUE", "MIN", "MAX", "MESSAGES"]
    assert [row.split()[0::2] for row in rows] == [["t", "0", "3"]]


async def test_a_store_shows_the_messages_of_a_queue(store: Path) -> None:
    listed, _, _ = await run("store", "list", str(store))
    queue = listed.splitlines()[2].split()[1]

    output, _, code = await run(
        "store", "show", str(store), "t", "--queue", queue, "--offset", "1", "--count", "5"
    )

    assert code == 0
    assert re.findall(r"offset=(\d) keys=k1 '(\w+)'", output) == [("1", "two"), ("2", "three")]


async def test_a_queue_that_is_not_there_is_a_misuse(store: Path) -> None:
    _, errors, code = await run("store", "show", str(store), "unknown")

    assert code == 2
    assert "no queue 0 of topic 'unknown'" in errors


async def test_a_whole_store_is_found_to_be_whole(store: Path) -> None:
    output, _, code = await run("store", "verify", str(store))

    assert code == 0
    assert "records=3 queues=1 index_files=1 findings=0" in output


async def test_damage_in_a_store_is_found(store: Path) -> None:
    """One bit of a tags code in the consume queue; it is put right again afterwards."""
    unit = next((store / "consumequeue" / "t").rglob("0" * 20))
    data = bytearray(unit.read_bytes()[:20])
    with unit.open("r+b") as stream:
        stream.write(bytes([*data[:19], data[19] ^ 1]))
    try:
        output, _, code = await run("store", "verify", str(store))
    finally:
        with unit.open("r+b") as stream:
            stream.write(data)

    assert code == 1
    assert str(unit) in output
    assert "findings=1" in output


SMALL_STORE = """mappedFileSizeCommitLog=16384
mappedFileSizeConsumeQueue=1000
mappedFileSizeConsumeQueueExt=256
maxHashSlotNum=16
maxIndexNum=64
"""


async def test_a_backup_is_read_and_restored_without_the_configuration_of_its_store(
    tmp_path: Path,
) -> None:
    written, backup, restored = (str(tmp_path / name) for name in ("written", "backup", "restored"))
    small, other = str(tmp_path / "small.conf"), str(tmp_path / "other.conf")
    (tmp_path / "small.conf").write_text(SMALL_STORE)
    (tmp_path / "other.conf").write_text(SMALL_STORE.replace("maxIndexNum=64", "maxIndexNum=65"))
    store = opened(Path(written))
    put(store, b"one")

    output, errors, code = await run("store", "backup", written, "--to", backup, "-c", small)
    store.abandon()
    contents = r"taken=\S+ begin=0 end=\d+ last_message=\S+ files=\d+ seconds=\S+\n"
    assert code == 0, errors
    assert re.fullmatch(f"backup={backup} {contents}", output)

    output, _, code = await run("store", "verify", backup)
    assert (code, "records=1 queues=1" in output) == (0, True), output
    _, errors, code = await run("store", "restore", backup, "--to", restored, "-c", other)
    assert (code, "maxIndexNum: met 65, expected 64 as in the backup" in errors) == (2, True)
    output, _, code = await run("store", "restore", backup, "--to", restored)
    assert (code, bool(re.fullmatch(f"store={restored} {contents}", output))) == (0, True), output
    output, _, code = await run("store", "list", restored, "-c", small)
    assert (code, "orders" in output) == (0, True), output


async def test_a_damaged_backup_is_not_restored(store: Path, tmp_path: Path) -> None:
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    _, _, code = await run("store", "backup", str(store), "--to", str(backup), "--link")
    assert code == 0
    with (backup / "config/topics.json").open("r+b") as file:
        file.write(b"x")

    _, errors, code = await run("store", "restore", str(backup), "--to", str(restored))

    assert code == 1
    assert re.search(r"StoreCorruptError: \S+/topics.json: .* another digest", errors)
    assert not restored.exists()


async def test_a_folder_without_a_store_is_a_misuse(tmp_path: Path) -> None:
    _, errors, code = await run("store", "list", str(tmp_path))

    assert code == 2
    assert errors.startswith(f"cometmq: no store in {tmp_path}")


# --- the demo -----------------------------------------------------------------------------------


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def is_running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_the_demo_loses_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    words = ("demo", "--seconds", "8", "--rate", "200")
    output, errors, code = await run(*words, timeout=180, python=(sys.executable,))

    assert code == 0, output + errors
    assert errors == ""
    assert "SIGKILL sent to the server" in output
    counts = re.search(r"sent=(\d+) acknowledged=(\d+) received=(\d+) .* lost=0\n", output)
    assert counts is not None, output
    sent, acknowledged, received = map(int, counts.groups())
    assert sent == acknowledged == received > 100
    assert left_in(tmp_path) == []


async def test_an_interrupted_demo_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    demo = await start("demo", "--seconds", "60", python=(sys.executable,))
    assert demo.stdout is not None
    async with asyncio.timeout(120):
        while b"sending and receiving" not in await demo.stdout.readline():
            pass
    (server,) = children_of(demo.pid)

    demo.terminate()
    async with asyncio.timeout(120):
        await demo.communicate()

    assert demo.returncode == 143
    assert not is_running(server)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("way", ["option", "file"])
async def test_a_server_writes_its_log_as_json(tmp_path: Path, way: str) -> None:
    (tmp_path / "namesrv.conf").write_text(
        "tls.server.mode=enforcing\nuseTLS=true\nlistenPort=0\n"
        + ("logFormat=json\n" if way == "file" else "logFormat=text\n")
    )
    words = ("--log-format", "json") if way == "option" else ()
    server = await start("namesrv", "-c", str(tmp_path / "namesrv.conf"), *words)
    async with asyncio.timeout(120):
        assert server.stdout is not None
        ready = (await server.stdout.readline()).decode()
        host, _, port = re.findall(r"namesrv=(\S+)", ready)[0].rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\0\0\0\0")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        server.send_signal(signal.SIGTERM)
        _, errors = await server.communicate()

    lines = [json.loads(line) for line in errors.decode().splitlines()]
    assert {"time", "level", "logger", "message"} <= set(lines[0])
    assert "useTLS" in lines[0]["message"]
    refused = [line for line in lines if line["level"] == "WARNING"][1]
    assert refused["fields"] == {"server": "namesrv"}


async def test_an_unknown_log_format_is_refused() -> None:
    _, errors, code = await run("namesrv", "--log-format", "xml")

    assert (code, errors) == (2, "cometmq: log format 'xml': expected one of text, json\n")


async def test_each_of_several_brokers_names_itself_in_its_lines(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=b\nlogFormat=json\n")
    words = ("--port", "0", "--store", "store", "--processes", "1")
    brokers = await start("broker", "-c", str(tmp_path / "broker.conf"), *words, folder=tmp_path)
    async with asyncio.timeout(120):
        assert brokers.stdout is not None
        assert (await brokers.stdout.readline()).startswith(b"ready ")
        brokers.send_signal(signal.SIGTERM)
        _, errors = await brokers.communicate()

    lines = [json.loads(line) for line in errors.decode().splitlines()]
    stopped = [line for line in lines if line["message"] == "stopped broker=b-0"]
    assert [line["process"] for line in stopped] == ["b-0"]
