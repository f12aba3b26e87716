"""Frames that a pod sends byte by byte."""

import socket

# Frames from a pod's eth0: hexadecimal digits, one frame per argument, each sent three times.
FRAMES = """
import socket,sys,time
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))
for _ in range(3):
    for f in sys.argv[1:]: s.send(bytes.fromhex(f))
    time.sleep(0.05)
"""


def sum16(data):
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i:i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return (~total & 0xffff).to_bytes(2, "big")


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def ip4(text):
    return bytes(map(int, text.split(".")))


def arp(src, sha, spa, tpa):
    """A request for everybody."""
    return b"\xff" * 6 + mac(src) + bytes.fromhex("08060001080006040001") + mac(sha) + ip4(spa) + b"\0" * 6 + ip4(tpa)


def echo4(dst_mac, src_mac, src, dst, tag=None):
    """A ping."""
    ping = bytes([8, 0, 0, 0, 0, 7, 0, 1]) + b"heddle.."
    ping = ping[:2] + sum16(ping) + ping[4:]
    head = bytes([0x45, 0, 0, 20 + len(ping), 0, 1, 0, 0, 64, 1, 0, 0]) + ip4(src) + ip4(dst)
    head = head[:10] + sum16(head) + head[12:]
    vlan = b"" if tag is None else b"\x81\0" + tag.to_bytes(2, "big")
    return mac(dst_mac) + mac(src_mac) + vlan + b"\x08\0" + head + ping


def ip6(text):
    return socket.inet_pton(socket.AF_INET6, text)


def icmp6(dst_mac, src_mac, src, dst, body):
    """A message of ICMPv6; `body` from its type on, with a checksum of 0."""
    pseudo = ip6(src) + ip6(dst) + len(body).to_bytes(4, "big") + b"\0\0\0\x3a"
    body = body[:2] + sum16(pseudo + body) + body[4:]
    return mac(dst_mac) + mac(src_mac) + b"\x86\xdd" + b"\x60\0\0\0" + len(body).to_bytes(2, "big") + b"\x3a\xff" + ip6(src) + ip6(dst) + body


def advertisement(src_mac, src, target):
    """A neighbour advertisement for everybody: `target` is at `src_mac`."""
    return icmp6("33:33:00:00:00:01", src_mac, src, "ff02::1", bytes([136, 0, 0, 0, 0x20, 0, 0, 0]) + ip6(target) + b"\x02\x01" + mac(src_mac))


A1, A2, A3 = "02:00:00:00:00:11", "02:00:00:00:00:12", "02:00:00:00:00:13"
