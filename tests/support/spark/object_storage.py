"""A server of S3's protocol over a folder, for the clients of pyarrow and of deltalake.

    HEAD /bucket/key           GET /bucket/key, with ranges   GET /bucket?prefix=&delimiter=
    PUT /bucket/key            PUT with x-amz-copy-source     DELETE /bucket/key
    POST /bucket/key?uploads   PUT ?uploadId=&partNumber=     POST ?uploadId=   DELETE ?uploadId=
    PUT with If-None-Match: *

Keys are paths below the folder; an object appears when its upload has ended. Signatures are not
checked, but the server notes with whose key they were made.
"""

from __future__ import annotations

import io
import re
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "reader",
    "AWS_SECRET_ACCESS_KEY": "s3cr3t",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What clients find in their environment, Spark's workers among them."""
_WHEN = "2026-01-01T00:00:00.000Z"
_LAST_MODIFIED = "Thu, 01 Jan 2026 00:00:00 GMT"
_ETAG = '"0"'
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_XML = {"Content-Type": "text/xml"}


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
        self.asked_by: set[str] = set()
        """Whose keys requests were signed with."""
        self.sent_bytes = 0
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts of uploads that have not ended, by upload and number."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close a connection without reading all of a response."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

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
    disable_nagle_algorithm = True
    server: ObjectStorage

    # --- requests -------------------------------------------------------------------------------

    def do_HEAD(self) -> None:
        self._note("HEAD")
        path = self._file()
        if urlsplit(self.path).path.strip("/") == BUCKET:
            self._answer(200, b"", {})
        elif path is None:
            self._answer(404, b"", {})
        else:
            self._answer(200, b"", {"Content-Length": str(path.stat().st_size)})

    def do_GET(self) -> None:
        if self._key() == "":
            self._note("LIST")
            self._answer(200, self._listing(self._query()), _XML)
            return
        self._note("GET")
        path = self._file()
        if path is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        self._answer_range(path)

    def do_PUT(self) -> None:
        self._note("PUT")
        query, body = self._query(), self._body()
        if "partNumber" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            self._answer(200, b"", {"ETag": _ETAG})
        elif source := self.headers.get("x-amz-copy-source"):
            self._write(self._place(_key_of(source)).read_bytes())
            self._answer_xml("CopyObjectResult", f"<LastModified>{_WHEN}</LastModified>")
        elif self._write(body, only_new=self.headers.get("If-None-Match") == "*"):
            self._answer(200, b"", {"ETag": _ETAG})
        else:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", _XML)

    def do_POST(self) -> None:
        self._note("POST")
        query, _ = self._query(), self._body()
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.server.uploads[upload] = {}
            self._answer_xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            return
        parts = self.server.uploads.pop(query["uploadId"])
        self._write(b"".join(parts[number] for number in sorted(parts)))
        self._answer_xml("CompleteMultipartUploadResult", "")

    def do_DELETE(self) -> None:
        self._note("DELETE")
        upload = self._query().get("uploadId")
        if upload is not None:
            self.server.uploads.pop(upload, None)
        elif (path := self._file()) is not None:
            path.unlink()
        self._answer(204, b"", {})

    # --- what they carry ------------------------------------------------------------------------

    def _note(self, kind: str) -> None:
        self.server.met[kind] += 1
        match = _CREDENTIAL.search(self.headers.get("Authorization", ""))
        self.server.asked_by.add(match[1] if match else "")

    def _key(self) -> str:
        return _key_of(urlsplit(self.path).path)

    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = _joined(self.rfile)
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunked = "aws-chunked" in self.headers.get("Content-Encoding", "")
        return _joined(io.BytesIO(data)) if chunked else data

    def _place(self, key: str) -> Path:
        path = (self.server.root / key).resolve()
        if not path.is_relative_to(self.server.root.resolve()):
            raise ValueError(f"met the key {key!r}, expected one below the bucket")
        return path

    def _file(self) -> Path | None:
        path = self._place(self._key())
        return path if path.is_file() else None

    def _write(self, data: bytes, *, only_new: bool = False) -> bool:
        """Make the object appear at once; a key that ends with ``/`` stands for a folder."""
        path = self._place(self._key())
        if self._key().endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            return True
        path.parent.mkdir(parents=True, exist_ok=True)
        ready = self.server.root.with_name(f"upload-{uuid.uuid4().hex}")
        ready.write_bytes(data)
        if only_new:
            with suppress(FileExistsError):
                path.hardlink_to(ready)
                ready.unlink()
                return True
            ready.unlink()
            return False
        ready.replace(path)
        return True

    # --- answers --------------------------------------------------------------------------------

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

    def _listing(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("start-after", "")
        contents, common = [], set()
        for path in sorted(self.server.root.rglob("*")):
            key = path.relative_to(self.server.root).as_posix()
            if not path.is_file() or not key.startswith(prefix) or key <= after:
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
        return _xml(
            "ListBucketResult",
            f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{count}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{entries}{folders}",
        )

    def _answer_xml(self, kind: str, inner: str) -> None:
        self._answer(200, _xml(kind, f"{inner}<ETag>&quot;0&quot;</ETag>"), _XML)

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


def _key_of(path: str) -> str:
    """The key in ``/bucket/key``."""
    return unquote(path).lstrip("/").partition("/")[2]


def _xml(kind: str, inner: str) -> bytes:
    name_space = "http://s3.amazonaws.com/doc/2006-03-01/"
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f'{head}<{kind} xmlns="{name_space}">{inner}</{kind}>'.encode()


def _joined(pieces: IO[bytes]) -> bytes:
    """The data of pieces, each behind a line with its length in hex; trailers follow the last."""
    found = []
    while size := int(pieces.readline().partition(b";")[0], 16):
        found.append(pieces.read(size))
        pieces.readline()
    while pieces.readline().strip():
        pass
    return b"".join(found)
