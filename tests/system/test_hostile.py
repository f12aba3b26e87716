#!/usr/bin/env python3
"""Hostile packets and rules: made-up values, endless loops, copies of copies. Other traffic continues, and
memory stays bounded."""

import concurrent.futures
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
from lab import frames
from lab.openflow import V13, Connection
from lab.runner import limit, main
from lab.shell import wait_for
from lab.switch import read_pid
from test_tunnels import attach, link, node

MAC_A, MAC_B = "50:54:00:00:00:0a", "50:54:00:00:00:0b"
# The allowed growth for made-up values: a hundred thousand flows take some hundred bytes each.
MOST_MIB = 400


def resident_mib(sw):
    with open(f"/proc/{read_pid(os.path.join(sw.dir, 'ovs-vswitchd.pid'))}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


def neighbours(lab, sw):
    """Two pods that must keep their traffic whatever a third one does, and the third one's socket."""
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.internal_pod(sw, "b", "10.1.0.2/24")
    hostile = lab.veth_pod(sw, "h")
    lab.net.ping(a, "10.1.0.2")
    return a, lab.net.raw(hostile, "eth0")


def udp(n, dport):
    """The n-th of many packets that have nothing in common but a port."""
    src, dst = f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}", "10.9.9.9"
    return frames.ethernet(MAC_B, MAC_A, 0x0800, frames.ipv4(src, dst, 17, frames.udp(src, dst, n & 0xffff, dport, b"x" * 18)))


def send(sock, packets):
    for packet in packets:
        try:
            sock.send(packet)
        except OSError:
            pass  # the device's queue is full


def scenario_copies_of_copies_end(lab):
    """Each of forty tables looks a packet up twice again: two to the fortieth packets are not made."""
    sw = lab.switch()
    a, sock = neighbours(lab, sw)
    for n in range(40):
        sw.ofctl("add-flow", "br0", f"table={n + 1},ip,actions=ct(table={n + 2}),ct(table={n + 2})")
    sw.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=7777,actions=ct(table=1),ct(table=1)")
    sw.ofctl("add-flow", "br0", "table=41,actions=drop")
    send(sock, (udp(n, 7777) for n in range(50)))
    lab.net.ping(a, "10.1.0.2")
    assert sw.alive() and resident_mib(sw) < MOST_MIB


def scenario_loops_end(lab):
    """Packets that are looked up again in the same table, go round patch ports, or resubmit themselves, are dropped."""
    sw = lab.switch()
    a, sock = neighbours(lab, sw)
    lab.bridge(sw, "br1", "fail_mode=secure")
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=patch", "options:peer=p1", "ofport_request=50",
             "--", "add-port", "br1", "p1", "--", "set", "interface", "p1", "type=patch", "options:peer=p0", "ofport_request=51")
    sw.ofctl("add-flow", "br1", "actions=in_port")
    sw.ofctl("add-flow", "br0", "priority=9,in_port=50,actions=in_port")
    for port, actions in {1: "ct(table=0)", 2: "output:50", 3: "resubmit(,0)", 4: "resubmit(,0),resubmit(,0)",
                          5: "clone(ct(table=0)),ct(table=0)", 6: "dec_ttl,ct(table=0),output:50"}.items():
        sw.ofctl("add-flow", "br0", f"priority=8,udp,tp_dst={port},actions={actions}")
    for port in range(1, 7):
        send(sock, (udp(n, port) for n in range(100)))
    lab.net.ping(a, "10.1.0.2")
    assert sw.alive() and resident_mib(sw) < MOST_MIB


def scenario_made_up_values(lab):
    """Made-up values of packets go into registers, marks and labels across recirculations: none of them is
    kept for ever."""
    sw = lab.switch()
    a, sock = neighbours(lab, sw)
    sw.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=1,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],"
                                "move:NXM_OF_UDP_SRC[]->NXM_NX_REG1[0..15],ct(table=1)")
    sw.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=2,actions=move:NXM_OF_IP_SRC[]->NXM_NX_PKT_MARK[],"
                                "ct(table=2,commit,zone=1,exec(move:NXM_NX_PKT_MARK[]->NXM_NX_CT_MARK[],"
                                "move:NXM_OF_IP_SRC[]->NXM_NX_CT_LABEL[0..31]))")
    sw.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=3,actions=move:NXM_OF_IP_SRC[]->NXM_NX_TUN_ID[0..31],"
                                "learn(table=3,hard_timeout=1,dl_type=0x0800,NXM_OF_IP_SRC[],load:NXM_OF_IP_SRC[]->NXM_NX_REG2[]),resubmit(,1)")
    sw.ofctl("add-flow", "br0", "table=1,reg0=7,actions=drop")
    sw.ofctl("add-flow", "br0", "table=2,ct_mark=7,ct_label=9,actions=drop")
    before = resident_mib(sw)
    for port in (1, 2, 3):
        send(sock, (udp(n, port) for n in range(30_000)))
        lab.net.ping(a, "10.1.0.2")
        assert sw.alive()
    grown = resident_mib(sw) - before
    lab.trace.note(f"{grown} MiB for 90,000 made-up values")
    assert grown < MOST_MIB, f"{grown} MiB"


