#!/usr/bin/env python3
"""Multicast snooping with hosts that join and leave groups (IGMP 1 to 3, MLD 1 and 2), routers, flood ports.

Most scenarios also run on Open vSwitch: HEDDLED=/usr/lib/openvswitch-switch/ovs-vswitchd.
"""

import contextlib
import os
import re
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from test_offload import offloaded, offloading, stats

GROUP, OTHER, GROUP6 = "239.1.1.1", "239.2.2.2", "ff15::77"
PORT = 5007
MAC = "02:00:00:00:00:{:02x}"
ALL_HOSTS, V3_ROUTERS, MLD_ROUTERS = "01:00:5e:00:00:01", "01:00:5e:00:00:16", "33:33:00:00:00:16"
IP_ADD_SOURCE_MEMBERSHIP = 39
STRICT = "other_config:mcast-snooping-disable-flood-unregistered=true"


def igmp(kind, group, src="10.1.0.9", dst=None, good=True, options=b"\x94\x04\0\0"):
    """An IGMP message of eight bytes, as an IPv4 packet."""
    body = struct.pack("!BBH4s", kind, 0, 0, socket.inet_aton(group))
    csum = frames.checksum(body) ^ (0 if good else 0x5555)
    body = body[:2] + struct.pack("!H", csum) + body[4:]
    return frames.ipv4(src, dst or group, 2, body, ttl=1, options=options)


def query(src="10.1.0.9"):
    return igmp(0x11, "0.0.0.0", src, "224.0.0.1")


def mld_query(src="fe80::9"):
    body = struct.pack("!BBHHH", 130, 0, 0, 1000, 0) + bytes(16)
    return mld(body, src, "ff02::1")


def mld(body, src, dst):
    csum = frames.checksum(frames.pseudo(src, dst, 58, len(body)) + body)
    body = body[:2] + struct.pack("!H", csum) + body[4:]
    return frames.ipv6(src, dst, 0, b"\x3a\0\x05\x02\0\0\x01\0" + body, hlim=1)


