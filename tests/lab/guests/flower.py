#!/usr/bin/env python3
"""Offload by tc flower under Linux 6.12, in one emulated machine: filters of the kernel's own, without eBPF."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import frames
from lab.guestlab import main
from lab.podlab import RUN, PodLab
from lab.runner import limit

MODULES = ("veth", "tun", "sch_ingress", "cls_bpf", "cls_flower", "act_mirred", "act_gact", "act_pedit", "act_csum", "act_vlan",
           "act_nat")
SETTINGS = ("heddle-ebpf=false", "hw-offload=true")
WIRE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "wire.py")
MACS = {"a": "02:00:00:00:00:0a", "b": "02:00:00:00:00:0b", "c": "02:00:00:00:00:0c"}
LAST = {"a": 1, "b": 2, "c": 3}


def stats(p):
    out = p.appctl("dpctl/offload-stats-show")
    return {key.strip(): int(value) for key, value in re.findall(r"^ +([^:]+): +(\d+)$", out, re.M)}


def log(p, word):
    return p.run(f"grep -a '{word}' {RUN}/heddled.log", check=False)


def started(lab, *settings, modules=MODULES):
    p = PodLab(lab, modules=modules, settings=(*SETTINGS, *settings))
    p.bridge()
    return p


def pod(p, name):
    p.run(f"ip netns add {name} && ip link add v{name} type veth peer name eth0 netns {name} && ip link set v{name} up && "
          f"ip -n {name} link set eth0 address {MACS[name]} && ip -n {name} addr add 10.9.0.{LAST[name]}/24 dev eth0 && "
          f"ip -n {name} link set lo up && ip -n {name} link set eth0 up")
    p.vsctl(f"add-port br-int v{name} -- set interface v{name} ofport_request={LAST[name]}")


def flows(p, *rules):
    """Replaces all rules."""
    p.put(f"{RUN}/rules", "\n".join(rules) + "\n")
    p.run(f"ovs-ofctl --bundle replace-flows {RUN}/br-int.mgmt {RUN}/rules")


def counts(p, match):
    """Packets and bytes of the rules that match."""
    out = p.run(f"ovs-ofctl dump-flows {RUN}/br-int.mgmt {match}")
    found = re.findall(r"n_packets=(\d+), n_bytes=(\d+)", out)
    return sum(int(n) for n, _ in found), sum(int(n) for _, n in found)


def in_tc(p, text):
    """Whether a flow with this text in its line is a filter."""
    dump = p.appctl("dpctl/dump-flows -m type=tc")
    return any(text in line and "offloaded:yes, dp:tc" in line for line in dump.splitlines())


def settled(p, source, target):
    p.meet(source, target)

    def forwards():
        before = stats(p)["forwarded-packets"]
        p.pings(source, target, 4, lost=4)
        return stats(p)["forwarded-packets"] - before >= 8
    p.wait(f"filters to forward pings to {target}", forwards)


def by_filters(p, source, target, options=""):
    """The rate of a TCP stream in Mbit/s, and the part of it that filters forward. On a busy machine, the filter of a stream's flow may
    come when the first stream is over."""
    found = []

    def stream():
        before = stats(p)["forwarded-bytes"]
        rate = p.stream(source, target, seconds=5, options=options)
        found[:] = rate, (stats(p)["forwarded-bytes"] - before) * 8e-6 / (rate * 5)
        return found[1] > 0.5
    p.wait("filters to forward a stream", stream, timeout=300)
    return found


def sent(p, source, all_frames, target="b", seconds=2.0, interval=0.0, device="eth0", of=""):
    """The frames of UDP, or those of a source address, that arrive at pod `target` while pod `source` sends these."""
    p.put("/run/frames", "\n".join(f.hex() for f in all_frames) + "\n")
    p.run("rm -f /run/captured")
    p.run(f"(ip netns exec {target} python3 {WIRE} capture eth0 3600 {of} >/run/captured 2>/run/capture-error & echo $! >/run/capture.pid)")
    p.wait("the capture to begin", lambda: "begins" in p.run("cat /run/capture-error"), timeout=300)
    p.run(f"ip netns exec {source} python3 {WIRE} send {device} {interval} </run/frames", timeout=300)
    p.run(f"sleep {seconds}; kill $(cat /run/capture.pid)")
    return [bytes.fromhex(line) for line in p.run("cat /run/captured").split()]


def datagram(sport, dport, text=b"0123456789" * 5, source="a", target="b", vlans=(), tos=0, ttl=64, ipv6=False):
    if ipv6:
        ends = (f"fd00::{LAST[source]}", f"fd00::{LAST[target]}")
        packet = frames.ipv6(*ends, 17, frames.udp(*ends, sport, dport, text), tclass=tos, hlim=ttl)
    else:
        ends = (f"10.9.0.{LAST[source]}", f"10.9.0.{LAST[target]}")
        packet = frames.ipv4(*ends, 17, frames.udp(*ends, sport, dport, text), tos=tos, ttl=ttl)
    return frames.ethernet(MACS[target], MACS[source], 0x86dd if ipv6 else 0x0800, packet, vlans)


def warmed(p, frame, text, target="b", source="a", device="eth0"):
    """A flow of this frame is a filter."""
    def is_there():
        sent(p, source, [frame], target, seconds=0.3, device=device)
        return in_tc(p, text)
    p.wait(f"a filter of {text}", is_there, timeout=180)


@limit(400)
def scenario_pods_on_veths(lab):
    """Pings, streams and datagrams of pods are forwarded by filters, and counted; rules change under traffic."""
    p = started(lab)
    assert "tc is on" in log(p, "netdev_offload"), log(p, "netdev_offload")
    for name in ("a", "b"):
        pod(p, name)
    settled(p, "a", "10.9.0.2")
    p.pings("a", "10.9.0.2", 10)
    dump = p.appctl("dpctl/dump-flows -m type=offloaded")
    assert "offloaded:yes, dp:tc" in dump and "dp:ebpf" not in dump, dump
    shown = p.appctl("heddle/offload")
    assert "port va is served by tc in the kernel: eBPF is off" in shown, shown
    shown = p.appctl("dpif/offload/show")
    assert re.search(r"^  tc\n(  - .*\n)*  - va: port_no: \d+, ifindex: \d+\n", shown, re.M), shown
    p.serve("b")
    rate, share = by_filters(p, "a", "10.9.0.2")
    p.tell(f"TCP {rate:.0f} Mbit/s, {share:.0%} of it by filters")
    # Each frame arrives once, as it was sent, and is counted with its Ethernet header.
    flows(p, "priority=100,udp,in_port=1,tp_dst=5001,actions=output:2", "priority=0,actions=NORMAL")
    all_frames = [datagram(1000, 5001, b"%06d" % n * 10) for n in range(400)]
    warmed(p, all_frames[0], "dst=5001")
    before = counts(p, "udp,in_port=1,tp_dst=5001")
    arrived = sent(p, "a", all_frames)
    assert arrived == all_frames, (len(arrived), len(all_frames))
    after = counts(p, "udp,in_port=1,tp_dst=5001")
    assert after[0] - before[0] == 400 and after[1] - before[1] == sum(map(len, all_frames)), (before, after)
    # A change of rules is in the kernel before the reply: no frame passes afterwards.
    for _ in range(5):
        p.run(f"ovs-ofctl mod-flows {RUN}/br-int.mgmt udp,in_port=1,tp_dst=5001,actions=drop")
        assert not sent(p, "a", all_frames[:50], seconds=0.5), "frames pass after the rule was changed"
        assert in_tc(p, "dst=5001"), p.appctl("dpctl/dump-flows -m")
        p.run(f"ovs-ofctl mod-flows {RUN}/br-int.mgmt udp,in_port=1,tp_dst=5001,actions=output:2")
        assert len(sent(p, "a", all_frames[:50], seconds=0.5)) == 50
    dropped = counts(p, "udp,in_port=1,tp_dst=5001")[0] - after[0]
    assert dropped == 5 * 100, dropped
    # Segments that a device makes and sums have right checksums, though addresses were rewritten.
    flows(p, "priority=100,tcp,in_port=1,nw_dst=10.9.0.9,actions=mod_nw_dst:10.9.0.2,output:2",
          "priority=100,tcp,in_port=2,nw_dst=10.9.0.1,actions=mod_nw_src:10.9.0.9,output:1", "priority=0,actions=NORMAL")
    p.run(f"ip -n a neigh add 10.9.0.9 lladdr {MACS['b']} dev eth0")
    p.run("for dev in va vb; do ethtool -K $dev tso off gso off; ethtool -K $dev tx off; done", check=False)
    rate, share = by_filters(p, "a", "10.9.0.9")
    snmp = [line.split() for line in p.run("ip netns exec b cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
    assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp
    p.tell(f"TCP with rewritten addresses {rate:.0f} Mbit/s, {share:.0%} of it by filters")


@limit(900)
def scenario_changes_under_traffic(lab):
    """Rules change between two outputs while frames come: each frame arrives once, at one of the two."""
    p = started(lab)
    for name in ("a", "b", "c"):
        pod(p, name)
    flows(p, "priority=100,udp,in_port=1,tp_dst=5001,actions=output:2", "priority=0,actions=NORMAL")
    all_frames = [datagram(1000, 5001, b"%06d" % n * 10) for n in range(1500)]
    warmed(p, all_frames[0], "dst=5001")
    before = stats(p)
    p.put("/run/frames", "\n".join(f.hex() for f in all_frames) + "\n")
    for name in ("b", "c"):
        # This program is ended below: a busy machine may need minutes for the frames.
        p.run(f"(ip netns exec {name} python3 {WIRE} capture eth0 3600 >/run/captured-{name} 2>/run/error-{name} & echo $! >>/run/captures)")
        p.wait("the capture to begin", lambda: "begins" in p.run(f"cat /run/error-{name}"))
    p.run(f"(ip netns exec a python3 {WIRE} send eth0 0.01 </run/frames; touch /run/sent) >/dev/null 2>&1 &")
    changes = 0
    while p.run("ls /run/sent 2>/dev/null", check=False).strip() == "":
        for out in (3, 2):
            p.run(f"ovs-ofctl mod-flows {RUN}/br-int.mgmt udp,in_port=1,tp_dst=5001,actions=output:{out}")
            changes += 1
    p.run("sleep 1; kill $(cat /run/captures)")
    arrived = {name: p.run(f"cat /run/captured-{name}").split() for name in ("b", "c")}
    after = stats(p)
    p.tell(f"{changes} changes ({after['changed'] - before['changed']} of filters), {len(arrived['b'])} and {len(arrived['c'])} "
           f"of {len(all_frames)} frames, {after['forwarded-packets'] - before['forwarded-packets']} by filters")
    assert sorted(arrived["b"] + arrived["c"]) == sorted(f.hex() for f in all_frames)
    assert arrived["b"] and arrived["c"] and after["changed"] - before["changed"] >= changes / 2
    assert after["forwarded-packets"] - before["forwarded-packets"] > len(all_frames) / 2


@limit(400)
def scenario_killed_under_traffic(lab):
    """Killed and started again: pods keep their traffic, and the old filters go once the new switch confirms its own."""
    p = started(lab)
    for name in ("a", "b"):
        pod(p, name)
    settled(p, "a", "10.9.0.2")
    for turn in range(3):
        p.run("(ip netns exec a ping -n -q -i 0.1 -c 200 -W 1 10.9.0.2 >/run/pings 2>&1 &)")
        p.run("sleep 1")
        p.kill_daemon()
        p.run("sleep 2")
        p.start_daemon()
        adopted = p.appctl("heddle/offload")
        p.run("sleep 19")
        out = p.run("cat /run/pings")
        lost = re.search(r"(\d+) packets transmitted, (\d+) received", out)
        lost = int(lost.group(1)) - int(lost.group(2))
        p.tell(f"killed, turn {turn}: {lost} of 200 pings lost")
        assert lost <= 3, (out, adopted)
        assert "of an earlier process" in adopted, adopted
    settled(p, "a", "10.9.0.2")
    assert stats(p)["adopted-flows"] == 0, stats(p)
    # Everything goes with exit --cleanup, and with a start without offload.
    p.kill_daemon()
    p.vsctl("--no-wait set open_vswitch . other_config:hw-offload=false")
    p.start_daemon()
    shown = p.run("tc filter show dev va ingress")
    assert "flower" not in shown, shown
    p.pings("a", "10.9.0.2", 5, lost=1)


@limit(900)
def scenario_filters_of_others(lab):
    """A device with another program's filter stays with workers until that goes, and the filter is left alone."""
    p = started(lab)
    for name in ("a", "b"):
        pod(p, name)
    settled(p, "a", "10.9.0.2")
    p.run("tc filter add dev va ingress pref 50 protocol ip flower ip_proto sctp action gact drop")
    p.wait("the port to stay with workers", lambda: "va stays with workers" in p.appctl("heddle/offload"))
    p.wait("pings by workers", lambda: p.pings("a", "10.9.0.2", 5, lost=5) == 0)
    assert "sctp" in p.run("tc filter show dev va ingress")
    p.run("tc filter del dev va ingress pref 50")
    p.wait("the port to be offloaded", lambda: "va stays" not in p.appctl("heddle/offload"))
    settled(p, "a", "10.9.0.2")
    # Another program removes all filters of flows, then the queueing discipline.
    p.run("for pref in $(tc filter show dev va ingress | grep -o 'pref [0-9]* flower' | cut -d' ' -f2 | sort -u); do "
          "tc filter del dev va ingress pref $pref; done")
    settled(p, "a", "10.9.0.2")
    p.run("tc qdisc del dev va clsact")
    settled(p, "a", "10.9.0.2")


