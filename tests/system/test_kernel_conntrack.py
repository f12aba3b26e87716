#!/usr/bin/env python3
"""Connections in the kernel's table: what other programs see there, and what becomes of what they delete."""

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.ctnetlink import Table
from lab.runner import Skip, limit, main
from lab.shell import wait_for

VIP, VIP6 = "10.1.0.60", "fd00::60"
ZONE = 7
SETTING = "other_config:heddle-kernel-conntrack"
MAX = "/proc/sys/net/netfilter/nf_conntrack_max"


def programs(*names):
    """Skips the scenario if a program is missing."""
    for name in names:
        if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            raise Skip(f"{name} is not installed")


def mirror(sw, value="true", **others):
    """Sets the mirror's settings; off if the value is None."""
    for name in ("", "-limit", "-zones"):
        setting = others.get(name[1:]) if name else value
        if setting is None:
            sw.vsctl("remove", "open_vswitch", ".", "other_config", f"heddle-kernel-conntrack{name}")
        else:
            sw.vsctl("set", "open_vswitch", ".", f"{SETTING}{name}={setting}")


def count(sw, name):
    """A number of `heddle/kernel-conntrack`."""
    shown = sw.appctl("heddle/kernel-conntrack")
    found = re.search(rf"^{name}: +(\d+)$", shown, re.M)
    return int(found.group(1)) if found else None


def table(lab, sw):
    own = Table(lab.net, sw.netns)
    lab.cleanups.append(own.close)
    return own


def wait_entries(kernel, n, family=4, zone=ZONE):
    wait_for(f"{n} entries", lambda: len(kernel.list(family, zone)) == n)
    return kernel.list(family, zone)


class Service:
    """A client `a`, two backends `b` and `c` of one UDP service, and the connection of one source port."""

    def __init__(self, lab, v6=False):
        self.lab, self.v6 = lab, v6
        self.sw = lab.switch()
        lab.bridge(self.sw)
        self.net = "fd00::" if v6 else "10.1.0."
        self.vip = VIP6 if v6 else VIP
        self.macs, self.pods, self.servers = {}, {}, {}
        for n, name in enumerate("abc", 1):
            mac = self.macs[name] = f"02:00:00:00:00:0{n}"
            pod = self.pods[name] = lab.veth_pod(self.sw, name, mac=mac, ipv6=v6,
                                                 column=["--", "set", "interface", f"v{name}", f"ofport_request={n}"])
            lab.net.ip(pod, "addr", "add", f"{self.net}{n}/{64 if v6 else 24}", "dev", "eth0", *(["nodad"] if v6 else []))
            lab.net.ip(pod, "link", "set", "eth0", "up")
        for name, pod in self.pods.items():
            for n, other in enumerate("abc", 1):
                lab.net.ip(pod, "neigh", "replace", f"{self.net}{n}", "lladdr", self.macs[other], "dev", "eth0")
        lab.net.ip(self.pods["a"], "neigh", "replace", self.vip, "lladdr", self.macs["b"], "dev", "eth0")
        family = socket.AF_INET6 if v6 else socket.AF_INET
        for name in "bc":
            self.servers[name] = self.socket(family, name, 8080)
        self.client = self.socket(family, "a", 5555)
        udp, dst = ("udp6", "ipv6_dst") if v6 else ("udp", "nw_dst")
        self.sw.ofctl("del-flows", "br0")
        for rule in [f"priority=10,in_port=1,{udp},actions=ct(table=1,zone={ZONE},nat)",
                     f"priority=10,{udp},actions=ct(table=2,zone={ZONE},nat)",
                     f"table=1,ct_state=+trk+est,{udp},actions=resubmit(,3)",
                     "table=2,ct_state=+trk+est,actions=1",
                     *(f"table=3,{udp},{dst}={self.net}{n},actions=set_field:{self.macs[to]}->eth_dst,{n}"
                       for n, to in ((2, "b"), (3, "c")))]:
            self.sw.ofctl("add-flow", "br0", rule)
        self.backend("b")

    def socket(self, family, pod, port):
        made = self.lab.net.socket(self.pods[pod], lambda: socket.socket(family, socket.SOCK_DGRAM))
        self.lab.cleanups.append(made.close)
        made.bind(("::" if self.v6 else "0.0.0.0", port))
        made.settimeout(5)
        return made

    def backend(self, name):
        """New connections go to this backend from now on."""
        n = "abc".index(name) + 1
        to = f"[{self.net}{n}]:8080" if self.v6 else f"{self.net}{n}:8080"
        udp = "udp6" if self.v6 else "udp"
        self.sw.ofctl("add-flow", "br0", f"table=1,ct_state=+trk+new,{udp},actions=ct(commit,zone={ZONE},nat(dst={to}),table=3)")

    def query(self, sock=None):
        """The backend that gets the client's next packet, and its reply arrives; None: no backend."""
        sock = sock or self.client
        sock.sendto(b"who", (self.vip, 80))
        for _ in range(20):
            for name, server in self.servers.items():
                server.settimeout(0.05)
                try:
                    data, client = server.recvfrom(100)
                except TimeoutError:
                    continue
                assert data == b"who", data
                server.sendto(name.encode(), client)
                reply, source = sock.recvfrom(100)
                assert (reply.decode(), source[:2]) == (name, (self.vip, 80)), (reply, source)
                return name
        return None


