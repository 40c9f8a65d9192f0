"""A registry's schemas: kept by id, and what its failures mean for a row."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fastavro
import pyarrow as pa
import pytest

from cometmq.spark.errors import OptionError, SourceError
from cometmq.spark.options.payloads import PayloadOptions
from cometmq.spark.payloads.decoder import PayloadDecoder, PayloadError
from cometmq.spark.payloads.plan import PayloadPlan
from cometmq.spark.payloads.registry import RESPONSE_BYTES_MAX, SchemaRegistry, divided
from cometmq.spark.payloads.types import sql_type

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "country", "type": "string", "default": "DE"},
    ],
}


class Server(ThreadingHTTPServer):
    """Serves documents by path, as a registry does, and counts requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.documents: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def add(self, path: str, document: object) -> None:
        self.documents[path] = (200, json.dumps(document).encode())


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"]))
        status, data = self.server.documents.get(self.path, (404, b'{"error_code": 40403}'))
        self.send_response(status)
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # a client reads a limited response
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()


def framed(number: int, schema: object, values: object) -> bytes:
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), values)
    return b"\0" + number.to_bytes(4, "big") + sink.getvalue()


def with_both(server: Server) -> PayloadPlan:
    server.add("/schemas/ids/1", {"schema": json.dumps(OLD)})
    server.add("/schemas/ids/2", {"schema": json.dumps(NEW), "schemaType": "AVRO"})
    server.add("/subjects/orders-value/versions/latest", {"id": 2, "version": 2})
    options = PayloadOptions(payload_format="avro", payload_registry=server.url)
    plan = PayloadPlan.of(options, ["orders"])
    assert plan is not None
    return plan


def decoder_of(plan: PayloadPlan) -> PayloadDecoder:
    from cometmq.spark.payloads.avro import arrow_type

    return plan.decoder(arrow_type(plan.schema))


def test_rows_of_all_versions_have_the_columns_of_the_newest(server: Server) -> None:
    plan = with_both(server)
    assert plan.sql() == "STRUCT<`id`: BIGINT NOT NULL, `country`: STRING NOT NULL>"
    bodies = [framed(1, OLD, {"id": 5}), framed(2, NEW, {"id": 6, "country": "FR"})]
    values, reasons = decoder_of(plan).decode(pa.array(bodies))
    assert values.to_pylist() == [{"id": 5, "country": "DE"}, {"id": 6, "country": "FR"}]
    assert reasons.null_count == 2


def test_a_schema_is_requested_once(server: Server) -> None:
    decoder = decoder_of(with_both(server))
    for _ in range(3):
        decoder.decode(pa.array([framed(1, OLD, {"id": 5})] * 3))
    assert [path for path, _ in server.requests].count("/schemas/ids/1") == 1


def test_an_id_that_the_registry_lacks_is_a_fault_of_the_row(server: Server) -> None:
    bodies = [framed(9, OLD, {"id": 5}), framed(1, OLD, {"id": 5})]
    values, reasons = decoder_of(with_both(server)).decode(pa.array(bodies))
    assert values.to_pylist() == [None, {"id": 5, "country": "DE"}]
    assert reasons.to_pylist()[0] == f"schema 9 is not in the registry {server.url}"


def test_a_registry_that_fails_is_no_fault_of_the_row(server: Server) -> None:
    decoder = decoder_of(with_both(server))
    server.documents["/schemas/ids/1"] = (500, b"")
    with pytest.raises(SourceError, match="500") as problem:
        decoder.decode(pa.array([framed(1, OLD, {"id": 5})]))
    assert not isinstance(problem.value, PayloadError)


def test_a_registry_that_is_away_is_an_error_with_its_address(server: Server) -> None:
    server.server_close()
    with pytest.raises(SourceError, match=rf"{server.url} does not respond"):
        SchemaRegistry(server.url).schema(1)


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"[]", "met list"), (b"{", "no JSON"), (b" " * (RESPONSE_BYTES_MAX + 1), "more than")],
)
def test_a_response_that_is_no_schema_is_refused(server: Server, data: bytes, text: str) -> None:
    server.documents["/schemas/ids/1"] = (200, data)
    with pytest.raises(SourceError, match=text):
        SchemaRegistry(server.url).schema(1)


def test_a_missing_subject_is_refused_when_the_query_is_planned(server: Server) -> None:
    options = PayloadOptions(
        payload_format="avro", payload_registry=server.url, payload_subject="shop/orders"
    )
    with pytest.raises(OptionError, match="subject shop/orders is not in the registry"):
        PayloadPlan.of(options)
    assert server.requests[0][0] == "/subjects/shop%2Forders/versions/latest"


def test_a_subject_of_another_format_is_refused(server: Server) -> None:
    server.add("/schemas/ids/3", {"schema": "{}", "schemaType": "JSON"})
    server.add("/subjects/orders-value/versions/latest", {"id": 3})
    options = PayloadOptions(payload_format="avro", payload_registry=server.url)
    with pytest.raises(OptionError, match="subject orders-value has a schema of the kind JSON"):
        PayloadPlan.of(options, ["orders"])


def test_a_password_is_sent_and_not_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_PASSWORD", "secret")
    server.add("/schemas/ids/1", {"schema": json.dumps(OLD)})
    server.add("/subjects/orders-value/versions/latest", {"id": 1})
    plan = PayloadPlan.of(
        PayloadOptions(
            payload_format="avro",
            payload_registry=server.url,
            payload_registry_user="ada",
            payload_registry_password="env:REGISTRY_PASSWORD",
        ),
        ["orders"],
    )
    expected = "Basic " + base64.b64encode(b"ada:secret").decode()
    assert {given for _, given in server.requests} == {expected}
    assert "secret" not in repr(plan) + repr(SchemaRegistry(server.url, "ada", "secret"))


@pytest.mark.parametrize("url", ["registry:8081", "file:///etc/passwd", "ftp://registry"])
def test_only_http_is_an_address(url: str) -> None:
    with pytest.raises(OptionError, match="expected an http or https address"):
        SchemaRegistry(url)


@pytest.mark.parametrize("body", [b"", b"\0\0\0\1", b"\1\0\0\0\1x", b'{"id":1}'])
def test_a_body_without_an_id_is_refused(body: bytes) -> None:
    with pytest.raises(PayloadError, match="expected a zero byte and the id of a schema"):
        divided(body)


def test_types_have_spark_names() -> None:
    assert sql_type(pa.struct([pa.field("a`b", pa.int8())])) == "STRUCT<`a``b`: TINYINT>"
