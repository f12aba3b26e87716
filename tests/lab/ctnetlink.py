"""The kernel's table of connections by netlink, with the messages that controllers send.

OVN-Kubernetes lists the table of a family and compares each entry with its conditions. It sends each match back in a
request to delete it, with all attributes that the kernel has sent.
"""

import socket
import struct

NETLINK_NETFILTER = 12
NEW, GET, DELETE = 0x100, 0x101, 0x102
REQUEST, ACK, DUMP, CREATE = 1, 4, 0x300, 0x400
TUPLE_ORIG, TUPLE_REPLY, STATUS, TIMEOUT, MARK, ID, ZONE, LABELS = 1, 2, 3, 7, 8, 12, 18, 22
CONFIRMED, SEEN_REPLY, ASSURED = 8, 2, 4
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nested(kind, *parts):
    return attribute(kind | 0x8000, b"".join(parts))


def attributes(data):
    found = {}
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        if size < 4:
            break
        found[kind & 0x3fff] = data[4:size]
        data = data[(size + 3) & ~3:]
    return found


def ends(data):
    """Addresses, protocol and ports of a tuple."""
    parts = attributes(data)
    ip, proto = attributes(parts[1]), attributes(parts[2])
    v6 = 3 in ip
    src, dst = (socket.inet_ntop(socket.AF_INET6 if v6 else socket.AF_INET, ip[kind]) for kind in ((3, 4) if v6 else (1, 2)))
    sport, dport = (int.from_bytes(proto.get(kind, b"\0"), "big") for kind in (2, 3))
    return src, dst, proto[1][0], sport, dport


def udp4(kind, src, dst, sport, dport):
    """The attribute of a tuple of UDP over IPv4."""
    addresses = nested(1, attribute(1, socket.inet_aton(src)), attribute(2, socket.inet_aton(dst)))
    ports = [attribute(2 + n, struct.pack(">H", port)) for n, port in enumerate((sport, dport))]
    return nested(kind, addresses, nested(2, attribute(1, b"\x11"), *ports))


class KernelEntry:
    """An entry of a dump, and its bytes."""

    def __init__(self, raw):
        self.raw = raw
        found = attributes(raw)
        self.src, self.dst, self.proto, self.sport, self.dport = ends(found[TUPLE_ORIG])
        self.reply = ends(found[TUPLE_REPLY])
        self.zone = int.from_bytes(found.get(ZONE, b""), "big")
        self.mark = int.from_bytes(found.get(MARK, b""), "big")
        self.label_bytes = found.get(LABELS, b"")
        self.label = int.from_bytes(self.label_bytes, "little")
        self.timeout = int.from_bytes(found.get(TIMEOUT, b""), "big")
        self.status = int.from_bytes(found[STATUS], "big")

    def __repr__(self):
        return f"{self.proto} {self.src}:{self.sport}>{self.dst}:{self.dport} {self.reply} zone={self.zone} mark={self.mark} label={self.label:#x}"


class Table:
    """A socket about the connections of one network namespace."""

    def __init__(self, net, ns):
        self.socket = net.socket(ns, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER))
        self.socket.settimeout(10)

    def close(self):
        self.socket.close()

    def message(self, kind, flags, body, family=socket.AF_INET):
        return struct.pack("IHHIIBBH", 20 + len(body), kind, flags | REQUEST, 1, 0, family, 0, 0) + body

    def request(self, kind, flags, body, family=socket.AF_INET):
        """Payloads of the reply, and the error's number."""
        self.socket.send(self.message(kind, flags, body, family))
        replies = []
        while True:
            data = self.socket.recv(1 << 16)
            while data:
                size, of = struct.unpack_from("IH", data)
                payload, data = data[16:size], data[(size + 3) & ~3:]
                if of in (2, 3):
                    return replies, -struct.unpack_from("i", payload)[0]
                replies.append(payload)

    def list(self, family=4, zone=None):
        replies, error = self.request(GET, DUMP, b"", FAMILIES[family])
        assert error == 0, error
        entries = [KernelEntry(reply[4:]) for reply in replies]
        return [e for e in entries if zone is None or e.zone == zone]

    def delete_matching(self, matches, family=4, bare=False):
        """Deletes as controllers do, and returns the number. `bare` sends the original tuple and the zone alone."""
        n = 0
        for entry in self.list(family):
            if matches(entry):
                keys = (TUPLE_ORIG, ZONE) if bare else None
                body = entry.raw
                if keys:
                    found = attributes(body)
                    body = b"".join(attribute(k | (0x8000 if k == TUPLE_ORIG else 0), found[k]) for k in keys if k in found)
                n += self.request(DELETE, ACK, body, FAMILIES[family])[1] == 0
        return n

    def fill(self, zone, n, first=0):
        """Makes `n` entries of UDP, as another program would, which the kernel keeps even if its table is full."""
        batch = []
        for number in range(first, first + n):
            src, sport = f"10.9.{number >> 8 & 255}.{number & 255}", 1000 + (number >> 16)
            body = (udp4(TUPLE_ORIG, src, "10.9.255.1", sport, 53) + udp4(TUPLE_REPLY, "10.9.255.1", src, 53, sport)
                    + attribute(ZONE, struct.pack(">H", zone)) + attribute(TIMEOUT, struct.pack(">I", 900))
                    + attribute(STATUS, struct.pack(">I", CONFIRMED | SEEN_REPLY | ASSURED)))
            batch.append(self.message(NEW, CREATE, body))
            if len(batch) == 64 or number == first + n - 1:
                self.socket.send(b"".join(batch))
                batch = []

    def flush(self, zone):
        """Deletes the entries of a zone, one by one."""
        batch = []
        for entry in self.list(zone=zone):
            batch.append(self.message(DELETE, 0, entry.raw))
        for at in range(0, len(batch), 64):
            self.socket.send(b"".join(batch[at:at + 64]))
