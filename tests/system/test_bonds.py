#!/usr/bin/env python3
"""Bonds and LACP: several links as one port, towards Debian's own ovs-vswitchd."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE, frames
from lab.net import receive
from lab.runner import Skip, limit, main
from lab.shell import wait_for

TCP = ("bond_mode=balance-tcp", "lacp=active", "other_config:lacp-time=fast")
PORT = 5005
SLOW = os.environ.get("HEDDLE_SLOW")
RULES = 1_000_000 if SLOW else 50_000
SO_RCVBUFFORCE = 33


class Pair:
    """A switch and a peer, joined by links m0-n0, m1-n1 and so on, each with a pod: a (10.1.0.1), b (10.1.0.2)."""

    def __init__(self, lab, links=2, peer_bond=TCP, bond=TCP, offload=False, peer_binary=REFERENCE):
        if not os.access(REFERENCE, os.X_OK):
            raise Skip("no ovs-vswitchd on this machine")
        self.lab, self.links = lab, links
        self.sw = lab.switch()
        if offload:
            self.sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true")
            self.sw.stop_daemon()
            self.sw.start_daemon()
        self.peer = lab.switch(binary=peer_binary)
        for switch in (self.sw, self.peer):
            lab.bridge(switch)
        for n in range(links):
            lab.net.veth(self.sw.netns, f"m{n}", self.peer.netns, f"n{n}")
        # Open vSwitch forwards packets without checksum as they are, so the pod computes them.
        self.a = lab.veth_pod(self.sw, "a", "10.1.0.1/24", offload=False)
        self.b = lab.veth_pod(self.peer, "b", "10.1.0.2/24")
        if peer_bond:
            self.add_bond(self.peer, "n", peer_bond)
        else:
            for n in range(links):
                self.peer.vsctl("add-port", "br0", f"n{n}")
        self.add_bond(self.sw, "m", bond)

    def add_bond(self, switch, letter, settings):
        switch.vsctl("add-bond", "br0", "bond0", *(f"{letter}{n}" for n in range(self.links)), *settings)

    def wait_negotiated(self):
        for switch in (self.sw, self.peer):
            wait_for("LACP on all links", lambda switch=switch: members(switch) == {"enabled": self.links}, 20)

    def ping(self):
        wait_for("a ping", lambda: not self.lab.trace.run(
            "ip", "netns", "exec", self.a, "ping", "-c1", "-W1", "10.1.0.2", check=False).count("100% packet loss"), 20)

    def sent(self):
        """Packets that the switch has sent by each member."""
        out = self.sw.ofctl("dump-ports", "br0")
        names = {self.sw.get("interface", f"m{n}", "ofport"): n for n in range(self.links)}
        found = re.findall(r"port +(\S+): rx[^\n]*\n +tx pkts=(\d+)", out)
        by_no = {no.strip('"'): int(n) for no, n in found}
        by_name = {f"m{n}": n for n in range(self.links)}
        return [next(v for k, v in by_no.items() if names.get(k, by_name.get(k)) == n) for n in range(self.links)]

    def set_link(self, n, up):
        self.lab.net.ip(self.peer.netns, "link", "set", f"n{n}", "up" if up else "down")


def members(switch, bond="bond0"):
    """Number of members by state."""
    states = re.findall(r"\nmember \S+: (\w+)", switch.appctl("bond/show", bond, quiet=True))
    return {state: states.count(state) for state in set(states)}


def active(switch, bond="bond0"):
    found = re.search(r"\nmember (\S+): \w+\n  active member", switch.appctl("bond/show", bond, quiet=True))
    return found and found[1]


class Stream:
    """Numbered UDP packets of several flows, sent at a rate until stopped; the receiver keeps their numbers."""

    def __init__(self, pair, flows=1, per_second=1000, backwards=False, size=64):
        src, dst = (pair.b, pair.a) if backwards else (pair.a, pair.b)
        self.to = "10.1.0.1" if backwards else "10.1.0.2"
        self.per_second, self.size = per_second, size
        self.sender = [pair.lab.net.socket(src, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(flows)]
        self.receiver = pair.lab.net.socket(dst, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self.receiver.bind(("", PORT))
        self.receiver.settimeout(1)
        self.sent = [0] * flows
        self.got = [[] for _ in range(flows)]
        self.times = []
        self.ending = False
        self.threads = [threading.Thread(target=t, daemon=True) for t in (self.send, self.receive)]
        for thread in self.threads:
            thread.start()

    def send(self):
        began, n = time.monotonic(), 0
        while not self.ending:
            for flow, sender in enumerate(self.sender):
                sender.sendto(b"%d %d".ljust(self.size, b".") % (flow, self.sent[flow]), (self.to, PORT))
                self.sent[flow] += 1
                n += 1
                # In small pieces: the peer's sockets are short.
                ahead = n / self.per_second - (time.monotonic() - began)
                if n % 16 == 0 and ahead > 0:
                    time.sleep(ahead)
                if self.ending:
                    return

    def receive(self):
        while True:
            try:
                data = self.receiver.recv(2048)
            except TimeoutError:
                if self.ending:
                    return
                continue
            flow, number = data.rstrip(b".").split()
            self.got[int(flow)].append(int(number))
            self.times.append(time.monotonic())

    def stop(self):
        self.ending = True
        for thread in self.threads:
            thread.join()
        for sock in [self.receiver, *self.sender]:
            sock.close()
        return sum(self.sent) - sum(len(set(got)) for got in self.got)

    def longest_silence(self):
        return max((b - a for a, b in zip(self.times, self.times[1:])), default=0)


def scenario_lacp_negotiates_and_flows_spread(lab):
    """With balance-tcp, connections take both links and one cached flow serves all of them."""
    pair = Pair(lab)
    pair.wait_negotiated()
    pair.ping()
    details = pair.sw.appctl("lacp/show", "bond0")
    assert details.startswith("---- bond0 ----\n  status: active negotiated\n"), details
    assert details.count("current attached") == 2 and details.count("may_enable: true") == 2, details
    for n in range(2):
        assert pair.sw.get("interface", f"m{n}", "lacp_current") == "true"
    # The peer's view of this system, and the other way round.
    ours = re.search(r"sys_id: (\S+)", details)[1]
    assert f"partner sys_id: {ours}" in pair.peer.appctl("lacp/show", "bond0")
    before = pair.sent()
    stream = Stream(pair, flows=200, per_second=4000)
    time.sleep(3)
    flows = pair.sw.appctl("dpctl/dump-flows")
    lost = stream.stop()
    spread = [now - old for now, old in zip(pair.sent(), before)]
    assert lost == 0, (lost, stream.sent)
    assert min(spread) > 0.25 * sum(spread), spread
    assert all(got == sorted(got) for got in stream.got), "packets out of order"
    udp = [line for line in flows.splitlines() if "lb_output(" in line]
    assert 1 <= len(udp) <= 4, flows
    pair.sw.vsctl("set", "port", "bond0", "other_config:lb-output-action=true")
    assert "Bonds:\n\tbond-id 1:\n" in pair.sw.appctl("dpif-netdev/bond-show")


def scenario_a_carrier_is_lost_and_comes_back(lab):
    """A link without carrier carries nothing; the others take over at once, with at most a few packets lost."""
    pair = Pair(lab)
    pair.wait_negotiated()
    pair.ping()
    stream = Stream(pair, flows=50, per_second=2000)
    time.sleep(1)
    pair.set_link(1, False)
    wait_for("one member", lambda: members(pair.sw) == {"enabled": 1, "disabled": 1}, 5)
    time.sleep(1)
    before = pair.sent()
    time.sleep(1)
    during = [now - old for now, old in zip(pair.sent(), before)]
    pair.set_link(1, True)
    pair.wait_negotiated()
    time.sleep(1)
    lost = stream.stop()
    assert during[1] == 0 and during[0] > 1000, during
    # Half of the packets would be lost while the link is down; some are lost while the peer uses it no more.
    assert lost < 1500, f"{lost} of {sum(stream.sent)} lost"
    assert stream.longest_silence() < 1, stream.longest_silence()


def scenario_a_silent_partner_times_out(lab):
    """A partner that is no longer heard on a link loses it after three seconds, although the carrier stays."""
    pair = Pair(lab)
    pair.wait_negotiated()
    # The peer takes the link out of its bond.
    link = pair.peer.vsctl("get", "interface", "n1", "_uuid")
    pair.peer.vsctl("remove", "port", "bond0", "interfaces", link, "--", "set", "port", "bond0", "bond_mode=balance-tcp")
    wait_for("the time-out", lambda: members(pair.sw) == {"enabled": 1, "disabled": 1}, 10)
    pair.ping()
    pair.sw.wait_column("interface", "m1", "lacp_current", "false", 10)
    details = pair.sw.appctl("lacp/show", "bond0")
    assert re.search(r"member: m1: (expired|defaulted) detached", details), details
    stats = pair.sw.appctl("lacp/show-stats", "bond0")
    assert re.search(r"member: m1:.*?Link Expired: [1-9]", stats, re.S), stats
    stream = Stream(pair, flows=50, per_second=1000)
    time.sleep(2)
    assert stream.stop() == 0


class View:
    """Reads a switch's own end of its LACP links again and again. `changed` has the views that differ from the first."""

    def __init__(self, switch):
        self.control, self.changed, self.readings = switch.unixctl(), [], 0
        self.first = self.read()
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def read(self):
        self.readings += 1
        return re.findall(r"member: .*|may_enable: .*|actor state: .*", self.control.call("lacp/show", "bond0"))

    def follow(self):
        while not self.ending.wait(0.02):
            view = self.read()
            if view != self.first and view not in self.changed:
                self.changed.append(view)

    def stop(self):
        self.ending.set()
        self.thread.join()
        self.control.close()


