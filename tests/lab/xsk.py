"""Another program's AF_XDP socket at a queue of a network device, without an XDP program."""

import contextlib
import ctypes
import mmap
import socket
import struct

from .shell import wait_for

_LIBC = ctypes.CDLL(None, use_errno=True)
_AF_XDP, _SOL_XDP = 44, 283
_RX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 2, 4, 5, 6
_COPY = 1 << 1
_FRAMES, _FRAME = 64, 4096


@contextlib.contextmanager
def bound(lab, ns, dev, queue=0):
    """The socket is bound until the block ends."""
    memory = mmap.mmap(-1, _FRAMES * _FRAME)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def make():
        sock = socket.socket(_AF_XDP, socket.SOCK_RAW, 0)
        sock.setsockopt(_SOL_XDP, _UMEM_REG, struct.pack("=QQIIII", address, len(memory), _FRAME, 0, 0, 0))
        for ring in (_FILL_RING, _COMPLETION_RING, _RX_RING):
            sock.setsockopt(_SOL_XDP, ring, _FRAMES)
        name = struct.pack("=HHIII", _AF_XDP, _COPY, socket.if_nametoindex(dev), queue, 0)
        # The kernel releases a queue some time after its socket was closed.
        wait_for("a free queue", lambda: _LIBC.bind(sock.fileno(), name, len(name)) == 0, 20)
        return sock
    with lab.net.socket(ns, make):
        yield
