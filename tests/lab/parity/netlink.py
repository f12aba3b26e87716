"""Generic netlink, as far as the checks need it: samples of packets."""

import contextlib
import socket
import struct

from lab.ctnetlink import attribute, attributes

NETLINK_GENERIC = 16
SOL_NETLINK, ADD_MEMBERSHIP = 270, 1
REQUEST, ACK, DUMP = 1, 4, 0x300
ERROR, DONE = 2, 3
GENL_ID_CTRL, GET_FAMILY = 16, 3


def messages(data):
    """(type, payload) of each message."""
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        yield kind, data[at + 16:at + length]
        at += (length + 3) & ~3


def request(sock, kind, flags, payload):
    """Sends one request and returns the payloads of its replies. OSError if the kernel refuses it."""
    sock.send(struct.pack("=IHHII", 16 + len(payload), kind, flags | REQUEST, 1, 0) + payload)
    answers = []
    while True:
        for kind, data in messages(sock.recv(1 << 16)):
            if kind == DONE:
                return answers
            if kind == ERROR:
                error = -struct.unpack_from("=i", data)[0]
                if error:
                    raise OSError(error, "netlink")
                return answers
            answers.append(data)
        if not flags & (DUMP | ACK):
            return answers


def opened(net, ns, protocol):
    """A netlink socket of a namespace."""
    def make():
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        sock.settimeout(20)
        sock.bind((0, 0))
        return sock
    return net.socket(ns, make)


class Samples:
    """The kernel's psample messages of a namespace."""

    def __init__(self, net, ns):
        self.sock = opened(net, ns, NETLINK_GENERIC)
        payload = struct.pack("=BBH", GET_FAMILY, 1, 0) + attribute(2, b"psample\0")
        family = attributes(request(self.sock, GENL_ID_CTRL, 0, payload)[0][4:])
        groups = [attributes(group) for group in attributes(family[7]).values()]
        self.family = int.from_bytes(family[1], "little")
        group = next(int.from_bytes(group[2], "little") for group in groups if group[1] == b"packets\0")
        self.sock.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)

    def close(self):
        self.sock.close()

    def read(self, seconds=2):
        """[(group, cookie, packet)] that arrive until `seconds` pass without one."""
        found = []
        self.sock.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            while True:
                for kind, data in messages(self.sock.recv(1 << 16)):
                    if kind == self.family:
                        parts = attributes(data[4:])
                        group = int.from_bytes(parts[3], "little")
                        found.append((group, parts.get(15, b""), parts.get(6, b"")))
        return found