def endpoint_change(entry):
    """The condition of OVN-Kubernetes when an endpoint of a UDP service has changed."""
    return entry.proto == 17 and entry.dst in (VIP, VIP6) and entry.dport == 80


def stale(lab, v6):
    programs("conntrack")
    s = Service(lab, v6)
    family = 6 if v6 else 4
    kernel = table(lab, s.sw)
    assert s.query() == "b"
    # Without the mirror other programs see no connection, and their deletions find none.
    assert kernel.list(family) == [] and kernel.delete_matching(endpoint_change, family) == 0
    s.backend("c")
    time.sleep(1)
    assert s.query() == "b", "the test needs a connection that stays"
    mirror(s.sw)
    entry, = wait_entries(kernel, 1, family)
    assert (entry.src, entry.dst, entry.sport, entry.dport) == (f"{s.net}1", s.vip, 5555, 80), entry
    assert entry.reply == (f"{s.net}2", f"{s.net}1", 17, 8080, 5555), entry
    assert entry.status & 2 and 300 < entry.timeout <= 600, entry
    if not v6:
        shown = lab.net.run(s.sw.netns, "conntrack", "-L", "-p", "udp", "-w", str(ZONE))
        assert f"src={s.net}1 dst={s.vip} sport=5555 dport=80 src={s.net}2 dst={s.net}1 sport=8080 dport=5555" in shown, shown
    # Other conditions delete nothing.
    assert kernel.delete_matching(lambda e: endpoint_change(e) and e.dport == 81, family) == 0
    time.sleep(0.5)
    assert s.query() == "b"
    began = time.monotonic()
    assert kernel.delete_matching(endpoint_change, family) == 1
    wait_for("the connection to end", lambda: s.sw.appctl("dpctl/dump-conntrack", f"zone={ZONE}").strip() == "")
    assert time.monotonic() - began < 2
    assert s.query() == "c"
    return s, kernel


