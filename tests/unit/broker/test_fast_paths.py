"""The fast paths with access control beside the general path: the same is allowed, and refused."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cometmq.access.fast_check import USES_MAX
from cometmq.access.plain.accounts import PlainAccounts
from cometmq.access.users.accounts import UserAccounts
from cometmq.access.users.migration import migrate
from cometmq.access.users.policies import PolicyEntry, PolicyType
from cometmq.access.users.user import User, UserStatus, UserType
from cometmq.broker.cold_reads import ColdReads
from cometmq.broker.prerequisites import with_prerequisites
from cometmq.broker.pulling.fast_path import PullFastPath
from cometmq.broker.sending.fast_path import SendFastPath
from cometmq.model.errors import CometError
from cometmq.protocol.batch import encode_batch
from cometmq.protocol.command import Command, command_at, encode_command
from cometmq.protocol.frame import FRAME_BYTES_MAX
from cometmq.protocol.signature import signed_content
from cometmq.protocol.signed_fields import FIELDS_MAX, SignedFields
from cometmq.remoting import Request, RequestHandler, Response, TlsSettings
from cometmq.system.files import Files
from support.brokers.access import plain_control, user_control
from support.checks.cases import case
from support.checks.manual_clock import ManualClock
from support.runner.tiers import rounds
from support.stores.small_stores import all_messages, put
from support.wire import request_variants
from support.wire.fake_transport import Wired
from unit.broker.conftest import Pulls, Tables
from unit.broker.sending.test_fast_path import (
    BATCH,
    BODIES,
    FIELDS,
    HEADERS,
    ITEMS,
    TEXTS,
    Side,
    frame,
    java,
    read,
)

ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
- {accessKey: Publisher, secretKey: publisher-secret, topicPerms: [T=PUB, D=DENY]}
- {accessKey: Consumer, secretKey: consumer-secret, topicPerms: [T=SUB], groupPerms: [G=SUB]}
- {accessKey: Administrator, secretKey: admin-secret, admin: true}
- {accessKey: Trusted, secretKey: trusted-secret, whiteRemoteAddress: 10.8.8.8}
"""
Change = Callable[[UserAccounts], None]
CHANGE = 31000
"""The code of a request that changes the accounts."""
EXAMPLES = settings(
    max_examples=rounds(test=60, long=2000),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
SECRETS = {
    "Publisher": "publisher-secret",
    "Consumer": "consumer-secret",
    "Administrator": "admin-secret",
}


def signed(header: bytes, body: bytes, key: str, secret: str | None = None) -> bytes:
    """A frame of a header, with the fields that its client adds: signed by a simple HMAC."""
    for unsigned in (b'"Signature":"EZ==",', b'"AccessKey":"",'):  # as C++ writes them
        header = header.replace(unsigned, b"")
    whole = frame(header, body)
    command = command_at(whole, 0, len(whole), FRAME_BYTES_MAX)
    assert command is not None
    fields = {**command.fields, "AccessKey": key}
    text = "".join(fields[name] for name in sorted(fields) if name != "Signature")
    content = text.encode("utf-8", "replace") + body
    digest = hmac.digest((secret or SECRETS[key]).encode(), content, hashlib.sha1)
    return with_fields(
        header, {"AccessKey": key, "Signature": base64.b64encode(digest).decode()}, body
    )


def with_fields(header: bytes, more: Mapping[str, str], body: bytes) -> bytes:
    """The frame of a header with further fields."""
    if header[:1] != b"{":
        pairs = header[21:] + b"".join(
            struct.pack(">H", len(name)) + name.encode() + struct.pack(">i", len(value))
            + value.encode() for name, value in more.items()
        )  # fmt: skip
        return frame(header[:17] + struct.pack(">i", len(pairs)) + pairs, body)
    for name, value in more.items():
        field = f'"{name}":"{value}",'.encode()
        for start in (b'"extFields":{', b'"extFields" : {'):
            header = header.replace(start, start + field)
    return frame(header, body)


class Guarded(Side):
    """A store whose requests pass the gate, with the fast path before it or without."""

    def __init__(self, folder: Path, tables: Tables, *, fast: bool, of_users: bool) -> None:
        super().__init__(folder, tables, fast=False)
        (folder / "conf").mkdir()
        (folder / "conf/plain_acl.yml").write_text(ACCOUNTS)
        self.accounts = PlainAccounts(folder, Files(), ManualClock())
        self.accounts.load()
        self.reads = ColdReads()
        self.users: UserAccounts | None = None
        tls = TlsSettings(trusted="ca.pem", client_certificate="optional", client_account="cn")
        if of_users:
            self.users = UserAccounts(folder / "conf", authorizes=True)
            migrate(self.accounts, self.users)
            self.access = user_control(self.users, self.store, self.reads, tls)
        else:
            self.access = plain_control(self.accounts, self.store, self.reads, tls)
        if fast:
            check = self.access.for_sends()
            self.fast_path = SendFastPath(self.send, scans=True, check=check)

    def connect(
        self,
        peer: object = ("10.0.0.9", 51000),
        on_change: Callable[[], None] = lambda: None,
    ) -> Wired:
        def change(request: Request) -> Response:
            on_change()
            return Response(0)

        def guard(request: Request, handler: RequestHandler) -> Any:
            return handler(request) if handler is change else self.access.guard(request, handler)

        handlers = dict.fromkeys((310, 10, 320), self._handle) | {CHANGE: change}
        return Wired(handlers, peer=peer, fast_path=self.fast_path, guard=guard)

    def remove(self, name: str) -> None:
        """Remove an account or a user."""
        if self.users is not None:
            self.users.delete(name)
        else:
            self.accounts.delete_account(name)

    def _handle(self, request: Any) -> Any:
        self.handled += 1
        return with_prerequisites(self.send.handle)(request)


class Both:
    """The two sides, given the same."""

    def __init__(self, folder: Path, tables: Tables, *, of_users: bool = False) -> None:
        for name in ("T", "D", "Other", "%RETRY%G"):
            tables.topic(name, queues=4)
        self.fast = Guarded(folder / "fast", tables, fast=True, of_users=of_users)
        self.general = Guarded(folder / "general", tables, fast=False, of_users=of_users)
        self.refused = 16 if of_users else 1

    def close(self) -> None:
        for side in (self.fast, self.general):
            side.reads.close()
            side.store.abandon()
            if side.users is not None:
                side.users.close()

    async def same(
        self,
        *pieces: bytes,
        peer: object = ("10.0.0.9", 51000),
        names: tuple[tuple[str, str], ...] = (),
    ) -> list[int]:
        """Send the pieces to both, compare everything; returns the response codes.

        Args:
            pieces: what is sent.
            peer: the address of the client.
            names: those in its certificate.
        """
        fast, general = self.fast.connect(peer), self.general.connect(peer)
        start = self.fast.store.written_to
        assert start == self.general.store.written_to
        for side in (fast, general):
            side.connection.certificate_names = names
        for piece in pieces:
            for side in (fast, general):
                side.transport.send(piece)
            for side in (fast, general):
                await side.settled()
        assert read(fast) == read(general)
        assert self.fast.log(start) == self.general.log(start)
        assert fast.connection.closed == general.connection.closed
        return [response.code for response in fast.answers]


@pytest.fixture(params=[False, True], ids=["accounts", "users"])
async def both(
    request: pytest.FixtureRequest, tmp_path: Path, tables: Tables
) -> AsyncIterator[Both]:
    made = Both(tmp_path, tables, of_users=request.param)
    yield made
    made.close()


@pytest.fixture
async def of_accounts(tmp_path: Path, tables: Tables) -> AsyncIterator[Both]:
    made = Both(tmp_path, tables)
    yield made
    made.close()


@pytest.fixture
async def of_users(tmp_path: Path, tables: Tables) -> AsyncIterator[Both]:
    made = Both(tmp_path, tables, of_users=True)
    yield made
    made.close()


async def test_signed_sends_of_an_account_stay_on_the_fast_path(both: Both) -> None:
    stream = [
        signed(java(FIELDS | {"e": str(n % 4)}, opaque=str(n)), b"%d" % n, "Publisher")
        for n in range(20)
    ]
    assert await both.same(b"".join(stream)) == [0] * 20
    assert both.fast.handled == 0
    assert len(all_messages(both.fast.store, "T", 1)) == 5


async def test_signed_sends_of_each_client_stay_on_the_fast_path(both: Both) -> None:
    for form in request_variants.FORMS:
        with case(form):
            header = request_variants.header_of(form, FIELDS, code="310")
            assert await both.same(signed(header, b"body", "Publisher")) == [0]
            assert both.fast.handled == 0


REFUSED = {
    "no account": frame(java(FIELDS)),
    "an unknown account": signed(java(FIELDS), b"body", "Unknown", "publisher-secret"),
    "another secret": signed(java(FIELDS), b"body", "Publisher", "consumer-secret"),
    "the key of another": signed(java(FIELDS), b"body", "Administrator", "publisher-secret"),
    "no signature": with_fields(java(FIELDS), {"AccessKey": "Publisher"}, b"body"),
    "an empty signature": with_fields(
        java(FIELDS), {"AccessKey": "Publisher", "Signature": ""}, b"body"
    ),
    "a changed body": signed(java(FIELDS), b"body", "Publisher").replace(b"body", b"bodY"),
    "a changed topic": signed(java(FIELDS | {"b": "D"}), b"body", "Administrator").replace(
        b'"b":"D"', b'"b":"T"'
    ),
    "a changed queue": signed(java(FIELDS), b"body", "Publisher").replace(b'"e":"1"', b'"e":"2"'),
    "a topic to consume": signed(java(FIELDS), b"body", "Consumer"),
    "a topic that is denied": signed(java(FIELDS | {"b": "D"}), b"body", "Publisher"),
    "a topic by default": signed(java(FIELDS | {"b": "Other"}), b"body", "Publisher"),
    "an unknown topic": signed(java(FIELDS | {"b": "New"}), b"body", "Publisher"),
    "the retry topic of a group": signed(java(FIELDS | {"b": "%RETRY%G"}), b"body", "Publisher"),
}


async def test_what_is_refused_is_refused_on_both_paths(both: Both) -> None:
    good = signed(java(FIELDS, opaque="8"), b"good", "Publisher")
    for number, (name, refused) in enumerate(REFUSED.items(), 1):
        with case(name):
            assert await both.same(good + refused + good) == [0, both.refused, 0]
            assert (both.fast.handled, both.general.handled) == (0, 2 * number)
            assert len(all_messages(both.fast.store, "T", 1)) == 2 * number


@pytest.mark.parametrize("step", [2, 7, 32, 33, 50])
async def test_sends_of_one_read_keep_their_order_around_refused_ones(
    both: Both, step: int
) -> None:
    refused = [REFUSED["a changed body"], REFUSED["a topic that is denied"]]
    stream, expected = b"", []
    for number in range(150):
        is_good = (number + 1) % step != 0
        fields = FIELDS | {"i": f"KEYS\x01{number}\x02"}
        good = signed(java(fields, opaque=str(number)), b"%d" % number, "Publisher")
        stream += good if is_good else refused[number % 2]
        expected.append(0 if is_good else both.refused)
    assert await both.same(stream) == expected
    bodies = [message.body for message in all_messages(both.fast.store, "T", 1)]
    assert bodies == [b"%d" % number for number, code in enumerate(expected) if code == 0]
    assert both.fast.handled == 0


async def test_each_field_is_signed(both: Both) -> None:
    good = signed(java(FIELDS), b"body", "Publisher")
    for name in FIELDS:
        before = f'"{name}":{json.dumps(FIELDS[name])}'.encode()
        after = before[:-1] + (b'0"' if FIELDS[name].isdigit() else b'x"')
        assert good.count(before) == 1
        with case(name):
            changed = frame(good[8:-4].replace(before, after), b"body")
            assert await both.same(changed) == [both.refused]


async def test_fields_may_not_be_there_twice_or_be_added(both: Both) -> None:
    good = signed(java(FIELDS), b"body", "Publisher")
    for more in ('"b":"D",', '"AccessKey":"Administrator",', '"Signature":"AAAA",', '"zz":"x",'):
        header = good[8:-4].replace(b'"extFields":{', b'"extFields":{' + more.encode())
        codes = await both.same(frame(header, b"body"))
        # Of two values the last one counts, for the signature, too.
        assert codes == ([both.refused] if more == '"zz":"x",' else [0])
    for more in (',"b":"D"}', ',"AccessKey":"Administrator"}', ',"Signature":"AAAA"}'):
        header = good[8:-4].replace(b'},"flag"', more.encode() + b',"flag"')
        assert await both.same(frame(header, b"body")) == [both.refused]


async def test_a_large_header_takes_the_general_path(both: Both) -> None:
    more = {f"x{n:02}": "y" for n in range(FIELDS_MAX)}
    assert await both.same(signed(java(FIELDS | more), b"body", "Publisher")) == [0]
    assert both.fast.handled == 1
    fewer = {f"x{n:02}": "y" for n in range(FIELDS_MAX - len(FIELDS) - 1)}
    assert await both.same(signed(java(FIELDS | fewer), b"body", "Publisher")) == [0]
    assert both.fast.handled == 1


async def test_batches_need_the_same(both: Both) -> None:
    fields = FIELDS | {"i": "", "m": "true"}
    body = encode_batch(ITEMS)
    for code in ("310", "320"):
        assert await both.same(signed(java(fields, code=code), body, "Publisher")) == [0]
        assert await both.same(signed(java(fields, code=code), body, "Consumer")) == [both.refused]
    assert both.fast.handled == 0


async def test_senders_share_a_connection_and_are_told_apart(both: Both) -> None:
    good = signed(java(FIELDS), b"body", "Publisher")
    admin = signed(java(FIELDS | {"b": "D"}), b"body", "Administrator")
    bad = signed(java(FIELDS | {"b": "D"}), b"body", "Publisher")
    codes = await both.same(good + admin + bad + good + admin + bad)
    assert codes == [0, 0, both.refused] * 2


async def test_white_addresses_need_no_signature(of_accounts: Both) -> None:
    unsigned = frame(java(FIELDS))
    assert await of_accounts.same(unsigned, peer=("10.9.9.9", 4000)) == [0]
    assert await of_accounts.same(unsigned, peer=("10.9.9.10", 4000)) == [1]
    trusted = with_fields(java(FIELDS), {"AccessKey": "Trusted", "Signature": "AAAA"}, b"body")
    assert await of_accounts.same(trusted, peer=("10.8.8.8", 4000)) == [0]
    assert await of_accounts.same(trusted, peer=("10.8.8.9", 4000)) == [1]
    assert of_accounts.fast.handled == 0


async def test_changed_accounts_count_at_once_on_open_connections(of_accounts: Both) -> None:
    good = signed(java(FIELDS), b"body", "Publisher")
    assert await of_accounts.same(good) == [0]
    fast, general = of_accounts.fast.connect(), of_accounts.general.connect()
    for text, code in ((ACCOUNTS.replace("T=PUB", "T=DENY"), 1), (ACCOUNTS, 0),
                       (ACCOUNTS.replace("publisher-secret", "another-secret"), 1)):  # fmt: skip
        for side, wired in ((of_accounts.fast, fast), (of_accounts.general, general)):
            (side.accounts.main_file.parent / "fresh").write_text(text)
            (side.accounts.main_file.parent / "fresh").replace(side.accounts.main_file)
            side.accounts.reload()
            wired.transport.send(good)
            await wired.settled()
            assert wired.answers[-1].code == code
    assert read(fast) == read(general)


async def test_changed_users_count_at_once_on_open_connections(of_users: Both) -> None:
    good = signed(java(FIELDS), b"body", "Publisher")
    fast, general = of_users.fast.connect(), of_users.general.connect()
    denied = PolicyEntry.parse("Topic:T", ["Pub"], None, "Deny")
    elsewhere = PolicyEntry.parse("Topic:T", ["Pub"], ["10.0.0.8"], "Allow")
    here = PolicyEntry.parse("Topic:T", ["Pub"], ["10.0.0.0/28"], "Allow")

    def put(entry: PolicyEntry) -> Change:
        return lambda users: users.put_entries("Publisher", [(PolicyType.CUSTOM, [entry])])

    def put_status(status: UserStatus) -> Change:
        return lambda users: users.update("Publisher", password=None, type=None, status=status)

    changes: list[tuple[Change, int]] = [
        (lambda users: None, 0),
        (put(denied), 16),
        (put(elsewhere), 16),
        (put(here), 0),
        (put_status(UserStatus.DISABLE), 16),
        (put_status(UserStatus.ENABLE), 0),
        (lambda users: users.update("Publisher", password="x", type=None, status=None), 16),
        (lambda users: users.delete("Publisher"), 16),
    ]
    for change, code in changes:
        for side, wired in ((of_users.fast, fast), (of_users.general, general)):
            assert side.users is not None
            change(side.users)
            wired.transport.send(good)
            await wired.settled()
            assert wired.answers[-1].code == code
    assert read(fast) == read(general)
    assert of_users.fast.handled == 0


@pytest.mark.parametrize("name", ["\u00fcser", 'a"b', "a\\b"])
async def test_users_may_have_any_name(of_users: Both, name: str) -> None:
    for side in (of_users.fast, of_users.general):
        assert side.users is not None
        side.users.create(User(name, "secret-of-user", UserType.SUPER))
    quoted = json.dumps(name, ensure_ascii=False)[1:-1]
    escaped = json.dumps(name)[1:-1]
    fields = {**FIELDS, "AccessKey": name}
    content = signed_content(fields, b"body")
    digest = hmac.digest(b"secret-of-user", content, hashlib.sha1)
    signature = base64.b64encode(digest).decode()
    for text in (quoted, escaped):
        header = java(FIELDS).replace(
            b'"extFields":{',
            f'"extFields":{{"AccessKey":"{text}","Signature":"{signature}",'.encode(),
        )
        assert await of_users.same(frame(header, b"body")) == [0]


async def test_refused_one_way_sends_are_not_stored(both: Both) -> None:
    assert await both.same(frame(java(FIELDS, flag="2"))) == []
    assert all_messages(both.fast.store, "T", 1) == []


@EXAMPLES
@given(
    requests=st.lists(
        st.tuples(HEADERS, BODIES, st.sampled_from([*SECRETS, ""])), min_size=1, max_size=3
    ),
    good=st.sampled_from([0, 1, 5, 33]),
    times=st.sampled_from([1, 1, 2, 12]),
)
async def test_whatever_is_signed_the_two_paths_do_the_same(
    both: Both, requests: list[tuple[bytes, bytes, str]], good: int, times: int
) -> None:
    stream = signed(java(FIELDS), b"body", "Publisher") * good
    for header, body, key in requests:
        try:
            stream += signed(header, body, key) if key else frame(header, body)
        except CometError:  # nothing could sign it
            stream += frame(header, body)
    await both.same(stream * (times if len(stream) < 50_000 else 1))


@EXAMPLES
@given(data=st.data())
async def test_whatever_happens_to_signed_bytes_the_two_paths_do_the_same(
    both: Both, data: st.DataObject
) -> None:
    await both.same(*request_variants.damaged(data, FIELDS, lambda *of: signed(*of, "Publisher")))


def random_frame(chance: Random, number: int) -> bytes:
    """A send of any form, mostly a valid one, and mostly signed by an account that may send it."""
    is_batch = chance.random() < 0.1
    fields = dict(BATCH if is_batch else FIELDS)
    fields["b"] = chance.choice(["T"] * 12 + ["D", "Other", "%RETRY%G", "New"])
    fields["e"] = chance.choice(["0", "1", "2", "3"] * 5 + ["4", "-1"])
    if not is_batch:
        common = ["", f"KEYS\x01{number}\x02", f"TAGS\x01t\x02UNIQ_KEY\x01u{number}\x02"]
        fields["i"] = chance.choice(common * 10 + [text for text in TEXTS if len(text) < 1000])
    fields["j"] = chance.choice("00013")
    for name in "ijkmn":
        if chance.random() < 0.05:
            fields.pop(name, None)
    body = b"%d," % number * chance.randrange(1, 40)
    if is_batch or chance.random() < 0.1:
        body = encode_batch(ITEMS)
    header = request_variants.header_of(
        chance.choice(request_variants.FORMS),
        fields,
        code=chance.choice(["310", "310", "310", "320", "10"]),
        opaque=str(number),
    )
    key = chance.choice(["Publisher"] * 10 + ["Administrator", "Consumer"])
    data = bytearray(signed(header, body, key))
    kind = chance.random()
    if kind < 0.02:
        return frame(header, body)
    if kind < 0.05:
        return chance.choice(list(REFUSED.values()))
    if kind < 0.25:  # other values, in a structure that mostly stays
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(8, len(data))
            if data[at : at + 1].isdigit():
                data[at] = ord(chance.choice("123456789"))
            elif data[at : at + 1].isalpha() and data[at - 1] != ord("\\"):
                data[at] = ord(chance.choice("TDabeiju"))
    elif kind < 0.30:  # one more field, which is not signed, or has another value
        more = chance.choice([{"zz": "x"}, {"b": "D"}, {"AccessKey": "Administrator"}])
        return with_fields(signed(header, body, key)[8 : len(data) - len(body)], more, body)
    elif kind < 0.31:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


@pytest.mark.parametrize("seed", range(rounds(test=1, long=60)))
async def test_many_frames_of_one_read_mean_the_same_on_both_paths(both: Both, seed: int) -> None:
    """1,250 frames for each seed, 125 at a time."""
    chance = Random(seed)
    codes: list[int] = []
    for _ in range(10):
        stream = b"".join(random_frame(chance, number) for number in range(125))
        cuts = sorted(chance.randrange(len(stream)) for _ in range(chance.choice([0, 0, 0, 2])))
        places = [0, *cuts, len(stream)]
        codes += await both.same(*(stream[at:to] for at, to in pairwise(places)))
    assert codes.count(0) > 150
    assert codes.count(both.refused) > 50
    assert both.fast.handled < both.general.handled


@pytest.mark.parametrize("place", [1, 31, 32, 33, 64])
async def test_accounts_that_change_inside_a_read_count_for_the_sends_behind(
    both: Both, place: int
) -> None:
    """A request between the sends removes the account, as one of an administrator may."""
    change = encode_command(Command(CHANGE, opaque=CHANGE))
    stream = [
        signed(java(FIELDS, opaque=str(n)), b"%d" % n, "Publisher") for n in range(place + 70)
    ]
    stream.insert(place, change)
    found = []
    for side in (both.fast, both.general):
        wired = side.connect(on_change=lambda side=side: side.remove("Publisher"))
        wired.transport.send(b"".join(stream))
        await wired.settled()
        found.append(read(wired))
        assert [code for _, code, *_ in found[-1]] == [0] * (place + 1) + [both.refused] * 70
        bodies = [message.body for message in all_messages(side.store, "T", 1)]
        assert bodies == [b"%d" % n for n in range(place)]
    assert found[0] == found[1]
    assert both.fast.handled == 0


# --- pulls --------------------------------------------------------------------------------------

PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "0", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
    "subscription": "*", "expressionType": "TAG",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "key", "is_taken"),
    [
        ({}, "Consumer", True),
        ({}, "Administrator", True),
        ({"topic": "%RETRY%G"}, "Consumer", True),
        ({"topic": "%RETRY%H"}, "Consumer", False),
        ({"topic": "D"}, "Consumer", False),
        ({"consumerGroup": "H"}, "Consumer", False),
        ({}, "Publisher", False),
    ],
)
async def test_the_fast_path_of_pulls_takes_what_is_allowed(
    both: Both, tables: Tables, changes: dict[str, str], key: str, is_taken: bool
) -> None:
    side, handled = both.fast, []
    tables.group("G")
    pulls = Pulls(tables, side.store, held_max=2).handler
    check = side.access.for_pulls()
    wired = Wired(
        {11: lambda request: handled.append(request)},
        fast_path=PullFastPath(pulls, check),
        guard=side.access.guard,
    )
    wired.transport.send(signed(java(PULL | changes, code="11"), b"", key))
    await wired.settled()
    (response,) = wired.answers
    assert handled == []
    assert (response.code != both.refused) is is_taken, response


