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
    numbers = iter(range(10, 90))
    wait_for("packets by the standby", lambda: comes(next(numbers)), interval=0.1)
    assert "LINK_DOWN" not in p.sw.ofctl("show", "br0").split("(vp)")[1].split("speed")[0]
    # Both devices are down, and come back.
    p.net.ip(p.guest, "link", "set", "e1", "down")
    wait_for("the port to be down", lambda: "LINK_DOWN" in p.sw.ofctl("show", "br0").split("(vp)")[1].split("speed")[0], interval=0.1)
    for dev in ("e1", "e0"):
        p.net.ip(p.guest, "link", "set", dev, "up")
    e1.close()
    e1 = p.net.raw(p.guest, "e1")
    wait_for("packets by the standby", lambda: comes(next(numbers)), interval=0.1)
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


def status(p, name):
    """Keys of the pair in an interface's status: (other interface, active device)."""
    found = dict(re.findall(r"heddle-([a-z-]+)=\"?([^\",}]+)", p.sw.get("interface", name, "status")))
    return found.get("standby") or found.get("standby-for"), found.get("active")


def wait_status(p, name, want):
    wait_for(f"status {want} of {name}", lambda: status(p, name) == want, interval=0.1)


def fault(p, name, words):
    """Waits until the interface's error has these words, and the log, too."""
    wait_for(f"an error of {name}: {words}", lambda: words in p.sw.get("interface", name, "error"), interval=0.1)
    assert words in p.sw.log(), words


@limit(150)
def scenario_the_active_device_stays(lab):
    """A restart, another address in the database and a further standby do not change the active device."""
    p = Pair(lab)
    e0, e1, peer = p.raw()
    wait_status(p, "vp", ("vs", "vp"))

    def uses(number, device, other):
        peer.send(frame(GUEST, PEER, number))
        assert arrived(device, number) == 1 and arrived(other, number, 0.2) == 0, number
    e1.send(frame(PEER, GUEST, 1))
    assert arrived(peer, 1) == 1
    uses(2, e1, e0)
    for name, other in (("vp", "vs"), ("vs", "vp")):
        wait_status(p, name, (other, "vs"))
    # Another address: at once, though the database has no other change.
    p.sw.vsctl("set", "interface", "vp", "external_ids:attached-mac=02:00:00:00:00:06")
    fault(p, "vs", f"external_ids:attached-mac={GUEST} has no effect: vp has 02:00:00:00:00:06")
    e0.send(frame(PEER, GUEST, 3))
    assert arrived(peer, 3) == 1
    uses(4, e1, e0)
    p.sw.vsctl("set", "interface", "vp", f"external_ids:attached-mac={GUEST}")
    p.sw.wait_column("interface", "vs", "error", "[]")
    uses(5, e1, e0)
    # A further standby, whose name comes first.
    p.net.veth(p.sw.netns, "va", p.guest, "e2")
    p.sw.vsctl("add-port", "br0", "va", "--", "set", "interface", "va", "ofport_request=7", "other_config:heddle-standby-for=vp")
    fault(p, "va", "heddle-standby-for=vp: vs is its standby, so it is a port of its own")
    uses(6, e1, e0)
    assert status(p, "vp") == ("vs", "vs") and status(p, "va") == (None, None)
    # The daemon is killed: no frame of the guest is needed.
    p.sw.stop_daemon(9)
    p.sw.start_daemon()
    p.sw.wait_column("interface", "vs", "ofport", 6)
    wait_status(p, "vp", ("vs", "vs"))
    wait_for("packets by the switch", lambda: (peer.send(frame(PEER[:-1] + "1", PEER, 9)), peer.send(frame(GUEST, PEER, 7)), arrived(e1, 7, 0.5))[2],
             interval=0.1)
    uses(8, e1, e0)
    e0.send(frame(PEER, GUEST, 10))
    assert arrived(peer, 10) == 1
    uses(11, e0, e1)
    for sock in (e0, e1, peer):
        sock.close()


@limit(100)
def scenario_settings_without_effect(lab):
    """Settings that a pair ignores, and interfaces that cannot be in one, are errors of the interface."""
    p = Pair(lab)
    p.sw.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev")
    p.sw.vsctl("add-port", "br0", "pa", "--", "set", "interface", "pa", "type=patch", "options:peer=pb",
               "--", "add-port", "br1", "pb", "--", "set", "interface", "pb", "type=patch", "options:peer=pa")
    p.sw.vsctl("add-port", "br0", "vx", "--", "set", "interface", "vx", "type=vxlan", "options:remote_ip=192.0.2.1")
    p.net.veth(p.sw.netns, "va", p.guest, "e2")
    p.sw.vsctl("add-port", "br0", "va")
    for primary, why in (("pa", "tunnels and patch ports have no device"), ("vx", "tunnels and patch ports have no device"),
                         ("vs", "that interface is a standby, too"), ("br0", "neither the interface itself nor the bridge's own port")):
        p.sw.vsctl("set", "interface", "va", f"other_config:heddle-standby-for={primary}")
        fault(p, "va", f"heddle-standby-for={primary}: {why}")
        assert "(va)" in p.sw.ofctl("show", "br0")
    p.sw.vsctl("set", "interface", "va", "other_config:heddle-standby-for=none")
    p.sw.wait_column("interface", "va", "error", "[]")
    p.sw.vsctl("set", "port", "vs", "tag=7")
    fault(p, "vs", "it is the standby of vp, so VLANs and other settings of the port have no effect: set them at vp")
    p.sw.vsctl("set", "port", "vp", "tag=7")
    p.sw.wait_column("interface", "vs", "error", "[]")
    p.sw.vsctl("--", "--id=@p", "get", "port", "vs", "--", "--id=@o", "get", "port", "va", "--", "--id=@m", "create", "mirror", "name=m",
               "select-src-port=@p", "output-port=@o", "--", "set", "bridge", "br0", "mirrors=@m")
    fault(p, "vs", "have no effect: set them at vp")
    p.sw.vsctl("clear", "bridge", "br0", "mirrors")
    p.sw.wait_column("interface", "vs", "error", "[]")
    p.sw.vsctl("set", "interface", "vs", "ingress_policing_rate=1000")
    fault(p, "vs", "so ingress_policing have no effect")
    p.sw.vsctl("set", "interface", "vs", "ingress_policing_rate=0")
    for mac in ("nonsense", "01:00:00:00:00:05", "00:00:00:00:00:00"):
        p.sw.vsctl("set", "interface", "vp", f"external_ids:attached-mac=\"{mac}\"")
        fault(p, "vp", f"external_ids:attached-mac={mac} is no address of a guest: it has no effect")
    p.sw.vsctl("set", "interface", "vp", f"external_ids:attached-mac={GUEST}")
    p.sw.wait_column("interface", "vp", "error", "[]")


