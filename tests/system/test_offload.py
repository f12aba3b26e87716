#!/usr/bin/env python3
"""Flows of veth pods in the kernel (other_config:hw-offload, eBPF): who forwards what, changes, restarts.

`churn [--seconds N]` runs rules_change_under_traffic alone for so long (600 seconds).
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames, openflow
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from test_connectivity import exchange, iperf

TUNSETIFF = 0x400454ca
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000

CHURN = __name__ == "__main__" and sys.argv[1:2] == ["churn"]
CHURN_SECONDS = 8
if CHURN:
    CHURN_SECONDS = 600
    if "--seconds" in sys.argv:
        CHURN_SECONDS = int(sys.argv[sys.argv.index("--seconds") + 1])
    sys.argv[1:] = ["rules_change_under_traffic"]


def offloading(lab, *config):
    """A switch that offloads, with a bridge."""
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true", *config)
    sw.stop_daemon()
    sw.start_daemon()
    lab.bridge(sw)
    return sw


def datapath(sw):
    """The datapath to be named to dpctl, if there are several: that of bridges of type system."""
    found = sw.appctl("dpctl/dump-dps").split()
    return [dp for dp in found if dp.startswith("system")] if len(found) > 1 else []


def stats(sw):
    """The numbers of dpctl/offload-stats-show, by name."""
    out = sw.appctl("dpctl/offload-stats-show", *datapath(sw))
    return {key.strip(): int(value) for key, value in re.findall(r"^ +([^:]+): +(\d+)$", out, re.M)}


def offloaded(sw):
    return sw.appctl("dpctl/dump-flows", "-m", *datapath(sw), "type=offloaded").count("offloaded:yes, dp:ebpf")


def two_pods(lab, sw, ipv6=False):
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", ipv6=ipv6)
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", ipv6=ipv6)
    return a, b


def settled(lab, sw, a, target="10.1.0.2"):
    """Packets of a ping to the target are forwarded by the program, in both directions."""
    def forwards():
        before = stats(sw)["forwarded-packets"]
        lab.net.ping(a, target, count=4)
        return stats(sw)["forwarded-packets"] - before >= 8
    wait_for("the kernel to forward pings", forwards)


@limit(300)
def scenario_pods_meet(lab):
    """All that pods do with each other works, and most of it is done by the program."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    exchange(lab, a, b)
    settled(lab, sw, a)
    before = stats(sw)
    end = iperf(lab, b, a, "10.1.0.2", "-n", "50000000")
    assert end["sum_received"]["bytes"] > 30_000_000, end["sum_received"]
    after = stats(sw)
    forwarded = after["forwarded-bytes"] - before["forwarded-bytes"]
    assert forwarded > 30_000_000, (before, after)
    assert after["to-peer"] > before["to-peer"], (before, after)
    providers_are_shown(sw)


def providers_are_shown(sw):
    """`dpif/offload/show` has the back end with its ports, as text and as JSON."""
    shown = sw.appctl("dpif/offload/show")
    ports = dict(re.findall(r"^  - (\w+): port_no: \d+, ifindex: (\d+)$", shown, re.M))
    assert shown.startswith("Globally enabled: true\nDatapaths:\n") and "\n  ebpf\n" in shown and {"va", "vb"} <= set(ports), shown
    client = sw.unixctl()
    try:
        client.call("set-options", "--format", "json")
        told = client.call("dpif/offload/show")
    finally:
        client.close()
    of = [told[dp]["providers"]["ebpf"]["ports"] for dp in told if dp != "enabled" and told[dp]["priority"] == ["ebpf"]]
    assert told["enabled"] is True and any(of[n]["va"]["ifindex"] == int(ports["va"]) for n in range(len(of))), told


def scenario_counts_come_back(lab):
    """Rules, ports and dumps count the packets that the program forwards, once."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.ofctl("add-flow", "br0", "priority=5,icmp,actions=NORMAL")
    settled(lab, sw, a)

    def counted():
        flow = [f for f in sw.flows("br0") if "priority=5" in f][0]
        return int(re.search(r"n_packets=(\d+)", flow).group(1))

    def port(name):
        out = sw.ofctl("dump-ports", "br0", name)
        return [int(n) for n in re.findall(r"pkts=(\d+)", out)]
    before, ports, through = counted(), port("va"), stats(sw)["forwarded-packets"]
    lab.net.ping(a, "10.1.0.2", count=20)
    through = stats(sw)["forwarded-packets"] - through
    assert through >= 40, through
    assert counted() - before == 40, (before, counted())
    assert [now - then >= 20 for now, then in zip(port("va"), ports)] == [True, True], (ports, port("va"))
    shown = sw.appctl("dpctl/dump-flows", "-m", "type=offloaded")
    assert "offloaded:yes, dp:ebpf" in shown, shown
    assert "offloaded:yes" not in sw.appctl("dpctl/dump-flows", "-m", "type=non-offloaded")
    assert "dp:ebpf" not in sw.appctl("dpctl/dump-flows"), "only those who want to see all see that"


def scenario_the_host_hears_nothing(lab):
    """Packets that the program does not know go to the switch and nowhere else: the host's stack never
    replies."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    sw.ofctl("add-flow", "br0", "priority=9,arp,actions=drop")
    sw.ofctl("add-flow", "br0", "priority=9,ip,actions=drop")
    # An address of the host on the port's own device, that the pod knows by heart.
    lab.net.ip(sw.netns, "addr", "add", "10.1.0.77/24", "dev", "va")
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/va/address").strip()
    lab.net.ip(a, "neigh", "add", "10.1.0.77", "lladdr", mac, "dev", "eth0")
    lab.net.no_ping(a, "10.1.0.77")