HELD = PULL | {"sysFlag": "6", "suspendTimeoutMillis": "60000"}


@pytest.mark.parametrize("is_fast", [False, True], ids=["general", "fast"])
@pytest.mark.parametrize(
    ("removed", "refusal"),
    [("Consumer", "Consumer"), ("Publisher", None)],
    ids=["its account", "another one"],
)
async def test_a_held_pull_is_checked_again_if_accounts_have_changed(
    both: Both, tables: Tables, is_fast: bool, removed: str, refusal: str | None
) -> None:
    side = both.fast
    tables.group("G")
    pulls = Pulls(tables, side.store, access=side.access)
    path = PullFastPath(pulls.handler, side.access.for_pulls()) if is_fast else None
    wired = Wired(
        {11: with_prerequisites(pulls.handler.handle)}, fast_path=path, guard=side.access.guard
    )
    wired.transport.send(signed(java(HELD, code="11"), b"", "Consumer"))
    await wired.settled()
    assert (len(pulls.held), wired.answers) == (1, [])

    side.remove(removed)
    put(side.store, b"secret", topic="T")
    pulls.held.arrived("T", 0, 0, 0)

    (response,) = await wired.answered(1)
    if refusal is None:
        assert (response.code, b"secret" in response.body) == (0, True)
    else:
        assert (response.code, response.body) == (both.refused, b"")
        assert refusal in str(response.remark)


