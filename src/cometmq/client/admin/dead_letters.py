"""Dead letters: count them, read them page by page, find one, and send them again.

A dead letter that is sent again stays in ``%DLQ%group``. Its copy gets a unique id that is made of
the dead letter and the target topic, so the index of the brokers shows whether a dead letter was
sent again before, by whichever run or program.

RocketMQ's dashboard lets one online member of the group consume a dead letter instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from cometmq.client._connection.routes import Route
from cometmq.client._sending.sender import InnerProducer
from cometmq.client.admin.dead_letter import DeadLetter, ResendTo
from cometmq.client.admin.message_pages import MessagePages, check_page
from cometmq.client.admin.topics import Topics
from cometmq.client.errors import ClientError, SendFailedError, TopicNotFoundError
from cometmq.client.receipt import SendStatus
from cometmq.model.errors import CometError, ConfigError, InvalidMessageIdError, ResponseError
from cometmq.model.message import StoredMessage
from cometmq.model.queue import MessageQueue
from cometmq.model.times import epoch_ms
from cometmq.model.topic import DLQ_PREFIX, check_group_name, dlq_topic, retry_topic
from cometmq.protocol.bodies.client import ConsumerConnection
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.headers.group import GetConsumerConnectionListRequest
from cometmq.protocol.message_id import decode_offset_id

SENDS_MAX = 16
"""Dead letters that are sent at the same time."""
COUNTS_MAX = 8
"""Topics that are counted at the same time."""
INDEX_PAUSES_S = (0.1, 0.4, 1.0, 2.0)
"""Pauses before a broker is asked again for a dead letter that its index may not have yet."""
SEND_S = 10.0
"""Time to send one dead letter."""


class ResendStatus(Enum):
    """The result for a dead letter that was to be sent again.

    Example:
        failed = [each for each in results if each.status is ResendStatus.FAILED]
    """

    SENT = "sent"
    """A broker has stored the copy."""
    SKIPPED = "skipped"
    """Not sent: it was sent again before. `Resent` names the earlier copy."""
    FAILED = "failed"
    """Not sent, or perhaps stored where `Resent.reason` says so."""
    PLANNED = "planned"
    """Not sent, since it is a dry run; it would be."""


@dataclass(frozen=True, slots=True)
class Resent:
    """A dead letter that was to be sent again, with the result.

    Example:
        results: list[Resent] = await admin.resend_dead_letters(page.letters)
        for each in results:
            print(each.letter.message_id, each.status.value, each.topic, each.message_id)
    """

    letter: DeadLetter
    """The dead letter."""
    status: ResendStatus
    """The result."""
    topic: str
    """The target topic."""
    reason: str = ""
    """Why it was not sent; for one that was sent, how it is stored if not as it should be."""
    message_id: str | None = None
    """The unique id of the copy."""
    offset_message_id: str | None = None
    """The broker's id of the copy."""


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some dead letters of one group, in the order in which they became dead letters.

    Example:
        page: DeadLetterPage = await admin.dead_letters("ledger-desk", limit=10)
        while page.letters:
            print(len(page.letters))
            page = await admin.dead_letters("ledger-desk", limit=10, ranges=page.rest)
    """

    letters: list[DeadLetter]
    """The dead letters; none at the end."""
    rest: dict[MessageQueue, range]
    """The offsets that were not read yet, for the next page; a queue without any is not in it."""
    deleted: int = 0
    """Offsets that the brokers deleted while they were to be read."""


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters of a group the brokers have.

    Example:
        counts: list[DeadLetterCount] = await admin.dead_letter_counts()
        print({each.group: each.letters for each in counts})
    """

    group: str
    """The group."""
    letters: int
    """The number of dead letters."""
    last_time_ms: int | None = None
    """When the newest one was stored, in ms since 1970; None if there is none."""
    unreadable: tuple[str, ...] = ()
    """Brokers on which the topic has no read permission."""
    error: str = ""
    """Why they could not be counted; otherwise empty."""


