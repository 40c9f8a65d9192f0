"""Object storage as S3 speaks it, over a folder of this machine: enough to list and to read.

    HEAD /bucket[/key]    GET /bucket/key (ranges)    GET /bucket?list-type=2&prefix=&delimiter=

Keys are paths below the folder; signatures are not checked. Answers are those that the AWS client
in pyarrow asks for.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
_WHEN = "2026-01-01T00:00:00.000Z"
_LAST_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class ObjectStorage(ThreadingHTTPServer):
    """A server of one bucket.

    Args:
        root: the folder whose files are the objects.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.met: Counter[str] = Counter()
        self.sent_bytes = 0

    def url(self, path: str = "") -> str:
        """The URL by which pyarrow reaches an object or a folder, with keys in the environment."""
        host, port = self.server_address[:2]
        query = f"endpoint_override={host}:{port}&scheme=http&region=us-east-1"
        return f"s3://{BUCKET}/{path}?{query}"


@contextmanager
def object_storage(root: Path) -> Iterator[ObjectStorage]:
    """Serve a folder within ``with``."""
    server = ObjectStorage(root)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ObjectStorage

    def do_HEAD(self) -> None:
        path = self._file()
        self.server.met["HEAD"] += 1
        if urlsplit(self.path).path.strip("/") == BUCKET:
            self._answer(200, b"", {})
        elif path is None:
            self._answer(404, b"", {})
        else:
            self._answer(200, b"", {"Content-Length": str(path.stat().st_size)})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.strip("/") == BUCKET:
            self.server.met["LIST"] += 1
            self._answer(200, self._listing(parse_qs(parts.query)), {"Content-Type": "text/xml"})
            return
        self.server.met["GET"] += 1
        path = self._file()
        if path is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        self._answer_range(path)

    def _answer_range(self, path: Path) -> None:
        size = path.stat().st_size
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        first, last = 0, size - 1
        if match:
            first = int(match[1])
            last = min(int(match[2] or last), last)
        with path.open("rb") as file:
            file.seek(first)
            data = file.read(last - first + 1)
        self.server.sent_bytes += len(data)
        headers = {"Content-Range": f"bytes {first}-{last}/{size}"} if match else {}
        self._answer(206 if match else 200, data, headers)

    def _file(self) -> Path | None:
        key = unquote(urlsplit(self.path).path).strip("/").partition("/")[2]
        path = (self.server.root / key).resolve()
        inside = path.is_relative_to(self.server.root.resolve())
        return path if inside and path.is_file() else None

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        contents, common = [], set()
        for path in sorted(self.server.root.rglob("*")):
            key = path.relative_to(self.server.root).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                common.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                contents.append((key, path.stat().st_size))
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_WHEN}</LastModified>"
            f"<ETag>&quot;0&quot;</ETag><Size>{size}</Size></Contents>"
            for key, size in contents
        )
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(common)
        )
        count = len(contents) + len(common)
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{entries}{folders}"
            "</ListBucketResult>"
        ).encode()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "Last-Modified": _LAST_MODIFIED} | headers
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
