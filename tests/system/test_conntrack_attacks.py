#!/usr/bin/env python3
"""Attacks on the connection tracker: floods, full tables, false headers. Established connections continue,
and each refusal has its name."""

import os
import random
import re
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.openflow import Connection, V15, message
from lab.runner import limit, main
from lab.shell import wait_for
from test_hostile import MAC_A, MAC_B, MOST_MIB, resident_mib, send

SYN, ACK, PSH = 2, 0x10, 8
# The victim: traffic between a and b is tracked in zone 5, and passes only as long as it is established.
VICTIMS = ["priority=10,arp,actions=NORMAL",
           "priority=20,ip,in_port=1,ct_state=-trk,actions=ct(table=1,zone=5)",
           "priority=20,ip,in_port=2,ct_state=-trk,actions=ct(table=1,zone=5)",
           "table=1,in_port=1,ct_state=+trk+new,tcp,tp_dst=7,actions=ct(commit,zone=5),2",
           "table=1,in_port=1,ct_state=+trk+est,ip,actions=2",
           "table=1,in_port=2,ct_state=+trk+est,ip,actions=1"]


class Talk:
    """A TCP connection of two pods, in which each word gets a reply."""

    def __init__(self, lab, client, server, address, port=7):
        def listen():
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen()
            return sock
        listener = lab.net.socket(server, listen)
        listener.settimeout(30)
        self.near = lab.net.socket(client, socket.socket)
        self.near.settimeout(30)
        self.near.connect((address, port))
        self.far, _ = listener.accept()
        self.far.settimeout(30)
        listener.close()
        self.words = 0

    def goes_on(self, words=5):
        for _ in range(words):
            self.words += 1
            word = f"word {self.words:8}".encode()
            for one, other in ((self.near, self.far), (self.far, self.near)):
                one.sendall(word)
                got = b""
                while len(got) < len(word):
                    got += other.recv(100)
                assert got == word, got

    def close(self):
        self.near.close()
        self.far.close()


def victims(lab, rules):
    """A switch with two pods that talk, and the socket of a third one, on port 3."""
    sw = lab.switch()
    lab.bridge(sw)
    request = lambda dev, n: ["--", "set", "interface", dev, f"ofport_request={n}"]
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", column=request("va", 1))
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", column=request("vb", 2))
    h = lab.veth_pod(sw, "h", column=request("vh", 3))
    sw.ofctl("del-flows", "br0")
    sw.ofctl("add-flows", "br0", "-", stdin="\n".join(VICTIMS + rules) + "\n")
    return sw, Talk(lab, a, b, "10.1.0.2"), lab.net.raw(h, "eth0")


def frame(src, dst, proto, payload, **kw):
    if ":" in src:
        return frames.ethernet(MAC_B, MAC_A, 0x86dd, frames.ipv6(src, dst, proto, payload))
    return frames.ethernet(MAC_B, MAC_A, 0x0800, frames.ipv4(src, dst, proto, payload, **kw))


def address(n):
    return f"10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}"


def counted(sw, name):
    return int(sw.appctl("coverage/read-counter", name))


def wait_counted(sw, name, least=1):
    try:
        wait_for(name, lambda: counted(sw, name) >= least)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{sw.appctl('coverage/show')}") from None


