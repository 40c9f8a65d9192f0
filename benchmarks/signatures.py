"""Measures what access control costs a broker: pipelined sends with and without signatures.

Three brokers of ours run side by side: one with ``aclEnable=true``, one with
``authenticationEnabled=true`` and ``authorizationEnabled=true``, and one without access control.
They get short loads in turns, so that a machine that is slower for a while is so for all of them. A
load sends the same message over 16 connections with 32 requests in flight on each. Only the opaque
of the requests differs, which is not signed. The broker without access control gets the frames
without the two fields of a signature, so that reading these is part of the cost.

RocketMQ's brokers get the same loads in the same way: 4.9.7 with accounts, 5.3.3 with users.

Examples::

    .venv/bin/python benchmarks/signatures.py                       writes the results
    .venv/bin/python benchmarks/signatures.py --rounds 1 --ours     a look: only prints
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loadgen
import machine
from servers import Comet, Java49, Java53, RocketServer
from verdict import ROUNDS_MIN, verdict, worse_quartile

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "conformance"), str(TESTS / "conformance" / "acl")]

import auth_kit  # noqa: E402
import kit  # noqa: E402
from acl_kit import Account, SignedConnection, sign  # noqa: E402
from wire import ConnectionClosedError, NoAnswerError  # noqa: E402

NOISE_MAX = 0.3
"""In cores; a machine on which more runs beside it gives no verdict."""
COST_MAX = 1.5
"""CPU seconds per million sends that access control may add."""
TURNS = 6
"""Loads of each broker in a round."""
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
PROVIDERS = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
LOCAL_USERS = PROVIDERS.format("authentication", "Authentication")
LOCAL_POLICIES = PROVIDERS.format("authorization", "Authorization")


class _Guarded(RocketServer):
    """A broker that knows the account."""

    first: Account
    """Who may send the first message."""

    def _send_is_acknowledged(self) -> bool:
        try:
            connection = SignedConnection(("127.0.0.1", self.port), self.first, timeout=3.0)
        except OSError:
            return False
        try:
            if kit.send(connection, "first", b"x").code:
                return False
            self._prepare(connection)
            return True
        except (OSError, NoAnswerError, ConnectionClosedError):
            return False
        finally:
            connection.close()

    def _prepare(self, connection: SignedConnection) -> None:
        """Make what the account needs."""


class _WithAccounts(_Guarded):
    """A broker with an account that may send."""

    first = ACCOUNT
    home = "."
    """The folder of RocketMQ below that of the server."""

    def settings(self) -> dict[str, str | int]:
        """Return the settings; write the file of the accounts."""
        home = self.folder / self.home
        file = home / "conf" / "plain_acl.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "accounts:\n"
            f"- {{accessKey: {ACCOUNT.key}, secretKey: {ACCOUNT.secret}, admin: true,"
            f" topicPerms: [{TOPIC}=PUB|SUB, first=PUB]}}\n"
        )
        file.chmod(0o600)
        return {**super().settings(), "aclEnable": "true", "rocketmqHome": str(home)}


class _WithUsers(_Guarded):
    """A broker with a user that may send to the topic only."""

    first = ROOT

    def settings(self) -> dict[str, str | int]:
        """Return the settings, with a super user that creates the other one."""
        return {
            **super().settings(),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": f'{{"username":"{ROOT.key}","password":"{ROOT.secret}"}}',
            "authenticationMetadataProvider": LOCAL_USERS,
            "authorizationMetadataProvider": LOCAL_POLICIES,
        }

    def _prepare(self, connection: SignedConnection) -> None:
        kit.ok(auth_kit.create_user(connection, ACCOUNT.key, ACCOUNT.secret))
        allowed = auth_kit.entry(f"Topic:{TOPIC}", "Pub", "Get", "Create")
        kit.ok(auth_kit.create_acl(connection, f"User:{ACCOUNT.key}", allowed))


class CometWithAccounts(_WithAccounts, Comet):
    """Ours with accounts."""

    name = "cometmq-accounts"


class CometWithUsers(_WithUsers, Comet):
    """Ours with users."""

    name = "cometmq-users"


class Java49WithAccounts(_WithAccounts, Java49):
    """RocketMQ 4.9.7 with accounts."""

    name = "rocketmq-4.9.7-accounts"
    home = "broker"


class Java53WithUsers(_WithUsers, Java53):
    """RocketMQ 5.3.3 with users."""

    name = "rocketmq-5.3.3-users"


@dataclass(frozen=True)
class Group:
    """Brokers that are measured side by side, the first without access control."""

    kinds: Sequence[type[RocketServer]]
    is_restarted: bool
    """Whether each round has new processes."""


OURS = Group((Comet, CometWithAccounts, CometWithUsers), True)
RIVALS = Group((Java49, Java49WithAccounts), False), Group((Java53, Java53WithUsers), False)
Costs = dict[str, float]
"""CPU seconds per million sends, by the name of the broker."""


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


class Running:
    """A broker that is measured."""

    def __init__(self, kind: type[RocketServer], folder: Path) -> None:
        self.server = kind(folder / kind.name, flush="ASYNC_FLUSH")
        self.is_guarded = isinstance(self.server, _Guarded)
        self._frame = folder / f"{kind.name}.frame"
        data, self._opaque_at = frame(signed=self.is_guarded)
        self._frame.write_bytes(data)
        self._acknowledged = 0

    def start(self) -> None:
        """Start it, create the topic, and put load on it until it is warm."""
        self.server.start()
        connection = self._connect()
        kit.ok(kit.create_topic(connection, TOPIC, read=QUEUES, write=QUEUES))
        connection.close()
        self.load(self.server.settle_s, may_refuse=True)  # a cold Java broker is too slow for some

    def load(self, duration_s: float, *, may_refuse: bool = False) -> tuple[float, int]:
        """Put load on it; return its processor seconds and the sends that they were for."""
        # The generator writes the time into bodies of 16 bytes and more, and these are signed.
        options = {
            "addr": self.server.address, "topic": TOPIC, "conns": 16, "window": 32, "body": 8,
            "queues": 1, "create": 0, "verify": 0, "frame": self._frame,
            "patch": f"o={self._opaque_at}", "bname": "broker-a", "warmup": 0.1,
            "duration": duration_s, "pid": ",".join(map(str, self.server.pids)),
        }  # fmt: skip
        command = [str(loadgen.PROGRAM)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=duration_s + 60)
        if done.returncode:
            raise loadgen.LoadError(done.stderr)
        found: dict[str, Any] = json.loads(done.stdout)
        if found["errors"] and not may_refuse:
            raise loadgen.LoadError(f"{self.server.name}: {found}")
        self._acknowledged += found["acked_total"]
        return found["server"]["cpu"], found["messages"]

    def end(self) -> None:
        """Compare what is stored with what was acknowledged."""
        connection = self._connect()
        stored = kit.max_offset(connection, TOPIC)
        connection.close()
        if stored < self._acknowledged:
            raise loadgen.LoadError(
                f"{self.server.name}: {stored} messages stored, {self._acknowledged} acknowledged"
            )

    def _connect(self) -> SignedConnection:
        account = ACCOUNT if self.is_guarded else None
        return SignedConnection(("127.0.0.1", self.server.port), account, timeout=10.0)


def measure(group: Group, asked: argparse.Namespace) -> list[Costs]:
    """Measure the brokers of a group; return the costs of each round."""
    starts, rounds = (asked.rounds, 1) if group.is_restarted else (1, asked.rounds)
    costs: list[Costs] = []
    for _ in range(starts):
        with ExitStack() as stack:
            brokers = [Running(kind, asked.folder) for kind in group.kinds]
            for broker in brokers:
                stack.callback(broker.server.stop)
                broker.start()
            for _ in range(rounds):
                costs.append(_round(brokers, asked.duration))
                print(json.dumps(costs[-1]), flush=True)
            for broker in brokers:
                broker.end()
    return costs


def _round(brokers: list[Running], duration_s: float) -> Costs:
    spent = {broker.server.name: 0.0 for broker in brokers}
    sends = dict.fromkeys(spent, 0)
    for turn in range(TURNS):
        first = turn % len(brokers)
        for broker in brokers[first:] + brokers[:first]:
            seconds, messages = broker.load(duration_s)
            spent[broker.server.name] += seconds
            sends[broker.server.name] += messages
    return {name: spent[name] / sends[name] * 1e6 for name in spent}


def main() -> None:
    """Measure, print, and write the result file of a whole run."""
    asked = _arguments()
    machine.refuse_other_sources()
    loadgen.compile_generator()
    groups = (OURS,) if asked.ours else (OURS, *RIVALS)
    for group in groups:
        for kind in group.kinds:
            kind.prepare()
    with machine.NoiseWatch() as watch:
        rounds = [measure(group, asked) for group in groups]
    lines = [*_head(asked, watch.noise), *_table(groups, rounds, watch.noise)]
    machine.report("signatures", lines, rounds, whole=asked.rounds >= ROUNDS_MIN and not asked.ours)


def _head(asked: argparse.Namespace, noise: machine.Noise) -> list[str]:
    loads = {
        "load": "one message of 128 bytes, 16 connections with 32 requests in flight; in a round,"
        f" each broker of a group has {TURNS} loads of {asked.duration:g} seconds, in turns",
        "figures": "processor seconds per million sends; more: the difference in the same round",
    }
    return machine.page_head(
        "What access control costs a broker",
        loads,
        rounds=asked.rounds,
        noise=noise,
        noise_max=NOISE_MAX,
    )


def _table(
    groups: Sequence[Group], rounds: Sequence[list[Costs]], noise: machine.Noise
) -> list[str]:
    lines = ["| broker | s/M | more | more, worse quartile | target |", "|---|--:|--:|--:|---|"]
    for group, costs in zip(groups, rounds, strict=True):
        base = group.kinds[0].name
        for kind in group.kinds:
            row = f"| {kind.name} | {machine.cell([each[kind.name] for each in costs], '.3g')}"
            more = [each[kind.name] - each[base] for each in costs]
            if kind is group.kinds[0]:
                lines.append(f"{row} | | | |")
                continue
            worse = worse_quartile(more, more_is_better=False)
            target = ""
            if group is OURS:
                said = verdict(more, COST_MAX, more_is_better=False)
                target = f"≤ {COST_MAX} {said if noise.total <= NOISE_MAX else 'no verdict'}"
            lines.append(f"{row} | {machine.cell(more, '.3g')} | {worse:.2f} | {target} |")
    return lines


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the cost of signatures.")
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN)
    parser.add_argument("--duration", type=float, default=0.6, help="seconds of each load")
    parser.add_argument("--ours", action="store_true", help="leave RocketMQ's brokers out")
    parser.add_argument("--folder", type=Path, default=machine.ROOT / "build" / "bench" / "files")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


if __name__ == "__main__":
    main()