class Net:
    """A bridge with pods (letter -> extra words of add-port); each pod has a raw socket on its device."""

    def __init__(self, lab, pods, *settings, sw=None, ipv6=False):
        self.lab, self.names, self.serial = lab, list(pods), 0
        if sw is None:
            sw = lab.switch()
            lab.bridge(sw)
        self.sw = sw
        sw.vsctl("set", "bridge", "br0", "mcast_snooping_enable=true", *settings)
        self.ns, self.raw, self.joined = {}, {}, {}
        for n, (pod, words) in enumerate(pods.items(), 1):
            self.ns[pod] = lab.veth_pod(sw, pod, f"10.1.0.{n}/24", column=words, mac=MAC.format(n), ipv6=ipv6, offload=False)
            lab.net.run(self.ns[pod], "ethtool", "-K", "eth0", "txvlan", "off", "rxvlan", "off", check=False)
            lab.net.run(sw.netns, "ethtool", "-K", f"v{pod}", "txvlan", "off", "rxvlan", "off", check=False)
            self.raw[pod] = lab.net.raw(self.ns[pod], "eth0")
            lab.cleanups.append(self.raw[pod].close)
        if ipv6:
            for pod in pods:
                wait_for("a link-local address", lambda pod=pod: "fe80" in self.lab.net.ip(self.ns[pod], "-6", "addr", "show", "dev", "eth0")
                         and "tentative" not in self.lab.net.ip(self.ns[pod], "-6", "addr", "show", "dev", "eth0"))

    def number(self, pod):
        """The OpenFlow port of a pod."""
        return int(self.sw.get("interface", f"v{pod}", "ofport"))

    def join(self, pod, group=GROUP, source=None):
        """The pod's kernel joins a group, and reports it."""
        def make():
            if ":" in group:
                sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                index = struct.pack("@I", socket.if_nametoindex("eth0"))
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + index)
                return sock
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            own = f"10.1.0.{self.names.index(pod) + 1}"
            words = [group, own, source] if source else [group, own]
            option = IP_ADD_SOURCE_MEMBERSHIP if source else socket.IP_ADD_MEMBERSHIP
            sock.setsockopt(socket.IPPROTO_IP, option, b"".join(map(socket.inet_aton, words)))
            return sock
        self.joined[pod, group] = self.lab.net.socket(self.ns[pod], make)
        wait_for(f"{pod} in {group}", lambda: (self.number(pod), group) in self.members())

    def leave(self, pod, group=GROUP):
        """The pod's kernel leaves a group."""
        self.joined.pop((pod, group)).close()
        wait_for(f"{pod} out of {group}", lambda: (self.number(pod), group) not in self.members())

    def mdb(self):
        """The lines of mdb/show: (port, VLAN, protocol, group or querier, age)."""
        lines = self.sw.appctl("mdb/show", "br0", quiet=True).splitlines()
        # From version 3.3 on, there is a protocol.
        assert lines[0] in (" port  VLAN  GROUP                Age", " port  VLAN  protocol  GROUP                Age"), lines
        words = [line.split() for line in lines[1:]]
        return [(int(w[0]) if w[0].isdigit() else w[0], int(w[1]), w[2] if "protocol" in lines[0] else None, w[-2], int(w[-1]))
                for w in words]

    def members(self, vlan=0):
        return {(port, group) for port, v, _, group, _ in self.mdb() if v == vlan}

    def send(self, source, packet, arrive, dst=None, vid=None, mark=None):
        """Sends a packet; the pods `arrive` get it once, and no other pod does."""
        mark = mark or packet
        # Open vSwitch corrects cached decisions a little later than it learns.
        self.sw.appctl("revalidator/wait", quiet=True)
        ethertype = 0x86dd if packet[0] >> 4 == 6 else 0x0800
        tags = [(0x8100, vid)] if vid is not None else []
        self.raw[source].send(frames.ethernet(dst, MAC.format(self.names.index(source) + 1), ethertype, packet, tags))
        for pod, sock in self.raw.items():
            if pod == source:
                continue
            wanted = pod in arrive
            got = receive(sock, lambda data: mark in data, 5 if wanted else 0.3)
            assert (got is not None) == wanted, f"{source} -> {pod}: {'nothing' if got is None else got.hex()}"
            if wanted:
                again = receive(sock, lambda data: mark in data, 0.05)
                assert again is None, f"{source} -> {pod}: twice"

    def data(self, source, arrive, group=GROUP, vid=None):
        """Sends a datagram to a group."""
        self.serial += 1
        mark = b"heddle%06d" % self.serial
        if ":" in group:
            src = "fe80::1234"
            packet = frames.ipv6(src, group, 17, frames.udp(src, group, 9, PORT, mark))
            dst = "33:33:" + ":".join(f"{b:02x}" for b in socket.inet_pton(socket.AF_INET6, group)[12:])
        else:
            src, last = f"10.1.0.{self.names.index(source) + 1}", socket.inet_aton(group)
            packet = frames.ipv4(src, group, 17, frames.udp(src, group, 9, PORT, mark))
            dst = "01:00:5e:" + ":".join(f"{b:02x}" for b in (last[1] & 0x7f, *last[2:]))
        self.send(source, packet, arrive, dst, vid, mark)

    def transmit(self, source, packet, dst, vid=None):
        """Sends a packet without looking where it arrives."""
        ethertype = 0x86dd if packet[0] >> 4 == 6 else 0x0800
        tags = [(0x8100, vid)] if vid is not None else []
        self.raw[source].send(frames.ethernet(dst, MAC.format(self.names.index(source) + 1), ethertype, packet, tags))

    def routers(self):
        return {(port, vlan) for port, vlan, protocol, group, _ in self.mdb() if group == "querier"}


def pods(letters):
    return {letter: [] for letter in letters}


