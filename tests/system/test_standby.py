#!/usr/bin/env python3
"""Two devices of one guest are one port: a VF's representor and a virtio device, here two veths."""

import os
import re
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, limit, main
from lab.shell import wait_for

GUEST, PEER = "02:00:00:00:00:05", "02:00:00:00:00:09"
TYPE = 0x88b5


class Pair:
    """A switch with a guest behind two ports, `vp` (the primary) and `vs`, and a peer on port 9."""

    def __init__(self, lab, mac=GUEST, system=False):
        self.lab, self.net = lab, lab.net
        self.sw = lab.switch(system=system)
        if self.sw.is_reference:
            raise Skip("the reference has no such ports")
        if system:
            self.sw.vsctl("add-br", "br0")
        else:
            lab.bridge(self.sw)
        self.peer = lab.veth_pod(self.sw, "peer", "10.1.0.9/24", mac=PEER, column=["--", "set", "interface", "vpeer", "ofport_request=9"])
        self.guest = lab.net.namespace("guest")
        ids = [f"external_ids:attached-mac={mac}"] if mac else []
        for dev, inside, more in (("vp", "e0", ["ofport_request=5"]), ("vs", "e1", ["ofport_request=6", "other_config:heddle-standby-for=vp"])):
            lab.net.veth(self.sw.netns, dev, self.guest, inside)
            lab.net.ip(self.guest, "link", "set", inside, "address", GUEST)
            self.sw.vsctl("add-port", "br0", dev, "--", "set", "interface", dev, *more, *ids)
        self.sw.wait_column("interface", "vs", "ofport", 6)

    def raw(self):
        """Raw sockets of both devices of the guest and of the peer."""
        return [self.net.raw(ns, dev) for ns, dev in ((self.guest, "e0"), (self.guest, "e1"), (self.peer, "eth0"))]


def frame(dst, src, number):
    return frames.ethernet(dst, src, TYPE, number.to_bytes(4, "big") + bytes(60))


def arrived(sock, number, timeout=5):
    """Counts how often a frame arrives, until none arrives for a short time."""
    want = number.to_bytes(4, "big")
    times = 0
    while receive(sock, lambda got: got[12:14] == TYPE.to_bytes(2, "big") and got[14:18] == want, timeout if not times else 0.3):
        times += 1
    return times


@limit(100)
def scenario_one_port_for_both(lab):
    """The device that last sent the guest's frame gets its packets; rules and addresses see one port."""
    p = Pair(lab)
    e0, e1, peer = p.raw()
    p.sw.ofctl("add-flow", "br0", "priority=100,in_port=5,actions=NORMAL")
    p.sw.ofctl("add-flow", "br0", "priority=100,in_port=6,actions=drop")
    shown = p.sw.ofctl("show", "br0")
    assert "(vp)" in shown and "(vs)" not in shown, shown
    number = 0
    for sender, other in ((e0, e1), (e1, e0), (e0, e1), (e1, e0)):
        number += 1
        sender.send(frame("ff:ff:ff:ff:ff:ff", GUEST, number))
        assert arrived(peer, number) == 1
        assert arrived(other, number, 0.2) == 0, "a broadcast of the guest came back to it"
        for dst in (GUEST, "ff:ff:ff:ff:ff:ff"):
            number += 1
            peer.send(frame(dst, PEER, number))
            assert arrived(sender, number) == 1
            assert arrived(other, number, 0.2) == 0, "a packet came twice"
        assert re.search(rf"^ +5 +0 +{GUEST}", p.sw.appctl("fdb/show", "br0"), re.M)
    # A frame with another source passes from either device, and the active device stays.
    number += 1
    e0.send(frame(PEER, "02:00:00:00:00:77", number))
    assert arrived(peer, number) == 1
    number += 1
    peer.send(frame(GUEST, PEER, number))
    assert arrived(e1, number) == 1 and arrived(e0, number, 0.2) == 0
    counts = p.sw.ofctl("dump-ports", "br0", "5")
    assert int(re.search(r"rx pkts=(\d+)", counts).group(1)) >= 5, counts
    assert "the guest uses" in wait_for("a line of the log", lambda: "the guest uses" in p.sw.log() and p.sw.log())
    for sock in (e0, e1, peer):
        sock.close()


@limit(100)
def scenario_link_and_rows(lab):
    """A device that loses its link is left at once; a standby that cannot be one is a port of its own."""
    p = Pair(lab, mac=None)
    e0, e1, peer = p.raw()
    e0.send(frame(PEER, GUEST, 1))
    assert arrived(peer, 1) == 1
    p.net.ip(p.guest, "link", "set", "e0", "down")

    def comes(number):
        peer.send(frame(GUEST, PEER, number))
        return arrived(e1, number, 0.5)
    numbers = iter(range(10, 60))
    wait_for("packets by the standby", lambda: comes(next(numbers)), interval=0.1)
    assert "LINK_DOWN" not in p.sw.ofctl("show", "br0").split("(vp)")[1].split("speed")[0]
    p.net.ip(p.guest, "link", "set", "e0", "up")
    p.sw.vsctl("set", "interface", "vs", "other_config:heddle-standby-for=nowhere")
    wait_for("a port of its own", lambda: "(vs)" in p.sw.ofctl("show", "br0"))
    assert "the bridge has no such interface, so it is a port of its own" in p.sw.log()
    p.sw.vsctl("set", "interface", "vs", "other_config:heddle-standby-for=vp")
    wait_for("one port again", lambda: "(vs)" not in p.sw.ofctl("show", "br0"))
    p.sw.vsctl("del-port", "vs")
    # Opens a new socket: the old one has the error from the time without a link.
    e0.close()
    e0 = p.net.raw(p.guest, "e0")
    e0.send(frame(PEER, GUEST, 100))
    assert arrived(peer, 100) == 1
    peer.send(frame(GUEST, PEER, 101))
    assert arrived(e0, 101) == 1


