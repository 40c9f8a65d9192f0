"""``cometmq admin dlq``: dead letters, shown, exported and sent again."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cometmq.cli.admin.arguments import GroupName
from cometmq.cli.admin.commands import Call, Commands
from cometmq.cli.admin.dead_letter_files import (
    RESULT_KEYS,
    SENDING,
    UNKNOWN,
    Export,
    Report,
    letters_in,
    result_row,
)
from cometmq.cli.admin.output import Change, Rows, confirmed
from cometmq.cli.exit_codes import print_error
from cometmq.cli.lines import body_text
from cometmq.model.errors import ConfigError
from cometmq.model.nouns import counted
from cometmq.model.times import now_ms, time_of
from cometmq.model.topic import retry_topic
from cometmq.system.log_format import printable

if TYPE_CHECKING:
    from cometmq.client.admin import DeadLetter, DeadLetterPage, Resent
    from cometmq.model.queue import MessageQueue

app = Commands("Dead letters: list, show, export them and send them again.")

PAGE = 64
"""Dead letters in memory at once."""
SCANNED_MAX = 100_000
"""Dead letters that one list looks at."""
BODY_SHOWN_BYTES = 4_096
TOPICS_ASKED_MAX = 20
"""Target topics that a question names one by one."""
FINISH_S = 30.0
"""Time for the sends in flight to end after Ctrl-C."""
NOT_RECORDED = "not recorded"
TABLE_KEYS = (
    "dead_time_ms", "born_time_ms", "original_topic", "retries", "tag", "keys", "error",
    "message_id",
)  # fmt: skip
"""The columns of the table of dead letters; JSON has all keys."""
LIST_KEYS = (
    "group message_id original_topic original_message_id born_time_ms dead_time_ms retries tag keys"
    " error error_time_ms resent_from broker queue offset offset_message_id body_bytes"
)
FILE_KEYS = (
    f"{LIST_KEYS} dlq_topic born_host store_host reconsume_times flag properties body_base64"
)
EXPORT_KEYS = ("file", "exported", "read", "deleted_meanwhile")
ONLY_JSON = ("reconsume_times", "body_base64")
"""Keys that the table of one dead letter leaves out; it has the body as text, if it is text."""

Since = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="TIME", show_default="the oldest",
        help="Only messages that became dead letters at or after a time, such as 2h (ago) or"
        " 2026-01-31T18:00.",
    ),
]  # fmt: skip
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        show_default="the newest",
        help="Only dead letters from before this time.",
    ),
]
OriginalTopic = Annotated[
    str | None,
    typer.Option("--topic", help="Only dead letters with this original topic.", show_default="all"),
]
Tag = Annotated[
    str | None, typer.Option("--tag", help="Only dead letters with this tag.", show_default="all")
]
Key = Annotated[
    str | None, typer.Option("--key", help="Only dead letters with this key.", show_default="all")
]


class To(StrEnum):  # click before 8.2 compares a default with texts
    """The choices of ``--to``; equal to the values of `ResendTo`, which is imported later."""

    GROUP = "group"
    TOPIC = "topic"


class Selection(NamedTuple):
    """The selection of dead letters of a group."""

    since_ms: int
    until_ms: int
    topic: str | None
    tag: str | None
    key: str | None

    @classmethod
    def of(
        cls,
        since: str | None,
        until: str | None,
        topic: str | None,
        tag: str | None,
        key: str | None,
    ) -> Selection:
        """Read the options."""
        now = now_ms()
        return cls(
            0 if since is None else time_of(since, now=now),
            2**63 - 1 if until is None else time_of(until, now=now),
            topic,
            tag,
            key,
        )

    @property
    def is_all(self) -> bool:
        """Whether nothing was chosen."""
        return self == (0, 2**63 - 1, None, None, None)

    def takes(self, letter: DeadLetter) -> bool:
        """Whether a dead letter of the time range is chosen."""
        return (
            self.topic in (None, letter.original_topic)
            and self.tag in (None, letter.message.tags)
            and (self.key is None or self.key in letter.message.keys)
        )


async def pages(
    call: Call, group: str, selection: Selection, ranges: dict[MessageQueue, range] | None = None
) -> AsyncIterator[DeadLetterPage]:
    """Return the pages of a time range, without messages that are stored meanwhile.

    With ``ranges`` they begin at these offsets.
    """
    while True:
        page = await call.admin.dead_letters(
            group,
            since=selection.since_ms,
            until=selection.until_ms,
            limit=PAGE,
            ranges=ranges,
        )
        ranges = page.rest
        yield page
        if not page.letters:
            return


def cursor_of(group: str, text: str) -> dict[MessageQueue, range]:
    """Return the offsets that ``--from`` names.

    Raises:
        ConfigError: the text has another form.
    """
    from cometmq.model.queue import MessageQueue
    from cometmq.model.topic import dlq_topic

    found: dict[MessageQueue, range] = {}
    for part in text.split(","):
        name, _, offset = part.rpartition(":")
        broker, _, queue = name.rpartition(":")
        if not broker or not all(
            each.isascii() and each.isdecimal() and len(each) < 19 for each in (queue, offset)
        ):
            raise ConfigError(
                f"--from {part}: expected BROKER:NUMBER:OFFSET, such as broker-a:0:64"
            )
        found[MessageQueue(dlq_topic(group), broker, int(queue))] = range(int(offset), 2**62)
    return found


def cursor_text(rest: dict[MessageQueue, range]) -> str:
    """Return offsets as ``--from`` expects them."""
    return ",".join(
        f"{queue.broker_name}:{queue.queue_id}:{offsets.start}"
        for queue, offsets in sorted(rest.items())
    )


@app.show("groups", "group letters newest_time_ms unreadable_on error", watch=True)
async def groups(call: Call) -> Rows:
    """Count the dead letters of every group.

    A broker without permission to read them is named: 'dlq list' then says what to do.
    """
    counts = await call.admin.dead_letter_counts()
    call.failed = call.failed or any(each.error for each in counts)
    return [
        (each.group, each.letters, each.last_time_ms, list(each.unreadable), each.error)
        for each in counts
    ]


@app.action("list", keys=f"{LIST_KEYS} first_stored_time_ms")
async def list_letters(
    call: Call,
    group: GroupName,
    since: Since = None,
    until: Until = None,
    topic: OriginalTopic = None,
    tag: Tag = None,
    key: Key = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000, help="The most rows.")] = 50,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="POSITION",
            show_default="the oldest",
            help="Where the list before ended, as it said: BROKER:NUMBER:OFFSET,...",
        ),
    ] = None,
    originals: Annotated[
        bool, typer.Option("--originals", help="Also look up when each was stored at first.")
    ] = False,
) -> None:
    """List the dead letters of a group, the oldest first.

    If there are more, the last line on standard error says how to go on.
    """  # fmt: skip
    from cometmq.model.topic import dlq_topic

    selection = Selection.of(since, until, topic, tag, key)
    ranges = None if start is None else cursor_of(group, start)
    if dlq_topic(group) not in await call.admin.topics():
        call.output.rows((), (), empty=f"group {group} has no dead letters")
        return
    found: list[DeadLetter] = []
    scanned = 0
    rest: dict[MessageQueue, range] = {}
    async for page in pages(call, group, selection, ranges):
        rest = page.rest
        scanned += len(page.letters)
        for number, letter in enumerate(page.letters):
            if selection.takes(letter):
                found.append(letter)
            if len(found) == limit:
                rest = _with(rest, page.letters[number + 1 :])
                break
        if not rest or len(found) == limit or scanned >= SCANNED_MAX:
            break
    rows = await call.side_by_side(found, lambda letter: _row(call, letter, originals=originals))
    keys = list(rows[0]) if rows else []
    call.output.rows(keys, [tuple(row.values()) for row in rows])
    if rest:
        print_error(f"there may be more: add --from {cursor_text(rest)}")


def _with(rest: dict[MessageQueue, range], letters: list[DeadLetter]) -> dict[MessageQueue, range]:
    """Return the offsets that are not shown yet, with the offsets of these letters."""
    found = dict(rest)
    for letter in reversed(letters):
        start = letter.message.queue_offset
        found[letter.queue] = range(start, rest.get(letter.queue, range(0, start + 1)).stop)
    return found


async def _row(call: Call, letter: DeadLetter, *, originals: bool) -> dict[str, Any]:
    """Return what is shown of a dead letter."""
    row = letter.summary()
    if not call.output.as_json:
        row = {key: row[key] for key in TABLE_KEYS}
        row["error"] = row["error"] or NOT_RECORDED
        row["original_topic"] = row["original_topic"] or NOT_RECORDED
    if originals:
        original = await call.admin.original_of(letter)
        row["first_stored_time_ms"] = None if original is None else original.store_time_ms
    return row


@app.action("show", keys=f"{FILE_KEYS} body first_stored_time_ms first_offset_message_id")
async def show(
    call: Call,
    group: GroupName,
    message_id: Annotated[
        str, typer.Argument(help="Unique id of the message, or broker's id of the dead letter.")
    ],
) -> None:
    """Show one dead letter with its properties and its body.

    A message that was sent again and failed again is several dead letters: all are shown. In JSON
    they are an array.
    """
    found = await call.admin.find_dead_letters(group, message_id=message_id)
    if not found:
        raise ConfigError(f"group {group} has no dead letter with the id {message_id}")
    rows = []
    originals = await call.side_by_side(found, call.admin.original_of)
    for letter, original in zip(found, originals, strict=True):
        row = {
            **letter.encode(),
            "body": body_text(letter.message),
            "first_stored_time_ms": None if original is None else original.store_time_ms,
            "first_offset_message_id": None if original is None else original.offset_message_id,
        }
        rows.append(row)
    if call.output.as_json:
        call.output.rows(list(rows[0]), [tuple(row.values()) for row in rows])
        return
    for row in rows:
        row["error"] = row["error"] or NOT_RECORDED
        row["original_topic"] = row["original_topic"] or NOT_RECORDED
        row["body"] = _shown_body(base64.b64decode(row["body_base64"]))
        for key in ONLY_JSON:
            del row[key]
        call.output.record(list(row), tuple(row.values()))


def _shown_body(body: bytes) -> str:
    """Return the beginning of a body: as text if it is text, otherwise in Base64."""
    cut = body[:BODY_SHOWN_BYTES]
    try:
        text = printable(cut.decode("utf-8", "strict" if len(cut) == len(body) else "ignore"))
    except UnicodeDecodeError:
        text = f"Base64: {base64.b64encode(cut).decode()}"
    return text + (f" (the first {len(cut)} bytes)" if len(cut) < len(body) else "")


@app.action("export", keys=" ".join(EXPORT_KEYS))
async def export(
    call: Call,
    group: GroupName,
    file: Annotated[Path, typer.Argument(help="New file, one JSON object in each line.")],
    since: Since = None,
    until: Until = None,
    topic: OriginalTopic = None,
    tag: Tag = None,
    key: Key = None,
) -> None:
    """Export dead letters to a file: all properties, and the body as Base64.

    The file gets its name when it is complete: it was read again, and has as many dead letters as
    were read from the brokers.
    """
    selection = Selection.of(since, until, topic, tag, key)
    target = Export(file)
    read, deleted, expected = 0, 0, None
    try:
        async for page in pages(call, group, selection):
            if expected is None:
                expected = len(page.letters) + sum(map(len, page.rest.values()))
            for letter in page.letters:
                if selection.takes(letter):
                    target.add(letter)
            read += len(page.letters)
            deleted += page.deleted
        if selection.is_all and read + deleted < (expected or 0):
            raise ConfigError(
                f"{counted(read, 'dead letter')} of {group} read, but the brokers have {expected}:"
                f" {file}.partial is not complete"
            )
        target.finish()
    finally:
        target.abandon()
    call.output.record(EXPORT_KEYS, (str(file), target.letters, read, deleted))


@app.action("resend", changes=True, keys=" ".join(RESULT_KEYS))
async def resend(
    call: Call,
    group: GroupName,
    message_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of messages or of dead letters.")
    ] = None,
    to: Annotated[
        To,
        typer.Option(
            "--to",
            show_default="group",
            help="Only this group, by its retry topic, or the original topic and with it"
            " every group that subscribes to it.",
        ),
    ] = To.GROUP,
    all_letters: Annotated[
        bool, typer.Option("--all", help="All dead letters of the group.")
    ] = False,
    since: Since = None,
    until: Until = None,
    topic: OriginalTopic = None,
    tag: Tag = None,
    key: Key = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Send the dead letters of an export file.", metavar="FILE"),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            show_default="none",
            help="File for the results, one JSON object in each line. Name the file of an earlier"
            " run to continue that run.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also dead letters that were sent again before.")
    ] = False,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send dead letters again: by id, by options, from a file, or all.

    Each result is printed: sent, skipped (sent again before) or failed, with the reason and the new
    ids. The exit code is 1 if one has failed. Repeat an interrupted run to continue it: what was
    sent is skipped. Dead letters stay in the topic of dead letters.
    """  # fmt: skip
    selection = Selection.of(since, until, topic, tag, key)
    chosen = [bool(message_ids), file is not None, all_letters]
    if sum(chosen) + (not selection.is_all and not file) != 1:
        raise ConfigError(
            "expected ids, --file, --all, or a selection with --since, --until, --topic, --tag and"
            " --key; and only one of them"
        )

    def source() -> AsyncIterator[list[DeadLetter]]:
        return _chosen(call, group, selection, message_ids or [], file)

    asked = None
    if not (dry_run or yes or message_ids):
        asked = await _confirmed(group, to, source())
        if asked is None:
            call.failed = True
            print("nothing was sent", file=sys.stderr)
            return
    run = _Run(call, Report(report, writes=not dry_run), to, again=again, dry_run=dry_run)
    try:
        async for letters in source():
            if asked is not None:  # others came meanwhile, perhaps for other topics
                letters = [
                    each for each in letters if each.message.queue_offset in asked[each.queue]
                ]
            if letters:
                await run.send(letters)
    finally:
        run.close()


