#!/usr/bin/env python3
"""Connections of one request and one reply, in sequence: `server` replies; `client ADDRESS SECONDS` prints
connections per second."""

import socket
import sys
import time

PORT = 5500


def server():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", PORT))
    listener.listen(1024)
    while True:
        sock, _ = listener.accept()
        with sock:
            if sock.recv(64):
                sock.sendall(b"answer")


def client(address, seconds):
    # Ports are used again only after a minute, but a reset frees the port at once.
    linger = (1).to_bytes(4, sys.byteorder) + (0).to_bytes(4, sys.byteorder)
    n, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.create_connection((address, PORT), timeout=10) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sock.sendall(b"request")
            if sock.recv(64) == b"answer":
                n += 1
    print(n / seconds)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        server()
    else:
        client(sys.argv[2], float(sys.argv[3]))