def geneve(n, mac):
    """The n-th of many packets for a tunnel's end: another peer, key and value in each of 31 options."""
    options = b"".join(struct.pack("!HBBI", 0x0102, t, 1, n) for t in range(31))
    inner = udp(n, 5)
    data = struct.pack("!BBHI", len(options) >> 2, 0, 0x6558, (n & 0xffffff) << 8) + options + inner
    src, dst = f"172.31.{n >> 8 & 255}.{n & 255}", "172.31.0.1"
    return frames.ethernet(mac, MAC_A, 0x0800, frames.ipv4(src, dst, 17, frames.udp(src, dst, n & 0xffff, 6081, data)))


def scenario_made_up_tunnels(lab):
    """A peer behind an uplink makes up peers, keys and options that rules match on: memory stays bounded,
    pods beside it keep their traffic."""
    sw = node(lab, 1)
    outside = lab.net.namespace("outside")
    link(lab, sw.netns, outside)
    attach(lab, sw, 1, False)
    sw.vsctl("add-port", "br-int", "tun0", "--", "set", "interface", "tun0", "type=geneve", "options:remote_ip=flow",
             "options:key=flow", "ofport_request=9")
    sw.wait_column("interface", "tun0", "ofport", lambda text: text == "9")
    sw.ofctl("add-tlv-map", "br-int", ",".join(f"{{class=0x102,type={t},len=4}}->tun_metadata{t}" for t in range(31)))
    sw.ofctl("add-flow", "br-int", "priority=9,in_port=9,udp,actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],"
                                   "move:NXM_NX_TUN_METADATA3[0..31]->NXM_NX_REG1[],ct(table=1)")
    sw.ofctl("add-flow", "br-int", "table=1,priority=2,reg0=7,tun_metadata30=7,actions=drop")
    sw.ofctl("add-flow", "br-int", "table=1,priority=1,ip,tun_src=172.31.7.7,actions=drop")
    a = lab.internal_pod(sw, "a", "10.1.0.1/24", bridge="br-int")
    lab.internal_pod(sw, "b", "10.1.0.2/24", bridge="br-int")
    lab.net.ping(a, "10.1.0.2")
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/br-ex/address").strip()
    sock = lab.net.raw(outside, "up0")
    before = resident_mib(sw)
    for first in range(0, 60_000, 20_000):
        send(sock, (geneve(n, mac) for n in range(first, first + 20_000)))
        lab.net.ping(a, "10.1.0.2")
    wait_for("packets out of the tunnel", lambda: "n_packets=0" not in sw.ofctl("dump-flows", "br-int", "in_port=9"))
    grown = resident_mib(sw) - before
    lab.trace.note(f"{grown} MiB for 60,000 made-up tunnels")
    assert sw.alive() and grown < MOST_MIB, f"{grown} MiB"


def few_descriptors(lab, n):
    """A switch that may have that many descriptors, with a bridge."""
    sw = lab.switch(start=False)
    sw.before = ["prlimit", f"--nofile={n}:{n}"]
    sw.start()
    lab.bridge(sw)
    return sw


def descriptors(sw):
    return len(os.listdir(f"/proc/{sw.pid}/fd"))


def knock(path, words, end):
    """Connects, sends `words`, and hangs up, until `end`; returns the number of times."""
    n = 0
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                sock.connect(path)
                sock.send(words)
                n += 1
            except OSError:
                time.sleep(0.001)
    return n


