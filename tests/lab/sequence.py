"""Numbered datagrams from one namespace to another, and whether all arrive once and in order."""

import random
import socket
import struct
import threading
import time

_SO_RCVBUFFORCE = 33


class Sequence:
    """Runs from start to finish(). `gap` is the seconds between two datagrams, or a function that returns
    them; `pause` is the longest real gap. With `alone` each is sent after the one before has come."""

    port = 7000

    def __init__(self, lab, source, target, address, gap=0.0005, alone=False):
        Sequence.port += 1
        self.alone = alone
        self.gap = gap if callable(gap) else lambda: gap
        self.sent = self.received = 0
        self.faults, self.slowest, self.pause = [], 0.0, 0.0
        self.stop = threading.Event()

        def receiver():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            # The socket's buffer must not lose datagrams.
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 64 << 20)
            sock.bind(("0.0.0.0", Sequence.port))
            sock.settimeout(0.2)
            return sock

        def sender():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.connect((address, Sequence.port))
            return sock
        self.rx, self.tx = lab.net.socket(target, receiver), lab.net.socket(source, sender)
        self.threads = [threading.Thread(target=body, daemon=True) for body in (self._receive, self._send)]
        for thread in self.threads:
            thread.start()
        lab.cleanups.append(self.stop.set)

    def _send(self):
        due = last = time.monotonic()
        while not self.stop.is_set():
            now = time.monotonic()
            self.tx.send(struct.pack("!Qd", self.sent, now))
            self.sent += 1
            self.pause, last = max(self.pause, now - last), now
            patience = time.monotonic() + 30
            while self.alone and self.received < self.sent and time.monotonic() < patience:
                time.sleep(0)
            due = (time.monotonic() if self.alone else max(due, time.monotonic() - 0.05)) + self.gap()
            while (left := due - time.monotonic()) > 0:
                time.sleep(left if left > 0.0002 else 0)

    def _receive(self):
        over = None
        while over is None or time.monotonic() < over:
            try:
                number, at = struct.unpack("!Qd", self.rx.recv(64))
            except TimeoutError:
                number = None
            if number is not None:
                took = time.monotonic() - at
                self.slowest = max(self.slowest, took)
                if number != self.received and len(self.faults) < 10:
                    self.faults.append(f"{number} instead of {self.received}")
                self.received = number + 1
            if over is None and self.stop.is_set():
                over = time.monotonic() + 30
            if self.stop.is_set() and self.received == self.sent:
                return

    def finish(self):
        """Every datagram arrived once, each after the one before."""
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
        for sock in (self.rx, self.tx):
            sock.close()
        assert not self.faults and self.sent == self.received > 0, (self.sent, self.received, self.faults)
        return self


def at_random(longest):
    """Gaps of any length up to `longest` seconds."""
    dice = random.Random(1)
    return lambda: dice.uniform(0, longest)
