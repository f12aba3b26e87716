"""Numbered messages that a program in a guest echoes, and pings from there: silences, losses, duplicates.

The guest begins all connections, so that they cross translation of its address. Times are those of this machine. The
kernel's time stamps are used for packets, so that a late thread of this program does not look like a late packet.
"""

import select
import socket
import struct
import threading
import time
from typing import NamedTuple

TCP_PORT, UDP_PORT = 7001, 7002
INTERVAL_S, SLOW_INTERVAL_S = 0.01, 0.25
_NUMBER = struct.Struct("!Q")
_ECHO_REQUEST = 8
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")


class Frame(NamedTuple):
    """A frame at one of the guest's devices. Pings of the guest, datagrams and their echoes have a number. Any other
    frame of the guest is of kind `other`."""

    at: float
    device: str
    kind: str
    number: int


class Flow:
    """One connection, or the pings. arrivals: (time, number) of each message that came from the guest."""

    def __init__(self, name, interval_s):
        self.name, self.interval_s = name, interval_s
        self.sent, self.due, self.arrivals, self.buffer, self.error = 0, 0.0, [], b"", None

    def lost(self):
        """Number of messages without an echo, and number of echoes beyond the first of each."""
        numbers = [number for _, number in self.arrivals]
        return self.sent - len(set(numbers)), len(numbers) - len(set(numbers))

    def silence_s(self, begin, end):
        """The longest time without an arrival between two times."""
        times = [begin, *(at for at, _ in self.arrivals if begin < at < end), end]
        return max(late - early for early, late in zip(times, times[1:]))


