"""Just enough OpenFlow by hand to send right and wrong messages to a switch, and to be a controller."""

import os
import socket
import struct
import threading
import time

HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REQUEST, FEATURES_REPLY = 5, 6
PACKET_IN, FLOW_REMOVED, PORT_STATUS, PACKET_OUT, FLOW_MOD = 10, 11, 12, 13, 14
V10, V13, V14, V15 = 1, 4, 5, 6


def barrier_type(version):
    """(request, reply)."""
    return (18, 19) if version == V10 else (20, 21)


def message(version, kind, xid, body=b"", length=None):
    return struct.pack("!BBHI", version, kind, 8 + len(body) if length is None else length, xid) + body


class Connection:
    """One OpenFlow stream: whole messages in, bytes out."""

    def __init__(self, sock, version, timeout=60.0):
        self.sock = sock
        self.version = version
        self.buffer = b""
        sock.settimeout(timeout)

    @classmethod
    def to_bridge(cls, switch, bridge, version):
        """A service connection to RUNDIR/BRIDGE.mgmt after the HELLO exchange."""
        # The path may be longer than sun_path allows; the directory's descriptor is not.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(switch.dir, os.O_RDONLY)
        try:
            sock.connect(f"/proc/self/fd/{directory}/{bridge}.mgmt")
        finally:
            os.close(directory)
        connection = cls(sock, version)
        connection.send(HELLO, 1)
        _, kind, _, _ = connection.receive()
        assert kind == HELLO, f"first message has type {kind}"
        return connection

    def send(self, kind, xid, body=b"", length=None, version=None):
        self.sock.sendall(message(version or self.version, kind, xid, body, length))

    def receive(self):
        """(version, type, xid, body)."""
        while len(self.buffer) < 8 or len(self.buffer) < struct.unpack_from("!H", self.buffer, 2)[0]:
            data = self.sock.recv(65536)
            if not data:
                raise ConnectionError("the switch closed the OpenFlow connection")
            self.buffer += data
        version, kind, length, xid = struct.unpack_from("!BBHI", self.buffer)
        body, self.buffer = self.buffer[8:length], self.buffer[length:]
        return version, kind, xid, body

    def reply(self, xid, kinds=None):
        """The next message with this xid (and one of these types); replies to echo requests meanwhile."""
        while True:
            _, kind, got, body = self.receive()
            if kind == ECHO_REQUEST:
                self.send(ECHO_REPLY, got, body)
            elif got == xid and (kinds is None or kind in kinds):
                return kind, body

    def echo(self, xid=0x7e57):
        """Proves that the connection lives."""
        self.send(ECHO_REQUEST, xid, b"alive?")
        kind, body = self.reply(xid, (ECHO_REPLY,))
        assert body == b"alive?", (kind, body)

    def error_for(self, kind, xid, body=b"", **kw):
        """Sends a message that must be refused; returns the error's (type, code)."""
        self.send(kind, xid, body, **kw)
        got, data = self.reply(xid)
        assert got == ERROR, f"type {got} instead of an error: {data.hex()}"
        return struct.unpack_from("!HH", data)

    def close(self):
        self.sock.close()


class Controller:
    """A TCP listener that a switch connects to; replies to HELLO and ECHO, keeps other messages."""

    def __init__(self, listener, version=V13):
        self.listener = listener
        self.version = version
        self.port = listener.getsockname()[1]
        self.seen = []
        self.connection = None
        self.stopping = False
        self.connected = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        self.listener.settimeout(0.2)
        while not self.stopping:
            try:
                sock, _ = self.listener.accept()
            except TimeoutError:
                continue
            except OSError:
                # A handshake that failed, or the end.
                time.sleep(0.05)
                continue
            self.connection = Connection(sock, self.version, timeout=0.2)
            try:
                self.connection.send(HELLO, 1)
                self.connection.send(FEATURES_REQUEST, 2)
                self._talk(self.connection)
            except (ConnectionError, OSError):
                pass
            self.connected.clear()
            sock.close()

    def _talk(self, connection):
        while not self.stopping:
            try:
                version, kind, xid, body = connection.receive()
            except TimeoutError:
                continue
            if kind == ECHO_REQUEST:
                connection.send(ECHO_REPLY, xid, body)
            self.seen.append((version, kind, xid, body))
            if kind == FEATURES_REPLY:
                self.connected.set()

    def messages(self, kind):
        return [entry for entry in self.seen if entry[1] == kind]

    def drop(self):
        """Closes the current connection; the switch has to reconnect."""
        if self.connection:
            self.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.stopping = True
        self.thread.join(2)
        self.listener.close()