@limit(300)
def scenario_hosts_join_and_leave(lab):
    """Data goes to the hosts that joined, and to no others; to all if no host joined, unless that is off."""
    net = Net(lab, pods("abcd"))
    net.data("a", "bcd")
    net.join("b")
    net.data("a", "b")
    net.join("c")
    net.data("a", "bc")
    net.data("b", "c")
    net.data("a", "bcd", OTHER)
    net.leave("b")
    net.data("a", "c")
    net.sw.vsctl("set", "bridge", "br0", STRICT)
    net.data("a", "c")
    net.data("a", "", OTHER)
    # Groups of the local network are for all, whether a host joined or not (RFC 4541, 2.1.2).
    net.join("d", "224.0.0.251")
    net.data("a", "bcd", "224.0.0.251")
    assert net.sw.appctl("mdb/flush", "br0") == "table successfully flushed\n"
    assert net.mdb() == []
    net.data("a", "")
    net.sw.vsctl("set", "bridge", "br0", "mcast_snooping_enable=false")
    net.data("a", "bcd")
    for words in (("mdb/show", "br0"), ("mdb/flush", "br0")):
        assert "multicast snooping is disabled" in net.sw.appctl(*words, check=2)
    assert "no such bridge" in net.sw.appctl("mdb/show", "br7", check=2)


@limit(300)
def scenario_protocols(lab):
    """All versions of IGMP and MLD, as kernels speak them; joins of single sources count as joins."""
    net = Net(lab, pods("abc"), STRICT, ipv6=True)
    for version in (1, 2, 3):
        lab.net.run(net.ns["b"], "sh", "-c", f"echo {version} > /proc/sys/net/ipv4/conf/eth0/force_igmp_version")
        net.join("b")
        assert [e[2] for e in net.mdb() if e[3] == GROUP] in ([f"IGMPv{version}"], [None])
        net.data("a", "b")
        if version == 1:
            # Version 1 has no leave message.
            net.joined.pop(("b", GROUP)).close()
            net.sw.appctl("mdb/flush", "br0")
        else:
            net.leave("b")
        net.data("a", "")
    for version in (1, 2):
        lab.net.run(net.ns["c"], "sh", "-c", f"echo {version} > /proc/sys/net/ipv6/conf/eth0/force_mld_version")
        net.join("c", GROUP6)
        assert [e[2] for e in net.mdb() if e[3] == GROUP6] in ([f"MLDv{version}"], [None])
        net.data("a", "c", GROUP6)
        net.leave("c", GROUP6)
        net.data("a", "", GROUP6)
    net.join("c", source="10.1.0.1")
    net.data("a", "c")
    # The report of a host that blocks its last source names the source: the group stays until it is silent.
    net.joined.pop(("c", GROUP)).close()
    time.sleep(1)
    net.data("a", "c")
    # All nodes of a link need no report; other groups of the link do.
    net.data("a", "bc", "ff02::1")
    net.data("a", "", "ff02::99")


@limit(300)
def scenario_routers(lab):
    """The port that a query comes from gets all groups and all reports of its VLAN, once each."""
    net = Net(lab, pods("abcr"), STRICT, ipv6=True)
    net.data("a", "")
    net.send("r", query(), "abc", ALL_HOSTS)
    wait_for("the router", lambda: net.routers() == {(net.number("r"), 0)})
    line = next(e for e in net.mdb() if e[3] == "querier")
    assert line[2] in ("UNKNOWN", None) and line[4] <= 2, line
    net.data("a", "r")
    net.send("b", igmp(0x16, GROUP, "10.1.0.2"), "r", "01:00:5e:01:01:01")
    net.data("a", "br")
    net.send("b", igmp(0x17, GROUP, "10.1.0.2", "224.0.0.2"), "r", "01:00:5e:00:00:02")
    net.data("a", "r")
    # A query without a source is another switch's (RFC 4541, 2.1.1); one of MLD counts as one of IGMP.
    net.send("c", query("0.0.0.0"), "abr", ALL_HOSTS)
    assert net.routers() == {(net.number("r"), 0)}
    net.transmit("c", mld_query(), "33:33:00:00:00:01")
    wait_for("the other router", lambda: len(net.routers()) == 2)
    net.data("a", "cr", GROUP6)
    net.sw.vsctl("del-port", "br0", "vr")
    wait_for("a router less", lambda: net.routers() == {(net.number("c"), 0)})
    del net.raw["r"]
    net.data("a", "c")