@limit(120)
def scenario_stale_backend(lab):
    """A client of a UDP service keeps its backend, until a controller deletes the connection as OVN-Kubernetes does."""
    s, kernel = stale(lab, v6=False)
    net, ns = lab.net, s.sw.netns
    deletions = [
        ("the tuple and the zone alone", lambda: kernel.delete_matching(endpoint_change, bare=True)),
        ("conntrack -D by zone", lambda: net.run(ns, "conntrack", "-D", "-w", str(ZONE))),
        ("conntrack -D by address", lambda: net.run(ns, "conntrack", "-D", "-p", "udp", "-d", VIP, "--dport", "80")),
        ("conntrack -F", lambda: net.run(ns, "conntrack", "-F")),
    ]
    for n, (name, delete) in enumerate(deletions):
        was, now = ("c", "b") if n % 2 == 0 else ("b", "c")
        s.backend(now)
        wait_entries(kernel, 1)
        assert s.query() == was, name
        delete()
        wait_for(f"another backend after {name}", lambda: s.query() == now, 5)
    assert count(s.sw, "deletions followed") == len(deletions) + 1
    assert count(s.sw, "comparisons") == 0
    # A connection that ends leaves the kernel's table, and that is no deletion by others.
    s.sw.appctl("dpctl/flush-conntrack", f"zone={ZONE}")
    wait_entries(kernel, 0)
    assert count(s.sw, "deletions followed") == len(deletions) + 1
    s.query()
    wait_entries(kernel, 1)
    mirror(s.sw, None)
    wait_entries(kernel, 0)
    assert s.sw.appctl("heddle/kernel-conntrack").startswith("off: ")


@limit(120)
def scenario_stale_backend_over_ipv6(lab):
    """The same over IPv6."""
    stale(lab, v6=True)


def pair(lab, rules):
    """Two pods on ports 1 and 2, whose neighbour entries need no packets."""
    sw = lab.switch()
    lab.bridge(sw)
    pods = [lab.veth_pod(sw, name, f"10.1.0.{n}/24", column=["--", "set", "interface", f"v{name}", f"ofport_request={n}"])
            for n, name in ((1, "a"), (2, "b"))]
    sw.ofctl("del-flows", "br0")
    for rule in ["priority=1,arp,actions=normal", *rules]:
        sw.ofctl("add-flow", "br0", rule)
    return sw, *pods


@limit(120)
def scenario_labels_marks_and_zones(lab):
    """Labelled connections of any protocol are shown with mark and label, and deleted by them; zone 0 is the host's."""
    programs("conntrack", "nft")
    sw, a, b = pair(lab, [
        "priority=20,icmp,actions=ct(commit,zone=9,exec(set_field:0x21->ct_mark,set_field:0x1122334455660000000000000001->ct_label)),normal",
        "priority=20,tcp,actions=ct(commit,zone=5),ct(commit,zone=0,exec(set_field:0x1->ct_label)),normal",
    ])
    kernel = table(lab, sw)
    mirror(sw)
    lab.net.ping(a, "10.1.0.2")
    entry, = wait_entries(kernel, 1, zone=9)
    assert (entry.proto, entry.mark, entry.src, entry.dst) == (1, 0x21, "10.1.0.1", "10.1.0.2"), entry
    # The kernel shows labels only while a rule uses them.
    assert entry.label == 0x1122334455660000000000000001, entry
    assert "ct label set" in lab.net.run(sw.netns, "nft", "list", "ruleset")
    server = lab.net.socket(b, lambda: socket.create_server(("10.1.0.2", 99)))
    client = lab.net.socket(a, lambda: socket.create_connection(("10.1.0.2", 99), 10))
    lab.cleanups += [server.close, client.close]
    wait_for("both connections", lambda: sw.appctl("dpctl/dump-conntrack").count("dport=99") == 2)
    time.sleep(1)
    assert [e.zone for e in kernel.list()] == [9], "zone 0, or a connection without label"
    mirror(sw, "all")
    entry, = wait_entries(kernel, 1, zone=5)
    assert (entry.proto, entry.dport, entry.label) == (6, 99, 0), entry
    assert "ESTABLISHED" in lab.net.run(sw.netns, "conntrack", "-L", "-p", "tcp", "-w", "5")
    assert kernel.list(zone=0) == []
    # Mark and label change.
    sw.ofctl("add-flow", "br0", "priority=20,tcp,actions=ct(commit,zone=5,exec(set_field:3->ct_mark,set_field:0x4->ct_label)),normal")
    client.send(b"x")
    wait_for("the change", lambda: [(e.mark, e.label) for e in kernel.list(zone=5)] == [(3, 4)])
    # External gateways: connections to a pod's address whose labels lack the gateway's MAC address.
    gateway = lambda mac: lambda e: e.dst == "10.1.0.2" and (mac not in e.label.to_bytes(16, "little") if e.label else False)
    assert kernel.delete_matching(gateway(bytes.fromhex("665544332211"))) == 1
    wait_for("the TCP connection to end", lambda: "zone=5" not in sw.appctl("dpctl/dump-conntrack"))
    assert "zone=9" in sw.appctl("dpctl/dump-conntrack")
    client.send(b"y")
    wait_entries(kernel, 1, zone=5)
    # A pod has gone: all protocols, by the sender of replies.
    assert kernel.delete_matching(lambda e: e.reply[0] == "10.1.0.2") == 2
    wait_for("both to end", lambda: not re.search("zone=[59]", sw.appctl("dpctl/dump-conntrack")))
    # Fewer zones.
    lab.net.ping(a, "10.1.0.2")
    client.send(b"z")
    wait_entries(kernel, 1, zone=9)
    mirror(sw, "all", zones="1-5")
    wait_entries(kernel, 0, zone=9)
    wait_entries(kernel, 1, zone=5)
    for bad in ("0-5", "x"):
        mirror(sw, "all", zones=bad)
        wait_for("a warning", lambda: f"heddle-kernel-conntrack-zones={bad} is no list of zones" in sw.log())
    mirror(sw, "some")
    wait_for("a warning", lambda: f"heddle-kernel-conntrack=some is not true, false or all" in sw.log())
    wait_entries(kernel, 0, zone=5)


