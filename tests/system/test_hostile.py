#!/usr/bin/env python3
"""Who sends packets or writes rules on purpose: made-up values, endless loops, copies of copies. Others go on, and memory stays."""

import os
import struct
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.openflow import V13, Connection
from lab.runner import main
from lab.switch import read_pid

MAC_A, MAC_B = "50:54:00:00:00:0a", "50:54:00:00:00:0b"
# What many values may cost: a hundred thousand flows take some hundred bytes each.
MOST_MIB = 400


def resident_mib(sw):
    with open(f"/proc/{read_pid(os.path.join(sw.dir, 'ovs-vswitchd.pid'))}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


def neighbours(lab, sw):
    """Two pods that go on whatever a third one does, and the third one's socket."""
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
    """What packets make up goes into registers, marks and labels across recirculations: nothing of it is kept for ever."""
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


def scenario_rules_change_beside_traffic(lab):
    """A controller changes rules as fast as it can, and another one breaks off in the middle of messages: pings go on."""
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