HERE, THERE = "172.31.0.1", "172.31.0.2"


def underlay(p):
    """A pod, and a node `peer` behind the device up0, which is in no bridge."""
    pod(p, "a")
    p.run(f"ip netns add peer && ip link add up0 type veth peer name eth0 netns peer && ip addr add {HERE}/24 dev up0 && ip link set up0 up && "
          f"ip -n peer addr add {THERE}/24 dev eth0 && ip -n peer link set lo up && ip -n peer link set eth0 up && "
          "ip link set va mtu 1400 && ip -n a link set eth0 mtu 1400")
    p.pings("peer", HERE, 3, lost=2)


def tunnel(p, kind, port, device, remote_ip=THERE, **options):
    """The tunnel t0, with the peer's device tun9."""
    words = " ".join(f"options:{key}={value}" for key, value in options.items())
    p.vsctl("--if-exists del-port br-int t0")
    p.vsctl(f"add-port br-int t0 -- set interface t0 type={kind} ofport_request=9 options:remote_ip={remote_ip} options:key=77 "
            f"options:dst_port={port} {words}")
    p.run(f"ip -n peer link del tun9 2>/dev/null; ip -n peer link add tun9 type {device} dstport {port} && "
          "ip -n peer addr add 10.9.0.9/24 dev tun9 && ip -n peer link set tun9 mtu 1400 up")