class Churn:
    """Rules that change, and packets that must each go by a rule that was in force while they were on their way.

    For each packet the test knows which change had been confirmed when it was sent, and which had been
    requested when it was received. The packet has to carry the number of one of these, or of one in between.
    No packet may be lost or come twice.
    """

    OUTSTANDING = 64  # packets on their way at a time
    NUMBERS = 60      # a DSCP has room for this number

    def __init__(self, tx, rx, header):
        self.tx, self.rx, self.header = tx, rx, header
        self.asked = self.confirmed = 0
        self.since = []     # for each packet, the change that was confirmed when it was sent
        self.received = 0
        self.newest = -1    # the last packet received, in the order of sending
        self.late = 0       # packets that a later one overtook
        self.arrived = bytearray()
        self.over = threading.Event()
        self.wrong = None

    def send(self):
        while not self.over.is_set() and not self.wrong:
            if len(self.since) - self.received >= self.OUTSTANDING:
                time.sleep(0.0005)
                continue
            n = len(self.since)
            self.arrived.append(0)
            self.since.append(self.confirmed)
            self.tx.send(self.header(n))

    def receive(self):
        try:
            quiet_since = time.monotonic()
            while not self.over.is_set() or self.received < len(self.since):
                try:
                    data = self.rx.recv(2048)
                except TimeoutError:
                    lost = len(self.since) - self.received
                    assert not lost or time.monotonic() < quiet_since + 60, f"{lost} packets are lost"
                    continue
                if data[12:14] == b"\x08\x00" and data[23] == 17 and data[36:38] == b"\0\x07":
                    self.judge(data, self.asked)
                    quiet_since = time.monotonic()
        except Exception as exc:  # for the thread that waits
            self.wrong = exc

    def judge(self, data, asked):
        n = int.from_bytes(data[42:46], "big")
        assert not self.arrived[n], f"packet {n} came twice"
        self.arrived[n] = 1
        self.received += 1
        self.late += n < self.newest
        self.newest = max(n, self.newest)
        since = self.since[n]
        allowed = {4 * (1 + change % self.NUMBERS) for change in range(since, asked + 1)}
        assert data[15] in allowed, f"packet {n} came with tos {data[15]:#x}: changes {since} to {asked} were in force"
        assert frames.checksum(data[14:34]) == 0, "bad IP checksum"

    def change(self, connection, n):
        """Has the rule give packets this number; returns when the switch has confirmed that."""
        self.asked = n
        connection.send(openflow.FLOW_MOD, 2 * n, self.modification(4 * (1 + n % self.NUMBERS)))
        request, reply = openflow.barrier_type(openflow.V10)
        connection.send(request, 2 * n + 1)
        kind, body = connection.reply(2 * n + 1)
        assert kind == reply, (kind, body)
        self.confirmed = n

    @staticmethod
    def modification(tos):
        """udp,tp_dst=7,actions=mod_nw_tos:TOS,NORMAL, as a modification of OpenFlow 1.0."""
        wildcards = 0x3fffff & ~(1 << 4 | 1 << 5 | 1 << 7)
        match = struct.pack("!IH6s6sHBxHBB2xIIHH", wildcards, 0, b"", b"", 0, 0, 0x0800, 0, 17, 0, 0, 0, 7)
        actions = struct.pack("!HHB3x", 8, 8, tos) + struct.pack("!HHHH", 0, 8, 0xfffa, 0)
        return match + struct.pack("!QHHHHIHH", 0, 1, 0, 0, 7, 0xffffffff, 0xffff, 0) + actions

    def run(self, connection, seconds, rate):
        """Changes the rule `rate` times a second."""
        threads = [threading.Thread(target=f) for f in (self.send, self.receive)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        try:
            while time.monotonic() < began + seconds and not self.wrong:
                time.sleep(max(0, began + self.confirmed / rate - time.monotonic()))
                self.change(connection, self.confirmed + 1)
            took = time.monotonic() - began
        finally:
            self.over.set()
            for thread in threads:
                thread.join(timeout=90)
        if self.wrong:
            raise self.wrong
        assert self.received == len(self.since), (self.received, len(self.since))
        return took


@limit(CHURN_SECONDS + 240)
def scenario_rules_change_under_traffic(lab):
    """Once a change is confirmed no packet goes by the old rule; none is lost or duplicated."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    dst, src = (lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (b, a))
    sw.ofctl("add-flow", "br0", "priority=7,udp,tp_dst=7,actions=mod_nw_tos:4,NORMAL")

    def numbered(n):
        payload = frames.udp("10.1.0.1", "10.1.0.2", 7, 7, n.to_bytes(4, "big"))
        return frames.ethernet(dst, src, 0x0800, frames.ipv4("10.1.0.1", "10.1.0.2", 17, payload))
    churn = Churn(lab.net.raw(a, "eth0"), lab.net.raw(b, "eth0", timeout=1), numbered)
    connection = openflow.Connection.to_bridge(sw, "br0", openflow.V10)
    before = stats(sw)["forwarded-packets"]
    took = churn.run(connection, CHURN_SECONDS, 100)
    connection.close()
    fast = stats(sw)["forwarded-packets"] - before
    told = (f"{churn.confirmed} changes in {took:.0f} s ({churn.confirmed / took:.0f} a second), {churn.received} packets, "
            f"{fast} of them forwarded by the program; none wrong, lost or doubled, {churn.late} overtaken")
    lab.trace.note(told)
    if CHURN:
        print(told, flush=True)
    assert churn.confirmed > 20, told
    assert fast > 0, "the program forwarded none of them"


@limit(120)
def scenario_killed_under_traffic(lab):
    """While the switch is down, established pods talk on; the next one takes the program over."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    mac = lab.net.run(b, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(a, "neigh", "replace", "10.1.0.2", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(b, "neigh", "replace", "10.1.0.1", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    settled(lab, sw, a)
    here, there = conversation(lab, b, a, "10.1.0.2")
    says(here, there)

    def going():
        before = stats(sw)["forwarded-packets"]
        says(here, there)
        says(there, here)
        return stats(sw)["forwarded-packets"] - before >= 4
    wait_for("the kernel to forward TCP", going)
    # Connections that nothing tracks begin and end in the kernel, too.
    before = stats(sw)
    for sock in conversation(lab, b, a, "10.1.0.2", port=7003):
        sock.close()
    after = stats(sw)
    assert after["forwarded-packets"] - before["forwarded-packets"] >= 4, (before, after)
    assert after["up-tcp-syn-fin-rst"] == before["up-tcp-syn-fin-rst"] == 0, after
    sw.stop_daemon(signal.SIGKILL)
    lab.net.ping(a, "10.1.0.2", count=20)
    says(here, there)
    for sock in conversation(lab, b, a, "10.1.0.2", port=7004):
        sock.close()
    sw.start_daemon()
    says(there, here)
    lab.net.ping(a, "10.1.0.2", count=10)
    assert "took over" in sw.log(), "nothing was taken over"
    here.close()
    there.close()
    settled(lab, sw, a)
    wait_for("what was left to be dropped", lambda: stats(sw)["adopted-flows"] == 0)
    lab.net.ping(a, "10.1.0.2", count=10)


def scenario_switched_off_again(lab):
    """A switch without offload takes the program of an earlier one away."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("remove", "open_vswitch", ".", "other_config", "hw-offload")
    sw.stop_daemon()
    assert "hd_ingress" in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
    sw.start_daemon()
    lab.net.ping(a, "10.1.0.2", count=10)
    assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
    assert "offload is off" in sw.appctl("heddle/offload")


def scenario_ports_come_and_go(lab):
    """A port that leaves has its device back; a device that is made again is diverted again."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("del-port", "br0", "vb")
    assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "vb", "ingress")
    lab.net.no_ping(a, "10.1.0.2")
    sw.vsctl("add-port", "br0", "vb")
    settled(lab, sw, a)
    lab.net.ip(sw.netns, "link", "del", "vb")
    lab.net.veth(sw.netns, "vb", b, "eth0")
    lab.net.address(b, "eth0", "10.1.0.2/24")
    # The new device has another address; the other pod would believe in the old one for half a minute.
    lab.net.ip(a, "neigh", "flush", "to", "10.1.0.2", "nud", "all")
    wait_for("the port to be back", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    settled(lab, sw, a)


def scenario_rewriting(lab):
    """VLANs and routing between two pods: tags, addresses and times to live are rewritten by the program."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("set", "port", "va", "tag=5", "--", "set", "port", "vb", "trunks=5")
    lab.net.no_ping(a, "10.1.0.2")
    lab.net.ip(b, "link", "add", "link", "eth0", "name", "eth0.5", "type", "vlan", "id", "5", check=False)
    macs = {ns: lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (a, b)}
    sw.vsctl("remove", "port", "va", "tag", "5", "--", "clear", "port", "vb", "trunks")
    # A router between 10.1.0.0/24 and 10.2.0.0/24, by rules.
    router = "02:00:00:00:00:fe"
    lab.net.ip(b, "addr", "flush", "dev", "eth0")
    lab.net.ip(b, "addr", "add", "10.2.0.2/24", "dev", "eth0")
    for ns, net, via in ((a, "10.2.0.0/24", "10.1.0.254"), (b, "10.1.0.0/24", "10.2.0.254")):
        lab.net.ip(ns, "neigh", "replace", via, "lladdr", router, "dev", "eth0", "nud", "permanent")
        lab.net.ip(ns, "route", "replace", net, "via", via, "dev", "eth0", "onlink")
    for net, mac, port in (("10.1.0.0/24", macs[a], "va"), ("10.2.0.0/24", macs[b], "vb")):
        sw.ofctl("add-flow", "br0", f"priority=9,ip,nw_dst={net},dl_dst={router},actions=mod_dl_src:{router},"
                                    f"mod_dl_dst:{mac},dec_ttl,output:{port}")
    settled(lab, sw, a, "10.2.0.2")
    out = lab.net.run(a, "ping", "-n", "-c", "2", "10.2.0.2")
    assert out.count("ttl=63") == 2, out
    end = iperf(lab, b, a, "10.2.0.2", "-n", "20000000")
    assert end["sum_received"]["bytes"] > 10_000_000, end["sum_received"]
    snmp = lab.net.run(b, "cat", "/proc/net/snmp")
    header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
    assert dict(zip(header, values))["InCsumErrors"] == "0", snmp


FIREWALL = [
    "priority=10,arp,actions=NORMAL",
    "priority=20,ip,ct_state=-trk,actions=ct(table=1,zone=5)",
    "priority=20,ipv6,ct_state=-trk,actions=NORMAL",
    "table=1,in_port=va,ct_state=+trk+new,ip,actions=ct(commit,zone=5,exec(set_field:7->ct_mark)),vb",
    "table=1,in_port=va,ct_state=+trk+est,ip,actions=vb",
    "table=1,in_port=vb,ct_state=+trk+est+rpl,ct_mark=7,ip,actions=va",
]


def conversation(lab, server, client, address, port=7000):
    """A connection of TCP between two namespaces: both of its sockets."""
    def listen():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("0.0.0.0", port))
        sock.listen()
        return sock

    def connect():
        return socket.create_connection((address, port), timeout=30)
    with lab.net.socket(server, listen) as listener:
        there = lab.net.socket(client, connect)
        here, _ = listener.accept()
    for sock in (here, there):
        sock.settimeout(10)
    return here, there


def says(a, b, text=b"x" * 1000):
    """One endpoint sends a text and the other receives it."""
    a.sendall(text)
    heard = b""
    while len(heard) < len(text):
        data = b.recv(65536)
        assert data, "the connection was closed"
        heard += data
    assert heard == text


def talk(sw, here, there):
    """Both endpoints exchange texts until the program has their connection and forwards them."""
    def forwards():
        before = stats(sw)["forwarded-packets"]
        for _ in range(20):
            says(there, here)
            says(here, there)
        now = stats(sw)
        return now["connections"] > 0 and now["forwarded-packets"] - before >= 40
    wait_for("the program to forward the connection", forwards)


@limit(200)
def scenario_connections(lab):
    """Established connections are forwarded by the program, and come back when they close, change or are flushed."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    sw.ofctl("del-flows", "br0")
    for rule in FIREWALL:
        sw.ofctl("add-flow", "br0", rule)
    lab.net.ping(a, "10.1.0.2")
    lab.net.no_ping(b, "10.1.0.1")
    here, there = conversation(lab, b, a, "10.1.0.2")
    talk(sw, here, there)
    says_so = sw.appctl("heddle/offload")
    assert "connections, too" in says_so, says_so
    assert "established connections" in sw.appctl("heddle/offload", "tcp,in_port=va"), sw.appctl("heddle/offload", "tcp")
    # A long transfer, of which the switch sees the first and the last.
    before = stats(sw)
    end = iperf(lab, b, a, "10.1.0.2", "-t", "4")
    after = stats(sw)
    share = (after["forwarded-bytes"] - before["forwarded-bytes"]) / end["sum_received"]["bytes"]
    lab.trace.note(f"{share:.0%} of the bytes were forwarded by the program")
    assert share > 0.5, (before, after, end["sum_received"])
    # A half-closed connection: the other end continues, by way of the switch, with windows learned anew.
    here.shutdown(socket.SHUT_WR)
    assert there.recv(10) == b""
    for _ in range(20):
        says(there, here)
    wait_for("it to come back", lambda: stats(sw)["connections"] == 0)
    there.close()
    assert here.recv(10) == b""
    here.close()
    # Flushed: packets are new ones to rules, at once.
    here, there = conversation(lab, b, a, "10.1.0.2", port=7001)
    talk(sw, here, there)
    sw.ofctl("--strict", "del-flows", "br0", "table=1,in_port=va,ct_state=+trk+new,ip")
    says(there, here)
    sw.appctl("dpctl/flush-conntrack")
    there.sendall(b"lost")
    here.settimeout(2)
    try:
        heard = here.recv(10)
    except TimeoutError:
        heard = None
    assert heard is None, heard
    here.close()
    there.close()


@limit(200)
def scenario_streams_without_a_reply(lab):
    """A stream of UDP without a reply is forwarded by the program, and its first reply comes as established."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    sw.ofctl("del-flows", "br0")
    for rule in FIREWALL:
        sw.ofctl("add-flow", "br0", rule)
    lab.net.ping(a, "10.1.0.2")

    def bound(address):
        def make():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((address, 7200))
            sock.settimeout(10)
            return sock
        return make
    with lab.net.socket(a, bound("10.1.0.1")) as here, lab.net.socket(b, bound("10.1.0.2")) as there:
        here.connect(("10.1.0.2", 7200))
        sent = 0

        def forwards():
            nonlocal sent
            before = stats(sw)["forwarded-packets"]
            for _ in range(20):
                here.send(b"%d" % sent)
                assert there.recv(100) == b"%d" % sent
                sent += 1
            now = stats(sw)
            return now["connections"] == 1 and now["forwarded-packets"] - before >= 20
        wait_for("the program to forward the stream", forwards)
        # The first reply passes by a rule for established connections only.
        there.sendto(b"reply", ("10.1.0.1", 7200))
        assert here.recv(100) == b"reply"
        shown = sw.appctl("dpctl/dump-conntrack")
        assert shown.count("udp,") == 1, shown

        def both():
            before = stats(sw)["forwarded-packets"]
            for _ in range(20):
                here.send(b"there")
                assert there.recv(100) == b"there"
                there.sendto(b"back", ("10.1.0.1", 7200))
                assert here.recv(100) == b"back"
            return stats(sw)["forwarded-packets"] - before >= 40
        wait_for("the program to forward both directions", both)


@limit(200)
def scenario_connections_outlive_the_switch(lab):
    """Established connections talk on while the switch is down, and the next switch tracks them on, translated ones too."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(b, "neigh", "add", "10.1.0.240", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    translated = ["priority=30,tcp,in_port=va,tp_dst=7101,actions=ct(commit,zone=1,nat(src=10.1.0.240)),vb",
                  "priority=30,tcp,in_port=vb,tp_src=7101,ct_state=-trk,actions=ct(table=2,zone=1,nat)",
                  "table=2,in_port=vb,ct_state=+trk+est,ip,actions=va"]

    def rules():
        sw.ofctl("del-flows", "br0")
        for rule in FIREWALL + translated:
            sw.ofctl("add-flow", "br0", rule)
    rules()
    lab.net.ping(a, "10.1.0.2")
    pairs = [conversation(lab, b, a, "10.1.0.2", port=port) for port in (7100, 7101)]
    for here, there in pairs:
        talk(sw, here, there)
    wait_for("both to be there", lambda: stats(sw)["connections"] == 2)
    sw.stop_daemon(signal.SIGKILL)
    for here, there in pairs:
        for _ in range(20):
            says(there, here)
            says(here, there)
    sw.start_daemon()
    assert "2 established connections of an earlier process are tracked on" in sw.log(), sw.log()
    rules()
    wait_for("what was left to be dropped", lambda: stats(sw)["adopted-connections"] == 0)
    # From there only established connections pass.
    for here, there in pairs:
        says(here, there)
        says(there, here)
        talk(sw, here, there)
    shown = sw.appctl("dpctl/dump-conntrack")
    assert shown.count("state=ESTABLISHED") == 2 and "mark=7" in shown, shown
    for here, there in pairs:
        here.close()
        assert there.recv(10) == b""
        there.close()


