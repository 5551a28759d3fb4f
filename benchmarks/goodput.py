"""The TCP goodput of a link: as many bytes as pass in some seconds, both ways at the same time.

python -m benchmarks.goodput ADDRESS PORT SECONDS    # one side listens (ADDRESS is its own), with --listen
"""

from __future__ import annotations

import socket
import sys
import threading
import time

_CHUNK = 1 << 18
_SLOW_START_SECONDS = 0.5


def _send(connection: socket.socket, until: float) -> None:
    chunk = bytes(_CHUNK)
    while time.monotonic() < until:
        connection.sendall(chunk)
    connection.shutdown(socket.SHUT_WR)


def _receive(connection: socket.socket, begin: float, until: float) -> float:
    """Bytes per second that come between two times."""
    room = bytearray(_CHUNK)
    count, first = 0, 0.0
    last = begin
    while got := connection.recv_into(room):
        now = time.monotonic()
        if first and now <= until:
            count += got
            last = now
        elif not first and now >= begin:
            first = last = now
    return count / (last - first)


def exchange(connection: socket.socket, seconds: float) -> float:
    """Send as fast as possible, and return at what rate (bytes per second) the other side's bytes came meanwhile."""
    begin = time.monotonic() + _SLOW_START_SECONDS
    until = begin + seconds
    sender = threading.Thread(target=_send, args=(connection, until + 0.2))
    sender.start()
    rate = _receive(connection, begin, until)
    sender.join()
    return rate


def main(words: list[str]) -> None:
    """One side of the measurement: prints the rate at which it has received."""
    listens = words[0] == "--listen"
    host, port, seconds = words[listens:]
    if listens:
        with socket.create_server((host, int(port))) as server:
            print("ready", flush=True)
            connection, _ = server.accept()
    else:
        connection = socket.create_connection((host, int(port)), timeout=30)
        connection.settimeout(None)
    with connection:
        print(exchange(connection, float(seconds)))


if __name__ == "__main__":
    main(sys.argv[1:])