def inside(all_frames, at):
    """The outer frames whose inner one, from this offset on, is a datagram to port 5001: others are neighbours' requests."""
    return [f for f in all_frames if f[at + 12:at + 14] == b"\x08\0" and f[at + 23] == 17 and f[at + 36:at + 38] == (5001).to_bytes(2)]


def outer(frame):
    """An outer frame without what each packet has of its own: identification, UDP source port, checksums. Also without Geneve's
    bit for critical options, which tc does not set."""
    fields = bytearray(frame)
    if len(fields) > 45 and fields[44:46] == b"\x65\x58":
        fields[43] &= ~0x40
    fields[18:20] = fields[24:26] = fields[34:36] = bytes(2)
    fields[40:42] = b"\0\1" if any(fields[40:42]) else b"\0\0"
    return bytes(fields)


@limit(1500)
def scenario_into_tunnels(lab):
    """Packets into VXLAN and Geneve leave by the kernel's tunnel devices with the headers that workers write, and what comes back
    is taken by workers. The devices come and go with flows, and those of other programs are left alone."""
    # Flows must not expire between two commands on a busy machine.
    p = started(lab, "max-idle=3600000", modules=(*MODULES, "act_tunnel_key", "vxlan", "geneve"))
    underlay(p)
    p.serve("peer")
    p.run(f"ovs-ofctl add-tlv-map {RUN}/br-int.mgmt '{{class=0x102,type=0x80,len=4}}->tun_metadata0'")
    for kind, port, device, actions, options in (
            ("vxlan", 5789, f"vxlan id 77 local {THERE} remote {HERE}", "output:9", {"tos": 184, "ttl": 33}),
            ("vxlan", 5790, f"vxlan id 77 local {THERE} remote {HERE}", "output:9",
             {"tos": "inherit", "ttl": "inherit", "csum": "true", "df_default": "false"}),
            ("geneve", 5081, f"geneve id 77 remote {HERE}", "set_field:0x10002->tun_metadata0,output:9", {"csum": "true"})):
        tunnel(p, kind, port, device, **options)
        flows(p, f"priority=100,udp,in_port=1,tp_dst=5001,actions={actions}", "priority=0,actions=NORMAL")
        # One datagram by a worker, then many by the filter.
        frame = datagram(1000, 5001, target="b", tos=72, ttl=21)
        at = 50 if kind == "vxlan" else 58
        slow = p.wait("a frame by a worker", lambda: inside(sent(p, "a", [frame], "peer", seconds=1), at))[-1]
        warmed(p, frame, "dst=5001", target="peer")
        name = f"{'vxlan' if kind == 'vxlan' else 'genev'}_sys_{port}"
        shown = p.run(f"ip link show {name} && tc -s filter show dev va ingress")
        assert "tunnel_key" in shown and f"Egress Redirect to device {name}" in shown, shown
        before = counts(p, "udp,in_port=1,tp_dst=5001")
        all_frames = [datagram(1000, 5001, b"%06d" % n * 10, tos=72, ttl=21) for n in range(100)]
        forwarded = stats(p)["forwarded-packets"]
        arrived = inside(sent(p, "a", all_frames, "peer"), at)
        after = counts(p, "udp,in_port=1,tp_dst=5001")
        assert [f[at:] for f in arrived] == all_frames, (len(arrived), len(all_frames))
        one = inside(sent(p, "a", [frame], "peer"), at)
        assert [outer(f) for f in one] == [outer(slow)], (one[0].hex(), slow.hex())
        assert stats(p)["forwarded-packets"] - forwarded >= 100, stats(p)
        told = p.appctl("heddle/offload udp,in_port=va,tp_dst=5001")
        assert f"into {name}, whose UDP port network cards know: outer checksum {'yes' if 'csum' in options else 'no'}" in told, told
        assert after[0] - before[0] == 100 and after[1] - before[1] == sum(map(len, all_frames)), (before, after)
        # Both ways: workers take packets out of the tunnel.
        p.meet("a", "10.9.0.9")
        p.pings("a", "10.9.0.9", 10)
        rate, share = by_filters(p, "a", "10.9.0.9")
        rate_back = p.stream("a", "10.9.0.9", seconds=5, options="-R")
        snmp = [line.split() for line in p.run("ip netns exec peer cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp
        p.tell(f"{kind}: headers as workers write them; TCP {rate:.0f} Mbit/s, {share:.0%} of it by filters, {rate_back:.0f} back by workers")
    # Another program removes the device.
    p.run(f"ip link del {name}")
    warmed(p, frame, "dst=5001", target="peer")
    p.wait("the device to be made again", lambda: name in p.run("ip -br link") and inside(sent(p, "a", [frame], "peer", seconds=0.3), at))
    # After a kill the filter and the device forward on; the next switch takes both over.
    p.kill_daemon()
    assert len(inside(sent(p, "a", all_frames[:20], "peer"), at)) == 20
    p.start_daemon()
    into = "priority=100,udp,in_port=1,tp_dst=5001,actions=output:9", "priority=0,actions=NORMAL"
    flows(p, *into)
    warmed(p, frame, "dst=5001", target="peer")
    assert stats(p)["tunnel-devices"] == 1, stats(p)
    # The device goes with the last flow.
    p.vsctl("del-port br-int t0")
    p.wait("the device to go", lambda: "_sys_" not in p.run("ip -br link"), timeout=120)
    # A device of another program has the tunnel's port.
    p.run(f"ip link add theirs type geneve id 5 remote {THERE} dstport 5081 && ip link set theirs up")
    tunnel(p, "geneve", 5081, f"geneve id 77 remote {HERE}")
    flows(p, *into)
    p.wait("frames by workers", lambda: inside(sent(p, "a", [frame], "peer", seconds=0.5), 50))
    p.wait("the reason", lambda: "another program" in p.appctl("heddle/offload udp,in_port=va,tp_dst=5001"))
    assert "theirs" in p.run("ip -br link") and "_sys_" not in p.run("ip -br link")


def snmp(p, protocol, key, namespace=""):
    """A counter of the stack of the host, or of a namespace."""
    enter = f"ip netns exec {namespace} " if namespace else ""
    lines = [line.split() for line in p.run(f"{enter}cat /proc/net/snmp").splitlines() if line.startswith(f"{protocol}:")]
    return int(dict(zip(*lines))[key])


OUT_RULES = ("priority=100,udp,in_port=9,tp_dst=5001,actions=output:1", "priority=100,udp,in_port=9,tp_dst=5002,actions=output:1,controller:64",
             "priority=100,tcp,in_port=9,tp_dst=7777,actions=output:1,controller:64", "priority=0,actions=NORMAL")
HERE6, THERE6 = "fd00:31::1", "fd00:31::2"


class OutOf:
    """A tunnel whose packets are forwarded by filters at the kernel's device, and the frames that are sent into it."""

    def __init__(self, lab, kind, port, device, remote_ip=THERE, **options):
        # Flows must not expire between two commands on a busy machine.
        self.p = p = started(lab, "max-idle=3600000", modules=(*MODULES, "act_tunnel_key", "act_skbedit", "vxlan", "geneve"))
        self.kind, self.port, self.device, self.remote, self.options = kind, port, device, remote_ip, options
        self.name = f"{'vxlan' if kind == 'vxlan' else 'genev'}_sys_{port}"
        underlay(p)
        p.serve("a")
        p.run("echo 2 >/proc/sys/net/ipv4/conf/up0/rp_filter")
        for where, name in (("", "up0"), ("ip netns exec peer ", "eth0")):
            p.run(f"for d in all default {name}; do {where}sh -c \"echo 0 >/proc/sys/net/ipv6/conf/$d/disable_ipv6\"; done")
        p.run(f"ip addr add {HERE6}/64 dev up0 nodad && ip -n peer addr add {THERE6}/64 dev eth0 nodad")
        self.frame = datagram(1000, 5001, source="b", target="a")
        self.frames = [datagram(1000, 5001, b"%06d" % n * (10 + 13 * (n % 10)), source="b", target="a") for n in range(100)]
        # No filter takes these: all lengths, and tags.
        self.others = [datagram(1000, 5002, b"%06d" % n * (1 + 5 * n), source="b", target="a") for n in range(40)]
        self.others += [datagram(1000, 5002, b"%06d" % n * 20, source="b", target="a", ipv6=True, vlans=[(0x8100, 10)]) for n in range(5)]
        self.make()

    def make(self):
        tunnel(self.p, self.kind, self.port, self.device, self.remote, **self.options)
        flows(self.p, *OUT_RULES)

    def sent(self, all_frames, device="tun9", seconds=2.0):
        return sent(self.p, "peer", all_frames, "a", seconds, device=device)

    def filtered(self):
        def probe():
            assert self.sent([self.frame], seconds=0.3) == [self.frame]
            before = stats(self.p)["forwarded-packets"]
            self.sent([self.frame], seconds=0.3)
            return in_tc(self.p, "dst=5001") and stats(self.p)["forwarded-packets"] > before
        self.p.wait("a filter out of the tunnel", probe, timeout=300)

    def check(self):
        p = self.p
        p.meet("peer", "10.9.0.1", timeout=180)
        self.filtered()
        shown = p.run(f"tc -s filter show dev {self.name} ingress && tc filter show dev up0 ingress")
        assert "enc_key_id 77" in shown and "tunnel_key  unset" in shown and "skbedit" in shown, shown
        told = p.appctl(f"heddle/offload udp,in_port={self.name},tp_dst=5001")
        assert f"out of {self.name}" in told, told
        before = counts(p, "udp,in_port=9,tp_dst=5001"), stats(p)["forwarded-packets"]
        delivered = snmp(p, "Ip", "InReceives")
        assert self.sent(self.frames) == self.frames
        delivered = snmp(p, "Ip", "InReceives") - delivered
        after = counts(p, "udp,in_port=9,tp_dst=5001"), stats(p)["forwarded-packets"]
        assert after[0][0] - before[0][0] == 100 and after[0][1] - before[0][1] == sum(map(len, self.frames)), (before, after)
        assert after[1] - before[1] >= 100, (before, after)
        # The stack of the host gets each outer packet, and nothing from inside.
        assert self.remote != THERE or 100 <= delivered < 150, delivered
        arrived = self.sent(self.others)
        assert sorted(arrived) == sorted(self.others), (len(arrived), len(self.others))
        assert not in_tc(p, "dst=5002")
        p.run("ip -n a neigh flush all; ip -n peer neigh flush all")
        p.meet("peer", "10.9.0.1", timeout=180)
        # A network identifier that is no tunnel's.
        p.run(f"ip -n peer link add tun8 type {self.device.replace('id 77', 'id 78')} dstport {self.port} && ip -n peer link set tun8 up")
        assert self.sent(self.frames[:10], "tun8") == []
        p.run("ip -n peer link del tun8")
        # Streams: by filters, and by workers, whose packets come back with GSO.
        rate, share = by_filters(p, "peer", "10.9.0.1")
        assert snmp(p, "Tcp", "InCsumErrors", "a") == 0
        p.run("ip netns exec a iperf3 -s -D -p 7777 -I /run/iperf3-slow.pid")
        slow = p.stream("peer", "10.9.0.1", seconds=5, options="-p 7777")
        assert snmp(p, "Tcp", "InCsumErrors", "a") == 0
        p.tell(f"{self.kind} from {self.remote}: TCP {rate:.0f} Mbit/s, {share:.0%} of it by filters; {slow:.0f} Mbit/s by workers behind the same device")


@limit(1800)
def scenario_out_of_vxlan(lab):
    """Packets out of VXLAN are forwarded by filters at the kernel's tunnel device. Workers get those without a filter as they came,
    and the host's stack gets no packet from inside."""
    OutOf(lab, "vxlan", 5789, f"vxlan id 77 local {THERE} remote {HERE}").check()


@limit(1800)
def scenario_out_of_vxlan_over_ipv6(lab):
    """The same over IPv6, without checksums outside."""
    OutOf(lab, "vxlan", 5789, f"vxlan id 77 local {THERE6} remote {HERE6} udp6zerocsumtx udp6zerocsumrx", THERE6).check()


@limit(1800)
def scenario_out_of_geneve(lab):
    """The same with Geneve and checksums."""
    OutOf(lab, "geneve", 5081, f"geneve id 77 remote {HERE} udpcsum", csum="true").check()


@limit(1800)
def scenario_out_of_tunnels_again(lab):
    """Packets out of a tunnel after a kill and a restart, after another program removed the device, and with rp_filter."""
    n = OutOf(lab, "geneve", 5081, f"geneve id 77 remote {HERE}")
    p = n.p
    p.meet("peer", "10.9.0.1", timeout=180)
    n.filtered()
    p.kill_daemon()
    assert n.sent(n.frames[:20]) == n.frames[:20]
    p.start_daemon()
    flows(p, *OUT_RULES)
    p.wait("frames by workers", lambda: sorted(n.sent(n.others)) == sorted(n.others), timeout=300)
    n.filtered()
    p.run(f"ip link del {n.name}")
    p.wait("frames again", lambda: n.sent(n.frames) == n.frames, timeout=300)
    n.filtered()
    # The kernel's check of sources could drop packets.
    p.run("echo 1 >/proc/sys/net/ipv4/conf/up0/rp_filter")
    p.vsctl("del-port br-int t0")
    p.wait("the device to go", lambda: "_sys_" not in p.run("ip -br link"), timeout=300)
    n.make()
    p.wait("frames by workers", lambda: n.sent(n.frames) == n.frames, timeout=300)
    p.wait("the reason", lambda: "rp_filter" in p.appctl("heddle/offload"))


@limit(300)
def scenario_kernel_without_flower(lab):
    """One line in the log has the reason, and workers forward."""
    p = started(lab, modules=("veth", "tun", "sch_ingress", "cls_bpf"))
    for name in ("a", "b"):
        pod(p, name)
    p.meet("a", "10.9.0.2")
    p.pings("a", "10.9.0.2", 5)
    lines = log(p, "tc is off").splitlines()
    assert len(lines) == 1 and "CONFIG_NET_CLS_FLOWER" in lines[0], lines


if __name__ == "__main__":
    main()