@pytest.mark.parametrize("is_fast", [False, True], ids=["general", "fast"])
async def test_a_held_pull_is_refused_if_its_user_has_lost_the_right(
    of_users: Both, tables: Tables, is_fast: bool
) -> None:
    side = of_users.fast
    tables.group("G")
    pulls = Pulls(tables, side.store, access=side.access)
    path = PullFastPath(pulls.handler, side.access.for_pulls()) if is_fast else None
    wired = Wired({11: pulls.handler.handle}, fast_path=path, guard=side.access.guard)
    wired.transport.send(signed(java(HELD, code="11"), b"", "Consumer"))
    await wired.settled()
    assert len(pulls.held) == 1
    assert side.users is not None
    denied = PolicyEntry.parse("Topic:T", ["Sub"], None, "Deny")
    side.users.put_entries("Consumer", [(PolicyType.CUSTOM, [denied])])
    put(side.store, b"secret", topic="T")
    pulls.held.arrived("T", 0, 0, 0)
    (response,) = await wired.answered(1)
    assert (response.code, response.body) == (16, b"")


def test_a_command_is_signed_as_it_was_received() -> None:
    command = Command(310, fields=FIELDS, body=b"body")
    assert signed_content(command.fields, b"body").endswith(b"body")


async def test_a_certificate_is_not_that_of_the_next_client_with_its_address(both: Both) -> None:
    send = frame(java(FIELDS), b"body")
    publisher, consumer = (("CN", "Publisher"),), (("CN", "Consumer"),)
    assert await both.same(send, names=publisher) == [0]
    assert await both.same(send) == [both.refused]
    assert await both.same(send, names=consumer) == [both.refused]
    assert await both.same(send, names=(("CN", "Unknown"),)) == [both.refused]
    assert await both.same(send, names=publisher) == [0]
    assert await both.same(signed(java(FIELDS), b"body", "Consumer"), names=publisher) == [
        both.refused
    ]
    assert both.fast.handled == 0
    assert len(all_messages(both.fast.store, "T", 1)) == 2