@limit(200)
def scenario_connections_are_marked(lab):
    """A connection that gets another mark is judged by rules about that, at once."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    sw.ofctl("del-flows", "br0")
    for rule in FIREWALL:
        sw.ofctl("add-flow", "br0", rule)
    sw.ofctl("add-flow", "br0", "table=1,priority=40000,tcp,in_port=va,nw_tos=32,ct_state=+trk+est,"
                                "actions=ct(commit,zone=5,exec(set_field:8->ct_mark)),vb")
    here, there = conversation(lab, b, a, "10.1.0.2", port=7002)
    talk(sw, here, there)
    there.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 32)
    says(there, here)
    shown = sw.appctl("dpctl/dump-conntrack")
    assert "mark=8" in shown, shown
    here.sendall(b"lost")
    there.settimeout(2)
    try:
        heard = there.recv(10)
    except TimeoutError:
        heard = None
    assert heard is None, (heard, shown)
    here.close()
    there.close()


@limit(200)
def scenario_translated_connections(lab):
    """Addresses and ports of established connections are translated by the program, of both families."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw, ipv6=True)
    for ns, last in ((a, 1), (b, 2)):
        lab.net.ip(ns, "addr", "add", f"fd00::{last}/64", "dev", "eth0", "nodad")
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    other = lab.net.run(b, "cat", "/sys/class/net/eth0/address").strip()
    for address in ("10.1.0.240", "fd00::240"):
        lab.net.ip(b, "neigh", "add", address, "lladdr", mac, "dev", "eth0", "nud", "permanent")
    for address in ("10.1.0.2", "fd00::2"):
        lab.net.ip(a, "neigh", "replace", address, "lladdr", other, "dev", "eth0", "nud", "permanent")
    sw.ofctl("del-flows", "br0")
    for rule in ("priority=10,arp,actions=NORMAL",
                 "priority=30,icmp6,actions=NORMAL",
                 "priority=20,in_port=va,ip,actions=ct(commit,zone=1,nat(src=10.1.0.240)),vb",
                 "priority=20,in_port=vb,ip,ct_state=-trk,actions=ct(table=1,zone=1,nat)",
                 "priority=20,in_port=va,ipv6,actions=ct(commit,zone=1,nat(src=fd00::240)),vb",
                 "priority=20,in_port=vb,ipv6,ct_state=-trk,actions=ct(table=1,zone=1,nat)",
                 "table=1,in_port=vb,ct_state=+trk+est,actions=va"):
        sw.ofctl("add-flow", "br0", rule)
    for target in ("10.1.0.2", "fd00::2"):
        before = stats(sw)
        end = iperf(lab, b, a, target, "-t", "4")
        after = stats(sw)
        share = (after["forwarded-bytes"] - before["forwarded-bytes"]) / end["sum_received"]["bytes"]
        lab.trace.note(f"{target}: {share:.0%} of the bytes were forwarded by the program")
        assert share > 0.5, (target, before, after, end["sum_received"])
    for ns in (a, b):
        snmp = lab.net.run(ns, "cat", "/proc/net/snmp")
        header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
        assert dict(zip(header, values))["InCsumErrors"] == "0", snmp