# The partner waits for 90 seconds with this: no machine is too busy for a restart in that time.
SLOWLY = ("bond_mode=balance-tcp", "lacp=active", "other_config:lacp-time=slow")


@limit(300)
def scenario_a_restart_within_the_timeout(lab):
    """The partner does not notice a restart within three intervals, also of a daemon that was killed. Its links stay
    current and distribute all the time."""
    restarts(lab, Pair(lab, peer_bond=SLOWLY, bond=SLOWLY))


@limit(300)
def scenario_a_restart_beside_a_partner_of_its_kind(lab):
    """The same, and the partner is a second daemon of the tested kind."""
    restarts(lab, Pair(lab, peer_bond=SLOWLY, bond=SLOWLY, peer_binary=None))


def restarts(lab, pair):
    pair.wait_negotiated()
    pair.ping()
    view, log = View(pair.peer), pair.peer.log()
    assert len(view.first) == 6 and view.first[0].endswith("current attached") and view.first[1] == "may_enable: true", view.first
    assert view.first[2].endswith("synchronized collecting distributing"), view.first
    for sig in (signal.SIGTERM, signal.SIGKILL):
        before, began = received(pair.peer), time.monotonic()
        pair.sw.stop_daemon(sig)
        pair.sw.start_daemon()
        pair.wait_negotiated()
        lab.trace.note(f"{sig.name}: {time.monotonic() - began:.1f} s until both ends use both links")
        pair.ping()
        wait_for("messages of the new daemon", lambda before=before: received(pair.peer) >= before + 2, 30)
    view.stop()
    assert not view.changed and view.readings > 20, (view.first, view.changed, view.readings)
    stats = pair.peer.appctl("lacp/show-stats", "bond0")
    for line in ("Link Expired: 0", "Link Defaulted: 0"):
        assert stats.count(line) == 2, stats
    assert pair.peer.log() == log, pair.peer.log()


