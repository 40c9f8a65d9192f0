"""Sends metrics to an OpenTelemetry collector, by OTLP over gRPC (the extra ``otlp``).

The messages of a page are made in slices while it is collected; gRPC encodes and sends them in
threads of its own. A request has `POINTS_MAX` series at most, because collectors refuse requests of
more than 4 MiB. Values are those since the start of the server (cumulative), so a page that does
not arrive is not repeated: the next one has all of it.

Source: opentelemetry-proto; BrokerMetricsManager, RocketMQ 5.3 (settings, labels on each series).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from cometmq.metrics.config import MetricsSettings
from cometmq.metrics.page import COUNTER, GAUGE, Buckets, Collect, Head, Metric, Number, Page
from cometmq.metrics.push import MetricsPush
from cometmq.model.errors import CometError, ConfigError
from cometmq.remoting.slices import Slices
from cometmq.system.clock import Clock

try:
    import grpc
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
        ExportMetricsServiceResponse,
    )
    from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp
except ImportError as missing:
    raise ConfigError(
        f"metricsExporterType=OTLP_GRPC needs the extra otlp (no module {missing.name}):"
        " pip install '.[otlp]'"
    ) from None

POINTS_MAX: Final = 4_000
"""How many series one request has."""
CHUNK_POINTS: Final = 500
"""How many series of one metric are together; a larger one is in several parts."""
EXPORT: Final = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
SCOPE: Final = "cometmq"
_CUMULATIVE = otlp.AGGREGATION_TEMPORALITY_CUMULATIVE


class PushError(CometError):
    """A collector did not take a page."""


class OtlpMetric(Metric):
    """A metric as messages of OTLP.

    Args:
        head: its name and kind.
        page: its page.
        merge: see `Metric`.
    """

    def __init__(
        self, head: Head, page: OtlpPage, merge: Callable[[Number, Number], Number]
    ) -> None:
        super().__init__(page.series_max, merge)
        self._head = head
        self._page = page
        self._points: Any = None

    def write(self, labels: dict[str, str], value: Number | Buckets) -> None:
        """Write one series."""
        if self._points is None or len(self._points) >= CHUNK_POINTS:
            self._points = self._new_points()
        point = self._points.add(
            start_time_unix_nano=self._page.began_ns, time_unix_nano=self._page.now_ns
        )
        for name, text in (*self._page.common, *labels.items()):
            point.attributes.add(key=name).value.string_value = text
        if isinstance(value, Buckets):
            point.count = sum(value.counts)
            point.sum = value.sum
            point.bucket_counts.extend(value.counts)
            point.explicit_bounds.extend(self._head.bounds)
        elif isinstance(value, int):
            point.as_int = value
        else:
            point.as_double = value

    def _new_points(self) -> Any:
        head = self._head
        metric = self._page.add_chunk(head)
        if head.kind == GAUGE:
            return metric.gauge.data_points
        if head.kind == COUNTER:
            metric.sum.aggregation_temporality = _CUMULATIVE
            metric.sum.is_monotonic = True
            return metric.sum.data_points
        metric.histogram.aggregation_temporality = _CUMULATIVE
        return metric.histogram.data_points


class OtlpPage(Page):
    """A page as messages of OTLP.

    Args:
        common: the labels of every series.
        series_max: how many series of each metric are kept apart.
        began_ns, now_ns: since when counters count, and the time of their values, since 1970.
    """

    def __init__(self, common: dict[str, str], series_max: int, began_ns: int, now_ns: int) -> None:
        super().__init__(series_max)
        self.common = tuple(common.items())
        self.began_ns = began_ns
        self.now_ns = now_ns
        self._metrics: list[OtlpMetric] = []
        self._chunks: list[Any] = []

    def make(self, head: Head, merge: Callable[[Number, Number], Number]) -> Metric:
        """Return a new metric."""
        metric = OtlpMetric(head, self, merge)
        self._metrics.append(metric)
        return metric

    def add_chunk(self, head: Head) -> Any:
        """Return a new message of a metric, without series."""
        metric = otlp.Metric(name=head.name, description=head.text, unit=head.unit)
        self._chunks.append(metric)
        return metric

    def requests(self) -> Iterator[Any]:
        """Yield the requests that have all series."""
        for metric in self._metrics:
            metric.finish()
        request, points = _new_request(), 0
        for chunk in self._chunks:
            size = len(getattr(chunk, chunk.WhichOneof("data")).data_points)
            if points + size > POINTS_MAX:
                yield request
                request, points = _new_request(), 0
            request.resource_metrics[0].scope_metrics[0].metrics.append(chunk)
            points += size
        if points:
            yield request


class OtlpPush(MetricsPush):
    """Sends pages to a collector.

    Args:
        settings: the collector, and the limits.
        labels: the labels of every series.
        collect: fills a page.
        clock: the time of the series.
    """

    def __init__(
        self,
        settings: MetricsSettings,
        labels: dict[str, str],
        collect: Collect,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(collect, settings.grpc_interval_ms / 1000, settings.grpc_target)
        self._settings = settings
        self._labels = labels
        self._clock = clock or Clock()
        self._began_ns = self._clock.now_ms() * 1_000_000
        self._channel: Any = None
        self._export: Any = None

    async def start(self) -> None:
        """Open the channel, which connects with the first page."""
        secure, address = self._settings.grpc_address
        options = [("grpc.enable_retries", 0), ("grpc.max_receive_message_length", 64 * 1024)]
        if secure:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(), options)
        else:
            self._channel = grpc.insecure_channel(address, options)
        self._export = self._channel.unary_unary(
            EXPORT,
            request_serializer=ExportMetricsServiceRequest.SerializeToString,
            response_deserializer=ExportMetricsServiceResponse.FromString,
        )
        await super().start()

    async def stop(self) -> None:
        """Send no more, and close the channel."""
        await super().stop()
        if self._channel is not None:
            await asyncio.to_thread(self._channel.close)

    def make_page(self) -> Page:
        """Return an empty page."""
        now_ns = self._clock.now_ms() * 1_000_000
        return OtlpPage(self._labels, self._settings.series_max, self._began_ns, now_ns)

    async def send(self, page: Page) -> None:
        """Send a page.

        Raises:
            PushError: the collector did not take it, or not all of it.
        """
        assert isinstance(page, OtlpPage)
        slices = Slices()
        rejected, reason = 0, ""
        async for request in slices.each(page.requests()):
            response = await self._call(request)
            rejected += response.partial_success.rejected_data_points
            reason = reason or response.partial_success.error_message
        if rejected:
            raise PushError(f"the collector rejected {rejected} series: {reason[:200]}")

    async def _call(self, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def on_done(call: Any) -> None:  # in a thread of gRPC
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, done, call)

        call = self._export.future(
            request,
            timeout=self._settings.grpc_timeout_ms / 1000,
            metadata=self._settings.grpc_headers,
        )
        call.add_done_callback(on_done)
        try:
            finished = await done
        finally:
            call.cancel()
        if finished.code() is not grpc.StatusCode.OK:
            details = (finished.details() or "")[:200]
            raise PushError(f"{finished.code().name}: {details}")
        return finished.result()


def _settle(done: asyncio.Future[Any], call: Any) -> None:
    if not done.done():
        done.set_result(call)


def _new_request() -> Any:
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.scope.name = SCOPE
    return request
