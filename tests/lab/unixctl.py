"""A client of the daemon's JSON-RPC control socket that stays connected.

`ovs-appctl` starts a process per command; the differential test sends tens of thousands of requests and keeps
one connection instead.
"""

import json
import socket


class UnixctlError(Exception):
    """The daemon replied with an error; the text is its own."""


class Unixctl:
    def __init__(self, path, timeout=60.0):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.decoder = json.JSONDecoder()
        self.buffer = ""
        self.next_id = 0

    def close(self):
        self.sock.close()

    def call(self, method, *args):
        """One command; returns the reply text or raises UnixctlError."""
        ident = self.next_id
        self.next_id += 1
        request = {"id": ident, "method": method, "params": [str(arg) for arg in args]}
        self.sock.sendall(json.dumps(request).encode())
        while True:
            reply = self._receive()
            if reply.get("id") == ident:
                break
        if reply.get("error") is not None:
            raise UnixctlError(reply["error"])
        return reply.get("result") or ""

    def _receive(self):
        while True:
            self.buffer = self.buffer.lstrip()
            if self.buffer:
                try:
                    message, end = self.decoder.raw_decode(self.buffer)
                except json.JSONDecodeError:
                    pass
                else:
                    self.buffer = self.buffer[end:]
                    return message
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("the daemon closed its control socket")
            self.buffer += data.decode("utf-8", "replace")
