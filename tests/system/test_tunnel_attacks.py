#!/usr/bin/env python3
"""Broken and hostile packets to tunnel endpoints, tunnels that lead into themselves, and changes under
traffic.

Each packet that is refused has a name; the daemon lives; who has nothing to do with it is not disturbed.
"""

import os
import random
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames as f
from lab.net import receive
from lab.runner import limit, main
from lab.shell import wait_for
from test_tunnel_churn import reached
from test_tunnels import attach, kernel_node, link, node, nodes, transfer, tunnel

HERE, THERE = "172.31.0.1", "172.31.0.2"
INNER = f.ethernet("02:00:00:00:05:01", "02:00:00:00:05:02", 0x0800,
                   f.ipv4("10.5.0.9", "10.5.0.1", 17, f.udp("10.5.0.9", "10.5.0.1", 7, 7, b"x" * 30)))
POP, CSUM, TTL, FRAGMENT, OPTION, METADATA = (f"datapath_drop_tunnel_{what}" for what in ("pop_error", "bad_csum", "ttl", "fragment", "option", "metadata"))


def geneve(inner=INNER, vni=77, ver=0, options=b"", words=None, proto=0x6558, flags=0):
    words = len(options) // 4 if words is None else words
    return struct.pack("!BBHI", ver << 6 | words, flags, proto, vni << 8) + options + inner