@limit(300)
def scenario_flood_ports(lab):
    """Ports that get all multicast, and ports that get all reports and never leave at once."""
    net = Net(lab, pods("abcd"), STRICT)
    net.sw.vsctl("set", "port", "vd", "other_config:mcast-snooping-flood=true")
    net.data("a", "d")
    net.join("b")
    net.data("a", "bd")
    net.transmit("d", igmp(0x16, OTHER, "10.1.0.4"), "01:00:5e:02:02:02")
    net.sw.vsctl("set", "port", "vc", "other_config:mcast-snooping-flood-reports=true")
    net.send("a", igmp(0x16, OTHER, "10.1.0.1"), "c", "01:00:5e:02:02:02")
    assert net.members() >= {(net.number("a"), OTHER), (net.number("b"), GROUP)}
    assert (net.number("d"), OTHER) not in net.members()
    net.join("c")
    net.joined.pop(("c", GROUP)).close()
    time.sleep(1)
    net.data("a", "bcd")
    net.sw.vsctl("remove", "port", "vd", "other_config", "mcast-snooping-flood")
    net.data("a", "bc")
    if not net.sw.is_reference:
        # Open vSwitch sends to a flood port of any VLAN.
        net.sw.vsctl("set", "port", "vd", "tag=9", "other_config:mcast-snooping-flood=true")
        net.data("a", "bc")


@limit(300)
def scenario_vlans(lab):
    """A group in one VLAN is none in another; a port that changes its VLAN is forgotten."""
    net = Net(lab, {"a": ["tag=10"], "b": ["tag=10"], "c": ["tag=20"], "t": [], "u": []}, STRICT)
    net.join10 = lambda pod: net.transmit(pod, igmp(0x16, GROUP, "10.1.0.2"), "01:00:5e:01:01:01")
    net.join10("b")
    net.join10("c")
    wait_for("both", lambda: net.members(10) == {(net.number("b"), GROUP)} and net.members(20) == {(net.number("c"), GROUP)})
    net.data("a", "b")
    net.data("t", "b", vid=10)
    net.data("t", "c", vid=20)
    net.data("t", "")
    net.transmit("u", igmp(0x16, GROUP, "10.1.0.5"), "01:00:5e:01:01:01", 10)
    wait_for("the trunk", lambda: (net.number("u"), GROUP) in net.members(10))
    net.data("a", "bu")
    net.sw.vsctl("set", "port", "vb", "tag=20")
    wait_for("b is forgotten", lambda: net.members(10) == {(net.number("u"), GROUP)})
    net.data("a", "u")
    net.data("t", "c", vid=20)


@limit(300)
def scenario_silence(lab):
    """Hosts that send no more reports are forgotten; a query keeps hosts that still listen."""
    net = Net(lab, pods("abc"), STRICT, "other_config:mcast-snooping-aging-time=15")
    net.join("b")
    net.join("c")
    # The kernel repeats a report; then it waits for queries.
    wait_for("old reports", lambda: all(e[4] >= 5 for e in net.mdb()), 40)
    # A query in a frame for b alone: c does not see it, and no port becomes a router's.
    net.transmit("a", igmp(0x11, GROUP, "10.1.0.1"), MAC.format(2))
    wait_for("b's answer", lambda: any(e[0] == net.number("b") and e[4] <= 3 for e in net.mdb()), 15)
    wait_for("c to be forgotten", lambda: net.members() == {(net.number("b"), GROUP)}, 40)
    net.data("a", "b")
    wait_for("b to be forgotten", lambda: net.members() == set(), 40)
    net.data("a", "")
    if not net.sw.is_reference:
        counts = net.sw.appctl("coverage/show")
        assert re.search(r"^mcast_snooping_expired .*total: [2-9]", counts, re.M), counts
        assert re.search(r"^mcast_snooping_learned .*total: [1-9]", counts, re.M), counts


@limit(300)
def scenario_restart(lab):
    """The table is empty after a restart, as Open vSwitch's is; the hosts' next reports fill it."""
    net = Net(lab, pods("abc"), STRICT)
    net.join("b")
    net.data("a", "b")
    net.sw.stop_daemon()
    net.sw.start_daemon()
    wait_for("the port", lambda: net.sw.get("interface", "vb", "ofport").isdigit())
    assert net.mdb() == []
    net.transmit("c", query("10.1.0.3"), ALL_HOSTS)
    wait_for("the report", lambda: (net.number("b"), GROUP) in net.members(), 20)
    net.data("a", "bc")