@limit(100)
def scenario_devices_of_one_guest_are_recognised(lab):
    """The same iface-id and attached-mac: a tap is the standby of another device."""
    p = Pair(lab)
    p.sw.vsctl("del-port", "vs")
    p.net.ip(p.sw.netns, "tuntap", "add", "ta", "mode", "tap")
    p.net.ip(p.sw.netns, "link", "set", "ta", "up")
    p.sw.vsctl("add-port", "br0", "ta", "--", "set", "interface", "ta", "external_ids:iface-id=web-1", f"external_ids:attached-mac={GUEST}")
    p.sw.wait_column("interface", "ta", "ofport", lambda text: text.isdigit())
    assert "(ta)" in p.sw.ofctl("show", "br0")
    # Ids alone change, as when an orchestrator writes them later.
    p.sw.vsctl("set", "interface", "vp", "external_ids:iface-id=web-1")
    wait_status(p, "vp", ("ta", "vp"))
    wait_status(p, "ta", ("vp", "vp"))
    assert "(ta)" not in p.sw.ofctl("show", "br0")
    for off, on in ((("remove", "interface", "ta", "external_ids", "iface-id"), ("set", "interface", "ta", "external_ids:iface-id=web-1")),
                    (("set", "interface", "ta", "other_config:heddle-standby-for=none"),
                     ("remove", "interface", "ta", "other_config", "heddle-standby-for"))):
        p.sw.vsctl(*off)
        wait_for("a port of its own", lambda: "(ta)" in p.sw.ofctl("show", "br0"))
        p.sw.vsctl(*on)
        wait_for("one port", lambda: "(ta)" not in p.sw.ofctl("show", "br0"))


@limit(100)
def scenario_packets_that_return(lab):
    """`in_port` sends a packet back by the device that it came from, not by the active one."""
    p = Pair(lab)
    e0, e1, peer = p.raw()
    p.sw.ofctl("add-flow", "br0", "priority=100,in_port=5,dl_src=02:00:00:00:00:77,actions=in_port")
    e0.send(frame(PEER, GUEST, 1))
    assert arrived(peer, 1) == 1
    e1.send(frame(PEER, "02:00:00:00:00:77", 2))
    assert arrived(e1, 2) == 1 and arrived(e0, 2, 0.2) == 0
    e0.send(frame(PEER, "02:00:00:00:00:77", 3))
    assert arrived(e0, 3) == 1 and arrived(e1, 3, 0.2) == 0
    for sock in (e0, e1, peer):
        sock.close()


@limit(100)
def scenario_a_guest_that_alternates_is_limited(lab):
    """A guest that sends by both devices in turns causes 20 changes a second, after 20 at once."""
    p = Pair(lab)
    e0, e1, peer = p.raw()
    began, number, sent = time.monotonic(), 100, 0
    while time.monotonic() < began + 5:
        for sock in (e0, e1):
            sock.send(frame(PEER, GUEST, 1))
        sent += 2
        time.sleep(0.0005)
    took = time.monotonic() - began

    def changes():
        found = re.findall(r"the guest uses \w+ now \((\d+) changes\)", p.sw.log())
        return int(found[-1]) if found else 0
    wait_for("a line of the log", lambda: "changes its device too often, some changes came late" in p.sw.log())
    most = 20 + 20 * (took + 2)
    print(f"  {sent} frames in turns within {took:.1f} s: {changes()} changes (at most {most:.0f})")
    assert 20 <= changes() <= most < sent / 4
    # At the end, the guest's device is found, and without further frames than its usual ones.
    for sock, other in ((e1, e0), (e0, e1)):
        def comes():
            nonlocal number
            number += 1
            sock.send(frame(PEER, GUEST, 2))
            peer.send(frame(GUEST, PEER, number))
            return arrived(sock, number, 0.3)
        wait_for("packets by that device", comes, 5, 0.05)
    for sock in (e0, e1, peer):
        sock.close()


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
        # The guest changes over when its packets have come, below the limit of 20 changes a second.
        began = time.monotonic()
        pinger.ping(turn % 2, 5)
        time.sleep(max(0, began + 0.06 - time.monotonic()))
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