class DeadLetters(Topics, MessagePages):
    """Calls about dead letters."""

    async def dead_letter_counts(
        self, groups: Iterable[str] | None = None
    ) -> list[DeadLetterCount]:
        """Return the number of dead letters of each group.

        Args:
            groups: the groups; None for all with a dead-letter topic.

        Returns:
            One entry for each group, by name. A group whose brokers do not respond has an error.
        """
        if groups is None:
            topics = [name for name in await self.topics() if name.startswith(DLQ_PREFIX)]
        else:
            topics = sorted({dlq_topic(group) for group in groups})
        slots = asyncio.Semaphore(COUNTS_MAX)

        async def count(topic: str) -> DeadLetterCount:
            async with slots:
                return await self._count(topic)

        return list(await asyncio.gather(*map(count, topics)))

    async def dead_letters(
        self,
        group: str,
        *,
        since: datetime | int = 0,
        until: datetime | int = 2**63 - 1,
        limit: int = 100,
        ranges: Mapping[MessageQueue, range] | None = None,
    ) -> DeadLetterPage:
        """Return a page of a group's dead letters, the oldest first.

        Args:
            group: the group.
            since, until: range of the time at which they became dead letters, without ``until``;
                each a `datetime` with a time zone, or ms since 1970.
            limit: the most dead letters of the page, at most 1,000. A page is shorter if the bodies
                have more than 16 MiB.
            ranges: the offsets to read in each queue: `DeadLetterPage.rest` of the page before.
                None for all that the brokers have now. Dead letters that are stored later are not
                in any page.

        A group without dead letters has an empty page.

        Raises:
            ClientError: a broker refuses reading, because the topic has no read permission.
            ConfigError: the limit is out of range.
        """
        check_group_name(group)
        topic = dlq_topic(group)
        check_page(topic, limit, ranges)
        begin_ms, end_ms = epoch_ms(since, "since"), epoch_ms(until, "until")
        if ranges is None:
            try:
                await self._check_readable(topic)
            except TopicNotFoundError:  # the first dead letter creates it
                return DeadLetterPage([], {}, 0)
        page = await self.messages_by_time(
            topic, since=begin_ms, until=end_ms, limit=limit, ranges=ranges
        )
        return DeadLetterPage(list(map(DeadLetter, page.messages)), page.rest, page.deleted)

    async def find_dead_letters(
        self, group: str, *, message_id: str | None = None, key: str | None = None
    ) -> list[DeadLetter]:
        """Find dead letters of a group by an id or by a key.

        Args:
            group: the group.
            message_id: the unique id, or the broker's id of the dead letter.
            key: a key of the message; give either this or the id.

        Returns:
            At most 64 of each broker, the oldest first: a message that was sent again may be
            several dead letters. None if the group has no dead letters.

        Raises:
            ConfigError: both an id and a key are given, or none.
        """
        check_group_name(group)
        if (message_id is None) == (key is None):
            raise ConfigError("find_dead_letters: expected either message_id or key")
        topic = dlq_topic(group)
        try:
            found = await self.messages_by_key(
                topic, message_id or key or "", unique_id=message_id is not None
            )
        except TopicNotFoundError:
            return []
        if not found and message_id is not None:
            found = await self._at_offset_id(topic, message_id)
        return [DeadLetter(message) for message in found]

    async def original_of(self, letter: DeadLetter) -> StoredMessage | None:
        """Return the message that a dead letter was at first, or None if no broker has it now.

        Its ``store_time_ms`` says when it was stored, which a dead letter does not record.
        """
        if letter.original_topic is None:
            return None
        try:
            return await self.message_by_unique_id(letter.original_topic, letter.message_id)
        except TopicNotFoundError:
            return None

    async def resend_dead_letters(
        self,
        letters: Iterable[DeadLetter],
        *,
        to: ResendTo = ResendTo.GROUP,
        again: bool = False,
        dry_run: bool = False,
    ) -> list[Resent]:
        """Send dead letters again. They stay in the dead-letter topic.

        A dead letter that was sent to the same target before is skipped. Copies have the
        properties ``ORIGIN_MSG_ID`` (the id of the dead letter), ``DLQ_RESENT_FROM`` (its topic,
        broker, queue and queue offset) and ``DLQ_RESENT_TIME_MS``. Their retries begin anew. They
        are sent 16 at a time, so their order may change.

        Args:
            letters: such as the letters of a page.
            to: the group, or every group of the original topic.
            again: send also what was sent before, with a new id.
            dry_run: send nothing, and return what would happen.

        Returns:
            One result for each dead letter, in their order. One that fails does not stop the
            others.

        Raises:
            ClientError: the members of the group do not read its retry topic, or the brokers have
                no index, so that it is unknown what was sent before; nothing was sent.
        """
        chosen = list(letters)
        if to is ResendTo.GROUP:
            for group in sorted({letter.group for letter in chosen}):
                await self._check_members(group)
        if not again:
            await self._check_indexes(chosen)
        slots = asyncio.Semaphore(SENDS_MAX)

        async def resend(letter: DeadLetter) -> Resent:
            async with slots:
                return await self._resend(letter, to, again=again, dry_run=dry_run)

        return list(await asyncio.gather(*map(resend, chosen)))

    # --- counting and reading ---------------------------------------------------------------------

    async def _count(self, topic: str) -> DeadLetterCount:
        group = topic.removeprefix(DLQ_PREFIX)
        try:
            unreadable = _unreadable(await self._route(topic))
            stats = (await self.topic_stats(topic)).values()
        except CometError as error:
            return DeadLetterCount(group, 0, error=str(error))
        letters = sum(max(each.max_offset - each.min_offset, 0) for each in stats)
        last = max((each.last_update_timestamp for each in stats), default=0)
        return DeadLetterCount(group, letters, last if letters and last > 0 else None, unreadable)

    async def _check_readable(self, topic: str) -> None:
        if brokers := _unreadable(await self._route(topic)):
            raise ClientError(
                f"{topic} cannot be read on {', '.join(brokers)}: the topic has no read permission"
                " there, as brokers before 4.9.2 created it. Add it with"
                f" cometmq admin topic update {topic} --perm rw"
            )

    async def _at_offset_id(self, topic: str, message_id: str) -> list[StoredMessage]:
        """Return the message with a broker's id, if it is in the topic.

        A unique id looks like one, so only a broker of the topic is called.
        """
        try:
            address = decode_offset_id(message_id).address
        except InvalidMessageIdError:
            return []
        route = await self._route(topic)
        if not any(address in replicas.values() for replicas in route.brokers.values()):
            return []
        try:
            message = await self.message_at(message_id)
        except ResponseError:
            return []
        return [message] if message.topic == topic else []

    # --- sending ----------------------------------------------------------------------------------

    async def _check_members(self, group: str) -> None:
        """Refuse a group whose members read no retry topic; one without members may have any."""
        header = GetConsumerConnectionListRequest(consumer_group=group)
        for address in await self._masters():
            try:
                response = await self.call(
                    address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header
                )
            except ResponseError as error:
                if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
                    continue
                raise
            topics = ConsumerConnection.decode(response.body).subscription_table
            if topics and retry_topic(group) not in topics:
                raise ClientError(
                    f"the members of group {group} do not read {retry_topic(group)}, as pop and"
                    " simple consumers: send their dead letters to the original topic"
                )

    async def _check_indexes(self, letters: list[DeadLetter]) -> None:
        """Refuse brokers that do not find a dead letter by its id: they have no index."""
        probes: dict[tuple[str, str], DeadLetter] = {}
        for letter in letters:
            if letter.message.unique_id is not None:
                probes.setdefault((letter.message.topic, letter.queue.broker_name), letter)
        for letter in probes.values():
            if not await self._is_indexed(letter) and not await self._is_deleted(letter):
                broker = letter.queue.broker_name
                raise ClientError(
                    f"broker {broker} does not find the dead letter {letter.message_id} by its id"
                    " (messageIndexEnable=false?), so whether dead letters were sent again before"
                    " is unknown. Send them with again=True if they were not"
                )

    async def _is_indexed(self, letter: DeadLetter) -> bool:
        """Whether its broker finds a dead letter by its id; the index may be a little late."""
        topic, broker = letter.message.topic, letter.queue.broker_name
        for pause_s in (*INDEX_PAUSES_S, 0.0):
            found = await self._with_id(topic, letter.message_id)
            if any(message.broker_name == broker for message in found):
                return True
            await asyncio.sleep(pause_s)
        return False

    async def _is_deleted(self, letter: DeadLetter) -> bool:
        """Whether its broker has deleted a dead letter, as one of a file may be."""
        try:
            low, _ = await self._offsets.bounds(letter.queue)
        except CometError:
            return True
        return letter.message.queue_offset < low

    async def _with_id(self, topic: str, message_id: str) -> list[StoredMessage]:
        try:
            return await self.messages_by_key(topic, message_id, unique_id=True)
        except TopicNotFoundError:
            return []

    async def _sent_before(self, letter: DeadLetter) -> Resent | None:
        """Return the copy that was sent before, to the group or to the original topic."""
        for topic in (retry_topic(letter.group), letter.original_topic or ""):
            for found in await self._with_id(topic, letter.resend_id(topic)):
                ids = (found.message_id, found.offset_message_id)
                reason = f"sent again before, to {topic}"
                return Resent(letter, ResendStatus.SKIPPED, topic, reason, *ids)
        return None

    async def _resend(
        self, letter: DeadLetter, to: ResendTo, *, again: bool, dry_run: bool
    ) -> Resent:
        topic = letter.target(to)
        if letter.original_topic is None:
            reason = "its original topic is not recorded"
            return Resent(letter, ResendStatus.FAILED, topic, reason)
        unique_id = None if again else letter.resend_id(topic)
        try:
            route = await self._route(topic)
            if not route.publish_queues:
                raise TopicNotFoundError(topic, "it has no writable queue")
            if not again and (before := await self._sent_before(letter)) is not None:
                return before
            if dry_run:
                return Resent(letter, ResendStatus.PLANNED, topic, message_id=unique_id)
            receipt = await InnerProducer.of(self._instance).send(
                letter.copy_for(topic, unique_id=unique_id), timeout=SEND_S
            )
        except CometError as error:
            reason = str(error)
            if isinstance(error, SendFailedError) and error.maybe_stored:
                reason += "; it may be stored: the next run finds out"
            return Resent(letter, ResendStatus.FAILED, topic, reason, unique_id)
        stored = "" if receipt.status is SendStatus.SEND_OK else f"stored, {receipt.status.value}"
        return Resent(
            letter,
            ResendStatus.SENT,
            topic,
            stored,
            receipt.message_id,
            receipt.offset_message_id,
        )


def _unreadable(route: Route) -> tuple[str, ...]:
    readable = {queue.broker_name for queue in route.read_queues}
    return tuple(sorted(name for name in route.brokers if name not in readable))