@limit(200)
def scenario_half_open(lab):
    """Unfinished handshakes fill the table, then their zone: refused by name, other connections continue."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,tcp,actions=ct(commit,zone=6)"])
    talk.goes_on()
    sw.appctl("dpctl/ct-set-maxconns", "2000")
    syn = lambda n: frame(address(n), "10.9.9.9", 6, frames.tcp(address(n), "10.9.9.9", n & 0xffff | 1, 80, SYN))
    send(sock, (syn(n) for n in range(20_000)))
    wait_counted(sw, "conntrack_full", 1000)
    talk.goes_on()
    assert int(sw.appctl("dpctl/ct-get-nconns")) <= 2000
    wait_for("the log", lambda: "dpctl/ct-set-maxconns allows" in sw.log())
    sw.appctl("dpctl/flush-conntrack", "zone=6")
    assert int(sw.appctl("dpctl/ct-get-nconns")) < 10
    sw.appctl("dpctl/ct-set-maxconns", "3000000")
    sw.appctl("dpctl/ct-set-limits", "zone=6,limit=100")
    send(sock, (syn(n) for n in range(20_000)))
    wait_counted(sw, "conntrack_zone_full", 1000)
    talk.goes_on()
    assert "zone=6,limit=100,count=100" in sw.appctl("dpctl/ct-get-limits", "zone=6")
    wait_for("the log", lambda: "their zones have as many" in sw.log())
    refused = [line for line in sw.log().splitlines() if "were not kept" in line]
    assert len(refused) < 60, refused
    talk.close()


def memory_kb(sw, name):
    return int(re.search(rf"\b{name}:(\d+)", sw.appctl("memory/show"))[1])


@limit(200)
def scenario_memory_after_a_flood(lab):
    """Memory of a flood's connections goes back to the system; older and remaining ones continue."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=ct(commit,zone=6)"])
    talk.goes_on()
    many = 60_000
    packet = bytearray(frame("10.7.7.7", "10.9.9.9", 17, frames.udp("10.7.7.7", "10.9.9.9", 1, 1, b"x" * 18)))
    packet[40:42] = b"\0\0"  # no checksum

    def flood(first):
        for n in range(first, many):
            struct.pack_into("!HH", packet, 34, n % 25_000 + 1, n // 25_000 + 256)
            yield bytes(packet)
            if n % 256 == 0:
                time.sleep(0.002)  # lets the switch run
    for _ in range(20):
        # Packets that did not fit into the socket are sent again.
        send(sock, flood(0))
        if int(sw.appctl("dpctl/ct-get-nconns")) >= many:
            break
    assert int(sw.appctl("dpctl/ct-get-nconns")) >= many
    full = memory_kb(sw, "shared-kB")
    assert full > many * 192 // 1024
    sw.appctl("dpctl/flush-conntrack", "zone=6", "ct_nw_proto=17,ct_tp_dst=256")
    sw.appctl("dpctl/flush-conntrack", "zone=6", "ct_nw_proto=17,ct_tp_dst=257")
    left = int(sw.appctl("dpctl/ct-get-nconns"))
    assert 9_000 < left < 11_000, left
    gone = (many - left) * 192 // 1024
    wait_for("its memory to be given back", lambda: memory_kb(sw, "shared-kB") < full - gone * 3 // 4)
    talk.goes_on()
    # A dump reads no free record: that would allocate a page for it.
    given = memory_kb(sw, "shared-kB")
    assert sw.appctl("dpctl/dump-conntrack", "zone=6").count("udp") > left - 100
    assert memory_kb(sw, "shared-kB") < given + 2000
    send(sock, flood(0))
    wait_for("connections to be made again", lambda: int(sw.appctl("dpctl/ct-get-nconns")) > many // 2)
    talk.goes_on()


@limit(200)
def scenario_ports_run_out(lab):
    """All ports of a translation are taken: new connections are refused by name, existing ones keep their
    ports."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=ct(commit,zone=6,nat(src=10.8.0.1:2000-2009))"])
    udp = lambda n: frame(address(n), "10.9.9.9", 17, frames.udp(address(n), "10.9.9.9", 1000, 53))
    send(sock, (udp(n) for n in range(3000)))
    wait_counted(sw, "conntrack_nat_exhausted", 1000)
    talk.goes_on()
    shown = sw.appctl("dpctl/dump-conntrack", "zone=6").splitlines()
    ports = [line.split("dst=10.8.0.1,")[1].split("dport=")[1].split(")")[0] for line in shown]
    assert sorted(ports) == [str(n) for n in range(2000, 2010)], shown
    wait_for("the log", lambda: "tuple space exhaustion" in sw.log())
    talk.close()


def pieces(n, kind):
    """Fragments that are no use to anybody."""
    src, data = address(n), bytes(1400)
    piece = lambda at, more, body=data: frame(src, "10.9.9.9", 17, body, ident=n & 0xffff, frag=(0x2000 if more else 0) | at // 8)
    if kind == "first":
        return [piece(0, True)]
    if kind == "tiny":
        return [piece(0, True, data[:8]), piece(8, True, data[:8])]
    if kind == "overlapping":
        return [piece(0, True), piece(8, True), piece(0, True), piece(0, False, data[:1392])]
    if kind == "endless":
        return [piece(1400 * i, True) for i in range(46)] + [piece(65528, True)]
    head = struct.pack("!BBHI", 17, 0, 0 if kind == "atomic" else 1, n)
    return [frame(f"fd00::{n & 0xffff:x}", "fd00::ffff:1", 44, head + data[:1392 if n % 2 else 64])]


def useless_fragments(lab, more, *names):
    """Floods a rule that tracks fragments, until all these counters have counted."""
    sw, talk, sock = victims(lab, [f"priority=20,in_port=3,ip,actions=ct(commit,zone=6{more})",
                                   f"priority=20,in_port=3,ipv6,actions=ct(commit,zone=6{more})"])
    before = resident_mib(sw)
    for kind in ("first", "tiny", "overlapping", "endless", "sixth", "atomic"):
        send(sock, (f for n in range(3000 if kind != "endless" else 100) for f in pieces(n, kind)))
        talk.goes_on()
    for name in names:
        wait_counted(sw, name)
    grown = resident_mib(sw) - before
    assert sw.alive() and grown < 100, f"{grown} MiB"
    waiting = int(sw.appctl("dpctl/ipf-get-status").split("num frag: ")[1].split()[0])
    assert 0 < waiting <= 1000, waiting
    talk.close()


@limit(200)
def scenario_fragments(lab):
    """Fragments that are tiny, overlap, never end or never become whole, of both families: bounded memory, named refusals."""
    useless_fragments(lab, "", "datapath_drop_fragment_evicted", "ipf_too_small", "ipf_overlap", "ipf_malformed")


@limit(200)
def scenario_fragments_that_would_be_joined(lab):
    """The same where the whole packet would be looked up again: tiny fragments wait, and an overlap ends the datagram."""
    useless_fragments(lab, ",table=9", "datapath_drop_fragment_evicted", "datapath_drop_fragment_refused", "ipf_overlap", "ipf_malformed")


LIES = [b"PORT 10,9,9,8,19,136\r\n", b"PORT 300,1,1,1,1,1\r\n", b"PORT " + b"1" * 1300, b"PORT", b"PORT \r\n", b"PORT ,,,,,\r\n",
        b"EPRT |1|10.9.9.8|5000|\r\n", b"EPRT " + b"|" * 1300, b"EPRT |2|::1|1|\r\n", b"227 (10,9,9,9,1,1)\r\n", b"229 (|||70000|)\r\n",
        b"PORT 10,0,0,1,0,0\r\n", b"\xff" * 1300, b"P", b"PORT 10,0,0,1,19,1", b"36\r\n", b"PORT 1,2,3,4,5,6,7,8,9\r\n"]


@limit(200)
def scenario_announcements_that_lie(lab):
    """FTP that announces other hosts, in lines without end, cut into pieces; TFTP to everybody: counted, nothing is let in."""
    sw, talk, sock = victims(lab, [
        "priority=20,in_port=3,tcp,tp_dst=21,actions=ct(commit,zone=6,alg=ftp,nat(src=10.8.0.1),table=2)",
        "priority=20,in_port=3,tcp,tp_src=21,actions=ct(zone=6,nat,table=2)",
        "priority=20,in_port=3,udp,tp_dst=69,actions=ct(commit,zone=6,alg=tftp,nat(src=10.8.0.1),table=2)",
        "priority=19,in_port=3,ip,actions=ct(zone=6,nat,table=2)",
        "table=2,priority=2,ct_state=+new+rel,ip,actions=2", "table=2,priority=1,actions=drop"])
    before = resident_mib(sw)
    for n in range(3000):
        src, dst, port = address(n), "10.9.9.9", 2000 + n
        out = lambda flags, data, seq, ack: frame(src, dst, 6, frames.tcp(src, dst, port, 21, flags, data, True, seq, ack))
        back = lambda flags, data, seq, ack: frame(dst, "10.8.0.1", 6, frames.tcp(dst, "10.8.0.1", 21, port, flags, data, True, seq, ack))
        lie = LIES[n % len(LIES)]
        send(sock, [out(SYN, b"", 1, 0), back(SYN | ACK, b"", 100, 2), out(ACK, b"", 2, 101), out(PSH | ACK, lie, 2, 101),
                    back(PSH | ACK, lie, 101, 2 + len(lie)),
                    frame(src, dst, 17, frames.udp(src, dst, port, 69, b"\0\1x\0octet\0"))])
        # Packets of connections that a false message announced.
        send(sock, [frame(dst, "10.8.0.1", 6, frames.tcp(dst, "10.8.0.1", 20, 5000, SYN)),
                    frame(dst, "10.9.9.8", 6, frames.tcp(dst, "10.9.9.8", 20, 5000, SYN))])
        if n % 500 == 0:
            talk.goes_on()
    wait_counted(sw, "conntrack_ftp_malformed", 500)
    talk.goes_on()
    flow = next(line for line in sw.ofctl("dump-flows", "br0", "table=2").splitlines() if "ct_state" in line)
    assert "n_packets=0" in flow, flow
    grown = resident_mib(sw) - before
    assert sw.alive() and grown < MOST_MIB, f"{grown} MiB"
    talk.close()


@limit(200)
def scenario_rubbish(lab):
    """Headers cut anywhere, ICMP errors that quote nonsense, malformed SCTP, flipped bits: no fault, no
    delay."""
    sw, talk, sock = victims(lab, [f"priority=20,in_port=3,{ip},actions=ct(commit,zone=6,nat(src={to}),table=2)"
                                   for ip, to in (("ip", "10.8.0.1-10.8.0.9"), ("ipv6", "fd08::1-fd08::9"))]
                               + [f"table=2,{ip},actions=ct(zone=6,nat),ct(commit,force,zone=7)" for ip in ("ip", "ipv6")])
    rng = random.Random(5)
    quote = frames.ipv4("10.8.0.1", "10.9.9.9", 17, frames.udp("10.8.0.1", "10.9.9.9", 1000, 53, b"x" * 20))
    base = [frames.tcp("10.0.0.1", "10.9.9.9", 5, 80, SYN, b"x" * 30), frames.udp("10.0.0.1", "10.9.9.9", 5, 53, b"x" * 30),
            frames.sctp(5, 6, b"\1\0\0\4" * 5), frames.icmp(3, 1, b"\0\0\0\0" + quote), frames.icmp(8, 0),
            frames.icmp6("fd00::1", "fd00::2", 1, 0, b"\0\0\0\0" + quote), frames.icmp6("fd00::1", "fd00::2", 128, 0)]

    def rubbish():
        for _ in range(30_000):
            body = bytearray(rng.choice(base))
            for _ in range(rng.randrange(4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
            body = bytes(body[:rng.randrange(len(body) + 1)])
            proto = rng.choice([6, 17, 1, 58, 132, 132, 47, 0, 43, 44, 51, 60, rng.randrange(256)])
            if rng.random() < 0.5:
                yield frame("fd00::1", "fd00::2", proto, body)
            else:
                yield frame("10.0.0.1", "10.9.9.9", proto, body, options=bytes(rng.randrange(256) for _ in range(rng.choice([0, 0, 4, 40]))),
                            total=rng.choice([None, None, None, rng.randrange(65536)]))
    send(sock, rubbish())
    wait_counted(sw, "conntrack_malformed", 1000)
    talk.goes_on()
    assert sw.alive() and counted(sw, "drop_action_translation_fault") == 0
    talk.close()


@limit(200)
def scenario_many_zones(lab):
    """A zone for each value that packets make up, all sixty-five thousand: flushed and limited one by one, the others talk on."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=move:NXM_OF_UDP_SRC[]->NXM_NX_REG1[0..15],"
                                   "ct(commit,zone=NXM_NX_REG1[0..15],table=2)", "table=2,actions=drop"])
    before = resident_mib(sw)
    send(sock, (frame("10.0.0.1", "10.9.9.9", 17, frames.udp("10.0.0.1", "10.9.9.9", n or 1, 53)) for n in range(65_536)))
    wait_for("connections", lambda: int(sw.appctl("dpctl/ct-get-nconns")) > 30_000)
    talk.goes_on()
    sw.appctl("dpctl/ct-set-limits", "default=1", *(f"zone={n},limit=2" for n in range(100, 1100)))
    assert sw.appctl("dpctl/ct-get-limits").count("limit=2") == 1000
    for n in range(100, 200):
        sw.appctl("dpctl/flush-conntrack", f"zone={n}")
    assert "zone=150" not in sw.appctl("dpctl/dump-conntrack", "zone=150")
    talk.goes_on()
    grown = resident_mib(sw) - before
    assert sw.alive() and grown < MOST_MIB, f"{grown} MiB"
    talk.close()


def new_ones(count, first=0):
    """UDP of ever other clients."""
    return (frame(address(n), "10.9.9.9", 17, frames.udp(address(n), "10.9.9.9", 1000, 53)) for n in range(first, first + count))


@limit(200)
def scenario_limits_lowered(lab):
    """Limits below the number of connections: existing ones stay, new ones are refused. Counts are right when
    connections end or return, or when the default limit changes."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=ct(commit,zone=6)"])
    limits = lambda: " ".join(sw.appctl("dpctl/ct-get-limits", "zone=6").split())
    sw.appctl("dpctl/ct-set-limits", "zone=6,limit=5000")
    send(sock, new_ones(2000))
    wait_for("connections", lambda: int(limits().split("count=")[1]) > 1000)
    sw.appctl("dpctl/ct-set-limits", "zone=6,limit=10")
    there = limits()
    send(sock, new_ones(2000, 10_000))
    wait_counted(sw, "conntrack_zone_full", 1000)
    assert limits() == there and "limit=10," in there, (limits(), there)
    talk.goes_on()
    sw.appctl("dpctl/flush-conntrack", "zone=6")
    assert limits().endswith("limit=10,count=0")
    send(sock, new_ones(2000))
    wait_for("as many as may", lambda: limits().endswith("limit=10,count=10"))
    # Connections that precede a limit do not count under it, and their end does not reduce its count.
    sw.appctl("dpctl/ct-del-limits", "zone=6")
    sw.appctl("dpctl/ct-set-limits", "default=5")
    send(sock, new_ones(2000, 20_000))
    wait_for("as many as may by default", lambda: limits().endswith("zone=6,limit=5,count=5"))
    sw.appctl("dpctl/flush-conntrack", "zone=6")
    assert limits().endswith("limit=5,count=0")
    # A limit of zero, and one beyond the table's size.
    talk.goes_on()
    for most in (0, 4_294_967_295):
        sw.appctl("dpctl/ct-set-maxconns", str(most))
        send(sock, new_ones(100))
        talk.goes_on()
    wait_counted(sw, "conntrack_full")
    talk.close()


@limit(200)
def scenario_no_time(lab):
    """Policies with timeouts of zero, that change all the time, and more of them than there is room for."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,ip,actions=ct(commit,zone=6,nat(src=10.8.0.1))"])
    sw.vsctl("--", "--id=@dp", "create", "Datapath", "datapath_version=0", "--", "set", "Open_vSwitch", ".", "datapaths:netdev=@dp")
    sw.vsctl("add-zone-tp", "netdev", "zone=6", *(f"{name}=0" for name in ("udp_first", "udp_single", "udp_multiple", "icmp_first")))
    by_policy = lambda: "timeout=" in sw.appctl("ofproto/trace", "br0", "udp,in_port=3", quiet=True)
    wait_for("the policy", by_policy)
    before = resident_mib(sw)
    send(sock, (f for n in range(100) for f in new_ones(200, n % 7)))
    send(sock, new_ones(20_000))
    talk.goes_on()
    wait_for("nobody", lambda: int(sw.appctl("dpctl/ct-get-nconns")) < 10)
    assert not sw.appctl("dpctl/dump-conntrack", "zone=6").strip()
    for turn in range(20):
        sw.vsctl("del-zone-tp", "netdev", "zone=6")
        sw.vsctl("add-zone-tp", "netdev", "zone=6", f"udp_first={turn + 1}")
        send(sock, new_ones(300))
    talk.goes_on()
    zones = [["--", "add-zone-tp", "netdev", f"zone={zone}", f"udp_first={zone}"] for zone in range(100, 1300)]
    sw.vsctl(*(word for words in zones for word in words), quiet=True)
    wait_for("the log", lambda: "there are 1023 timeout policies already" in sw.log())
    # Zones without room for a policy live by the default.
    send(sock, new_ones(1000))
    talk.goes_on()
    assert sw.alive() and by_policy() and resident_mib(sw) - before < MOST_MIB
    talk.close()


