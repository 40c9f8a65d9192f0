"""Checks that servers respond to a request in time: ``healthcheck.py namesrv=9876 broker=10911``.

A server that accepts connections but does not respond fails the check. ``--tls`` connects with TLS,
for servers with ``tls.server.mode=enforcing``; the certificate is not verified, because the server
is on this machine. ``ready=5557`` asks any server with ``metricsExporterType=PROM`` whether it is
ready, ``console=8082`` whether the console serves its page for sign-ins.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys

from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import command_at, encode_command, request
from cometmq.protocol.frame import FRAME_BYTES_MAX

TIMEOUT_S = 5.0
UNSIGNED = "No accessKey is configured"
REQUESTS = {
    "namesrv": RequestCode.GET_BROKER_CLUSTER_INFO,
    "broker": RequestCode.GET_BROKER_RUNTIME_INFO,
}


def connect(port: int, timeout_s: float, *, tls: bool) -> socket.socket:
    """Connect to a server of this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout_s)
    if not tls:
        return connection
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return context.wrap_socket(connection)
    except BaseException:
        connection.close()
        raise


def check(server: str, port: int, timeout_s: float = TIMEOUT_S, *, tls: bool = False) -> None:
    """Send the server a read-only request; raise OSError unless it succeeds.

    A broker with access control refuses it, which shows as well that it responds.
    """
    data = bytearray()
    with connect(port, timeout_s, tls=tls) as connection:
        connection.sendall(encode_command(request(REQUESTS[server])))
        while (response := command_at(data, 0, len(data), FRAME_BYTES_MAX)) is None:
            received = connection.recv(65536)
            if not received:
                raise OSError("it closed the connection")
            data += received
    if response.code != ResponseCode.SUCCESS and response.remark != UNSIGNED:
        raise OSError(f"it responded with code {response.code}: {response.remark}")


PAGES = {"ready": "/ready", "console": "/sign-in"}


def check_page(path: str, port: int, timeout_s: float = TIMEOUT_S) -> None:
    """Get a page of a server; raise OSError unless its status is 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            reason = response.read(1000).decode(errors="replace").strip()
            raise OSError(f"it responded with status {response.status}: {reason}")
    except http.client.HTTPException as problem:
        raise OSError(f"it did not respond with HTTP: {problem!r}") from None
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Check every server; name those that fail."""
    failed = 0
    tls = "--tls" in arguments
    for argument in (each for each in arguments if each != "--tls"):
        server, _, port = argument.partition("=")
        if server not in REQUESTS | PAGES or not port.isdecimal():
            names = " or ".join(f"{name}=PORT" for name in REQUESTS | PAGES)
            print(f"{argument!r}: expected {names}", file=sys.stderr)
            return 2
        try:
            if server in PAGES:
                check_page(PAGES[server], int(port))
            else:
                check(server, int(port), tls=tls)
        except OSError as error:
            print(f"{server} on port {port} does not serve: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