def received(switch):
    """Messages that all links have received."""
    return sum(map(int, re.findall(r" RX PDUs: (\d+)", switch.appctl("lacp/show-stats", "bond0", quiet=True))))


def scenario_active_backup_with_a_primary(lab):
    """The primary is active while it is up. After a failover the peer learns from gratuitous packets where
    stations are, before they send anything."""
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=active-backup", "other_config:bond-primary=m1"))
    wait_for("the primary", lambda: active(pair.sw) == "m1", 5)
    pair.ping()
    mac = pair.sw.get("interface", "m1", "mac_in_use")
    pair.sw.wait_column("port", "bond0", "bond_active_slave", mac)
    stream = Stream(pair, per_second=500, backwards=True)
    time.sleep(1)
    pair.set_link(1, False)
    wait_for("the failover", lambda: active(pair.sw) == "m0", 5)
    time.sleep(1)
    pair.set_link(1, True)
    wait_for("the primary again", lambda: active(pair.sw) == "m1", 5)
    time.sleep(1)
    assert pair.sw.appctl("bond/set-active-member", "bond0", "m1") == "no change\n"
    lost = stream.stop()
    # The pod is silent: without gratuitous packets all packets after the failover would be lost.
    assert lost < 400, f"{lost} of {sum(stream.sent)} lost"
    pair.sw.vsctl("remove", "port", "bond0", "other_config", "bond-primary")
    assert pair.sw.appctl("bond/set-active-slave", "bond0", "m0") == "done\n"
    pair.ping()
    sent = pair.sent()
    pair.ping()
    assert pair.sent()[0] > sent[0] and pair.sent()[1] == sent[1]


def scenario_updelay_and_downdelay(lab):
    """A link counts only after it has been up, or down, for the configured time."""
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=active-backup", "bond_updelay=2000", "bond_downdelay=1500"))
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 10)
    name = active(pair.sw)
    n = int(name[1:])
    began = time.monotonic()
    pair.set_link(n, False)
    wait_for("the failover", lambda: active(pair.sw) not in (name, None), 5)
    assert 1.2 < time.monotonic() - began < 4, time.monotonic() - began
    began = time.monotonic()
    pair.set_link(n, True)
    wait_for("the delay", lambda: "updelay expires in" in pair.sw.appctl("bond/show", quiet=True), 2)
    wait_for("the member", lambda: members(pair.sw) == {"enabled": 2}, 8)
    assert time.monotonic() - began > 1.7, time.monotonic() - began


