"""The runtime information of a broker: a table of texts, by RocketMQ's names.

Tools of 4.9 get the keys of 4.9, others those of 5. The figures of functions we do not have are
zeros, because tools read them without asking.

Source: AdminBrokerProcessor.prepareRuntimeInfo and StoreStatsService, RocketMQ 4.9 and 5.3;
rocketmq-exporter (names of metrics).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.broker.core import Core
from cometmq.protocol.command import OUR_VERSION
from cometmq.protocol.version import version_name

if TYPE_CHECKING:
    from cometmq.broker.pop.feature import PopFigures
    from cometmq.broker.producer_sessions.sessions import SessionUsage
    from cometmq.broker.timers.figures import TimerFigures
    from cometmq.broker.transactions.half_queue import HalfMessageFigures

ABSENT: Final = {
    "dispatchMaxBuffer": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": str(2**31 - 1),
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "100000",
    "queryThreadPoolQueueSize": "0",
    "queryThreadPoolQueueCapacity": "20000",
    "queryThreadPoolQueueHeadWaitTimeMills": "0",
    "litePullThreadPoolQueueSize": "0",
    "litePullThreadPoolQueueCapacity": "100000",
    "litePullThreadPoolQueueHeadWaitTimeMills": "0",
    "ackThreadPoolQueueSize": "0",
    "ackThreadPoolQueueCapacity": "100000",
    "ackThreadPoolQueueHeadWaitTimeMills": "0",
    "pullThreadPoolQueueHeadWaitTimeMills": "0",
}
"""Keys of what this broker does not have or never lets wait."""

_OF_RELEASE_5: Final = re.compile("(ack|litePull)ThreadPoolQueue|timer|brokerActive")
"""Beginnings of keys that release 4.9 does not have."""
TRANSFERRED: Final = "getTransferredTps"
TRANSFERRED_4: Final = "getTransferedTps"
"""How release 4.9 spells it."""

EXPORTED: Final = {
    "pmdt_0ms pmdt_0to10ms pmdt_10to50ms pmdt_50to100ms pmdt_100to200ms pmdt_200to500ms"
    " pmdt_500to1s pmdt_1to2s pmdt_2to3s pmdt_3to4s pmdt_4to5s pmdt_5to10s pmdt_10stomore": (
        "putMessageDistributeTime"
    ),
    "put_tps10 put_tps60 put_tps600": "putTps",
    "getfound_tps10 getfound_tps60 getfound_tps600": "getFoundTps",
    "getmiss_tps10 getmiss_tps60 getmiss_tps600": "getMissTps",
    "gettotal_tps10 gettotal_tps60 gettotal_tps600": "getTotalTps",
    "gettransfered_tps10 gettransfered_tps60 gettransfered_tps600": TRANSFERRED,
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "put_latency_99": "putLatency99",
    "put_latency_999": "putLatency999",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
}
"""The exporter's names behind ``rocketmq_brokeruntime_``, and the key of the runtime information
that has their values."""

SENDS_REFUSED: Final = "sendsRefused"
"""The key of why a broker refuses sends until its state changes; only while it does. RocketMQ does
not have it."""

PRODUCER_SESSIONS: Final = "producerSessions"
PRODUCER_SESSIONS_LIMIT: Final = "producerSessionsLimit"
TOPIC_OF_SESSIONS: Final = "producerSessionsTopic"
SESSIONS_OF_TOPIC: Final = "producerSessionsOfTopic"
SESSIONS_OF_TOPIC_LIMIT: Final = "producerSessionsOfTopicLimit"
"""Keys of the producer sessions, and of the topic with the most. RocketMQ does not have them."""

POP_IN_FLIGHT: Final = "popInFlight"
POP_CHECK_POINTS: Final = "popCheckPoints"
POP_CHECK_POINTS_LIMIT: Final = "popCheckPointsLimit"
POP_OLDEST: Final = "popOldestMs"
POP_BEHIND: Final = "popReviveBehindMs"
POP_MIXED: Final = "popMixedModes"
"""Keys of pop consumption, only while messages are in flight; the last one has groups that pull and
pop a topic, as ``group@topic,group@topic``. RocketMQ does not have them."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class DelayLevelOffsets(NamedTuple):
    """How far one delay level was delivered."""

    delivered: int
    scheduled: int