class Echoes:
    """The server, at `address` of a namespace; pings are those from `seen`. Runs from start() to finish()."""

    def __init__(self, net, ns, device, address, seen):
        self.address, self.seen = address, socket.inet_aton(seen)
        # The kernel's stamps have the time of day.
        self.time_base = time.monotonic() - time.time()
        self.raw = self._stamped(net.raw(ns, device))
        self.listener = net.socket(ns, lambda: self._bound(socket.SOCK_STREAM, TCP_PORT))
        self.listener.listen(64)
        self.udp = self._stamped(net.socket(ns, lambda: self._bound(socket.SOCK_DGRAM, UDP_PORT)))
        self.udp_peer = None
        # Names of the guest's devices by socket (`watch`), and the frames there.
        self.devices, self.frames = {}, []
        # The time at which each datagram left the server.
        self.sent_at = {}
        # Datagrams from another address than the first: another translation.
        self.strangers = 0
        self.pings, self.datagrams, self.streams = Flow("ping", 0), Flow("UDP", INTERVAL_S), {}
        self.stopping = threading.Event()
        # After this, echoes are received, and none is requested.
        self.draining = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, net, ns, device, guest, mac, name):
        """Also notes the frames of the guest at a device of this machine: a tap, or the output of a mirror. Call it
        before start()."""
        self.guest, self.mac = socket.inet_aton(guest), bytes.fromhex(mac.replace(":", ""))
        self.devices[self._stamped(net.raw(ns, device))] = name

    @staticmethod
    def _stamped(sock):
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        return sock

    def _read(self, sock):
        """A packet, its source, and the time of its arrival."""
        data, ancillary, _, source = sock.recvmsg(2048, 512)
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                seconds, nanoseconds = _TIMESPEC.unpack_from(content)
                return data, source, seconds + nanoseconds / 1e9 + self.time_base
        return data, source, time.monotonic()

    def _bound(self, kind, port):
        sock = socket.socket(socket.AF_INET, kind)
        sock.bind((self.address, port))
        return sock

    def start(self, guest, streams):
        """Starts the programs in the guest, and waits for their connections."""
        self.thread.start()
        tcp = f"exec 3<>/dev/tcp/{self.address}/{TCP_PORT}; exec cat <&3 >&3"
        udp = f"exec 3<>/dev/udp/{self.address}/{UDP_PORT}; echo begin >&3; exec cat <&3 >&3"
        for script in [tcp] * streams + [udp]:
            guest.run(f"bash -c '{script}' >/dev/null 2>&1 &")
        guest.run(f"ping -n -i {INTERVAL_S} {self.address} >/tmp/ping.log 2>&1 &")
        end = time.monotonic() + 60
        while len(self.streams) < streams or not self.udp_peer or not all(flow.arrivals for flow in self.flows()):
            assert time.monotonic() < end, f"{len(self.streams)} of {streams} streams, UDP {self.udp_peer}, {len(self.pings.arrivals)} pings"
            time.sleep(0.1)

    def flows(self):
        return [self.pings, self.datagrams, *self.streams.values()]

    def _run(self):
        while not self.stopping.is_set():
            now = time.monotonic()
            for sock, flow in [(self.udp, self.datagrams), *self.streams.items()]:
                if now >= flow.due and not self.draining.is_set() and not flow.error and (flow is not self.datagrams or self.udp_peer):
                    flow.due = now + flow.interval_s
                    self._send(sock, flow)
            alive = [sock for sock, flow in self.streams.items() if not flow.error]
            for sock in select.select([self.raw, self.listener, self.udp, *self.devices, *alive], [], [], 0.002)[0]:
                self._receive(sock, time.monotonic())

    def _send(self, sock, flow):
        data = _NUMBER.pack(flow.sent)
        try:
            if flow is self.datagrams:
                sock.sendto(data, self.udp_peer)
            else:
                sock.sendall(data)
            flow.sent += 1
        except OSError as exc:
            flow.error = exc

    def _receive(self, sock, now):
        if sock is self.raw:
            frame, source, at = self._read(sock)
            if frame[12:14] != b"\x08\0":
                return
            if source[2] == socket.PACKET_OUTGOING:
                if frame[23] == socket.IPPROTO_UDP and frame[30:34] == self.seen and frame[34:36] == UDP_PORT.to_bytes(2, "big"):
                    self.sent_at[_NUMBER.unpack_from(frame, 42)[0]] = at
            elif frame[23] == socket.IPPROTO_ICMP and frame[26:30] == self.seen and frame[34] == _ECHO_REQUEST:
                self.pings.arrivals.append((at, int.from_bytes(frame[40:42], "big")))
        elif sock in self.devices:
            self._note(sock)
        elif sock is self.listener:
            stream = sock.accept()[0]
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setblocking(False)
            self.streams[stream] = Flow(f"TCP {len(self.streams)}", SLOW_INTERVAL_S if self.streams else INTERVAL_S)
        elif sock is self.udp:
            data, peer, at = self._read(sock)
            self.udp_peer = self.udp_peer or peer
            if peer != self.udp_peer:
                self.strangers += 1
            elif len(data) == _NUMBER.size:
                self.datagrams.arrivals.append((at, _NUMBER.unpack(data)[0]))
        else:
            flow = self.streams[sock]
            try:
                data = sock.recv(4096)
            except OSError as exc:
                flow.error = exc
                return
            if not data:
                flow.error = ConnectionError("the guest closed it")
            flow.buffer += data
            while len(flow.buffer) >= _NUMBER.size:
                flow.arrivals.append((now, _NUMBER.unpack_from(flow.buffer)[0]))
                flow.buffer = flow.buffer[_NUMBER.size:]

    def _note(self, sock):
        """Notes a frame at one of the guest's devices."""
        frame, source, at = self._read(sock)
        # The guest's broadcasts come back to the devices that it has left.
        kind, number = "other" if frame[6:12] == self.mac and source[2] != socket.PACKET_OUTGOING else None, -1
        if frame[12:14] == b"\x08\0":
            protocol, port = frame[23], UDP_PORT.to_bytes(2, "big")
            if frame[26:30] == self.guest and protocol == socket.IPPROTO_ICMP and frame[34] == _ECHO_REQUEST:
                kind, number = "ping", int.from_bytes(frame[40:42], "big")
            elif frame[26:30] == self.guest and protocol == socket.IPPROTO_UDP and frame[36:38] == port and len(frame) >= 50:
                kind, number = "echo", _NUMBER.unpack_from(frame, 42)[0]
            elif frame[30:34] == self.guest and protocol == socket.IPPROTO_UDP and frame[34:36] == port:
                kind, number = "datagram", _NUMBER.unpack_from(frame, 42)[0]
        if kind:
            self.frames.append(Frame(at, self.devices[sock], kind, number))

    def finish(self, patience=20):
        """Waits for the last echoes of the streams. Returns the numbers of streams and of those that lived:
        each message came back once, in order."""
        self.draining.set()
        end = time.monotonic() + patience
        while time.monotonic() < end and any(flow.lost()[0] and not flow.error for flow in self.streams.values()):
            time.sleep(0.1)
        self.stopping.set()
        self.thread.join(10)
        whole = [flow for flow in self.streams.values()
                 if not flow.error and [number for _, number in flow.arrivals] == list(range(flow.sent))]
        for sock in (self.raw, self.listener, self.udp, *self.devices, *self.streams):
            sock.close()
        return len(self.streams), len(whole)