def scenario_balance_slb(lab):
    """Sources spread over the links. Our own broadcasts, which the peer sends back, are not taken for others'."""
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=balance-slb", "other_config:bond-rebalance-interval=0"))
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 5)
    pods = [lab.veth_pod(pair.sw, f"c{n}", f"10.1.0.{10 + n}/24", mac=f"02:00:00:00:01:{n:02x}") for n in range(6)]
    for pod in pods:
        lab.net.ping(pod, "10.1.0.2", count=1, lossless=False)
    listener = lab.net.raw(pods[0], "eth0")
    before = pair.sent()
    for pod in pods:
        lab.net.ping(pod, "10.1.0.2", count=5)
    spread = [now - old for now, old in zip(pair.sent(), before)]
    assert min(spread) >= 5, spread
    # ARP requests of a pod reach the other pods once, and never come back to it.
    listener.setblocking(False)
    drain(listener)
    asking = lab.net.raw(pods[1], "eth0")
    request = frames.arp(1, "02:00:00:00:01:01", "10.1.0.11", "00:00:00:00:00:00", "10.1.0.99")
    for _ in range(3):
        asking.send(frames.ethernet("ff:ff:ff:ff:ff:ff", "02:00:00:00:01:01", 0x0806, request))
        time.sleep(0.5)
    seen = [f for f in drain(listener) if f[6:12] == bytes.fromhex("020000000101") and f[12:14] == b"\x08\x06"]
    assert 1 <= len(seen) <= 4, len(seen)
    assert "drop_action_no_bond_member" in pair.sw.appctl("coverage/show")
    fdb = pair.sw.appctl("fdb/show", "br0")
    member_nos = {pair.sw.get("interface", f"m{n}", "ofport") for n in range(2)}
    moved = [line for line in fdb.splitlines() if "02:00:00:00:01:" in line and line.split()[0] in member_nos]
    assert not moved, fdb
    # A bucket that moves takes its flows along.
    mac = "02:00:00:00:01:00"
    bucket = pair.sw.appctl("bond/hash", mac, "0").strip()
    for n in (0, 1, 0):
        assert pair.sw.appctl("bond/migrate", "bond0", bucket, f"m{n}") == "migrated\n"
        before = pair.sent()
        lab.net.ping(pods[0], "10.1.0.2", count=20, lossless=False)
        moved = [now - old for now, old in zip(pair.sent(), before)]
        # Other pods may send ARP requests meanwhile.
        assert moved[n] >= 20 and moved[1 - n] <= 10, (n, moved)


def drain(sock):
    frames = []
    while True:
        try:
            frames.append(sock.recv(2048))
        except BlockingIOError:
            return frames


def scenario_rebalancing_keeps_the_order(lab):
    """All buckets begin on one link; the load spreads over both, and no flow's packets are out of order."""
    pair = Pair(lab, bond=(*TCP, "other_config:bond-rebalance-interval=1000"))
    pair.wait_negotiated()
    pair.ping()
    # One member only, then the other comes while traffic flows.
    pair.set_link(1, False)
    wait_for("one member", lambda: members(pair.sw) == {"enabled": 1, "disabled": 1}, 5)
    stream = Stream(pair, flows=300, per_second=3000, size=1000)
    time.sleep(2.5)
    pair.set_link(1, True)
    pair.wait_negotiated()

    def balanced():
        before = pair.sent()
        time.sleep(1)
        spread = [now - old for now, old in zip(pair.sent(), before)]
        return min(spread) > 0.3 * sum(spread)
    wait_for("balance", balanced, 30)
    lost = stream.stop()
    # The peer takes a second to use a link that comes, and drops packets on it until then.
    assert lost < 0.4 * sum(stream.sent), f"{lost} of {sum(stream.sent)} lost"
    late = sum(a > b for got in stream.got for a, b in zip(got, got[1:]))
    assert late == 0, f"{late} packets out of order"
    assert "rebalanced (now carrying" in pair.sw.log()


# Sends bursts of four packets of 100,000 flows, numbered within the flow: MAC of the target, seconds.
FLOWS = """
import socket, struct, sys, time
mac, seconds = bytes.fromhex(sys.argv[1].replace(":", "")), float(sys.argv[2])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.bind(("eth0", 0))
with open("/sys/class/net/eth0/address") as f:
    own = bytes.fromhex(f.read().strip().replace(":", ""))
ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 48, 1, 0, 64, 17, 0, bytes([10, 1, 0, 1]), bytes([10, 1, 0, 2]))
total = sum(struct.unpack("!10H", ip))
total = (total & 0xffff) + (total >> 16)
ip = ip[:10] + struct.pack("!H", ~total & 0xffff) + ip[12:]
frame = bytearray(mac + own + b"\\x08\\0" + ip + bytes(28))
began, n, sent = time.monotonic(), 0, [0] * 100000
while time.monotonic() - began < seconds:
    for flow in range(n, n + 25):
        for _ in range(4):
            struct.pack_into("!HHHHII", frame, 34, 1000 + flow % 50000, 5005 + flow // 50000, 28, 0, flow, sent[flow])
            sent[flow] += 1
            try:
                s.send(frame)
            except OSError:
                pass
    n = (n + 25) % 100000
print(sum(sent), sum(x > 0 for x in sent))
"""


