#!/usr/bin/env python3
"""Fragments that a flow sends through ct() and on, as OVN-Kubernetes' shared gateway does with those from outside."""

import os
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import frames
from lab.net import receive
from lab.parity.node import Node
from lab.runner import limit, main
from lab.shell import wait_for

OUT4, OUT6, IN4, IN6, HOST4, HOST6 = "10.1.0.1", "fd00:1::1", "10.1.0.2", "fd00:1::2", "10.1.0.254", "fd00:1::fe"
# The flow of OVN-Kubernetes, for both versions of IP.
WHOLE = "priority=110,table=0,in_port=uplink,%s,nw_frag=yes,actions=ct(table=%d,zone=64004)"
REST = "priority=0,actions=NORMAL"
FRAGMENT4, FRAGMENT6 = 20, 48  # bytes of headers before a fragment's data


class Lan:
    """A bridge with an uplink to the namespace `out`, a pod `pod`, and an address of the host."""

    def __init__(self, lab, table=0, rest=(REST,), mtu=1500):
        self.node = n = Node(lab)
        n.up(n.host, "br0", f"{HOST4}/24", f"{HOST6}/64")
        self.out = n.pod("uplink", f"{OUT4}/24", f"{OUT6}/64")
        self.pod = n.pod("pod", f"{IN4}/24", f"{IN6}/64", mtu=mtu)
        n.flows(WHOLE % ("ip", table), WHOLE % ("ipv6", table), *rest)
        self.sender, self.catcher = n.net.raw(self.out, "eth0"), n.net.raw(self.pod, "eth0")
        lab.cleanups.extend((self.sender.close, self.catcher.close))
        self.macs = n.mac(self.pod, "eth0"), n.mac(self.out, "eth0")
        # The bridge learns where the pod is before the first fragment.
        n.net.ping(self.out, IN4)

    def send(self, six, ident, pieces):
        """Sends pieces (offset, bytes, whether more follow) of one datagram to the pod."""
        for offset, data, more in pieces:
            if six:
                header = struct.pack("!BBHI", 17, 0, offset | more, ident)
                self.sender.send(frames.ethernet(*self.macs, 0x86dd, frames.ipv6(OUT6, IN6, 44, header + data)))
            else:
                field = offset // 8 | (0x2000 if more else 0)
                self.sender.send(frames.ethernet(*self.macs, 0x0800, frames.ipv4(OUT4, IN4, 17, data, ident=ident, frag=field)))

    def received(self, six, want=b"", seconds=3):
        """The fragments that the pod gets: [(offset, data, size of the IP packet)], by offset.

        With `want` it waits up to 15 s until that datagram is there. Numbers of fragments do not matter: Linux
        numbers those of IPv6 anew.
        """
        found, end = [], time.monotonic() + (15 if want else seconds)
        while not want or joined(found) != want:
            frame = receive(self.catcher, lambda f: True, max(0.01, end - time.monotonic()))
            if not frame:
                break
            ip = frame[14:]
            if six and frame[12:14] == b"\x86\xdd" and ip[6] == 44:
                size, offset, head = 40 + int.from_bytes(ip[4:6]), int.from_bytes(ip[42:44]) & 0xfff8, FRAGMENT6
            elif not six and frame[12:14] == b"\x08\0" and ip[9] == 17:
                size, offset, head = int.from_bytes(ip[2:4]), (int.from_bytes(ip[6:8]) & 0x1fff) * 8, FRAGMENT4
            else:
                continue
            found.append((offset, ip[head:size], size))
        return sorted(found)

    def passes(self, six, ident, size, fits=True):
        """Sends a datagram in fragments with so much data each, and requires that it arrives, or nothing of it."""
        data = datagram(six, 3000)
        self.send(six, ident, pieces(data, size, size))
        got = joined(self.received(six, data if fits else b""))
        assert got == (data if fits else b""), f"IPv{6 if six else 4}, fragments of {size}: {len(got)} bytes arrived"


def joined(found):
    return b"".join(piece for _, piece, _ in sorted(found))


