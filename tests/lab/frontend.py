"""A front end of vhost-user by hand: sends any message, also those that no hypervisor would."""

import array
import mmap
import os
import socket
import struct

GUEST, USER, SIZE = 0x100000, 0x70000000, 1 << 20
VERSION_1, PROTOCOL_FEATURES = 1 << 32, 1 << 30
# Protocol features.
MQ, RARP, REPLY_ACK, MTU, CONFIGURE_MEM_SLOTS = 1, 1 << 2, 1 << 3, 1 << 4, 1 << 15
NEED_REPLY = 8


class Front:
    """Split rings of 256 entries at USER + 0x10000 * index: descriptors, then 0x1000 the available ring, 0x2000 the used ring."""

    def __init__(self, path, listen=True, timeout=60):
        self.path, self.timeout, self.listener, self.sock = path, timeout, None, None
        self.events = []
        if listen:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(1)
            self.listener.settimeout(timeout)

    def connect(self):
        if self.listener:
            self.sock, _ = self.listener.accept()
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.connect(self.path)
        self.sock.settimeout(self.timeout)
        return self

    def negotiate(self, protocol=MQ, more=0):
        features = self.ask(1) & (VERSION_1 | PROTOCOL_FEATURES | more)
        offered = self.ask(15)
        assert offered & protocol == protocol, hex(offered)
        self.tell(16, struct.pack("<Q", protocol))
        self.tell(3)
        self.tell(2, struct.pack("<Q", features))
        return self

    def memory(self, size=SIZE):
        self.fd = os.memfd_create("front", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.mem = mmap.mmap(self.fd, size)
        self.tell(5, struct.pack("<IIQQQQ", 1, 0, GUEST, size, USER, 0), [self.fd])
        return self

    def ring(self, index, call=None):
        """Starts and enables a ring; returns the descriptor that kicks it."""
        base = USER + index * 0x10000
        self.tell(8, struct.pack("<II", index, 256))
        self.tell(10, struct.pack("<II", index, 0))
        self.tell(9, struct.pack("<IIQQQQ", index, 0, base, base + 0x2000, base + 0x1000, 0))
        kick = os.eventfd(0)
        self.events.append(kick)
        self.tell(13, struct.pack("<Q", index), [kick if call is None else call])
        self.tell(12, struct.pack("<Q", index), [kick])
        self.tell(18, struct.pack("<II", index, 1))
        return kick

    def rings(self):
        """Sets up both rings of a device; returns the eventfd by which the guest kicks ring 1."""
        self.ring(0)
        return self.ring(1)

    def offer_buffers(self, n=256, length=2048):
        """Receive buffers in ring 0, at the memory's second half."""
        for i in range(n):
            self.mem[16 * i:16 * i + 16] = struct.pack("<QIHH", GUEST + SIZE // 2 + 2048 * i, length, 2, 0)
        self.mem[0x1004:0x1004 + 2 * n] = struct.pack(f"<{n}H", *range(n))
        self.mem[0x1002:0x1004] = struct.pack("<H", n)

    def used(self, index=0):
        at = 0x10000 * index + 0x2002
        return struct.unpack("<H", self.mem[at:at + 2])[0]

    def available(self, index, value):
        at = 0x10000 * index + 0x1002
        self.mem[at:at + 2] = struct.pack("<H", value)

    def tell(self, request, payload=b"", fds=(), flags=0):
        message = struct.pack("<III", request, 1 | flags, len(payload)) + payload
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([message], ancillary)

    def ask(self, request, payload=b"", fds=(), flags=0):
        """Sends a request; returns the number in the reply."""
        self.tell(request, payload, fds, flags)
        reply = self.sock.recv(20, socket.MSG_WAITALL)
        if len(reply) < 20:
            raise ConnectionError(f"no answer to {request}")
        return struct.unpack("<IIIQ", reply)[3]

    def acknowledged(self, request, payload=b"", fds=()):
        """With REPLY_ACK: whether the request was taken."""
        return self.ask(request, payload, fds, NEED_REPLY) == 0

    def is_closed(self):
        """Whether the switch hangs up (within the time limit)."""
        try:
            while self.sock.recv(4096):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self):
        for fd in self.events:
            os.close(fd)
        self.events = []
        if self.sock:
            self.sock.close()
        self.sock = None
