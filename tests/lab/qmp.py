"""QEMU's control protocol: JSON lines over a socket (docs/interop/qmp-spec of QEMU)."""

import json
import socket


class QmpError(AssertionError):
    """QEMU refused a command; the text is its own."""


class Qmp:
    """One connection; QEMU replies to commands in order, events in between are kept in `events`."""

    def __init__(self, path, timeout=20.0):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(timeout)
        self.sock.connect(path)
        self.file = self.sock.makefile("r")
        self.events = []
        self._receive()  # the greeting
        self.call("qmp_capabilities")

    def _receive(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("QEMU closed its control socket")
        return json.loads(line)

    def call(self, command, **arguments):
        """One command; returns its result or raises QmpError."""
        self.sock.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            reply = self._receive()
            if "event" in reply:
                self.events.append(reply)
            elif "error" in reply:
                raise QmpError(f"{command}: {reply['error']['desc']}")
            else:
                return reply["return"]

    def close(self):
        self.file.close()
        self.sock.close()
