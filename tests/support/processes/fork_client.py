"""Asks `support.processes.forks` to run a program as this process would; waits for its end.

It stands for the program: it passes on its files, folder, environment and signals, and ends with
the program's exit code. It imports no module that takes time.
"""

import _signal
import _socket
import marshal
import os
import sys

SIGNALS = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM)


def main() -> None:
    _signal.pthread_sigmask(_signal.SIG_BLOCK, SIGNALS)
    with_files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    folder = os.getcwd()  # noqa: PTH109, pathlib takes time to import
    request = marshal.dumps((sys.argv[2:], folder, dict(os.environ)))
    request = len(request).to_bytes(4) + request
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(sys.argv[1])
    sent = connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, with_files)])
    connection.sendall(request[sent:])
    program = int.from_bytes(connection.recv(4))
    if not program:
        sys.exit("forks: the server has ended; its message is in the output of the test run")
    for number in SIGNALS:
        _signal.signal(number, lambda number, _frame: os.kill(program, number))
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, SIGNALS)
    code = int.from_bytes(connection.recv(4), signed=True)
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


main()
