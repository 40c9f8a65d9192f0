"""One page with the traces and metrics of all processes, for development.

It receives them by OTLP over HTTP, and keeps the newest in memory. Run it:
``uvicorn orders.dashboard:app --port 4318``. In production Grafana takes its place.
"""

from collections import OrderedDict
from html import escape
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, Response
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

BODY_BYTES_MAX, TRACES_MAX, SPANS_MAX, SERIES_MAX, SHOWN = 4 << 20, 200, 200, 500, 20
STYLE = """body { font: 14px sans-serif; margin: 2em } td { padding: 0 1em 0 0 }
.bar { background: #4a7; height: 10px; min-width: 2px } .failed { background: #c44 }"""
NOISE = {"", "http", "1.1", "rocketmq"}
app = FastAPI(title="Dashboard")
traces: OrderedDict[bytes, list[tuple[str, Span]]] = OrderedDict()
"""Traces, by id; the one with the newest span last."""
series: dict[tuple[str, str, str], str] = {}
"""The last value of each metric, by name, service and attributes."""


async def body_of(request: Request) -> bytes:
    if int(request.headers.get("content-length", BODY_BYTES_MAX + 1)) > BODY_BYTES_MAX:
        raise HTTPException(413, f"expected a content-length of at most {BODY_BYTES_MAX}")
    return await request.body()


def service_of(part: Any) -> str:
    attributes = {each.key: each.value.string_value for each in part.resource.attributes}
    return str(attributes.get("service.name", ""))


@app.post("/v1/traces")
async def receive_traces(request: Request) -> Response:
    for part in ExportTraceServiceRequest.FromString(await body_of(request)).resource_spans:
        for span in (span for scope in part.scope_spans for span in scope.spans):
            found = traces.setdefault(span.trace_id, [])
            traces.move_to_end(span.trace_id)
            if len(found) < SPANS_MAX:
                found.append((service_of(part), span))
    while len(traces) > TRACES_MAX:
        traces.popitem(last=False)
    return Response()


@app.post("/v1/metrics")
async def receive_metrics(request: Request) -> Response:
    for part in ExportMetricsServiceRequest.FromString(await body_of(request)).resource_metrics:
        for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
            points = getattr(metric, metric.WhichOneof("data")).data_points
            for point in points:
                labels = {each.value.string_value for each in point.attributes} - NOISE
                key = (metric.name, service_of(part), " ".join(sorted(labels)))
                if key in series or len(series) < SERIES_MAX:
                    series[key] = value_of(point)
    return Response()


def value_of(point: Any) -> str:
    """Return a number, or the count and mean of a histogram."""
    if hasattr(point, "bucket_counts"):
        return f"{point.count} in {1000 * point.sum / max(point.count, 1):.1f} ms each"
    return f"{point.as_int or point.as_double:g}"


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    newest = [*traces.values()][: -SHOWN - 1 : -1]
    metrics = "".join(
        f"<tr><td>{'<td>'.join(map(escape, key))}<td>{value}"
        for key, value in sorted(series.items())
    )
    return (
        f"<!doctype html><title>Dashboard</title><meta http-equiv=refresh content=3>"
        f"<style>{STYLE}</style><h1>Metrics</h1><table>{metrics}</table><h1>Traces</h1>"
        + "".join(map(trace, newest))
    )


def trace(spans: list[tuple[str, Span]]) -> str:
    """Return a table with a bar for each span, from the begin to the end of the trace."""
    ordered = sorted(spans, key=lambda each: each[1].start_time_unix_nano)
    begin = ordered[0][1].start_time_unix_nano
    whole = max(span.end_time_unix_nano for _, span in ordered) - begin or 1
    rows = ""
    for service, span in ordered:
        start, length = (
            span.start_time_unix_nano - begin,
            span.end_time_unix_nano - span.start_time_unix_nano,
        )
        failed = " failed" if span.status.code == Status.STATUS_CODE_ERROR else ""
        bar = f"margin-left:{90 * start / whole:.2f}%;width:{90 * length / whole:.2f}%"
        rows += (
            f"<tr><td>{escape(service)}<td>{escape(span.name)}<td>+{start / 1e6:.0f} ms"
            f'<td>{length / 1e6:.1f} ms<td width=50%><div class="bar{failed}" style="{bar}"></div>'
        )
    return f"<h3>{spans[0][1].trace_id.hex()}</h3><table width=100%>{rows}</table>"