def captured(path):
    """Device, flow and number of each packet of a capture of the device `any`, in the order in which they came."""
    with open(path, "rb") as file:
        data = file.read()
    assert struct.unpack_from("<I", data, 20)[0] == 276, "tcpdump writes LINUX_SLL2"
    at, packets = 24, []
    while at + 16 <= len(data):
        length = struct.unpack_from("<I", data, at + 8)[0]
        at += 16
        if length >= 20 + 36:
            device = struct.unpack_from("!I", data, at + 4)[0]
            packets.append((device, *struct.unpack_from("!II", data, at + 20 + 28)))
        at += length
    return packets


@limit(300)
def scenario_a_hundred_thousand_flows_keep_their_order(lab):
    """All buckets of balance-tcp move from link to link, by rebalancing and by hand, under packets of 100,000 flows. No
    packet overtakes another one of its flow."""
    pair = Pair(lab, bond=(*TCP, "bond_updelay=500", "other_config:bond-rebalance-interval=1000", "other_config:lb-output-action=true"))
    pair.wait_negotiated()
    pair.ping()
    pair.peer.ofctl("add-flow", "br0", "priority=10,udp,actions=drop")
    path = os.path.join(pair.sw.dir, "any.pcap")
    tcpdump = subprocess.Popen(
        ["ip", "netns", "exec", pair.peer.netns, "tcpdump", "-i", "any", "-y", "LINUX_SLL2", "-Q", "in", "-B", "262144", "-s", "80",
         "-w", path, "udp and dst portrange 5005-5006"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lab.cleanups.append(tcpdump.kill)
    wait_for("tcpdump", lambda: os.path.exists(path), 10)
    mac = lab.net.ip(pair.b, "-o", "link", "show", "dev", "eth0").split("link/ether ")[1].split()[0]
    sender = subprocess.Popen(["ip", "netns", "exec", pair.a, "python3", "-c", FLOWS, mac, "20"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, text=True)
    lab.cleanups.append(sender.kill)

    def buckets():
        return re.findall(r"bucket (\d+) - member (\d+)", pair.sw.appctl("dpif-netdev/bond-show", quiet=True))
    moved, before, rounds = 0, buckets(), 0
    while sender.poll() is None:
        if rounds % 8 == 0:
            pair.sw.appctl("bond/disable-member", "bond0", f"m{rounds // 8 % 2}", quiet=True)
        rounds += 1
        now = buckets()
        moved += sum(a != b for a, b in zip(before, now))
        before = now
        time.sleep(0.25)
    sent, flows = map(int, sender.communicate()[0].split())
    time.sleep(2)
    tcpdump.terminate()
    report = tcpdump.communicate(timeout=30)[1]
    packets = captured(path)
    by_device = {device: sum(p[0] == device for p in packets) for device in {p[0] for p in packets}}
    last, late = {}, 0
    for _, flow, number in packets:
        late += number < last.get(flow, -1)
        last[flow] = number
    lab.trace.note(f"{sent} packets of {flows} flows, {len(packets)} captured ({by_device}), {moved} buckets moved, {late} packets late; {report}")
    assert late == 0, f"{late} of {len(packets)} packets out of order"
    assert moved >= 256 and len(before) == 256, (moved, len(before))
    assert len(packets) > 0.5 * sent and len(by_device) == 2 and min(by_device.values()) > 0.05 * len(packets), (sent, by_device, report)
    assert flows > 50_000, flows
    log = pair.sw.log()
    assert "disabled" in log


def scenario_without_a_partner(lab):
    """balance-tcp sends nothing without LACP's consent, and falls back to one link if that is allowed."""
    pair = Pair(lab, peer_bond=None)
    time.sleep(7)
    show = pair.sw.appctl("bond/show", "bond0")
    assert "lacp_status: configured\n" in show and members(pair.sw) == {"disabled": 2}, show
    lab.net.no_ping(pair.a, "10.1.0.2")
    pair.sw.vsctl("set", "port", "bond0", "other_config:lacp-fallback-ab=true", "other_config:bond-primary=m1")
    wait_for("the primary", lambda: active(pair.sw) == "m1", 10)
    pair.ping()
    show = pair.sw.appctl("bond/show", "bond0")
    assert "lacp_fallback_ab: true\n" in show and "active-backup primary: m1\n" in show, show
    before = pair.sent()
    stream = Stream(pair, flows=50, per_second=500)
    time.sleep(1)
    assert stream.stop() == 0
    # All flows leave by the active member; LACP's own messages leave by both.
    sent = [now - old for now, old in zip(pair.sent(), before)]
    assert sent[1] > 50 and sent[0] < 10, sent
    # A partner comes: both links are used. It goes: one is.
    pair.peer.vsctl("del-port", "n0", "--", "del-port", "n1")
    pair.add_bond(pair.peer, "n", TCP)
    pair.wait_negotiated()
    pair.ping()
    before = pair.sent()
    stream = Stream(pair, flows=50, per_second=500)
    time.sleep(2)
    assert stream.stop() == 0
    sent = [now - old for now, old in zip(pair.sent(), before)]
    assert min(sent) > 50, sent
    pair.peer.vsctl("del-port", "bond0", "--", "add-port", "br0", "n0", "--", "add-port", "br0", "n1")
    wait_for("the fallback", lambda: "lacp_status: configured\n" in pair.sw.appctl("bond/show", "bond0", quiet=True)
             and active(pair.sw) is not None, 20)
    pair.ping()


def scenario_a_session_of_bfd_is_down(lab):
    """A member whose BFD session is down is disabled although it has a carrier, and comes back with the session."""
    # Three seconds until a session is down: on a busy machine messages are late.
    bfd = ("bfd:enable=true", "bfd:min_rx=1000", "bfd:min_tx=1000")
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=active-backup", "other_config:bond-primary=m1"))
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 5)
    for n in range(2):
        for switch, letter in ((pair.sw, "m"), (pair.peer, "n")):
            switch.vsctl("set", "interface", f"{letter}{n}", *bfd)
    for n in range(2):
        pair.sw.wait_column("interface", f"m{n}", "bfd_status:state", "up", 20)
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2} and active(pair.sw) == "m1", 10)
    pair.ping()
    for bond_mode in ("active-backup", "balance-slb"):
        pair.sw.vsctl("set", "port", "bond0", f"bond_mode={bond_mode}")
        stream = Stream(pair, flows=10, per_second=500)
        time.sleep(1)
        # The link stays up, and nothing is heard any more. Nor does the peer, which is a bridge, send messages back on
        # the other link.
        pair.peer.ofctl("add-flow", "br0", "priority=10,in_port=n1,udp,tp_dst=3784,actions=drop")
        pair.peer.vsctl("set", "interface", "n1", "bfd:enable=false")
        wait_for("the member to be disabled", lambda: members(pair.sw) == {"enabled": 1, "disabled": 1}, 10)
        show = pair.sw.appctl("bond/show", "bond0")
        assert re.search(r"member m1: disabled\n  may_enable: false", show), show
        assert pair.sw.get("interface", "m1", "link_state") == "up"
        time.sleep(1)
        before = pair.sent()
        time.sleep(1)
        during = [now - old for now, old in zip(pair.sent(), before)]
        assert during[0] > 50 and during[1] < 0.2 * during[0], during  # BFD's own messages continue.
        lost = stream.stop()
        # The peer takes packets from both links, so few are lost in either direction.
        assert lost < 100, f"{lost} of {sum(stream.sent)} lost"
        pair.peer.ofctl("del-flows", "br0", "udp,tp_dst=3784")
        pair.peer.vsctl("set", "interface", "n1", "bfd:enable=true")
        wait_for("the member to come back", lambda: members(pair.sw) == {"enabled": 2}, 20)