@limit(200)
def scenario_the_hosts_own_port(lab):
    """The program forwards the host's packets by an internal port in both directions, also while the switch
    is down."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    host = sw.netns
    lab.net.address(host, "br0", "10.1.0.100/24")
    settled(lab, sw, a, "10.1.0.100")

    def program():
        return "hd_ingress" in lab.net.run(host, "tc", "filter", "show", "dev", "br0", "egress")
    assert program()

    def port():
        return [int(n) for n in re.findall(r"pkts=(\d+)", sw.ofctl("dump-ports", "br0", "LOCAL"))]
    before, ports = stats(sw), port()
    lab.net.ping(a, "10.1.0.100", count=20)
    assert stats(sw)["forwarded-packets"] - before["forwarded-packets"] >= 40, (before, stats(sw))
    assert all(now - then >= 20 for now, then in zip(port(), ports)), (ports, port())
    for server, client, target in ((a, host, "10.1.0.1"), (host, a, "10.1.0.100")):
        before = stats(sw)["forwarded-bytes"]
        got = iperf(lab, server, client, target, "-t", "3")["sum_received"]["bytes"]
        done = stats(sw)["forwarded-bytes"] - before
        assert done > got * 0.5 > 1_000_000, (done, got, stats(sw))
    for ns in (a, host):
        snmp = lab.net.run(ns, "cat", "/proc/net/snmp")
        header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
        assert dict(zip(header, values))["InCsumErrors"] == "0", snmp
    # Rules are in force for it at once.
    sw.ofctl("add-flow", "br0", "priority=9,icmp,in_port=LOCAL,actions=drop")
    lab.net.no_ping(a, "10.1.0.100")
    sw.ofctl("del-flows", "br0", "icmp")
    for ns, target, dev, other in ((a, "10.1.0.100", "eth0", (host, "br0")), (host, "10.1.0.1", "br0", (a, "eth0"))):
        mac = lab.net.run(other[0], "cat", f"/sys/class/net/{other[1]}/address").strip()
        lab.net.ip(ns, "neigh", "replace", target, "lladdr", mac, "dev", dev, "nud", "permanent")
    settled(lab, sw, a, "10.1.0.100")
    sw.stop_daemon(signal.SIGKILL)
    lab.net.ping(a, "10.1.0.100", count=20)
    sw.start_daemon()
    settled(lab, sw, a, "10.1.0.100")
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=false")
    sw.stop_daemon()
    sw.start_daemon()
    lab.net.ping(a, "10.1.0.100", count=5)
    assert not program()


def tap_device(name):
    """Another program's tap device, as a virtual machine monitor has it: its queue."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def scenario_taps_of_others(lab):
    """Tap devices as system ports: the program forwards packets that a virtual machine monitor writes
    there."""
    sw = offloading(lab)
    queues = {}
    for name in ("t1", "t2"):
        queues[name] = lab.net.socket(sw.netns, lambda name=name: tap_device(name))
        lab.cleanups.append(lambda fd=queues[name]: os.close(fd))
        lab.net.ip(sw.netns, "link", "set", name, "up")
        sw.vsctl("add-port", "br0", name)
    sw.ofctl("add-flow", "br0", "priority=9,udp,in_port=t1,actions=mod_nw_tos:8,output:t2")
    packet = frames.ipv4("10.1.0.1", "10.1.0.2", 17, frames.udp("10.1.0.1", "10.1.0.2", 7, 7, b"x" * 64))
    frame = frames.ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800, packet)

    def passes():
        """Ten packets are forwarded by the program, as they should be."""
        before, got = stats(sw)["forwarded-packets"], 0
        for _ in range(10):
            os.write(queues["t1"], frame)
        ends = time.monotonic() + 5
        while got < 10 and time.monotonic() < ends:
            try:
                data = os.read(queues["t2"], 2048)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            if data[12:14] == b"\x08\x00" and data[23] == 17:
                assert data[15] == 8 and data[34:] == frame[34:] and frames.checksum(data[14:34]) == 0, data
                got += 1
        assert got == 10, got
        return stats(sw)["forwarded-packets"] - before >= 10
    wait_for("the kernel to forward them", passes)


