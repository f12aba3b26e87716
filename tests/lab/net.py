"""Network namespaces ("pods"), veth pairs and raw sockets inside them."""

import ctypes
import os
import re
import socket
import struct
import threading
import time

from .shell import PATIENCE

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_OUTGOING = 263, 8, 4
_VLAN_VALID, _VLAN_TPID_VALID = 0x10, 0x40


class Net:
    """Namespaces of one lab, all named after one unique stem, removed by close()."""

    def __init__(self, trace):
        self.trace = trace
        self.stem = f"hd{os.getpid()}"
        self.names = []

    def namespace(self, name, ipv6=False):
        full = f"{self.stem}-{name}"
        self.trace.run("ip", "netns", "add", full)
        self.names.append(full)
        self.ip(full, "link", "set", "lo", "up")
        if not ipv6:
            for scope in ("all", "default"):
                self.trace.run("ip", "netns", "exec", full, "sh", "-c",
                               f"echo 1 > /proc/sys/net/ipv6/conf/{scope}/disable_ipv6", check=False, quiet=True)
        return full

    def ip(self, ns, *args, **kw):
        return self.trace.run("ip", "-n", ns, *args, **kw)

    def run(self, ns, *argv, **kw):
        return self.trace.run("ip", "netns", "exec", ns, *argv, **kw)

    def veth(self, ns_a, dev_a, ns_b, dev_b, up=True):
        """A veth pair born inside its namespaces, so that no name can clash outside."""
        self.ip(ns_a, "link", "add", dev_a, "type", "veth", "peer", "name", dev_b, "netns", ns_b)
        if up:
            self.ip(ns_a, "link", "set", dev_a, "up")
            self.ip(ns_b, "link", "set", dev_b, "up")

    def move(self, dev, ns_from, ns_to):
        self.ip(ns_from, "link", "set", dev, "netns", ns_to)

    def address(self, ns, dev, cidr, mac=None):
        if mac:
            self.ip(ns, "link", "set", dev, "address", mac)
        self.ip(ns, "addr", "add", cidr, "dev", dev)
        self.ip(ns, "link", "set", dev, "up")

    def ping(self, ns, target, count=3, size=56, df=False, timeout=PATIENCE, lossless=True):
        """Pings; returns the number of replies, and requires all of them if lossless."""
        # Without -w the last reply has a tenth of a second. With it, ping sends until it has `count` replies,
        # so a missing one was lost.
        args = ["ping", "-n", "-c", count, "-i", "0.1", *(("-w", "30") if lossless else ("-W", "2")), "-s", size] + (["-M", "do"] if df else [])
        out = self.run(ns, *args, target, check=False, timeout=timeout)
        got = {int(number) for number in re.findall(r"icmp_seq=(\d+) ttl=", out)}
        if lossless and got != set(range(1, count + 1)):
            raise AssertionError(f"ping {target}: answers {sorted(got)} instead of {count}\n{out}")
        return len(got)

    def no_ping(self, ns, target, count=2):
        out = self.run(ns, "ping", "-n", "-c", count, "-i", "0.1", "-W", "1", target, check=False)
        if " 0 received" not in out:
            raise AssertionError(f"ping {target} was answered\n{out}")
        # The kernel may still be resolving the neighbour, and would give up in the middle of the next ping.
        self.ip(ns, "neigh", "flush", "to", target, "nud", "all")

    def socket(self, ns, make):
        """make() run inside the namespace; the sockets that it opens stay there."""
        result = []

        def body():
            with open(f"/run/netns/{ns}") as file:
                if _LIBC.setns(file.fileno(), _CLONE_NEWNET) != 0:
                    result.append(OSError(ctypes.get_errno(), f"setns {ns}"))
                    return
            try:
                result.append(make())
            except OSError as exc:
                result.append(exc)
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        if isinstance(result[0], Exception):
            raise result[0]
        return result[0]

    def raw(self, ns, dev, timeout=PATIENCE):
        """A packet socket bound to a device of the namespace."""
        def make():
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            sock.bind((dev, 0))
            sock.settimeout(timeout)
            return sock
        return self.socket(ns, make)

    def close(self):
        for name in reversed(self.names):
            self.trace.run("ip", "netns", "del", name, check=False)
        self.names.clear()


def receive(sock, want, timeout=PATIENCE):
    """The next received frame that satisfies want(frame); None when none comes in time."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        sock.settimeout(max(0.01, end - time.monotonic()))
        try:
            frame, extra, _, source = sock.recvmsg(70000, 256)
        except TimeoutError:
            return None
        if source[2] != _PACKET_OUTGOING:
            frame = _with_tag(frame, extra)
            if want(frame):
                return frame
    return None


def _with_tag(frame, extra):
    """The kernel takes the outer VLAN tag off before a packet socket sees the frame: put it back."""
    for level, kind, data in extra:
        if level == _SOL_PACKET and kind == _PACKET_AUXDATA:
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
            if status & _VLAN_VALID:
                return frame[:12] + struct.pack("!HH", tpid if status & _VLAN_TPID_VALID else 0x8100, tci) + frame[12:]
    return frame