def scenario_a_device_stands_for_the_bond(lab):
    """bond_fake_iface: an internal device has the bond's name, a number, and no packets. It goes with the setting."""
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=active-backup", "bond_fake_iface=true"))
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 10)
    pair.ping()

    def numbers():
        return re.findall(r"\n +(\d+)\((\w+)\): addr:", pair.sw.ofctl("show", "br0"))
    assert "bond0" in dict(map(reversed, numbers())), numbers()
    lab.net.ip(pair.sw.netns, "link", "set", "bond0", "up")
    host = lab.net.raw(pair.sw.netns, "bond0")
    lab.cleanups.append(host.close)
    # Broadcasts do not arrive at the device, and its packets go nowhere.
    lab.net.ip(pair.a, "neigh", "flush", "all")
    pair.ping()
    b = lab.net.raw(pair.b, "eth0")
    lab.cleanups.append(b.close)
    mark = b"from a device that carries nothing"
    host.send(frames.ethernet("ff:ff:ff:ff:ff:ff", "02:00:00:00:00:77", 0x88b5, mark))
    for sock, want in ((b, lambda f: mark in f), (host, lambda f: f[:6] == b"\xff" * 6)):
        assert receive(sock, want, 1) is None
    before = dict(map(reversed, numbers()))
    pair.sw.stop_daemon()
    # A port that is added meanwhile takes no number of the others either.
    pair.sw.vsctl("--no-wait", "add-port", "br0", "later0", "--", "set", "interface", "later0", "type=internal")
    pair.sw.start_daemon()
    pair.ping()
    after = dict(map(reversed, numbers()))
    assert "bond0" in after and "later0" in after, after
    kept = before.keys() - {"bond0"}
    assert {name: before[name] for name in kept} == {name: after[name] for name in kept}, (before, after)
    pair.sw.vsctl("set", "port", "bond0", "bond_fake_iface=false")
    assert "bond0" not in dict(map(reversed, numbers())), numbers()
    assert "bond0" not in lab.net.ip(pair.sw.netns, "link", "show")
    pair.ping()


