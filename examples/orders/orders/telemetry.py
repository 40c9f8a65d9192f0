"""Sends traces and metrics to ``OTEL_EXPORTER_OTLP_ENDPOINT``, with OpenTelemetry's own settings.

In development that is the page of ``dashboard``; in production a collector, Tempo or Prometheus.
"""

import os

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

meter = metrics.get_meter(__name__)
order_changes = meter.create_counter("shop.order.changes", description="Changes, by new state.")
outbox_events = meter.create_gauge("shop.outbox.events", description="Events not sent yet.")


def start_telemetry(service: str) -> None:
    """Send what this process measures, if the variable says where to."""
    if "OTEL_EXPORTER_OTLP_ENDPOINT" not in os.environ:
        return
    resource = Resource.create({"service.name": service})
    traces = TracerProvider(resource=resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(traces)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider(metric_readers=[reader], resource=resource))