@limit(180)
def scenario_a_flood_of_connections(lab):
    """Short connections to each kind of socket: other clients are served, no descriptor is lost."""
    sw = few_descriptors(lab, 600)
    sw.vsctl("set-controller", "br0", "punix:br0.passive", "--", "set", "open_vswitch", ".", "other_config:heddle-metrics=unix:metrics.sock")
    wait_for("the sockets", lambda: all(os.path.exists(f"{sw.dir}/{name}") for name in ("br0.mgmt", "br0.passive", "metrics.sock")))
    before = descriptors(sw)
    for name, words in (("br0.mgmt", bytes.fromhex("0400000800000000")), ("br0.passive", b""), ("ovs-vswitchd.ctl", b"{"), ("metrics.sock", b"GET")):
        path = f"{sw.dir}/{name}"
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            end = time.monotonic() + 4
            knocks = sum(pool.map(lambda _, p=path, w=words, e=end: knock(p, w, e), range(4)))
        began = time.monotonic()
        assert "capabilities" in sw.ofctl("show", "br0") and sw.appctl("version")
        took = time.monotonic() - began
        lab.trace.note(f"{name}: {knocks} connections, {took:.2f} s, {descriptors(sw)} descriptors after {before}")
        assert took < 5 and knocks > 100, (name, took, knocks)
        wait_for(f"descriptors after {name}", lambda: descriptors(sw) <= before + 10, 5)
    # A port that is added under a flood of callers that stay.
    held = []
    for _ in range(590):
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            sock.connect(f"{sw.dir}/br0.mgmt")
        except OSError:
            pass
        held.append(sock)
    sw.vsctl("add-port", "br0", "late", "--", "set", "interface", "late", "type=internal")
    assert sw.get("interface", "late", "error") == "[]" and sw.appctl("version"), sw.get("interface", "late", "error")
    # Connections without a HELLO make room.
    wait_for("a place", lambda: "capabilities" in sw.ofctl("show", "br0", check=False), 30)
    for sock in held:
        sock.close()
    idle_callers(lab, sw)


def idle_callers(lab, sw):
    """Callers that send HELLO and stay, or never read: new ones get replies, one that is in use is kept,
    other bridges' callers too."""
    lab.bridge(sw, "br1")
    active, other = Connection.to_bridge(sw, "br0", V13), Connection.to_bridge(sw, "br1", V13)
    hello, echo = bytes.fromhex("0400000800000000"), bytes.fromhex("0402000c00000001aaaaaaaa")
    for words in (hello, hello + echo * 3000):
        held = []
        for _ in range(130):
            sock = socket.socket(socket.AF_UNIX)
            sock.setblocking(False)
            try:
                sock.connect(f"{sw.dir}/br0.mgmt")
                sock.send(words)
            except OSError:
                pass
            held.append(sock)
            active.echo()
        # The callers in the kernel's queue come first.
        for bridge, pause in (("br1", 2), ("br0", 2), ("br0", 1)):
            began = time.monotonic()
            while time.monotonic() < began + pause:
                active.echo()
                time.sleep(0.2)
            began = time.monotonic()
            assert "capabilities" in sw.ofctl("show", bridge)
            took = time.monotonic() - began
            lab.trace.note(f"{bridge} answers in {took:.2f} s beside {len(held)} idle callers")
            assert took < 3, (bridge, took)
        active.echo()
        other.echo()
        for sock in held:
            sock.close()
    assert len(re.findall(r"br0.mgmt has \d+ connections, and its limit is", sw.log())) in range(1, 6), "no warning, or a flood of them"