@limit(200)
def scenario_ipv6_addresses_are_rewritten(lab):
    """Rules that write IPv6 addresses, of TCP, UDP and ICMPv6: checksums stay right."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw, ipv6=True)
    macs = {}
    for ns, last in ((a, 1), (b, 2)):
        lab.net.ip(ns, "addr", "add", f"fd00::{last}/64", "dev", "eth0", "nodad")
        macs[ns] = lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip()
    # a sees b as fd00::20, and b sees a as fd00::10.
    lab.net.ip(a, "neigh", "replace", "fd00::20", "lladdr", macs[b], "dev", "eth0", "nud", "permanent")
    lab.net.ip(b, "neigh", "replace", "fd00::10", "lladdr", macs[a], "dev", "eth0", "nud", "permanent")
    sw.ofctl("add-flow", "br0", "priority=9,ipv6,in_port=va,ipv6_dst=fd00::20,"
                                "actions=set_field:fd00::10->ipv6_src,set_field:fd00::2->ipv6_dst,output:vb")
    sw.ofctl("add-flow", "br0", "priority=9,ipv6,in_port=vb,ipv6_dst=fd00::10,"
                                "actions=set_field:fd00::20->ipv6_src,set_field:fd00::1->ipv6_dst,output:va")
    settled(lab, sw, a, "fd00::20")
    before = stats(sw)["forwarded-bytes"]
    got = iperf(lab, b, a, "fd00::20", "-t", "3")["sum_received"]["bytes"]
    assert stats(sw)["forwarded-bytes"] - before > got * 0.5 > 1_000_000, (before, got, stats(sw))
    for ns in (a, b):
        snmp = lab.net.run(ns, "cat", "/proc/net/snmp")
        header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
        assert dict(zip(header, values))["InCsumErrors"] == "0", snmp


def scenario_without_the_right(lab):
    """A switch that may not load programs logs that in one line, and forwards as ever."""
    if not shutil.which("capsh"):
        raise Skip("capsh is not installed")
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true")
    sw.stop_daemon()
    plain = sw.command

    def command(*args):
        line = plain(*args)
        at = line.index(sw.binary)
        return [*line[:at], "capsh", "--drop=cap_sys_admin,cap_bpf,cap_perfmon", "--", "-c", 'exec "$@"', "sh", *line[at:]]
    sw.command = command
    sw.start_daemon()
    lab.bridge(sw)
    a, _ = two_pods(lab, sw)
    lab.net.ping(a, "10.1.0.2")
    lines = [line for line in sw.log().splitlines() if "eBPF is off" in line]
    assert len(lines) == 1, sw.log()
    assert "offload is off" in sw.appctl("heddle/offload")


def scenario_one_switch_has_a_device(lab):
    """A second switch does not take a device away from the first one."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    other = lab.switch(start=False)
    other.netns = sw.netns
    other.start_ovsdb()
    other.vsctl("--no-wait", "set", "open_vswitch", ".", "other_config:hw-offload=true")
    other.start_daemon()
    lab.bridge(other, "br1")
    other.vsctl("--no-wait", "add-port", "br1", "va")
    wait_for("the second switch to say why it has not got the port",
             lambda: "another switch on this machine" in other.vsctl("get", "interface", "va", "error"))
    lab.net.ping(a, "10.1.0.2", count=5)
    settled(lab, sw, a)