async def _confirmed(
    group: str, to: To, source: AsyncIterator[list[DeadLetter]]
) -> Mapping[MessageQueue, range] | None:
    """Ask whether to send what was not named one by one, with the topics that get it.

    Returns:
        The offsets that the question was about; None if the answer is no.
    """
    counts: Counter[str] = Counter()
    asked: defaultdict[MessageQueue, range] = defaultdict(lambda: range(0))
    async for letters in source:
        for letter in letters:
            end = letter.message.queue_offset + 1
            asked[letter.queue] = range(max(asked[letter.queue].stop, end))
            counts[retry_topic(group) if to is To.GROUP else letter.original_topic or ""] += 1
    rest = counts.total()
    changes = []
    for topic, number in counts.most_common(TOPICS_ASKED_MAX):
        rest -= number
        target = f"topic {topic}" if topic else "no topic: it is not recorded"
        changes.append(Change(_again(number, group), target, None))
    if rest:
        changes.append(Change(_again(rest, group), "other topics", None))
    detail = "" if to is To.GROUP else "every group that subscribes to the topic receives them"
    if changes and not confirmed(
        [replace(change, detail=detail, destroys=True) for change in changes]
    ):
        return None
    return asked


def _again(number: int, group: str) -> str:
    return f"send {counted(number, 'dead letter')} of {group} again"