@limit(300)
def scenario_patch_ports_and_bonds(lab):
    """Reports cross a patch port if a router or a flagged port is behind it; a bond is one listener."""
    net = Net(lab, pods("abc"), STRICT)
    sw = net.sw
    lab.bridge(sw, "br1", "mcast_snooping_enable=true", STRICT)
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=patch", "options:peer=p1",
             "--", "set", "port", "p0", "other_config:mcast-snooping-flood-reports=true",
             "--", "add-port", "br1", "p1", "--", "set", "interface", "p1", "type=patch", "options:peer=p0")
    ns = lab.veth_pod(sw, "z", "10.1.0.26/24", bridge="br1", mac=MAC.format(26), offload=False)
    raw = lab.net.raw(ns, "eth0")
    lab.cleanups.append(raw.close)
    net.join("b")
    wait_for("the other bridge's group", lambda: GROUP in sw.appctl("mdb/show", "br1", quiet=True))
    sw.appctl("revalidator/wait")
    packet = frames.ipv4("10.1.0.26", GROUP, 17, frames.udp("10.1.0.26", GROUP, 9, PORT, b"across"))
    raw.send(frames.ethernet("01:00:5e:01:01:01", MAC.format(26), 0x0800, packet))
    assert receive(net.raw["b"], lambda data: b"across" in data)
    assert receive(net.raw["c"], lambda data: b"across" in data, 0.3) is None
    # The ports of b and c become a bond.
    sw.vsctl("del-port", "br0", "vb", "--", "del-port", "br0", "vc", "--", "add-bond", "br0", "bond0", "vb", "vc",
             "bond_mode=active-backup")
    wait_for("the bond", lambda: "enabled" in sw.appctl("bond/show", "bond0", quiet=True))
    assert net.members() == set()
    report = igmp(0x16, GROUP, "10.1.0.2")
    for pod in "bc":
        net.transmit(pod, report, "01:00:5e:01:01:01")
    wait_for("the bond's group", lambda: len(net.members()) == 1)
    sw.appctl("revalidator/wait")
    got = []
    packet = frames.ipv4("10.1.0.1", GROUP, 17, frames.udp("10.1.0.1", GROUP, 9, PORT, b"to the bond"))
    net.transmit("a", packet, "01:00:5e:01:01:01")
    for pod in "bc":
        got += [pod] if receive(net.raw[pod], lambda data: b"to the bond" in data, 1) else []
    assert len(got) == 1, got


@limit(300)
def scenario_bad_messages(lab):
    """Wrong checksums, cut and lying messages teach nothing; nonsense in settings has Open vSwitch's defaults."""
    net = Net(lab, pods("abc"), STRICT)
    sw = net.sw
    lying = struct.pack("!BBHHH", 0x22, 0, 0, 0, 0xffff) + struct.pack("!BBH4s", 4, 255, 0xffff, socket.inet_aton(OTHER))
    lying = lying[:2] + struct.pack("!H", frames.checksum(lying)) + lying[4:]
    for packet in (igmp(0x16, GROUP, good=False), frames.ipv4("10.1.0.2", GROUP, 2, b"\x16\0"), frames.ipv4("10.1.0.2", GROUP, 2, b""),
                   igmp(0x16, GROUP)[:-3], igmp(0x11, "0.0.0.0", "10.1.0.2", "224.0.0.1", good=False), igmp(0x99, GROUP)):
        net.transmit("b", packet, "01:00:5e:01:01:01")
    # A record that claims more sources than there are: its group is joined, and nothing behind it is read.
    net.transmit("b", frames.ipv4("10.1.0.2", "224.0.0.22", 2, lying, ttl=1), V3_ROUTERS)
    wait_for("the one group", lambda: net.members() == {(net.number("b"), OTHER)})
    sw.vsctl("set", "bridge", "br0", "other_config:mcast-snooping-aging-time=soon", "other_config:mcast-snooping-table-size=-7",
             "other_config:mcast-snooping-disable-flood-unregistered=perhaps", "--", "set", "port", "vc",
             "other_config:mcast-snooping-flood=maybe")
    net.data("a", "bc")
    assert net.members() == {(net.number("b"), OTHER)}
    if not sw.is_reference:
        log = sw.log()
        for line in ("bridge br0: other_config:mcast-snooping-aging-time=soon is not a number from 15 to 3600: 300 is used",
                     "bridge br0: other_config:mcast-snooping-table-size=-7 is not a number from 10 to 1000000: 2048 is used",
                     "bridge br0: other_config:mcast-snooping-disable-flood-unregistered=perhaps is not true or false: false is used",
                     "port vc: other_config:mcast-snooping-flood=maybe is not true or false: false is used"):
            assert log.count(line) == 1, line
        sw.vsctl("set", "bridge", "br0", "other_config:mcast-snooping-aging-time=5")
        assert "other_config:mcast-snooping-aging-time=5 is not a number from 15 to 3600: 15 is used" in sw.log()