def option(kind, data, words=None, cls=0xfff0):
    return struct.pack("!HBB", cls, kind, len(data) // 4 if words is None else words) + data


def vxlan(inner=INNER, vni=78, flags=0x08000000):
    return struct.pack("!II", flags, vni << 8) + inner


def gre(rest, flags=0x2000, proto=0x6558):
    return struct.pack("!HH", flags, proto) + rest


def in_udp(port, data, csum=None, length=None, **ip):
    segment = f.udp(THERE, HERE, 40000, port, data, csum=csum)
    if length is not None:
        segment = segment[:4] + struct.pack("!H", length) + segment[6:]
    return f.ipv4(THERE, HERE, 17, segment, **ip)


def in_gre(data, **ip):
    return f.ipv4(THERE, HERE, 47, data, **ip)


def stt_frame(inner=INNER, key=81, version=0, flags=0, l4=0, mss=0, tci=0):
    return struct.pack("!BBBBHHQH", version, flags, l4, 0, mss, tci, key, 0) + inner


def in_stt(frame, place=0, upto=None, length=None, number=1, tcp=0x18, good=True, source=THERE, sport=40000, **ip):
    """Part of an STT frame, from one byte to another."""
    length = len(frame) if length is None else length
    segment = f.tcp(source, HERE, sport, 7471, tcp, frame[place:upto], good=good, seq=length << 16 | place, ack=number)
    return f.ipv4(source, HERE, 6, segment, **ip)


STT = stt_frame()
KEY79 = struct.pack("!I", 79)


def stt_with_options():
    head = f.tcp(THERE, HERE, 40001, 7471, 0x18, b"\1" * 8 + STT, seq=len(STT) << 16, ack=2)
    head = head[:12] + struct.pack("!H", 7 << 12 | 0x18) + head[14:16] + b"\0\0" + head[18:]
    csum = f.checksum(f.pseudo(THERE, HERE, 6, len(head)) + head)
    return head[:16] + struct.pack("!H", csum) + head[18:]


# Hostile IP packets, and the drop name of each.
HOSTILE = {
    "no Geneve header": (in_udp(6081, b"\0\0\0\0"), POP),
    "nothing behind UDP": (in_udp(6081, b""), POP),
    "Geneve of another version": (in_udp(6081, geneve(ver=1)), POP),
    "Geneve around something else": (in_udp(6081, geneve(proto=0x1234)), POP),
    "Geneve options behind the end": (in_udp(6081, geneve(b"", words=63)), POP),
    "an option that says that it is longer": (in_udp(6081, geneve(options=option(1, b"abcd", words=9))), OPTION),
    "half an option": (in_udp(6081, geneve(options=option(1, b"abcd") + b"\xff\xf0\1\1")), OPTION),
    "a critical option that nobody knows": (in_udp(6081, geneve(options=option(0x81, b"abcd"))), OPTION),
    "63 words of options, the last one broken": (in_udp(6081, geneve(options=option(1, b"a" * 4) * 31 + b"\xff\xf0\1\x1f")), OPTION),
    "UDP longer than IP": (in_udp(6081, geneve(), length=2000), POP),
    "UDP shorter than its header": (in_udp(6081, geneve(), length=3), POP),
    "UDP that ends within Geneve": (in_udp(6081, geneve(), length=12, csum=0), POP),
    "a wrong UDP checksum": (in_udp(6081, geneve(), csum=0xdead), CSUM),
    "no time to live": (in_udp(6081, geneve(), ttl=0), TTL),
    "a first fragment": (in_udp(6081, geneve(), frag=0x2000), FRAGMENT),
    "a source route": (in_udp(6081, geneve(), options=b"\x83\3\4\0"), POP),
    "IP options beyond their end": (in_udp(6081, geneve(), options=b"\x94\5\0\0"), POP),
    "a key that nobody has": (in_udp(6081, geneve(vni=99)), "drop_action_no_tunnel_port"),
    "VXLAN with flags that nobody knows": (in_udp(4789, vxlan(flags=0x08000001)), POP),
    "VXLAN without a network": (in_udp(4789, vxlan(flags=0)), POP),
    "VXLAN cut off": (in_udp(4789, b"\x08\0\0\0\0"), POP),
    "a wrong checksum around VXLAN": (in_udp(4789, vxlan(), csum=0xbeef), CSUM),
    "GRE of version 1": (in_gre(gre(KEY79 + INNER, flags=0x2001)), POP),
    "GRE with a route": (in_gre(gre(KEY79 + INNER, flags=0x6000)), POP),
    "GRE that ends within its words": (in_gre(gre(b"\0", flags=0xb000)), POP),
    "GRE around a length": (in_gre(gre(KEY79 + INNER, proto=0x0300)), POP),
    "a wrong GRE checksum": (in_gre(gre(b"\xde\xad\0\0" + KEY79 + INNER, flags=0xa000)), CSUM),
    "GRE without time to live": (in_gre(gre(KEY79 + INNER), ttl=0), TTL),
    "GRE, a first fragment": (in_gre(gre(KEY79 + INNER), frag=0x2000), FRAGMENT),
    "ERSPAN of version 3": (in_gre(gre(b"\0\0\0\1" + b"\x30\0\0\1" + b"\0" * 8 + INNER, flags=0x1000, proto=0x22eb)), POP),
    "ERSPAN cut off": (in_gre(gre(b"\0\0\0\1" + b"\x10\0", flags=0x1000, proto=0x88be)), POP),
    "ERSPAN 2 cut off": (in_gre(gre(b"\0\0\0\1" + b"\x20\0\0\1" + b"\0\0\0", flags=0x1000, proto=0x22eb)), POP),
    "STT of another version": (in_stt(stt_frame(version=1)), POP),
    "STT without a frame": (in_stt(b""), POP),
    "STT shorter than its header": (in_stt(STT[:17]), POP),
    "STT that begins a connection": (in_stt(STT, tcp=0x12), POP),
    "STT with a wrong checksum": (in_stt(STT, good=False), CSUM),
    "STT without time to live": (in_stt(STT, ttl=0), TTL),
    "STT, a first fragment": (in_stt(STT, frag=0x2000), FRAGMENT),
    "STT longer than its frame": (in_stt(STT, length=len(STT) - 1), "datapath_drop_tunnel_segment_beyond"),
    "STT from behind its frame's end": (f.ipv4(THERE, HERE, 6, f.tcp(THERE, HERE, 4, 7471, 0x18, STT, seq=len(STT) << 16 | 60000)),
                                        "datapath_drop_tunnel_segment_beyond"),
    "STT that says that UDP is TCP": (in_stt(stt_frame(flags=0x0e, l4=34, mss=10)), METADATA),
    "STT that says that IPv4 is IPv6": (in_stt(stt_frame(flags=0x02, l4=34)), METADATA),
    "STT with an L4 header elsewhere": (in_stt(stt_frame(flags=0x06, l4=250)), METADATA),
    "STT for which nobody has a key": (in_stt(stt_frame(key=1 << 63 | 81)), "drop_action_no_tunnel_port"),
    "congestion that cannot be shown inside": (in_udp(6081, geneve(), tos=3), "drop_action_congestion"),
}
HERE6, THERE6 = "fd00::1", "fd00::2"


def in_udp6(port, data, csum=None, proto=17, before=b"", **ip):
    return f.ipv6(THERE6, HERE6, proto, before + f.udp(THERE6, HERE6, 40000, port, data, csum=csum), **ip)


def srv6(inner=INNER[14:], proto=4, kind=4, left=0):
    return struct.pack("!BBBBBBH", proto, 2, kind, left, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, HERE6) + inner


def gtpu(flags=0x30, inner=INNER[14:]):
    return struct.pack("!BBHI", flags, 255, len(inner), 80) + inner


def gpe(proto, flags=0x0c000000):
    return struct.pack("!II", flags | proto, 78 << 8) + INNER[14:]


INVALID = "datapath_drop_rx_invalid_packet"
# The same over IPv6, and of the tunnels that have no Ethernet header inside.
HOSTILE6 = {
    "no hops": (in_udp6(6081, geneve(), hlim=0), TTL),
    "a wrong UDP checksum": (in_udp6(6081, geneve(), csum=0xdead), CSUM),
    "a first fragment": (in_udp6(6081, geneve(), proto=44, before=struct.pack("!BBHI", 17, 0, 1, 7)), FRAGMENT),
    "a hop-by-hop header": (in_udp6(6081, geneve(), proto=0, before=struct.pack("!BBHI", 17, 0, 0x0104, 0)), POP),
    "IP that ends within Geneve": (in_udp6(6081, geneve(), length=20), POP),
    "nothing inside": (in_udp6(6081, geneve(b"")), INVALID),
    "half an Ethernet header inside": (in_udp6(6081, geneve(b"a" * 13)), INVALID),
    "a segment routing header of another kind": (f.ipv6(THERE6, HERE6, 43, srv6(kind=2)), POP),
    "SRv6 without hops": (f.ipv6(THERE6, HERE6, 43, srv6(), hlim=0), TTL),
    "GTP-U of another version": (in_udp6(2152, gtpu(flags=0x10)), POP),
    "GTP-U with extensions": (in_udp6(2152, gtpu(flags=0x34)), POP),
    "GTP-U whose optional words are cut off": (in_udp6(2152, gtpu(flags=0x32, inner=b"a")), POP),
    "GTP-U around neither IPv4 nor IPv6": (in_udp6(2152, gtpu(inner=b"\x99" * 30)), POP),
    "GTP-U around nothing": (in_udp6(2152, gtpu(inner=b"")), POP),
    "GTP-U cut off": (in_udp6(2152, b"\x30\xff"), POP),
    "GRE without hops": (f.ipv6(THERE6, HERE6, 47, gre(KEY79 + INNER), hlim=0), TTL),
    "GRE around nothing": (f.ipv6(THERE6, HERE6, 47, gre(KEY79)), INVALID),
    "STT with a wrong checksum": (f.ipv6(THERE6, HERE6, 6, f.tcp(THERE6, HERE6, 40000, 7471, 0x18, STT, good=False, seq=len(STT) << 16)), CSUM),
    "GPE for operators": (in_udp6(4790, gpe(1, flags=0x0d000000)), POP),
    "GPE around something else": (in_udp6(4790, gpe(9)), POP),
}
# Odd, and all right.
GOOD = {
    "plain": in_udp(6081, geneve()),
    "no UDP checksum": in_udp(6081, geneve(), csum=0),
    "IP options": in_udp(6081, geneve(), options=b"\x94\4\0\0"),
    "252 bytes of options that nobody asks for": in_udp(6081, geneve(options=option(1, b"a" * 4) * 31 + option(2, b""))),
    "STT": in_stt(STT),
    "STT whose frame was looked at": in_stt(stt_frame(flags=0x05)),
    "STT with TCP options": f.ipv4(THERE, HERE, 6, stt_with_options()),
    "padding behind the IP packet": in_udp(6081, geneve()) + b"p" * 40,
}


def counter(sw, name):
    out = sw.appctl("coverage/read-counter", name, check=False, quiet=True).strip()
    return int(out) if out.isdigit() else 0


def counted(sw, name, before, n, what):
    wait_for(f"{n} packets under {name} ({what})", lambda: counter(sw, name) >= before + n)


def received(sw, port):
    return int(sw.get("interface", port, "statistics:rx_packets") or 0)


def end_points(lab):
    """A switch with tunnels of four types to a host without a switch; its pod, that host, and how to send it an IP packet."""
    sw = node(lab, 1)
    host = kernel_node(lab, sw, "udpcsum")
    attach(lab, sw, 1, False)
    tunnel(sw, "vxlan", THERE)
    for name, kind, key in (("gnv0", "geneve", 77), ("gre0", "gre", 79), ("ers0", "erspan", 80), ("vx1", "vxlan", 78), ("stt0", "stt", 81)):
        sw.vsctl("add-port", "br-int", name, "--", "set", "interface", name, f"type={kind}", f"options:remote_ip={THERE}", f"options:key={key}")
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    wait_for("the first answer", lambda: lab.net.ping(pod, "10.5.0.2", count=1, lossless=False))
    lab.net.ping(host, HERE)
    to = lab.net.run(sw.netns, "cat", "/sys/class/net/br-ex/address").strip()
    # The host's own address: packets out of tunnels teach the switch its neighbour.
    own = lab.net.run(host, "cat", "/sys/class/net/up0/address").strip()
    raw = lab.net.raw(host, "up0")

    def send(packet, n=1):
        for _ in range(n):
            raw.send(f.ethernet(to, own, 0x0800, packet))
    return sw, pod, host, send


@limit(180)
def scenario_hostile_packets_have_names(lab):
    sw, pod, _, send = end_points(lab)
    # The first tunnel of one protocol takes all packets, so ERSPAN is tried when GRE is gone.
    for what, (packet, name) in sorted(HOSTILE.items(), key=lambda case: case[0].startswith("ERSPAN")):
        if what.startswith("ERSPAN"):
            sw.vsctl("--if-exists", "del-port", "br-int", "gre0")
        before = counter(sw, name)
        send(packet, 3)
        counted(sw, name, before, 3, what)
    lab.net.ping(pod, "10.5.0.2")


@limit(180)
def scenario_hostile_packets_over_ipv6(lab):
    """Also packets with a wrong length, or with data behind their end: they are for the host. Thousands of
    mutants."""
    sw = node(lab, 1, v6=True)
    host = lab.net.namespace("host", ipv6=True)
    link(lab, sw.netns, host)
    lab.net.ip(host, "addr", "add", THERE6 + "/64", "dev", "up0", "nodad")
    attach(lab, sw, 1, True)
    for name, kind, *options in (("gnv0", "geneve", "key=77"), ("vx1", "vxlan", "key=78", "dst_port=4790", "exts=gpe"), ("gre0", "ip6gre", "key=79"),
                                 ("gtp0", "gtpu", "key=80"), ("sr0", "srv6", f"srv6_segs={THERE6}"), ("stt0", "stt", "key=81")):
        sw.vsctl("add-port", "br-int", name, "--", "set", "interface", name, f"type={kind}", f"options:remote_ip={THERE6}", *(f"options:{o}" for o in options))
    lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    pod = lab.veth_pod(sw, "pod2", "10.5.0.2/24", bridge="br-int")
    wait_for("the host's answer", lambda: lab.net.ping(host, HERE6, count=1, lossless=False))
    to, own = (lab.net.run(ns, "cat", f"/sys/class/net/{dev}/address").strip() for ns, dev in ((sw.netns, "br-ex"), (host, "up0")))
    raw = lab.net.raw(host, "up0")

    def send(packet, n=1):
        for _ in range(n):
            raw.send(f.ethernet(to, own, 0x86dd, packet))
    for what, (packet, name) in HOSTILE6.items():
        before = counter(sw, name)
        send(packet, 3)
        counted(sw, name, before, 3, what)
    dice = random.Random(9)
    seeds = [packet for packet, _ in HOSTILE6.values()]
    for _ in range(4000):
        packet = bytearray(dice.choice(seeds))
        for _ in range(dice.randrange(4)):
            packet[dice.choice((4, 5, 6, 7, dice.randrange(40, min(len(packet), 120))))] = dice.randrange(256)
        if dice.randrange(3) == 0:
            del packet[dice.randrange(41, len(packet) + 1):]
        send(bytes(packet))
    lab.net.ping(host, HERE6)
    lab.net.ping(pod, "10.5.0.1")


@limit(180)
def scenario_segments_that_do_not_fit(lab):
    """Segments of one frame of STT: each has a name, and the frame comes out all the same. Frames without an
    end hold no memory."""
    sw, pod, _, send = end_points(lab)
    watch = lab.net.raw(pod, "eth0")
    long = f.ethernet("02:00:00:00:05:01", "02:00:00:00:05:02", 0x0800,
                      f.ipv4("10.5.0.9", "10.5.0.1", 17, f.udp("10.5.0.9", "10.5.0.1", 7, 7, bytes(range(256)) * 4)))
    frame = stt_frame(long)
    names = {what: f"datapath_drop_tunnel_segment_{what}" for what in ("beyond", "length", "duplicate", "overlap", "timeout", "evicted")}

    def is_it(got):
        return got[:14] == long[:14]
    # The middle comes first; segments that do not fit are in between.
    send(in_stt(frame, 400, 800))
    for what, packet in (
            ("duplicate", in_stt(frame, 400, 800)), ("duplicate", in_stt(frame, 500, 600)),
            ("overlap", in_stt(frame, 300, 500)), ("overlap", in_stt(frame, 700, 900)), ("overlap", in_stt(frame, 1, None)),
            ("length", in_stt(frame, 0, 400, length=len(frame) + 1)), ("beyond", in_stt(frame, 800, None, length=810))):
        # Within the time that a frame waits.
        before = {name: counter(sw, name) for name in names.values()}
        send(in_stt(frame, 400, 800))
        send(packet)
        counted(sw, names[what], before[names[what]], 1, what)
    send(in_stt(frame, 400, 800, number=2))
    send(in_stt(frame, 800, None, number=2))
    send(in_stt(frame, 0, 400, number=2))
    assert receive(watch, is_it, 20) == long
    # Backwards, byte by byte at the end.
    places = [0, 100, 600, *range(len(frame) - 20, len(frame) + 1)]
    for place, upto in reversed(list(zip(places, places[1:]))):
        send(in_stt(frame, place, upto, number=3))
    assert receive(watch, is_it, 20) == long
    # The first segment of a frame never comes.
    before = counter(sw, names["timeout"])
    send(in_stt(frame, 100, None, number=4))
    counted(sw, names["timeout"], before, 1, "a frame without its beginning")
    # Many frames that never end, of one host and of made up ones; others are not disturbed.
    before = counter(sw, names["evicted"])
    dice = random.Random(3)
    for i in range(6000):
        source = THERE if i % 2 else f"172.31.0.{dice.randrange(10, 250)}"
        send(in_stt(frame, 0, 900, length=65535, number=i, source=source))
        if i % 1000 == 999:
            lab.net.ping(pod, "10.5.0.2")
            send(in_stt(frame, 0, 400, number=1 << 20 | i))
            send(in_stt(frame, 400, None, number=1 << 20 | i))
            assert receive(watch, is_it, 20) == long
    counted(sw, names["evicted"], before, 1000, "frames that never end")
    lab.net.ping(pod, "10.5.0.2")


@limit(120)
def scenario_odd_packets_come_out(lab):
    sw, _, _, send = end_points(lab)
    watch = lab.net.raw(f"{lab.net.stem}-pod1", "eth0")
    for what, packet in GOOD.items():
        send(packet)
        got = receive(watch, lambda frame: frame[:14] == INNER[:14], 20)
        assert got == INNER, f"{what}: {got and got.hex()}"


@limit(180)
def scenario_mutants(lab):
    """Thousands of packets with changed bytes and cut ends: the daemon lives, and the pod's traffic
    continues."""
    sw, pod, _, send = end_points(lab)
    seeds = [packet for packet, _ in HOSTILE.values()] + list(GOOD.values())
    dice = random.Random(7)
    for _ in range(4000):
        packet = bytearray(dice.choice(seeds))
        for _ in range(dice.randrange(4)):
            packet[dice.randrange(20, min(len(packet), 90))] = dice.randrange(256)
        if dice.randrange(3) == 0:
            del packet[dice.randrange(20, len(packet) + 1):]
        # The IP header is right, so that the switch parses the bytes behind it.
        packet[2:4] = struct.pack("!H", len(packet))
        packet[10:12] = b"\0\0"
        packet[10:12] = struct.pack("!H", f.checksum(bytes(packet[:(packet[0] & 15) * 4])))
        send(bytes(packet))
    lab.net.ping(pod, "10.5.0.2", count=10)


@limit(120)
def scenario_a_tunnel_that_leads_into_itself(lab):
    """The route to the other endpoint is the bridge of the tunnel itself, whose rules send all packets into
    the tunnel."""
    sw = node(lab, 1)
    lab.net.ip(sw.netns, "addr", "add", "172.31.0.1/24", "dev", "br-int")
    lab.net.ip(sw.netns, "link", "set", "br-int", "up")
    tunnel(sw, "geneve", "172.31.0.2")
    tunnel_two = ("add-port", "br-int", "tun1", "--", "set", "interface", "tun1", "type=vxlan", "options:remote_ip=172.31.0.3", "options:key=5")
    sw.vsctl(*tunnel_two)
    for end in ("172.31.0.2", "172.31.0.3"):
        wait_for("the neighbour", lambda end=end: "OK" in sw.appctl("tnl/neigh/set", "br-int", end, "02:00:00:00:00:02"))
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    other = lab.veth_pod(sw, "pod2", "10.6.0.1/24", bridge="br-ex")
    lab.veth_pod(sw, "pod3", "10.6.0.2/24", bridge="br-ex")
    sw.ofctl("del-flows", "br-int")
    wait_for("the tunnel's number", lambda: int(sw.get("interface", "tun1", "ofport")) > 0)
    for actions in ("tun0", "tun0,tun1"):
        sw.ofctl("add-flow", "br-int", f"actions={actions}")
        names = ("drop_action_recursion_too_deep", "drop_action_too_many_steps", "drop_action_too_many_resubmit")
        before = {name: counter(sw, name) for name in names}
        raw = lab.net.raw(pod, "eth0")
        for i in range(20):
            raw.send(f.ethernet("02:00:00:00:05:02", f"02:00:00:00:06:{i:02x}", 0x0800, INNER[14:]))
        wait_for("a name for what goes round", lambda: any(counter(sw, n) > before[n] for n in names))
        if actions == "tun0":
            trace = sw.appctl("ofproto/trace", "br-int", "in_port=vpod1,udp")
            assert "over max translation depth" in trace, trace[-2000:]
        lab.net.ping(other, "10.6.0.2", count=5)


@limit(240)
def scenario_tunnels_in_tunnels(lab):
    """Geneve over a bridge behind VXLAN: pings, and streams with GSO packets, both ways."""
    switches, pods = nodes(lab, "vxlan")
    for number, sw in zip((1, 2), switches):
        other = 3 - number
        lab.net.ip(sw.netns, "addr", "add", f"10.9.0.{number}/24", "dev", "br-int")
        lab.net.ip(sw.netns, "link", "set", "br-int", "up", "mtu", "1430")
        lab.bridge(sw, "br-top")
        sw.vsctl("add-port", "br-top", "top0", "--", "set", "interface", "top0", "type=geneve", f"options:remote_ip=10.9.0.{other}", "options:key=3")
    tops = [lab.veth_pod(sw, f"top{n}", f"10.7.0.{n}/24", bridge="br-top") for n, sw in zip((1, 2), switches)]
    for ns in tops:
        lab.net.ip(ns, "link", "set", "eth0", "mtu", "1360")
    a, b = tops
    wait_for("the first answer", lambda: lab.net.ping(a, "10.7.0.2", count=1, lossless=False))
    for size in (8, 1000, 1332):
        lab.net.ping(a, "10.7.0.2", size=size, df=True)
    transfer(lab, b, a, "10.7.0.2")
    transfer(lab, a, b, "10.7.0.1")
    lab.net.ping(pods[0], "10.5.0.2")


@limit(120)
def scenario_switches_that_send_back(lab):
    """Two switches return each other's packets: the pods beside them hardly notice, and it ends with the
    rules."""
    switches, (a, _) = nodes(lab, "geneve")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    for sw in switches:
        sw.ofctl("add-flow", "br-int", "priority=100,in_port=tun0,udp,tp_dst=7,actions=in_port")
    raw = lab.net.raw(a, "eth0")
    for _ in range(5):
        raw.send(b"\xff" * 6 + INNER[6:])
    wait_for("rounds", lambda: int(switches[0].ofctl("dump-flows", "br-int", "udp").split("n_packets=")[1].split(",")[0]) > 100)
    lab.net.ping(a, "10.5.0.2", count=5)
    for sw in switches:
        sw.ofctl("del-flows", "br-int", "udp")
        sw.ofctl("add-flow", "br-int", "priority=100,udp,tp_dst=7,actions=drop")

    def rounds():
        return int(switches[0].ofctl("dump-flows", "br-int", "udp").split("n_packets=")[1].split(",")[0])

    def still():
        before = rounds()
        time.sleep(0.5)
        return rounds() == before
    wait_for("the end", still)


@limit(180)
def scenario_changes_under_traffic(lab):
    """The other endpoint's address, the path's MTU and the neighbour change under a stream: it ends whole."""
    switches, (a, b) = nodes(lab, "geneve")
    one, two = switches
    lab.net.ip(two.netns, "addr", "add", "172.31.0.3/24", "dev", "br-ex")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    server = subprocess.Popen(["ip", "netns", "exec", b, "timeout", "100", "iperf3", "-s", "-1", "-p", "5202"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_for("iperf3 to listen", lambda: ":5202" in lab.net.run(b, "ss", "-Hltn", quiet=True))
    client = subprocess.Popen(["ip", "netns", "exec", a, "timeout", "100", "iperf3", "-c", "10.5.0.2", "-p", "5202", "-t", "8"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        for i in range(12):
            one.vsctl("set", "interface", "tun0", f"options:remote_ip=172.31.0.{3 - i % 2}")
            if i % 4 == 1:
                lab.net.ip(one.netns, "link", "set", "up0", "mtu", "1300")
                lab.net.ip(two.netns, "link", "set", "br-ex", "address", f"02:00:00:00:99:{i:02x}")
            if i % 4 == 3:
                lab.net.ip(one.netns, "link", "set", "up0", "mtu", "1500")
        one.vsctl("set", "interface", "tun0", "options:remote_ip=172.31.0.2")
        out = client.communicate(timeout=100)[0]
    finally:
        client.kill()
        server.kill()
        server.wait()
    assert "receiver" in out, out
    for sw in switches:
        # Packets sent before the last change do not matter.
        sw.appctl("tnl/neigh/flush")
    reached(lab, switches, a, timeout=60)


@limit(120)
def scenario_a_neighbour_moves_in_silence(lab):
    """The kernel remembers an old address of the other endpoint, which announces no new one: the switch
    requests it."""
    (one, two), (a, b) = nodes(lab, "geneve")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    # Pods that send only replies.
    macs = [lab.net.run(pod, "cat", "/sys/class/net/eth0/address", quiet=True).strip() for pod in (a, b)]
    lab.net.ip(a, "neigh", "replace", "10.5.0.2", "lladdr", macs[1], "dev", "eth0")
    lab.net.ip(b, "neigh", "replace", "10.5.0.1", "lladdr", macs[0], "dev", "eth0")
    lab.net.ip(one.netns, "neigh", "replace", THERE, "lladdr", "02:00:00:00:99:99", "nud", "stale", "dev", "br-ex")
    one.appctl("tnl/neigh/flush")
    reached(lab, (one, two), a, timeout=5)


@limit(120)
def scenario_too_long_for_the_way(lab):
    """The path's MTU shrinks: packets that must not be fragmented have a drop name."""
    (one, _), (a, _) = nodes(lab, "geneve")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    lab.net.ip(one.netns, "link", "set", "up0", "mtu", "1300")
    before = counter(one, "datapath_drop_tx_too_long")

    def dropped():
        lab.net.ping(a, "10.5.0.2", size=1372, count=1, lossless=False)
        return counter(one, "datapath_drop_tx_too_long") > before
    wait_for("the drop's name", dropped)
    lab.net.ping(a, "10.5.0.2", size=1172)


@limit(240)
def scenario_gso_packets_that_outer_headers_make_too_long(lab):
    """64 KiB with 240 bytes of options before each segment."""
    switches, (a, b) = nodes(lab, "geneve")
    for sw in switches:
        sw.ofctl("add-tlv-map", "br-int", "{class=0xffff,type=1,len=120}->tun_metadata0,{class=0xffff,type=2,len=116}->tun_metadata1")
        sw.ofctl("add-flow", "br-int", "priority=9,in_port=tun0,actions=normal")
        pod = "vpod1" if sw is switches[0] else "vpod2"
        sw.ofctl("add-flow", "br-int", f"priority=9,in_port={pod},actions=set_field:0x1234->tun_metadata0,set_field:0x99->tun_metadata1,normal")
    for pod in (a, b):
        lab.net.ip(pod, "link", "set", "eth0", "mtu", "1190")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    for size in (8, 1162):
        lab.net.ping(a, "10.5.0.2", size=size, df=True)
    transfer(lab, b, a, "10.5.0.2")
    transfer(lab, a, b, "10.5.0.1")


@limit(400)
def scenario_four_thousand_tunnels(lab):
    """All of them have numbers, a flood to all of them is bounded, and they go again."""
    many = 4000
    sw = node(lab, 1)
    host = kernel_node(lab, sw)
    attach(lab, sw, 1, False)
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    lab.veth_pod(sw, "pod2", "10.5.0.3/24", bridge="br-int")
    add = [["--", "add-port", "br-int", f"t{i}", "--", "set", "interface", f"t{i}", "type=geneve",
            f"options:remote_ip=172.31.{i // 200 + 1}.{i % 200 + 1}", "options:key=7"] for i in range(many)]

    def in_parts(commands):
        """In parts: the time of ovs-vsctl itself grows with the square."""
        for i in range(0, many, 400):
            words = [word for command in commands[i:i + 400] for word in command]
            sw.run("ovs-vsctl", f"--db={sw.db}", "--timeout=100", *words[1:], timeout=120, quiet=True)
    lab.net.ip(sw.netns, "route", "add", "172.31.0.0/16", "via", "172.31.0.2", "dev", "br-ex")
    in_parts(add)
    wait_for("their numbers", lambda: sw.ofctl("dump-ports-desc", "-O", "OpenFlow14", "br-int", quiet=True).count("addr:") >= many)
    assert counter(sw, "drop_action_translation_fault") == 0
    # A packet to all of them.
    lab.net.ping(host, HERE, count=1)
    raw = lab.net.raw(pod, "eth0")
    for _ in range(3):
        raw.send(b"\xff" * 6 + INNER[6:])
    lab.net.ping(pod, "10.5.0.3", count=5)
    in_parts([["--", "del-port", "br-int", f"t{i}"] for i in range(many)])
    wait_for("their end", lambda: "t3999" not in sw.appctl("dpif/show", quiet=True))
    lab.net.ping(pod, "10.5.0.3")


@limit(60)
def scenario_no_route_is_told(lab):
    """The missing route is in the database and in the log, until there is one."""
    sw = node(lab, 1)
    tunnel(sw, "geneve", "172.31.0.9")
    sw.wait_column("interface", "tun0", "status", lambda text: "tunnel_egress_error" in text or "no route" in text.lower())
    wait_for("the log", lambda: "172.31.0.9" in sw.log())
    lab.net.ip(sw.netns, "addr", "add", "172.31.0.1/24", "dev", "br-ex")
    lab.net.ip(sw.netns, "link", "set", "br-ex", "up")
    sw.wait_column("interface", "tun0", "status", lambda text: "tunnel_egress_iface=br-ex" in text and "error" not in text)


if __name__ == "__main__":
    main()
