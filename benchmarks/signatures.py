"""Measures what access control costs a broker: pipelined sends with and without signatures.

Each round starts a broker with ``aclEnable=true``, one with ``authenticationEnabled=true`` and
``authorizationEnabled=true``, and one without access control, one after the other, and sends the
same message over 16 connections with 32 requests in flight on each. Only the opaque of the requests
differs, which is not signed. The last broker gets the frames without the two fields of a signature,
so that reading these is part of the cost.

Examples::

    .venv/bin/python benchmarks/signatures.py                                writes the results
    .venv/bin/python benchmarks/signatures.py --rounds 1 --duration 1        a look: only prints
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import loadgen
import machine
from servers import Comet

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "conformance"), str(TESTS / "conformance" / "acl")]

import auth_kit  # noqa: E402
import kit  # noqa: E402
from acl_kit import Account, SignedConnection, sign  # noqa: E402
from wire import Connection  # noqa: E402

RESULTS = machine.ROOT / machine.RESULT_FILES
ROUNDS_MIN = 5
"""Fewer rounds give no verdict, and no result file."""
NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
COST_MAX = 1.5
"""CPU seconds per million sends that access control may add."""
ACCOUNT = Account("benchmark", "secret-of-benchmark")
ROOT = Account("root", "secret-of-root")
TOPIC, QUEUES = "signed", 8
OPAQUE = b'"opaque":1000000'
BODY = b"x" * 128
PROPERTIES = (
    "KEYS\x01K00000000001\x02UNIQ_KEY\x017F0000010000000000000000000000AA\x02"
    "WAIT\x01true\x02TAGS\x01TagA"
)
FIELDS: dict[str, Any] = {
    "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1600000000000",
    "h": "0", "i": PROPERTIES, "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


class Guarded(Comet):
    """Ours with access control."""

    name = "cometmq-acl"

    def settings(self) -> dict[str, str | int]:
        """Return the settings, with an account that may send."""
        file = self.folder / "conf" / "plain_acl.yml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            "accounts:\n"
            f"- {{accessKey: {ACCOUNT.key}, secretKey: {ACCOUNT.secret}, admin: true,"
            f" topicPerms: [{TOPIC}=PUB|SUB, first=PUB]}}\n"
        )
        file.chmod(0o600)
        return {**super().settings(), "aclEnable": "true", "rocketmqHome": str(self.folder)}

    def _send_is_acknowledged(self) -> bool:
        try:
            connection = SignedConnection(("127.0.0.1", self.port), ACCOUNT, timeout=3.0)
        except OSError:
            return False
        try:
            return kit.send(connection, "first", b"x").code == 0
        finally:
            connection.close()


class OfUsers(Comet):
    """Ours with users and policies: those of a user that may send to the topic only."""

    name = "cometmq-users"

    def settings(self) -> dict[str, str | int]:
        """Return the settings, with a super user that creates the other one."""
        first = f'{{"username":"{ROOT.key}","password":"{ROOT.secret}"}}'
        return {
            **super().settings(),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": first,
        }

    def _send_is_acknowledged(self) -> bool:
        try:
            root = SignedConnection(("127.0.0.1", self.port), ROOT, timeout=3.0)
        except OSError:
            return False
        try:
            if kit.send(root, "first", b"x").code:
                return False
            kit.ok(auth_kit.create_user(root, ACCOUNT.key, ACCOUNT.secret))
            allowed = auth_kit.entry(f"Topic:{TOPIC}", "Pub", "Get", "Create")
            kit.ok(auth_kit.create_acl(root, f"User:{ACCOUNT.key}", allowed))
            return True
        finally:
            root.close()


def frame(*, signed: bool) -> tuple[bytes, int]:
    """A send as Java writes it, and where its opaque is."""
    fields = sign(ACCOUNT, FIELDS, BODY) if signed else FIELDS
    text = json.dumps(fields, separators=(",", ":"))
    header = (
        f'{{"code":310,"extFields":{text},"flag":0,"language":"JAVA",{OPAQUE.decode()},'
        '"serializeTypeCurrentRPC":"JSON","version":409}'
    ).encode()
    size = 4 + len(header) + len(BODY)
    whole = size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + BODY
    return whole, whole.index(OPAQUE) + OPAQUE.index(b"1")


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    loadgen.compile_generator()
    rounds: list[dict[str, float]] = []
    with machine.NoiseWatch() as watch:
        for number in range(asked.rounds):
            kinds = [Guarded, OfUsers, Comet] if number % 2 else [Comet, OfUsers, Guarded]
            rounds.append({kind.name: _cost(kind, asked) for kind in kinds})
            print(json.dumps(rounds[-1]), flush=True)
    quiet = watch.noise.total <= NOISE_MAX

    def more(kind: type[Comet]) -> str:
        cost = median(each[kind.name] - each[Comet.name] for each in rounds)
        verdict = ("good" if cost <= COST_MAX else "too much") if quiet else "no verdict: noise"
        return f"{cost:.2f}: {verdict}"

    lines = [
        "# What access control costs a broker",
        "",
        f"`benchmarks/signatures.py`, {machine.commit(machine.ROOT)}, {asked.rounds} rounds,"
        f" noise {watch.noise.total:.2f} cores.",
        "",
        "| CPU seconds per million pipelined sends of 128 bytes | Median |",
        "|---|---|",
        f"| without access control | {median(each[Comet.name] for each in rounds):.2f} |",
        f"| signed, with accounts | {median(each[Guarded.name] for each in rounds):.2f} |",
        f"| signed, with users | {median(each[OfUsers.name] for each in rounds):.2f} |",
        f"| more with accounts, at most {COST_MAX} | {more(Guarded)} |",
        f"| more with users, at most {COST_MAX} | {more(OfUsers)} |",
    ]
    print(*lines, sep="\n")
    if asked.rounds >= ROUNDS_MIN:
        (RESULTS / "signatures.md").write_text("\n".join(lines) + "\n")
        (RESULTS / "signatures.json").write_text(json.dumps(rounds, indent=1) + "\n")


def _cost(kind: type[Comet], asked: argparse.Namespace) -> float:
    """Processor time of a broker per million sends."""
    server = kind(asked.folder / kind.name, flush="ASYNC_FLUSH")
    try:
        server.start()
        is_guarded = kind is not Comet
        connection: Connection = SignedConnection(
            ("127.0.0.1", server.port), ACCOUNT if is_guarded else None, timeout=10.0
        )
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        data, opaque_at = frame(signed=is_guarded)
        path = asked.folder / f"{kind.name}.frame"
        path.write_bytes(data)
        found = _generate(server, path, opaque_at, asked.duration)
        stored = kit.max_offset(connection, TOPIC)
        connection.close()
    finally:
        server.stop()
    if found["errors"] or stored < found["acked_total"]:
        raise loadgen.LoadError(f"{stored} messages stored: {found}")
    return float(found["server"]["cpu_per_million"])


def _generate(server: Comet, path: Path, opaque_at: int, duration_s: float) -> dict[str, Any]:
    # The generator writes the time into bodies of 16 bytes and more, and these are signed.
    options = {
        "addr": server.address, "topic": TOPIC, "conns": 16, "window": 32, "body": 8,
        "queues": 1, "create": 0, "verify": 0, "frame": path, "patch": f"o={opaque_at}",
        "bname": "broker-a", "warmup": 1.0, "duration": duration_s,
        "pid": ",".join(map(str, server.pids)),
    }  # fmt: skip
    command = [str(loadgen.PROGRAM)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=duration_s + 60)
    if done.returncode:
        raise loadgen.LoadError(done.stderr)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the cost of signatures.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--duration", type=float, default=3.0, help="seconds of load")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench" / "files")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


if __name__ == "__main__":
    main()