def datagram(six, length):
    """A UDP datagram to the pod, with its header."""
    ends = (OUT6, IN6) if six else (OUT4, IN4)
    return frames.udp(*ends, 4000, 5000, bytes(range(250)) * (length // 250))


def pieces(data, *sizes):
    """Cut at these sizes; the rest is the last piece."""
    cuts, at = [], 0
    for size in sizes:
        cuts.append((at, data[at:at + size], True))
        at += size
    return [*cuts, (at, data[at:], False)]


def scenario_large_pings_from_outside(lab):
    """The host behind the flow replies to echo requests of 4,000 bytes from outside."""
    lan = Lan(lab)
    lan.node.net.ping(lan.out, HOST4, size=4000)


def scenario_large_pings_from_outside_over_ipv6(lab):
    """The same over IPv6."""
    lan = Lan(lab)
    lan.node.net.ping(lan.out, HOST6, size=4000)


def cut_again(lab, six, *cases):
    """Sends datagrams in fragments of these sizes, and requires that they go out whole and in no larger ones."""
    lan = Lan(lab)
    head = FRAGMENT6 if six else FRAGMENT4
    for ident, (sizes, reverse) in enumerate(cases, 0x101):
        data = datagram(six, 3000)
        cut = pieces(data, *sizes)
        lan.send(six, ident, reversed(cut) if reverse else cut)
        found = lan.received(six, data)
        lan.node.trace.note(f"sent {[len(piece) for _, piece, _ in cut]}, received {[(at, size) for at, _, size in found]}")
        assert joined(found) == data, f"fragments of {sizes}: the pieces that arrive are not the datagram"
        largest, got = max(len(piece) for _, piece, _ in cut) + head, [size for _, _, size in found]
        if six:
            largest = max(largest, 1280)  # any link carries that much
        assert max(got) <= largest, f"sizes {got} instead of at most {largest}"
        assert len(got) <= len(cut), f"{len(cut)} fragments came in, {len(got)} went out"


CUTS = ((1304, 1304), False), ((1304, 1400), False), ((1304, 1304), True)
SMALL = ((1000, 1000), False), ((504, 1000, 504), False)


def scenario_no_larger_than_those_received(lab):
    """No fragment that goes out is larger than the largest that came in, in whatever order they came."""
    cut_again(lab, False, *CUTS)


def scenario_no_larger_than_those_received_over_ipv6(lab):
    """The same over IPv6."""
    cut_again(lab, True, *CUTS)


def scenario_small_fragments(lab):
    """Fragments smaller than Open vSwitch's userspace datapath takes (1,200 bytes) are reassembled like larger ones."""
    cut_again(lab, False, *SMALL)


def scenario_small_fragments_over_ipv6(lab):
    """The same over IPv6, whose limit is 1,280 bytes there."""
    cut_again(lab, True, *SMALL)


def scenario_larger_than_the_outputs_mtu(lab):
    """A datagram whose largest fragment exceeds the MTU of the output is dropped; one that fits arrives."""
    lan = Lan(lab, mtu=1400)
    for six in (False, True):
        for ident, size, fits in ((0x201, 1440, False), (0x202, 1304, True)):
            lan.passes(six, ident, size, fits)


def scenario_check_pkt_larger(lab):
    """check_pkt_larger compares with the largest fragment that came in, not with the whole datagram."""
    lan = Lan(lab, table=1, rest=(
        REST, "table=1,priority=0,actions=drop",
        *(f"table=1,priority=10,{kind},nw_frag=no,actions=check_pkt_larger(1400)->NXM_NX_REG0[0],resubmit(,2)"
          for kind in ("udp", "udp6")),
        "table=2,priority=10,reg0=1,actions=drop", "table=2,priority=0,actions=output:pod"))
    for six in (False, True):
        for ident, size, fits in ((0x301, 1304, True), (0x302, 1400, False)):
            lan.passes(six, ident, size, fits)


def scenario_overlapping_fragments(lab):
    """Fragments that overlap with other bytes lose their datagram; the next datagram of that sender arrives."""
    lan = Lan(lab)
    for six in (False, True):
        data = datagram(six, 3000)
        first, second, last = pieces(data, 1304, 1304)
        lan.send(six, 0x401, (first, (1296, b"\xff" * 1312, True), second, last))
        assert not lan.received(six), "a datagram of overlapping fragments went through"
        lan.passes(six, 0x402, 1304)


@limit(300)
def scenario_flood_of_first_fragments(lab):
    """First fragments alone take bounded memory. Whole packets pass meanwhile, and fragments do afterwards."""
    lan = Lan(lab)
    n = lan.node
    lan.node.net.ping(lan.out, HOST4, size=4000)
    with open(f"/proc/{n.switch.pid}/status") as status:
        before = memory(status.read())
    piece = b"\xee" * 1400
    for ident in range(20_000):
        lan.send(False, ident & 0xffff, [(0, piece, True)])
    n.net.ping(lan.out, HOST4, size=1000)
    with open(f"/proc/{n.switch.pid}/status") as status:
        grown = memory(status.read()) - before
    assert grown < 16 << 10, f"the switch has grown by {grown} KiB"
    wait_for("fragments to pass again", lambda: n.net.ping(lan.out, HOST4, count=1, size=4000, lossless=False), 90, 1)


def memory(status):
    """Resident KiB."""
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


if __name__ == "__main__":
    main()