class Pinger:
    """Pings of the guest by either device, as frames."""

    def __init__(self, pair):
        pair.net.ip(pair.peer, "neigh", "add", "10.1.0.5", "lladdr", GUEST, "dev", "eth0")
        *self.devices, peer = pair.raw()
        peer.close()
        for sock in self.devices:
            sock.settimeout(0)
        # Replies to each ping; replies by the device that did not send.
        self.answers, self.number, self.misplaced, self.silences = {}, 0, 0, []

    def collect(self, using):
        for sock in self.devices:
            while True:
                try:
                    got = sock.recv(2000)
                except BlockingIOError:
                    break
                if got[:6] == frames.mac(GUEST) and got[12:14] == b"\x08\0" and got[23] == 1 and got[34] == 0:
                    number = int.from_bytes(got[40:42], "big")
                    self.answers[number] = self.answers.get(number, 0) + 1
                    self.misplaced += sock is not using

    def ping(self, device, count, interval=0.002):
        """Pings by one device, until all replies came or two seconds are over; notes the first silence."""
        using, began, first = self.devices[device], time.monotonic(), None
        before = self.number
        for _ in range(count):
            self.number += 1
            echo = frames.icmp(8, 0, b"\x01\xf4" + self.number.to_bytes(2, "big") + bytes(48))
            using.send(frames.ethernet(PEER, GUEST, 0x0800, frames.ipv4("10.1.0.5", "10.1.0.9", 1, echo)))
            time.sleep(interval)
            misplaced = self.misplaced
            self.collect(using)
            if first is None and max(self.answers, default=0) > before and misplaced == self.misplaced:
                first = time.monotonic() - began
        end = time.monotonic() + 2
        while len(self.answers) < self.number and time.monotonic() < end:
            self.collect(using)
        self.silences.append(first if first is not None else time.monotonic() - began)


@limit(150)
def scenario_changes_under_a_stateful_rule(lab):
    """200 changes during a tracked connection: no packet is lost, and none comes twice."""
    p = Pair(lab)
    for rule in ("table=0,priority=100,arp,actions=NORMAL",
                 "table=0,priority=90,ip,actions=ct(table=1,zone=7)",
                 "table=1,in_port=5,ip,ct_state=+new+trk,actions=ct(commit,zone=7),9",
                 "table=1,in_port=5,ip,ct_state=+est+trk,actions=9",
                 "table=1,in_port=9,ip,ct_state=+est+rpl+trk,actions=5"):
        p.sw.ofctl("add-flow", "br0", rule)
    p.sw.ofctl("--strict", "del-flows", "br0", "priority=0")
    pinger = Pinger(p)
    changes = 200
    for turn in range(changes):
        # The guest changes over when its packets have come.
        pinger.ping(turn % 2, 5)
    answers, number, misplaced = pinger.answers, pinger.number, pinger.misplaced
    missing = [n for n in range(1, number + 1) if n not in answers]
    print(f"  {changes} changes: {len(missing)} of {number} pings lost, {sum(n > 1 for n in answers.values())} twice, "
          f"{misplaced} by the other device")
    assert missing == [] and set(answers.values()) == {1} and misplaced == 0
    lines = [line for line in p.sw.appctl("dpctl/dump-conntrack", "zone=7").splitlines() if line.startswith("icmp")]
    assert len(lines) == 1, lines
    log = p.sw.log()
    assert "the guest uses" in log and log.count("the guest uses") < 60


@limit(150)
def scenario_changes_with_flows_in_the_kernel(lab):
    """Flows in the kernel soon use the device that the guest uses now."""
    p = Pair(lab, system=True)
    if "offload is off" in p.sw.appctl("heddle/offload"):
        raise Skip("no eBPF here")
    pinger = Pinger(p)

    def forwarded():
        return int(re.search(r"forwarded-packets[^0-9]*(\d+)", p.sw.appctl("dpctl/offload-stats-show") + p.sw.appctl("heddle/offload")).group(1))
    pinger.ping(0, 1500)
    wait_for("flows in the kernel", lambda: (pinger.ping(0, 100), forwarded())[1] > 0)
    pinger.silences.clear()
    for turn in range(6):
        before = forwarded()
        pinger.ping(1 - turn % 2, 700)
        wait_for("packets that the kernel forwards", lambda: (pinger.ping(1 - turn % 2, 50), forwarded())[1] > before)
    lost = pinger.number - len(pinger.answers)
    worst = 1000 * max(pinger.silences)
    print(f"  6 changes: {lost} of {pinger.number} pings lost, {pinger.misplaced} by the other device, longest silence {worst:.0f} ms")
    assert set(pinger.answers.values()) == {1} and lost == 0 and worst < 150, (lost, worst)


if __name__ == "__main__":
    main()