@limit(200)
def scenario_flushed_all_the_time(lab):
    """A controller flushes connections thousands of times: other controllers, commands and the database are
    served, packets are forwarded."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=ct(commit,zone=6)"])
    send(sock, new_ones(50_000))
    controller = Connection.to_bridge(sw, "br0", V15)
    zone = lambda n: struct.pack("!II6xH", 0x2320, 29, n)
    controller.sock.sendall(b"".join(message(V15, 4, n, zone(7)) for n in range(4000)))
    for n in range(10):
        before = time.monotonic()
        sw.appctl("dpctl/ct-get-nconns")
        sw.ofctl("dump-aggregate", "br0")
        sw.vsctl("set", "bridge", "br0", f"external_ids:n={n}")
        talk.goes_on()
        assert time.monotonic() - before < 10
    controller.echo()
    talk.goes_on()
    # The victim's own connection is flushed in the midst: its next packet is a new one, which the rules drop.
    controller.send(4, 1, zone(5))
    controller.echo()
    assert not sw.appctl("dpctl/dump-conntrack", "zone=5").strip()
    controller.close()
    talk.close()


def storm(sock, stop):
    """UDP between new endpoints all the time, and replies."""
    n = 0
    while not stop.is_set():
        n += 1000
        send(sock, (frame(address(i), "10.9.9.9", 17, frames.udp(address(i), "10.9.9.9", i & 0xffff | 1, 53)) for i in range(n, n + 1000)))


@limit(200)
def scenario_all_changes_under_traffic(lab):
    """Flushes, other workers, changes of ports and bridges, limits, policies, kills: under a storm of new
    connections."""
    sw, talk, sock = victims(lab, ["priority=20,in_port=3,udp,actions=ct(commit,zone=6,nat(src=10.8.0.1-10.8.0.9),table=2)",
                                   "table=2,ct_state=+new,ip,actions=ct(zone=7,table=3)"])
    stop = threading.Event()
    thread = threading.Thread(target=storm, args=(sock, stop), daemon=True)
    thread.start()
    try:
        for turn in range(4):
            for _ in range(10):
                sw.appctl("dpctl/flush-conntrack", "zone=6")
            sw.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={'0x1' if turn % 2 else '0x3'}")
            sw.vsctl("add-br", f"b{turn}", "--", "set", "bridge", f"b{turn}", "datapath_type=netdev", "--", "add-port", "br0", f"n{turn}",
                     "--", "set", "interface", f"n{turn}", "type=internal")
            sw.appctl("dpctl/ct-set-limits", f"default={turn * 1000}", "zone=6,limit=5000")
            sw.appctl("dpctl/ct-set-maxconns", str(3000 + turn))
            talk.goes_on()
            sw.vsctl("del-br", f"b{turn}", "--", "del-port", f"n{turn}")
            sw.appctl("dpctl/dump-conntrack", "-m", "-s")
            sw.appctl("dpctl/ct-del-limits", "zone=6")
            talk.goes_on()
        talk.close()
        sw.stop_daemon(signal.SIGKILL)
        sw.start_daemon()
        wait_for("connections again", lambda: int(sw.appctl("dpctl/ct-get-nconns")) >= 0 and sw.alive())
        sw.ofctl("add-flow", "br0", "priority=20,in_port=3,udp,actions=ct(commit,zone=6)")
        wait_for("new ones", lambda: "zone=6" in sw.appctl("dpctl/dump-conntrack", "zone=6"))
    finally:
        stop.set()
        thread.join(60)
    assert sw.alive()


if __name__ == "__main__":
    main()