def scenario_monitoring_by_mii(lab):
    """bond-detect-mode=miimon follows the kernel's notices, as carrier does: a loss is noticed at once, whatever the
    interval is."""
    pair = Pair(lab, peer_bond=None, bond=(
        "bond_mode=active-backup", "other_config:bond-primary=m1", "other_config:bond-detect-mode=miimon",
        "other_config:bond-miimon-interval=60000"))
    wait_for("the primary", lambda: active(pair.sw) == "m1", 5)
    pair.ping()
    log = pair.sw.log()
    assert "bond-detect-mode" not in log and "bond-miimon-interval" in log, log
    for up, want in ((False, "m0"), (True, "m1"), (False, "m0")):
        began = time.monotonic()
        pair.set_link(1, up)
        wait_for("the failover", lambda want=want: active(pair.sw) == want, 10)
        assert time.monotonic() - began < 5, time.monotonic() - began
        pair.ping()


@limit(400 if not SLOW else 1200)
def scenario_many_bonds_under_load(lab):
    """64 ports send every second while bundles of rules are loaded and pods send as fast as they can. No partner
    misses three messages in a row. With HEDDLE_SLOW=1 the bundles have a million rules."""
    sw = lab.switch()
    peer = lab.switch(binary=REFERENCE)
    for switch in (sw, peer):
        lab.bridge(switch)
    for n in range(64):
        lab.net.veth(sw.netns, f"m{n}", peer.netns, f"n{n}")
    for switch, letter in ((peer, "n"), (sw, "m")):
        words = []
        for n in range(64):
            # Without VLANs in common: 64 links between two bridges would be a loop.
            words += ["--", "add-port", "br0", f"{letter}{n}", f"tag={100 + n}", "lacp=active", "other_config:lacp-time=fast"]
        switch.vsctl(*words[1:])
    wait_for("all partners", lambda: peer.appctl("lacp/show", quiet=True).count("current attached") == 64, 60)
    wait_for("all partners", lambda: sw.appctl("lacp/show", quiet=True).count("current attached") == 64, 60)
    for switch in (sw, peer):
        assert switch.appctl("lacp/show-stats").count("Link Expired: 0") == 64
    a, _ = lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")
    with open(f"{sw.dir}/rules.txt", "w") as file:
        file.write("\n".join(f"table=9,priority={n % 97},ip,nw_src=10.{n >> 16}.{n >> 8 & 255}.{n & 255},actions=drop" for n in range(RULES)))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    flood = [subprocess.Popen(["ip", "netns", "exec", a, "python3", "-c", FLOOD, "240" if SLOW else "20"], **quiet) for _ in range(2)]
    try:
        while any(f.poll() is None for f in flood):
            sw.ofctl("--timeout=600", "-O", "OpenFlow14", "--bundle", "add-flows", "br0", f"{sw.dir}/rules.txt", timeout=610)
            sw.ofctl("--timeout=600", "-O", "OpenFlow14", "del-flows", "br0", "table=9", timeout=610)
    finally:
        for f in flood:
            f.kill()
            f.wait()
    for switch in (sw, peer):
        stats = switch.appctl("lacp/show-stats")
        assert stats.count("Link Expired: 0") == 64, re.findall(r"member: (\S+):.*?Link Expired: ([1-9]\d*)", stats, re.S)
    sent = [int(n) for n in re.findall("TX PDUs: (\\d+)", sw.appctl("lacp/show-stats"))]
    assert min(sent) >= 18, sent


FLOOD = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.1.0.2", 9))
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    try:
        s.send(b"x" * 64)
    except OSError:
        pass
