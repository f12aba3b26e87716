"""Building Ethernet frames byte by byte, right or deliberately wrong."""

import socket
import struct


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def checksum(data):
    """RFC 1071."""
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ethernet(dst, src, ethertype, payload, vlans=()):
    """vlans: (tpid, tci) pairs, outermost first."""
    tags = b"".join(struct.pack("!HH", tpid, tci) for tpid, tci in vlans)
    return mac(dst) + mac(src) + tags + struct.pack("!H", ethertype) + payload


def llc(dst, src, payload):
    """An 802.3 frame with a length instead of an EtherType and a spanning tree's LLC header."""
    body = b"\x42\x42\x03" + payload
    return mac(dst) + mac(src) + struct.pack("!H", len(body)) + body


def arp(op, sha, spa, tha, tpa):
    return struct.pack("!HHBBH", 1, 0x0800, 6, 4, op) + mac(sha) + socket.inet_aton(spa) + mac(tha) + \
        socket.inet_aton(tpa)


def ipv4(src, dst, proto, payload, tos=0, ttl=64, ident=1, frag=0, options=b"", total=None, version_ihl=None,
         good=True):
    """frag: the whole 16-bit field (flags and offset in units of 8 bytes)."""
    options += b"\0" * (-len(options) % 4)
    ihl = 5 + len(options) // 4
    total = 20 + len(options) + len(payload) if total is None else total
    first = 0x40 | ihl if version_ihl is None else version_ihl
    head = struct.pack("!BBHHHBBH4s4s", first, tos, total & 0xffff, ident, frag, ttl, proto, 0,
                       socket.inet_aton(src), socket.inet_aton(dst)) + options
    csum = checksum(head) if good else 0x1234
    return head[:10] + struct.pack("!H", csum) + head[12:] + payload


def ipv6(src, dst, proto, payload, tclass=0, label=0, hlim=64, length=None):
    length = len(payload) if length is None else length
    return struct.pack("!IHBB", 6 << 28 | tclass << 20 | label, length & 0xffff, proto, hlim) + \
        socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst) + payload


def pseudo(src, dst, proto, length):
    if ":" in src:
        return socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst) + \
            struct.pack("!II", length, proto)
    return socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!BBH", 0, proto, length)


def tcp(src, dst, sport, dport, flags=2, data=b"", good=True, seq=1, ack=2):
    head = struct.pack("!HHIIHHHH", sport, dport, seq & 0xffffffff, ack & 0xffffffff, 5 << 12 | flags, 512, 0, 0)
    csum = checksum(pseudo(src, dst, 6, len(head) + len(data)) + head + data) if good else 0xdead
    return head[:16] + struct.pack("!H", csum) + head[18:] + data


def udp(src, dst, sport, dport, data=b"", good=True, csum=None):
    head = struct.pack("!HHHH", sport, dport, 8 + len(data), 0)
    if csum is None:
        csum = (checksum(pseudo(src, dst, 17, len(head) + len(data)) + head + data) or 0xffff) if good else 0xdead
    return head[:6] + struct.pack("!H", csum) + data


def crc32c(data):
    """RFC 9260 appendix A, bit by bit; frames here are short."""
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def sctp(sport, dport, data=b""):
    head = struct.pack("!HHII", sport, dport, 7, 0)
    return head[:8] + struct.pack("<I", crc32c(head + data)) + data


def icmp(kind, code, data=b"\0\1\0\1abcdefgh"):
    body = struct.pack("!BBH", kind, code, 0) + data
    return body[:2] + struct.pack("!H", checksum(body)) + body[4:]


def icmp6(src, dst, kind, code, data=b"\0\1\0\1abcdefgh"):
    body = struct.pack("!BBH", kind, code, 0) + data
    csum = checksum(pseudo(src, dst, 58, len(body)) + body)
    return body[:2] + struct.pack("!H", csum) + body[4:]


def neighbour(target, option=None, lladdr=None):
    """The body of a neighbour solicitation (option 1) or advertisement (option 2)."""
    body = b"\0\0\0\0" + socket.inet_pton(socket.AF_INET6, target)
    if option:
        body += struct.pack("!BB", option, 1) + mac(lladdr)
    return body


def read_pcap(path):
    """The frames of a pcap file in either byte order; a missing file has none."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return []
    if len(data) < 24:
        return []
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    frames, at = [], 24
    while at + 16 <= len(data):
        length = struct.unpack_from(order + "I", data, at + 8)[0]
        if at + 16 + length > len(data):
            break
        frames.append(data[at + 16:at + 16 + length])
        at += 16 + length
    return frames
