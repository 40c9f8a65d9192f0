"""An OpenTelemetry collector, as far as it takes metrics: gRPC's server with the real messages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services

LIMIT_S = 60.0


class Collector(services.MetricsServiceServicer):  # type: ignore[misc]
    """Keeps what was exported to it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.rejected = 0
        """How many series it says that it rejects."""
        self.hangs = threading.Event()
        """Set while requests are not responded to."""

    def Export(self, request: Any, context: Any) -> Any:
        with self._changed:
            self.requests.append(request)
            self.headers.append(dict(context.invocation_metadata()))
            self._changed.notify_all()
            while self.hangs.is_set() and context.is_active():
                self._changed.wait(0.05)
        response = messages.ExportMetricsServiceResponse()
        if self.rejected:
            response.partial_success.rejected_data_points = self.rejected
            response.partial_success.error_message = "too many"
        return response

    def wait_for(self, requests: int) -> None:
        """Return once so many requests have arrived."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.requests) >= requests, LIMIT_S)
        assert arrived, f"{len(self.requests)} requests arrived, expected {requests}"

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of all requests by name; the series of parts are put together."""
        found: dict[str, Any] = {}
        for request in list(self.requests):
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name in found:
                            points_of(found[metric.name]).extend(points_of(metric))
                        else:
                            found[metric.name] = metric
        return found


def points_of(metric: Any) -> Any:
    """Return the series of a metric."""
    return getattr(metric, metric.WhichOneof("data")).data_points


def labels_of(point: Any) -> dict[str, str]:
    """Return the labels of a series."""
    return {each.key: each.value.string_value for each in point.attributes}


@contextmanager
def collecting(port: int = 0) -> Iterator[tuple[Collector, int]]:
    """Run a collector; yield it and its port."""
    collector = Collector()
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, options=[("grpc.so_reuseport", 0)])
        services.add_MetricsServiceServicer_to_server(collector, server)
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        try:
            yield collector, bound
        finally:
            collector.hangs.clear()
            server.stop(None).wait(LIMIT_S)