class RuntimeInfo:
    """Makes the table.

    Args:
        core: of the broker.
        waiting_sends: counts the sends that wait for the disk, and returns for how many seconds
            the oldest of them has waited.
        delay_levels: returns the offsets of each delay level that was used.
        timers: returns how far the timers are.
        half_messages: returns their figures; None until they are known.
        sessions: returns how much of the limits of producer sessions is used; None if none was
            used since the start.
        refusal: returns why sends are refused until the state of the broker changes, or "".
        booted_ms: when it was started, in ms since 1970.
    """

    def __init__(
        self,
        core: Core,
        *,
        waiting_sends: Callable[[], tuple[int, float]],
        delay_levels: Callable[[], Mapping[int, DelayLevelOffsets]],
        timers: Callable[[], TimerFigures],
        half_messages: Callable[[], HalfMessageFigures | None],
        sessions: Callable[[], SessionUsage | None],
        refusal: Callable[[], str],
        booted_ms: int,
    ) -> None:
        self._store = core.store
        self._files = core.files
        self._stats = core.stats
        self._throughput = core.measures.throughput
        self._settings = core.settings
        self._waiting_sends = waiting_sends
        self._cold_reads = core.cold_reads
        self._delay_levels = delay_levels
        self._timers = timers
        self._half_messages = half_messages
        self._sessions = sessions
        self.pop: Callable[[], PopFigures] | None = None
        """Returns what is popped and not acknowledged."""
        self._refusal = refusal
        self._clock = core.clock
        self._booted_ms = booted_ms

    def table(self) -> dict[str, str]:
        """Return the texts by their names in RocketMQ 5."""
        table = dict(ABSENT)
        table |= self._store.runtime_figures()
        table |= self._disk()
        table |= self._identity()
        table |= self._puts()
        table |= self._rates()
        table |= self._days()
        table |= self._queues()
        table |= self._timer_messages()
        table |= self._producer_sessions()
        table |= self._popped_messages()
        for level, ends in sorted(self._delay_levels().items()):
            table[f"scheduleMessageOffset_{level}"] = f"{ends.delivered},{ends.scheduled}"
        if reason := self._refusal():
            table[SENDS_REFUSED] = reason
        return table

    def _timer_messages(self) -> dict[str, str]:
        figures = self._timers()
        return {
            "timerReadBehind": str(figures.behind_ms // 1000),
            "timerOffsetBehind": str(figures.queue_behind),
            "timerCongestNum": str(figures.waiting),
            "timerEnqueueTps": f"{figures.enqueued_s:.1f}",
            "timerDequeueTps": f"{figures.delivered_s:.1f}",
        }

    def half_messages(self) -> dict[str, str]:
        """Return figures that RocketMQ does not have here; release 5 exports them as metrics."""
        figures = self._half_messages()
        if figures is None:
            return {}
        return {
            "halfMessagesUndecided": str(figures.undecided),
            "halfMessagesCommitted": str(figures.committed),
            "halfMessagesRolledBack": str(figures.rolled_back),
            "halfMessagesPutBack": str(figures.put_back),
            "halfMessagesDiscarded": str(figures.discarded),
        }

    def _identity(self) -> dict[str, str]:
        settings = self._settings()
        return {
            "brokerVersionDesc": version_name(OUR_VERSION),
            "brokerVersion": str(OUR_VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(self._booted_ms),
            "runtime": running_text((self._clock.now_ms() - self._booted_ms) // 1000),
            "startAcceptSendRequestTimeStamp": str(settings.start_accept_send_request_ms),
        }

    def _disk(self) -> dict[str, str]:
        store, path = self._store, self._store.paths.commit_log
        usage = self._files.usage(path)
        total, ratio = usage.used_bytes + usage.available_bytes, f"{usage.ratio:.2f}"
        return {
            "commitLogDirCapacity": f"Total : {bytes_text(total)}, Free :"
            f" {bytes_text(usage.available_bytes)}.",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{path}": ratio,
            "consumeQueueDiskRatio": ratio,
            "remainHowManyDataToFlush": bytes_text(store.written_to - store.flushed_to),
        }

    def _puts(self) -> dict[str, str]:
        stats, throughput = self._stats, self._throughput
        # RocketMQ never shows 0 here, because tools divide by it.
        messages = max(stats.put_messages, 1)
        return {
            "putMessageTimesTotal": str(messages),
            "putMessageFailedTimes": str(stats.put_failures),
            "putMessageSizeTotal": str(stats.put_bytes),
            "putMessageAverageSize": str(stats.put_bytes / messages),
            "putMessageEntireTimeMax": str(throughput.put_ms_max),
            "getMessageEntireTimeMax": "0",
            "putMessageDistributeTime": throughput.put_distribution(),
            "putLatency99": f"{throughput.put_percentile(0.99):.2f}",
            "putLatency999": f"{throughput.put_percentile(0.999):.2f}",
        }

    def _rates(self) -> dict[str, str]:
        throughput = self._throughput
        return {
            "putTps": throughput.rates(lambda sample: sample.put),
            "getFoundTps": throughput.rates(lambda sample: sample.found),
            "getMissTps": throughput.rates(lambda sample: sample.missed),
            "getTotalTps": throughput.rates(lambda sample: sample.found + sample.missed),
            TRANSFERRED: throughput.rates(lambda sample: sample.transferred),
        }

    def _days(self) -> dict[str, str]:
        puts, gets = self._throughput.puts_of_days(), self._throughput.gets_of_days()
        return {
            "msgPutTotalYesterdayMorning": str(puts.yesterday_morning),
            "msgPutTotalTodayMorning": str(puts.today_morning),
            "msgPutTotalTodayNow": str(puts.today_now),
            "msgGetTotalYesterdayMorning": str(gets.yesterday_morning),
            "msgGetTotalTodayMorning": str(gets.today_morning),
            "msgGetTotalTodayNow": str(gets.today_now),
        }

    def _queues(self) -> dict[str, str]:
        settings = self._settings()
        waiting, oldest_s = self._waiting_sends()
        return {
            "sendThreadPoolQueueSize": str(waiting),
            "sendThreadPoolQueueCapacity": str(settings.send_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": str(int(oldest_s * 1000)),
            # Held pulls do not count: they wait for messages, and tools take this for a backlog.
            "pullThreadPoolQueueSize": str(self._cold_reads.waiting),
            "pullThreadPoolQueueCapacity": str(settings.pull_queue_capacity),
        }

    def _popped_messages(self) -> dict[str, str]:
        figures = None if self.pop is None else self.pop()
        if figures is None or not (figures.check_points or figures.mixed):
            return {}
        table = {
            POP_IN_FLIGHT: str(figures.in_flight),
            POP_CHECK_POINTS: str(figures.check_points),
            POP_CHECK_POINTS_LIMIT: str(figures.check_points_max),
            POP_OLDEST: str(figures.oldest_ms),
            POP_BEHIND: str(figures.behind_ms),
        }
        if figures.mixed:
            table[POP_MIXED] = ",".join(f"{group}@{topic}" for group, topic in figures.mixed)
        return table

    def _producer_sessions(self) -> dict[str, str]:
        used = self._sessions()
        table = {
            PRODUCER_SESSIONS: str(0 if used is None else used.sessions),
            PRODUCER_SESSIONS_LIMIT: str(self._settings().producer_sessions_max),
        }
        if used is None:
            return table
        return table | {
            TOPIC_OF_SESSIONS: used.topic,
            SESSIONS_OF_TOPIC: str(used.of_topic),
            SESSIONS_OF_TOPIC_LIMIT: str(used.limit_of_topic),
        }


def as_release_4(table: dict[str, str]) -> dict[str, str]:
    """Return a table with the keys of release 4.9."""
    return {
        TRANSFERRED_4 if name == TRANSFERRED else name: text
        for name, text in table.items()
        if not _OF_RELEASE_5.match(name)
    }


def running_text(seconds: int) -> str:
    """How long the broker runs, as RocketMQ writes it."""
    days, rest = divmod(max(seconds, 0), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {rest} seconds ]"


def bytes_text(size_bytes: float) -> str:
    """A number of bytes as RocketMQ writes it: ``12 B``, ``2.2 KiB``, ``79.1 GiB``."""
    if abs(size_bytes) < 1024:
        return f"{int(size_bytes)} B"
    power = min((abs(int(size_bytes)).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power]}"