@limit(120)
def scenario_a_moment_without_descriptors(lab):
    """A port whose socket could not be opened for its first packet works soon after."""
    sw = few_descriptors(lab, 96)
    a, b = lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")
    mac = lambda pod: lab.net.run(pod, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(a, "neigh", "replace", "10.1.0.2", "lladdr", mac(b), "dev", "eth0")
    lab.net.ip(b, "neigh", "replace", "10.1.0.1", "lladdr", mac(a), "dev", "eth0")
    with open(f"/proc/{sw.pid}/limits") as limits:
        assert re.search(r"Max open files\s+96\s+96", limits.read())
    # Open descriptors stay open, and no number is free for another one.
    subprocess.run(["prlimit", "--pid", str(sw.pid), "--nofile=3:96"], check=True)
    lab.net.no_ping(a, "10.1.0.2")
    # sw.log() would call the daemon first.
    with open(sw.logfile) as log:
        wait_for("the missing socket", lambda: "no socket to send by" in log.read())
    subprocess.run(["prlimit", "--pid", str(sw.pid), "--nofile=96:96"], check=True)
    time.sleep(0.2)
    lab.net.ping(a, "10.1.0.2", count=1)
    # A port that is added in this state is made when there are descriptors again.
    subprocess.run(["prlimit", "--pid", str(sw.pid), "--nofile=3:96"], check=True)
    sw.vsctl("--no-wait", "add-port", "br0", "late", "--", "set", "interface", "late", "type=internal")
    sw.wait_column("interface", "late", "error", lambda text: "Too many open files" in text)
    subprocess.run(["prlimit", "--pid", str(sw.pid), "--nofile=96:96"], check=True)
    sw.wait_column("interface", "late", "error", lambda text: text.strip() == "[]", 10)


def scenario_texts_that_nest(lab):
    """Commands with actions in actions, a thousand deep: refused, and the switch lives."""
    sw = lab.switch()
    lab.bridge(sw)
    for nested in ("clone(" * 1000 + "output:1" + ")" * 1000, "clone:" * 1000 + "output:1", "ct(commit,exec(" * 1000 + "drop" + "))" * 1000):
        said = sw.appctl("ofproto/trace-packet-out", "br0", "in_port=1,ip", nested, check=2)
        assert "64 levels deep" in said, said[-300:]
    assert "Datapath actions" in sw.appctl("ofproto/trace-packet-out", "br0", "in_port=1,ip", "clone(" * 60 + "drop" + ")" * 60)
    assert sw.alive()


def scenario_killed_under_traffic(lab):
    """Killed under traffic, several times: the next daemon forwards as before."""
    sw = lab.switch()
    a, sock = neighbours(lab, sw)
    for _ in range(3):
        stop = threading.Event()

        def storm():
            n = 0
            while not stop.is_set():
                send(sock, (udp(n + i, 9) for i in range(1000)))
                n += 1000
        thread = threading.Thread(target=storm, daemon=True)
        thread.start()
        try:
            sw.stop_daemon(signal.SIGKILL)
            sw.start_daemon()
            wait_for("an answer", lambda: lab.net.ping(a, "10.1.0.2", count=1, lossless=False))
        finally:
            stop.set()
            thread.join(60)
        lab.net.ping(a, "10.1.0.2")
    assert sw.alive()


def scenario_huge_questions(lab):
    """Requests in parts that never end, and a dump that is never read: memory is bounded, and other
    controllers get replies."""
    sw = lab.switch()
    a, _ = neighbours(lab, sw)
    before = resident_mib(sw)
    many = [Connection.to_bridge(sw, "br0", V13) for _ in range(5)]
    # Table features (OpenFlow 1.3.5 section 7.3.5.5) of 60,000 bytes, with more to come.
    features = struct.pack("!HB5x32sQQII", 64, 0, b"", 0, 0, 0, 0) * 900
    for conn in many:
        conn.sock.settimeout(1)
        for xid in range(200):
            try:
                conn.send(18, xid % 20, struct.pack("!HH4x", 12, 1) + features)
            except OSError:
                break
    asked = Connection.to_bridge(sw, "br0", V13)
    asked.echo()
    lab.net.ping(a, "10.1.0.2")
    grown = resident_mib(sw) - before
    lab.trace.note(f"{grown} MiB for requests that do not end")
    for conn in many:
        conn.sock.close()
    assert sw.alive() and grown < 3 * MOST_MIB, f"{grown} MiB"


def scenario_rules_change_beside_traffic(lab):
    """A controller changes rules as fast as it can, and another one breaks off in the middle of messages:
    pings continue."""
    sw = lab.switch()
    a, sock = neighbours(lab, sw)
    stop = threading.Event()

    def change():
        conn = Connection.to_bridge(sw, "br0", V13)
        n = 0
        while not stop.is_set():
            for _ in range(100):
                n += 1
                conn.send(14, n, flow_mod(n % 5000, 0 if n % 2 else 3))
            conn.echo()
        conn.sock.close()

    def break_off():
        while not stop.wait(0.01):
            conn = Connection.to_bridge(sw, "br0", V13)
            conn.sock.sendall(b"\x04\x0e\x00\x50\0\0\0\1" + b"\0" * 20)
            conn.sock.close()
    threads = [threading.Thread(target=f, daemon=True) for f in (change, break_off)]
    for t in threads:
        t.start()
    try:
        for _ in range(5):
            send(sock, (udp(n, 9) for n in range(5000)))
            lab.net.ping(a, "10.1.0.2")
    finally:
        stop.set()
        for t in threads:
            t.join(60)
    assert sw.alive() and not any(t.is_alive() for t in threads)


def flow_mod(n, command):
    """A rule about one address: added, or deleted."""
    fields = struct.pack("!IHII", 0x80000a02, 0x0800, 0x80001804, n)
    match = struct.pack("!HH", 1, 4 + len(fields)) + fields
    match += bytes(-len(match) % 8)
    return struct.pack("!QQBBHHHIIIHH", 0, 0, 0, command, 0, 0, 7, 0xffffffff, 0xffffffff, 0xffffffff, 0, 0) + match


if __name__ == "__main__":
    main()
