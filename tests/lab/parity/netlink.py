"""Generic and netfilter netlink, as far as the checks need them: connections and samples of packets."""

import contextlib
import socket
import struct

NETLINK_NETFILTER, NETLINK_GENERIC = 12, 16
SOL_NETLINK, ADD_MEMBERSHIP = 270, 1
REQUEST, ACK, DUMP = 1, 4, 0x300
ERROR, DONE = 2, 3
GENL_ID_CTRL, GET_FAMILY = 16, 3
CT_GET, CT_DELETE = 0x0101, 0x0102


def attributes(data):
    """{type: payload}; of several with one type the last."""
    found, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        found[kind & 0x3fff] = data[at + 4:at + length]
        at += (length + 3) & ~3
    return found


def attribute(kind, payload):
    return struct.pack("=HH", 4 + len(payload), kind) + payload + b"\0" * (-len(payload) % 4)


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


class Connection:
    """One entry of the kernel's table, from a dump."""

    def __init__(self, raw):
        self.raw = raw[4:]
        parts = attributes(self.raw)
        self.original, self.reply = (ends(parts[kind]) for kind in (1, 2))
        self.protocol = self.original[2]
        self.zone = int.from_bytes(parts.get(18, b"\0\0"))
        self.mark = int.from_bytes(parts.get(8, b"\0\0\0\0"))
        self.label = parts.get(22, b"")

    def __repr__(self):
        return f"zone {self.zone} {self.original} {self.reply} mark {self.mark:#x} label {self.label.hex()}"


def ends(data):
    """((source, port), (destination, port), protocol) of a tuple."""
    parts = attributes(data)
    addresses, protocol = attributes(parts[1]), attributes(parts[2])
    four = 1 in addresses
    source, target = (socket.inet_ntop(socket.AF_INET if four else socket.AF_INET6, addresses[kind])
                      for kind in ((1, 2) if four else (3, 4)))
    return (source, int.from_bytes(protocol.get(2, b""))), (target, int.from_bytes(protocol.get(3, b""))), protocol[1][0]


def connections(net, ns):
    """All entries of a namespace's table for IPv4."""
    with opened(net, ns, NETLINK_NETFILTER) as sock:
        return [Connection(raw) for raw in request(sock, CT_GET, DUMP, struct.pack("=BBH", socket.AF_INET, 0, 0))]


def delete_connections(net, ns, wanted):
    """Reads the table and deletes each entry that is wanted, by the attributes read: so ovnkube's library does it."""
    gone = [found for found in connections(net, ns) if wanted(found)]
    with opened(net, ns, NETLINK_NETFILTER) as sock:
        for found in gone:
            request(sock, CT_DELETE, ACK, struct.pack("=BBH", socket.AF_INET, 0, 0) + found.raw)
    return len(gone)


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