def many(lab, settings=(), args=()):
    """A switch in a namespace whose port sends UDP packets of any clients into zone 7, translated."""
    sw, a, _ = pair(lab, [f"priority=20,in_port=1,udp,actions=ct(commit,zone={ZONE},nat(dst=10.1.0.2))"])
    sock = lab.net.raw(a, "eth0")
    lab.cleanups.append(sock.close)

    def send(n, first=0):
        for number in range(first, first + n):
            packet = frames.udp(f"10.2.{number >> 8 & 255}.{number & 255}", VIP, 1000 + (number >> 16), 80)
            sock.send(frames.ethernet("02:00:00:00:00:02", "02:00:00:00:00:01", 0x0800,
                                      frames.ipv4(f"10.2.{number >> 8 & 255}.{number & 255}", VIP, 17, packet)))
            if number % 200 == 199:
                time.sleep(0.002)
    return sw, send


@limit(150)
def scenario_kill_and_restart(lab):
    """Entries that a killed process has left are removed by the next one; those of other programs stay."""
    sw, send = many(lab)
    kernel = table(lab, sw)
    kernel.fill(ZONE, 3)
    mirror(sw)
    send(50)
    wait_entries(kernel, 53)
    sw.stop_daemon(signal.SIGKILL)
    assert len(kernel.list(zone=ZONE)) == 53
    sw.start_daemon()
    assert len(wait_entries(kernel, 3)) == 3
    wait_for("a line", lambda: "50 connections of an earlier process were removed" in sw.log())
    assert {e.dst for e in kernel.list(zone=ZONE)} == {"10.9.255.1"}
    sw.ofctl("add-flow", "br0", f"priority=20,in_port=1,udp,actions=ct(commit,zone={ZONE},nat(dst=10.1.0.2))")
    send(20)
    wait_entries(kernel, 23)
    sw.stop_daemon()
    assert len(kernel.list(zone=ZONE)) == 3