@limit(300)
def scenario_a_storm_of_reports(lab):
    """A host that joins groups without end loses its own ones; another host's group stays, and the pings of others are replied to."""
    net = Net(lab, pods("abcd"), STRICT)
    if net.sw.is_reference:
        raise Skip("Open vSwitch forgets the groups of others")
    net.join("b")
    ending = threading.Event()
    def storm():
        n = 0
        while not ending.is_set():
            records = b"".join(struct.pack("!BBHI", 4, 0, 0, 0xea000000 + (n + k) % (1 << 20)) for k in range(100))
            body = struct.pack("!BBHHH", 0x22, 0, 0, 0, 100) + records
            body = body[:2] + struct.pack("!H", frames.checksum(body)) + body[4:]
            with contextlib.suppress(OSError):
                net.transmit("d", frames.ipv4("10.1.0.4", "224.0.0.22", 2, body, ttl=1), V3_ROUTERS)
            n += 100
    thread = threading.Thread(target=storm, daemon=True)
    thread.start()
    counter = "drop_action_mcast_report_limit"
    try:
        wait_for("a full table", lambda: len(net.mdb()) == 2048, 60)
        # The messages are bounded by port. The log has a line about that, once.
        wait_for("the limit", lambda: int(net.sw.appctl("coverage/read-counter", counter)) > 0, 60)
        for _ in range(5):
            net.data("a", "b")
            lab.net.ping(net.ns["a"], "10.1.0.3", count=5)
        assert len(net.mdb()) <= 2048
        assert (net.number("b"), GROUP) in net.members()
    finally:
        ending.set()
        thread.join()
    assert net.sw.log().count("port vd sends more than 1000 group records of IGMP and MLD a second") == 1, net.sw.log()
    net.sw.vsctl("set", "bridge", "br0", "other_config:mcast-snooping-table-size=20")
    wait_for("a smaller table", lambda: len(net.mdb()) == 20)
    assert (net.number("b"), GROUP) in net.members()


@limit(300)
def scenario_the_kernel_forwards_groups(lab):
    """With eBPF: data to several listeners leaves by the kernel's program, a change of the group is followed, and
    reports stay with the workers."""
    sw = offloading(lab)
    net = Net(lab, pods("abcd"), STRICT, sw=sw)
    net.join("b")
    net.join("c")

    def forwards(arrive):
        before = stats(sw)["forwarded-packets"]
        net.data("a", arrive)
        return stats(sw)["forwarded-packets"] > before
    wait_for("the kernel to forward the group", lambda: forwards("bc"), 30)
    net.join("d")
    net.data("a", "bcd")
    wait_for("the kernel to forward the larger group", lambda: forwards("bcd"), 30)
    net.leave("b")
    net.data("a", "cd")
    wait_for("the kernel to forward the smaller group", lambda: forwards("cd"), 30)
    assert offloaded(sw) > 0
    # Refreshing reports reach the table although the group's data is the kernel's.
    wait_for("an older report", lambda: all(e[4] >= 3 for e in net.mdb() if e[3] == GROUP), 30)
    # Packets with options are the workers' in any case.
    net.transmit("c", igmp(0x16, GROUP, "10.1.0.3", options=b""), "01:00:5e:01:01:01")
    wait_for("a younger report", lambda: any(e[4] <= 1 for e in net.mdb() if e[3] == GROUP))


if __name__ == "__main__":
    main()