@limit(200)
def scenario_devices_change(lab):
    """MTUs change and namespaces are deleted under traffic; the program keeps to what is there."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    lab.net.ping(a, "10.1.0.2", size=1400, df=True)
    # The switch decides about packets that are too long for an output.
    lab.net.ip(sw.netns, "link", "set", "vb", "mtu", "1000")

    def passes():
        out = lab.net.run(a, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", "1400", "10.1.0.2", check=False)
        return " 1 received" in out
    wait_for("long packets to be dropped", lambda: not passes())
    before = stats(sw)["up-too-long"]
    wait_for("the program to send them up", lambda: passes() or stats(sw)["up-too-long"] > before)
    lab.net.ping(a, "10.1.0.2", size=500)
    lab.net.ip(sw.netns, "link", "set", "vb", "mtu", "1500")
    wait_for("long packets to pass", passes)
    settled(lab, sw, a)
    # A namespace is removed with its device, under traffic.
    flood = subprocess.Popen(["ip", "netns", "exec", a, "ping", "-n", "-q", "-f", "-w", "60", "10.1.0.2"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lab.trace.run("ip", "netns", "del", b)
        wait_for("the device to go", lambda: "vb:" not in lab.net.ip(sw.netns, "-br", "link"))
        lab.trace.run("ip", "netns", "add", b)
        lab.net.veth(sw.netns, "vb", b, "eth0")
        lab.net.address(b, "eth0", "10.1.0.2/24")
        lab.net.ip(a, "neigh", "flush", "to", "10.1.0.2", "nud", "all")
        wait_for("the new pod to answer", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    finally:
        flood.kill()
        flood.wait()
    settled(lab, sw, a)
    left = lab.net.ip(sw.netns, "-br", "link")
    assert left.count("hdm") == 2, left


@limit(200)
def scenario_devices_are_renamed_and_moved(lab):
    """A device that has another name, or is elsewhere, is no port any more; when it is back, it is one again."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)

    def again():
        lab.net.ip(sw.netns, "link", "set", "vb", "up")
        wait_for("the port to be back", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
        settled(lab, sw, a)

    def bare(device):
        return "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", device, "ingress")
    for _ in range(2):
        lab.net.ip(sw.netns, "link", "set", "vb", "down")
        lab.net.ip(sw.netns, "link", "set", "vb", "name", "other")
        lab.net.ip(sw.netns, "link", "set", "other", "up")
        wait_for("the program to leave", lambda: bare("other"))
        lab.net.no_ping(a, "10.1.0.2")
        lab.net.ip(sw.netns, "link", "set", "other", "down")
        lab.net.ip(sw.netns, "link", "set", "other", "name", "vb")
        again()
    host = lab.net.namespace("elsewhere")
    for _ in range(2):
        lab.net.ip(sw.netns, "link", "set", "vb", "netns", host)
        lab.net.no_ping(a, "10.1.0.2")
        lab.net.ip(host, "link", "set", "vb", "netns", sw.netns)
        again()
    left = lab.net.ip(sw.netns, "-br", "link")
    assert left.count("hdm") == 2, left