@limit(150)
def scenario_bounds(lab):
    """The limit and the kernel's own maximum are kept; the host's entries have precedence; each has a line in the log."""
    sw, send = many(lab)
    kernel = table(lab, sw)
    mirror(sw, limit=100)
    send(300)
    wait_entries(kernel, 100)
    wait_for("the rest to be counted", lambda: count(sw, "over limit") == 200)
    wait_for("a line", lambda: "heddle-kernel-conntrack-limit=100 is reached" in sw.log())
    mirror(sw, limit=1000)
    wait_entries(kernel, 300)
    try:
        with open(MAX) as f:
            before = f.read()
        with open(MAX, "w") as f:
            f.write("16384")
    except OSError as error:
        raise Skip(f"{MAX} cannot be written ({error})")

    def restore():
        with open(MAX, "w") as f:
            f.write(before)
    lab.cleanups.append(restore)
    # Seven eighths are 14336: room for 36 more.
    kernel.fill(8, 14000)
    send(100, first=300)
    wait_entries(kernel, 336)
    wait_for("the rest to be counted", lambda: count(sw, "no room") == 64)
    wait_for("a line", lambda: "it is nearly full (net.netfilter.nf_conntrack_max=16384)" in sw.log())
    # Beyond fifteen sixteenths the mirror gives its room back. No connection ends by that.
    kernel.fill(8, 1200, first=14000)
    wait_entries(kernel, 0)
    assert len(kernel.list(zone=8)) == 15200 and count(sw, "deletions followed") == 0
    assert int(sw.appctl("dpctl/ct-get-nconns")) == 400
    kernel.flush(8)
    wait_for("all entries", lambda: count(sw, "no room") == 0 and count(sw, "entries") == 400)
    assert count(sw, "deletions followed") == 0


@limit(200)
def scenario_lost_events(lab):
    """The switch stands still while more entries are deleted than its socket has room for: it compares the tables."""
    sw, send = many(lab)
    kernel = table(lab, sw)
    mirror(sw)
    send(500)
    wait_entries(kernel, 500)
    os.kill(sw.pid, signal.SIGSTOP)
    try:
        for first in range(0, 40000, 10000):
            kernel.fill(8, 10000, first=first)
            kernel.flush(8)
        gone = {f"10.2.0.{n}" for n in range(0, 250)}
        assert kernel.delete_matching(lambda e: e.src in gone and e.zone == ZONE) == 250
    finally:
        os.kill(sw.pid, signal.SIGCONT)
    wait_for("a comparison", lambda: count(sw, "comparisons") >= 1)
    wait_for("deleted connections to end", lambda: int(sw.appctl("dpctl/ct-get-nconns")) == 250)
    left = sw.appctl("dpctl/dump-conntrack")
    assert "src=10.2.0.0," not in left and "src=10.2.1.0," in left
    assert count(sw, "deletions followed") == 250 and len(kernel.list(zone=ZONE)) == 250


@limit(100)
def scenario_no_permission(lab):
    """Without CAP_NET_ADMIN the log has one line, and the switch works on."""
    if not shutil.which("setpriv"):
        raise Skip("setpriv is missing")
    from lab import daemon_path
    folder = tempfile.mkdtemp()
    lab.cleanups.append(lambda: shutil.rmtree(folder))
    wrapper = os.path.join(folder, "heddled")
    with open(wrapper, "w") as f:
        f.write(f'#!/bin/sh\nexec setpriv --bounding-set=-net_admin --inh-caps=-net_admin {daemon_path()} "$@"\n')
    os.chmod(wrapper, 0o755)
    sw = lab.switch("--enable-dummy=override", binary=wrapper)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    mirror(sw)
    wait_for("the state", lambda: sw.appctl("heddle/kernel-conntrack").startswith("not possible: Operation not permitted"))
    time.sleep(1)
    assert sw.log().count("are not mirrored in the kernel's table: Operation not permitted") == 1
    mirror(sw, None)
    wait_for("the state", lambda: sw.appctl("heddle/kernel-conntrack").startswith("off"))


if __name__ == "__main__":
    main()