async def _chosen(
    call: Call,
    group: str,
    selection: Selection,
    message_ids: list[str],
    file: Path | None,
) -> AsyncIterator[list[DeadLetter]]:
    """Return the dead letters to send, some at a time; an error comes before the first."""
    if file is not None:
        for _ in _of_file(file, group, selection):
            pass  # every line is valid before one is sent
        for part in _parts(_of_file(file, group, selection)):
            yield part
    elif message_ids:
        found: dict[str, DeadLetter] = {}
        for message_id in message_ids:
            letters = await call.admin.find_dead_letters(group, message_id=message_id)
            if not letters:
                raise ConfigError(f"group {group} has no dead letter with the id {message_id}")
            found |= {letter.position: letter for letter in letters}
        for part in _parts(found.values()):
            yield part
    else:
        async for page in pages(call, group, selection):
            yield [letter for letter in page.letters if selection.takes(letter)]


def _of_file(file: Path, group: str, selection: Selection) -> Iterator[DeadLetter]:
    """Return the chosen dead letters of an export.

    Raises:
        ConfigError: one belongs to another group.
    """
    for letter in letters_in(file):
        if letter.group != group:
            raise ConfigError(f"{file} has a dead letter of group {letter.group}, not of {group}")
        if selection.since_ms <= letter.dead_time_ms < selection.until_ms and selection.takes(
            letter
        ):
            yield letter