@limit(200)
def scenario_others_at_the_devices(lab):
    """Another program's ingress discipline is no obstacle, and a removed program is installed again soon."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    sw.vsctl("del-port", "br0", "va")
    lab.net.run(sw.netns, "tc", "qdisc", "del", "dev", "va", "clsact", check=False)
    lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "va", "ingress")
    sw.vsctl("add-port", "br0", "va")
    wait_for("the port to be back", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    settled(lab, sw, a)
    for what in (("qdisc", "del", "dev", "va", "ingress"), ("filter", "del", "dev", "va", "ingress"), ("qdisc", "del", "dev", "vb", "clsact")):
        lab.net.run(sw.netns, "tc", *what)
        wait_for("the program to be back", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
        settled(lab, sw, a)
    assert sw.log().count("another program removed the classifier; it is attached again") == 3, sw.log()


@limit(200)
def scenario_killed_while_flows_come(lab):
    """A switch that is killed again and again while it installs flows leaves nothing wrong behind."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.ofctl("add-flow", "br0", "priority=20,udp,actions=multipath(symmetric_l3l4+udp,1024,modulo_n,1,0,reg0[0..3]),NORMAL")
    dst, src = (lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (b, a))
    sock = lab.net.raw(a, "eth0")
    over = threading.Event()

    def send():
        n = 0
        while not over.is_set():
            n += 1
            payload = frames.udp("10.1.0.1", "10.1.0.2", 1 + n % 50000, 7, b"x")
            try:
                sock.send(frames.ethernet(dst, src, 0x0800, frames.ipv4("10.1.0.1", "10.1.0.2", 17, payload)))
            except OSError:
                time.sleep(0.01)
    thread = threading.Thread(target=send)
    thread.start()
    took = 0
    try:
        for n in range(4):
            time.sleep(0.5 + 0.3 * n)
            took = max(took, stats(sw)["adopted-flows"] + stats(sw)["Inserted offloads"])
            sw.stop_daemon(signal.SIGKILL)
            sw.start_daemon()
            assert "took over" in sw.log()
    finally:
        over.set()
        thread.join()
    assert took > 500, took
    wait_for("what was left to be dropped", lambda: stats(sw)["adopted-flows"] == 0)
    sw.ofctl("mod-flows", "br0", "udp,actions=drop")
    wait_for("the port to work", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    settled(lab, sw, a)
    sw.ofctl("del-flows", "br0")
    lab.net.no_ping(a, "10.1.0.2")
    wait_for("its flows to go", lambda: stats(sw)["Inserted offloads"] <= 2)


@limit(200)
def scenario_a_flood_starves_nobody(lab):
    """While one pod sends packets that no flow takes, others' packets that need the switch get through."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    c = lab.veth_pod(sw, "c", "10.1.0.3/24")
    settled(lab, sw, a)
    settled(lab, sw, c)
    # Fragments always go up.
    mac = lab.net.run(b, "cat", "/sys/class/net/eth0/address").strip()
    payload = frames.udp("10.1.0.3", "10.1.0.2", 9, 9, b"x" * 64)
    packet = frames.ipv4("10.1.0.3", "10.1.0.2", 17, payload, frag=0x2000)
    frame = frames.ethernet(mac, lab.net.run(c, "cat", "/sys/class/net/eth0/address").strip(), 0x0800, packet)
    sock = lab.net.raw(c, "eth0")
    ends = time.monotonic() + 8
    sent = [0]

    def flood():
        while time.monotonic() < ends:
            for _ in range(64):
                sock.send(frame)
            sent[0] += 64
    thread = threading.Thread(target=flood)
    before = stats(sw)
    thread.start()
    try:
        # Fragments, too: each ping is four packets that the switch forwards.
        answers = lab.net.ping(a, "10.1.0.2", count=30, size=2500, lossless=False)
    finally:
        thread.join()
    after = stats(sw)
    lab.trace.note(f"{sent[0]} frames of the flood, {after['limited'] - before['limited']} limited, {answers} of 30 pings")
    assert sent[0] > 5000 and after["up-odd"] - before["up-odd"] > 5000, (sent, before, after)
    assert answers >= 25, answers


def scenario_explained(lab):
    """heddle offload shows the offloaded flows, and the reasons for the others."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.ofctl("add-flow", "br0", "priority=9,icmp,actions=ct(commit,force),NORMAL")
    lab.net.ping(a, "10.1.0.2")
    wait_for("a reason", lambda: "its action ct(force) is done by workers only" in sw.appctl("heddle/offload"))
    says = sw.appctl("heddle/offload", "icmp")
    assert "not offloaded: its action ct(force)" in says, says
    sw.ofctl("del-flows", "--strict", "br0", "priority=9,icmp")
    settled(lab, sw, a)
    assert "offloaded to ebpf" in sw.appctl("heddle/offload", "icmp")


if __name__ == "__main__":
    main()