"""


def scenario_the_kernel_forwards_to_the_member(lab):
    """With eBPF, flows of active-backup and balance-slb leave by the right member, also after a failover."""
    pair = Pair(lab, peer_bond=None, bond=("bond_mode=active-backup",), offload=True)
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 10)

    def forwarded():
        out = pair.sw.appctl("dpctl/offload-stats-show", quiet=True)
        return int(re.search(r"forwarded-packets: +(\d+)", out)[1])

    def settled():
        before = forwarded()
        lab.net.ping(pair.a, "10.1.0.2", count=4, lossless=False)
        return forwarded() - before >= 8
    wait_for("the kernel to forward pings", settled, 30)
    for _ in range(2):
        old = int(active(pair.sw)[1:])
        stream = Stream(pair, per_second=500)
        time.sleep(1)
        pair.set_link(old, False)
        wait_for("the failover", lambda old=old: active(pair.sw) == f"m{1 - old}", 5)
        time.sleep(1)
        lost = stream.stop()
        assert lost < 250, f"{lost} of {sum(stream.sent)} lost"
        wait_for("the kernel to forward pings", settled, 30)
        pair.set_link(old, True)
        wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 10)
    pair.sw.vsctl("set", "port", "bond0", "bond_mode=balance-slb")
    wait_for("the kernel to forward pings", settled, 30)


def scenario_hashed_flows_stay_with_the_workers(lab):
    """The kernel's program has no buckets: heddle offload gives the reason."""
    pair = Pair(lab, offload=True)
    pair.wait_negotiated()
    pair.ping()

    def explained():
        lab.net.ping(pair.a, "10.1.0.2", count=4)
        return "its action lb_output (a bond that balances by hash) is done by workers only" in pair.sw.appctl("heddle/offload")
    wait_for("the reason", explained, 30)


def scenario_settings_that_make_no_sense(lab):
    """Each has Open vSwitch's default, and a line in the log."""
    pair = Pair(lab, peer_bond=None, bond=(
        "lacp=active", "other_config:bond-detect-mode=psychic", "other_config:lacp-system-id=zz", "other_config:bond-hash-basis=-1",
        "other_config:bond-rebalance-interval=5", "other_config:lacp-system-priority=99999", "other_config:bond-primary=m7",
        "bond_updelay=-5", "other_config:lacp-time=sometimes", "other_config:lacp-fallback-ab=perhaps"))
    wait_for("both members", lambda: members(pair.sw) == {"enabled": 2}, 5)
    show = pair.sw.appctl("bond/show", "bond0")
    for line in ("bond_mode: active-backup", "bond-hash-basis: 4294967295", "updelay: 0 ms", "lacp_status: off",
                 "active-backup primary: m7 (no such member)"):
        assert f"{line}\n" in show, show
    log = pair.sw.log()
    assert "port bond0: unsupported bond-detect-mode psychic, defaulting to carrier" in log
    assert "port bond0: LACP system ID (zz) must be an Ethernet address." in log
    for line in ("other_config:bond-rebalance-interval=5 is not a number of at least 1000, or 0: 1000 is used",
                 "other_config:lacp-system-priority=99999 is not a number from 1 to 65535: the default is used",
                 "other_config:lacp-time=sometimes is not slow or fast: slow is used",
                 "other_config:lacp-fallback-ab=perhaps is not true or false: false is used",
                 "bond_updelay=-5 is below 0: 0 is used"):
        assert log.count(f"port bond0: {line}") == 1, line
    pair.sw.vsctl("set", "interface", "m0", "other_config:lacp-port-id=0x11")
    assert "interface m0: other_config:lacp-port-id=0x11 is not a number from 1 to 65535: the default is used" in pair.sw.log()
    pair.ping()
    pair.sw.vsctl("set", "port", "bond0", "other_config:lacp-system-id=00:00:00:00:00:00")
    assert "port bond0: Invalid zero LACP system ID." in pair.sw.log()
    for words in (("bond/show", "x"), ("bond/migrate", "x", "1", "m0"), ("bond/enable-member", "x", "m0"), ("lacp/show", "bond0")):
        assert "no such" in pair.sw.appctl(*words, check=2)
    # The bond becomes a plain port, and a bond again.
    link = pair.sw.vsctl("get", "interface", "m1", "_uuid")
    pair.sw.vsctl("remove", "port", "bond0", "interfaces", link)
    assert pair.sw.appctl("bond/list") == "bond\ttype\trecircID\tmembers\n"
    pair.ping()
    pair.sw.vsctl("del-port", "br0", "bond0")
    lab.net.no_ping(pair.a, "10.1.0.2")
    # A bond none of whose devices exists is gone with its port.
    pair.sw.vsctl("add-bond", "br0", "bond1", "none0", "none1")
    pair.sw.vsctl("del-port", "br0", "bond1")
    assert pair.sw.appctl("bond/list") == "bond\ttype\trecircID\tmembers\n"


if __name__ == "__main__":
    main()