def _parts(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    part: list[DeadLetter] = []
    for letter in letters:
        part.append(letter)
        if len(part) == PAGE:
            yield part
            part = []
    yield part


class _Run:
    """Sends dead letters again, and prints and notes the results."""

    def __init__(self, call: Call, report: Report, to: To, *, again: bool, dry_run: bool) -> None:
        from cometmq.client.admin import ResendTo

        self._call = call
        self._report = report
        self._to = ResendTo(to.value)
        self._again = again
        self._dry_run = dry_run
        self._counts: Counter[str] = Counter()

    async def send(self, letters: list[DeadLetter]) -> None:
        """Send some letters; when Ctrl-C comes, sends in flight end first."""
        known = {
            letter.position: result
            for letter in letters
            if (result := self._of_report(letter)) is not None
        }
        wanted = [letter for letter in letters if letter.position not in known]
        self._report.begin(wanted)
        sending = asyncio.ensure_future(
            self._call.admin.resend_dead_letters(
                wanted, to=self._to, again=self._again, dry_run=self._dry_run
            )
        )
        try:
            results = await asyncio.shield(sending)
        except asyncio.CancelledError:
            async with asyncio.timeout(FINISH_S):
                self._show(await sending, known, letters)
            raise
        self._show(results, known, letters)

    def _show(
        self, results: list[Resent], known: dict[str, Resent], letters: list[DeadLetter]
    ) -> None:
        self._report.add(results)
        made = known | {each.letter.position: each for each in results}
        rows = [result_row(made[letter.position]) for letter in letters]
        self._counts.update(each.status.value for each in made.values())
        if not self._call.output.as_json:
            self._call.output.rows(RESULT_KEYS, rows)
            return
        for row in rows:
            self._call.output.record(RESULT_KEYS, row, line=True)

    def _of_report(self, letter: DeadLetter) -> Resent | None:
        """Return the result of a dead letter that an earlier run has sent, or may have sent."""
        from cometmq.client.admin import ResendStatus, Resent

        topic, state = letter.target(self._to), self._report.state_of(letter)
        if state == ResendStatus.SENT.value:
            return Resent(letter, ResendStatus.SKIPPED, topic, "sent before, as the report says")
        if state == SENDING and self._again:  # the index does not show it: the copy has a new id
            return Resent(letter, ResendStatus.FAILED, topic, UNKNOWN)
        return None

    def close(self) -> None:
        """Print the numbers of results, and close the report."""
        self._report.close()
        text = ", ".join(f"{state} {count}" for state, count in sorted(self._counts.items()))
        print(text or "no dead letter was found", file=sys.stderr)
        self._call.failed = self._call.failed or bool(self._counts["failed"])