@pytest.mark.parametrize("peer", ["10.0.0.9", "10.9.9.9"])
async def test_a_forwarded_send_has_no_right_of_the_slave_that_forwards_it(
    both: Both, peer: str
) -> None:
    """The certificate and the white address are those of the slave, the signature is not."""
    forwarded = java(FIELDS).replace(b"{", b'{"remark":"forwarded by a slave",', 1)
    slave: dict[str, Any] = {"peer": (peer, 51000), "names": (("CN", "Publisher"),)}
    assert await both.same(frame(java(FIELDS), b"body"), **slave) == [0]
    assert await both.same(frame(forwarded, b"body"), **slave) == [both.refused]
    for account, code in (("Publisher", 0), ("Consumer", both.refused)):
        assert await both.same(signed(forwarded, b"body", account), **slave) == [code]


async def test_what_senders_may_use_is_remembered_up_to_a_limit(of_accounts: Both) -> None:
    """An account with a right to all topics may name any number of them, on many connections."""
    check = of_accounts.fast.access.for_sends()
    fields, data = SignedFields(), bytearray(b"body")
    for number in range(4):
        wire = of_accounts.fast.connect(("10.9.9.9", number)).connection
        for topic in range(USES_MAX // 3):
            fields.begin()
            assert check.allows(wire, fields, data, bytearray(), 0, 4, f"Topic-{topic}", None)
        assert 0 < check.uses <= USES_MAX
