#!/usr/bin/env python3
"""Connections in tc flower under Linux 6.12, in one emulated machine: act_ct with the kernel's table, chains, translation."""

import contextlib
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flower
from flower import MACS, counts, datagram, flows, pod, stats
from lab.guestlab import main
from lab.runner import limit

MODULES = (*flower.MODULES, "act_ct", "nf_conntrack_netlink", "nf_nat")
# Rules of the second stage, for pods a and b.
STAGES = "table=1,ct_state=+trk+est,in_port=1", "table=1,ct_state=+trk+est+rpl,in_port=2"
FIRST_ZONE, LAST_ZONE = 40960, 45055


def started(lab, *settings):
    # Flows and connections must not expire between two commands on a busy machine.
    p = flower.started(lab, "max-idle=120000", "tc-policy=skip_hw", *settings, modules=MODULES)
    for name in ("a", "b"):
        pod(p, name)
    p.vsctl("-- --id=@dp create Datapath datapath_version=0 -- set Open_vSwitch . datapaths:netdev=@dp")
    p.vsctl("add-zone-tp netdev zone=5 udp_first=900 udp_single=900 udp_multiple=900")
    return p


def serve(p):
    p.serve("b")
    p.wait("the server to answer", lambda: "receiver" in p.run("ip netns exec a iperf3 -c 10.9.0.2 -n 1K", check=False), timeout=180)


def kernel_conns(p, text=""):
    """The tc back end's entries in the kernel's table."""
    out = p.run("conntrack -L 2>/dev/null; conntrack -L -f ipv6 2>/dev/null", check=False)
    zone = re.compile(r"\bzone=(\d+)\b")
    found = ((zone.search(line), line) for line in out.splitlines())
    return [line for match, line in found if match and FIRST_ZONE <= int(match.group(1)) <= LAST_ZONE and text in line]


def firewall(p, *more, nat=""):
    """Pod a may begin connections, pod b may only reply."""
    flows(p, "priority=10,arp,actions=NORMAL", "priority=10,icmp6,actions=NORMAL", "priority=0,actions=drop",
          f"priority=20,ip,ct_state=-trk,actions=ct(table=1,zone=5{nat})",
          f"priority=20,ipv6,ct_state=-trk,actions=ct(table=1,zone=5{nat})",
          # Pods reply to datagrams by ICMP, too.
          f"priority=21,udp,ct_state=-trk,actions=ct(table=1,zone=5{nat})",
          f"priority=21,udp6,ct_state=-trk,actions=ct(table=1,zone=5{nat})",
          "table=1,priority=20,ct_state=+trk+est,in_port=1,actions=output:2",
          "table=1,priority=20,ct_state=+trk+est+rpl,in_port=2,actions=output:1",
          "table=1,priority=10,ct_state=+trk+new,in_port=1,ip,actions=ct(commit,zone=5),output:2",
          "table=1,priority=10,ct_state=+trk+new,in_port=1,ipv6,actions=ct(commit,zone=5),output:2", *more)


class Wire:
    """Processes that send and capture frames in pods a and b, from the beginning of a scenario to its end. A connection at rest
    leaves tc after ten seconds, and a process that begins may take as long on a busy machine.

    packets, octets: the frames that each pod has sent since the tally began.
    """

    def __init__(self, p):
        self.p, self.files = p, {}
        self.begin_tally()
        for name in ("a", "b"):
            run = f"ip netns exec {name} python3 {flower.WIRE}"
            p.run(f"mkfifo /run/send-{name}; ({run} send eth0 </run/send-{name} >/dev/null 2>&1 &); "
                  f"(sleep 100000 >/run/send-{name} 2>/dev/null &); "
                  f"({run} capture eth0 100000 >/run/got-{name} 2>/run/capture-{name} &)")
        for name in ("a", "b"):
            p.wait("the capture to begin", lambda n=name: "begins" in p.run(f"cat /run/capture-{n}"), timeout=300)

    def begin_tally(self):
        self.packets, self.octets = dict.fromkeys("ab", 0), dict.fromkeys("ab", 0)

    def file(self, all_frames):
        """The path of a file with these frames."""
        text = "\n".join(f.hex() for f in all_frames) + "\n"
        if text not in self.files:
            self.files[text] = f"/run/frames-{len(self.files)}"
            self.p.put(self.files[text], text)
        return self.files[text]

    def got(self, name):
        """Number of frames that pod `name` has captured."""
        return int(self.p.run(f"wc -l </run/got-{name}"))

    def since(self, name, at):
        """The frames that pod `name` has captured after the first `at` ones."""
        return [bytes.fromhex(line) for line in self.p.run(f"tail -n +{at + 1} /run/got-{name}").split()]

    def send(self, source, all_frames):
        self.packets[source] += len(all_frames)
        self.octets[source] += sum(map(len, all_frames))
        self.p.run(f"cat {self.file(all_frames)} >/run/send-{source}")

    def sent(self, source, all_frames, target):
        """Sends these frames from pod `source`. Waits for the same number of frames at pod `target`, and returns those."""
        at = self.got(target)
        self.send(source, all_frames)
        with contextlib.suppress(AssertionError):
            self.p.wait("frames", lambda: self.got(target) - at >= len(all_frames), timeout=60)
        self.p.run("sleep 0.3")
        return self.since(target, at)


def talk(p, wire, frame, back, text):
    """Makes a connection of UDP with these frames of pods a and b, and waits until tc has it."""
    def is_there():
        for source, one, target in (("a", frame, "b"), ("b", back, "a")):
            assert len(wire.sent(source, [one], target)) == 1, (source, p.appctl("dpctl/dump-flows -m"), p.appctl("dpctl/dump-conntrack"))
        return kernel_conns(p, text)
    p.wait(f"a connection in the kernel's table ({text})", is_there, timeout=180)


def by_filters(p, wire, source, all_frames, target, wanted, text):
    """Sends these frames of the connection until filters forward all of them, in their order. Each time all of them arrive once,
    as wanted. The connection may have left tc before a turn, and then workers forward the first frames."""
    wire.file(all_frames)
    for turn in range(1, 31):
        p.wait("the connection in the kernel's table", lambda: [wire.sent(source, all_frames[:1], target), kernel_conns(p, text)][1], timeout=180)
        before = stats(p)["forwarded-packets"]
        arrived = wire.sent(source, all_frames, target)
        n = stats(p)["forwarded-packets"] - before
        # Filters may overtake frames that are still in the switch.
        assert sorted(arrived) == sorted(wanted), (turn, n, len(arrived), len(wanted), arrived[:1], wanted[:1])
        if n >= len(all_frames):
            assert arrived == wanted, "filters change the order of frames"
            p.tell(f"{n} frames from {source} to {target} by filters, turn {turn}")
            return
    raise AssertionError(f"filters forwarded {n} of {len(all_frames)} frames")


def counted(p, wire, there, back, first, strange=0, kind="udp"):
    """Waits until the rules have counted the frames of a connection. Table 0 has all that the pods have sent since the tally began.
    `first` are the counts of table 1 before, and the tally at that time. A report may come while a packet is between two filters. The next packets correct that."""
    shown = []

    def are_there():
        forth, replies = (wire.packets[name] - first[name] for name in ("a", "b"))
        wanted = [(sum(wire.packets.values()), sum(wire.octets.values())), first[1] + forth, first[2] + replies - strange]
        shown[:] = wanted, [counts(p, f"table=0,{kind}"), *(counts(p, match)[0] for match in STAGES)]
        if shown[0] == shown[1]:
            return True
        wire.sent("a", [there], "b")
        wire.sent("b", [back], "a")
        return False
    try:
        p.wait("rules to count the frames", are_there)
    except AssertionError:
        raise AssertionError(f"rules have counted {shown[1]}, not {shown[0]}") from None


def dropped(p, wire, source, all_frames, target, match):
    """Sends these frames. None arrives, though the rules that match have counted all of them."""
    before, at = counts(p, match)[0], wire.got(target)
    wire.send(source, all_frames)
    p.wait("rules to count the frames", lambda: counts(p, match)[0] - before >= len(all_frames))
    p.run("sleep 0.3")
    assert not wire.since(target, at), "frames arrive that no rule forwards"


@limit(1500)
def scenario_established_connections(lab):
    """Streams and datagrams of established connections are forwarded by filters, counted once in each stage, and end at once."""
    p = started(lab)
    wire = Wire(p)
    firewall(p)
    serve(p)
    before = stats(p)
    rate = p.stream("a", "10.9.0.2", seconds=8)
    after = stats(p)
    share = (after["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 8)
    p.tell(f"TCP {rate:.0f} Mbit/s, {share:.0%} of it by filters, {after['chains']} chains")
    assert share > 0.5, (before, after, rate, p.appctl("heddle/offload"), p.appctl("dpctl/dump-flows -m"))
    # FIN and RST pass workers, and end the kernel's entries.
    p.wait("the kernel's entries of the stream to go", lambda: not kernel_conns(p, "dport=5201"))
    for ipv6 in (False, True):
        if ipv6:
            for name, other in (("a", "b"), ("b", "a")):
                p.run(f"ip -n {name} addr add fd00::{flower.LAST[name]}/64 dev eth0 nodad && "
                      f"ip -n {name} neigh replace fd00::{flower.LAST[other]} lladdr {MACS[other]} dev eth0")
        kind = "udp6" if ipv6 else "udp"
        there = [datagram(5002, 5001, b"%06d" % n * 10, ipv6=ipv6) for n in range(300)]
        back = [datagram(5001, 5002, b"%06d" % n * 10, source="b", target="a", ipv6=ipv6) for n in range(300)]
        wire.begin_tally()
        talk(p, wire, there[0], back[0], "sport=5002 dport=5001")
        first = wire.packets | {n: counts(p, match)[0] for n, match in enumerate(STAGES, 1)}
        by_filters(p, wire, "a", there, "b", there, "sport=5002 dport=5001")
        by_filters(p, wire, "b", back, "a", back, "sport=5002 dport=5001")
        # Packets of another connection go to workers, and count once: they are new, and port 2 may begin none.
        strange = [datagram(5003, 5004, b"%06d" % k * 10, source="b", target="a", ipv6=ipv6) for k in range(100)]
        dropped(p, wire, "b", strange, "a", f"table=0,{kind}")
        counted(p, wire, there[0], back[0], first, len(strange), kind)
    # Without an entry of the kernel, packets are new again.
    talk(p, wire, there[0], back[0], "sport=5002 dport=5001")
    p.appctl("dpctl/flush-conntrack zone=5")
    p.wait("the kernel's entries to go", lambda: not kernel_conns(p))
    dropped(p, wire, "b", back[:50], "a", "table=0,udp6")
    assert not kernel_conns(p), kernel_conns(p)


# Pod a's address behind translation.
flower.LAST["outside"], MACS["outside"] = 240, MACS["a"]


@limit(1500)
def scenario_translated_connections(lab):
    """Source addresses are translated by filters, both ways. Packets that find no filter behind the translation are translated
    once, by workers, and count once."""
    p = started(lab)
    p.run(f"ip -n b neigh replace 10.9.0.240 lladdr {MACS['a']} dev eth0")
    flows(p, "priority=10,arp,actions=NORMAL", "priority=0,actions=drop",
          "priority=20,ip,ct_state=-trk,actions=ct(table=1,zone=5,nat)",
          "priority=21,udp,ct_state=-trk,actions=ct(table=1,zone=5,nat)",
          "table=1,priority=20,ct_state=+trk+est,in_port=1,ip,actions=dec_ttl,output:2",
          "table=1,priority=20,ct_state=+trk+est+rpl,in_port=2,ip,actions=output:1",
          "table=1,priority=10,ct_state=+trk+new,in_port=1,ip,actions=ct(commit,zone=5,nat(src=10.9.0.240)),dec_ttl,output:2")
    there = [datagram(5002, 5001, b"%06d" % n * 10) for n in range(300)]
    wanted = [datagram(5002, 5001, b"%06d" % n * 10, source="outside", ttl=63) for n in range(300)]
    back = [datagram(5001, 5002, b"%06d" % n * 10, source="b", target="outside") for n in range(300)]
    wanted_back = [datagram(5001, 5002, b"%06d" % n * 10, source="b", target="a") for n in range(300)]
    wire = Wire(p)
    talk(p, wire, there[0], back[0], "sport=5002 dport=5001")
    first = wire.packets | {n: counts(p, match)[0] for n, match in enumerate(STAGES, 1)}
    by_filters(p, wire, "a", there, "b", wanted, "sport=5002 dport=5001")
    by_filters(p, wire, "b", back, "a", wanted_back, "sport=5002 dport=5001")
    # Each of these needs a flow of its own in the second stage.
    odd = [datagram(5002, 5001, b"%06d" % n * 10, ttl=ttl) for n, ttl in enumerate(range(65, 165))]
    odd_wanted = [datagram(5002, 5001, b"%06d" % n * 10, source="outside", ttl=ttl - 1) for n, ttl in enumerate(range(65, 165))]
    arrived = wire.sent("a", odd, "b")
    assert sorted(arrived) == sorted(odd_wanted), (len(arrived), arrived[:1], odd_wanted[:1])
    counted(p, wire, there[0], back[0], first)
    serve(p)
    before = stats(p)
    rate = p.stream("a", "10.9.0.2", seconds=8)
    share = (stats(p)["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 8)
    for name in ("a", "b"):
        snmp = [line.split() for line in p.run(f"ip netns exec {name} cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp
    p.tell(f"TCP with translated addresses {rate:.0f} Mbit/s, {share:.0%} of it by filters")
    assert share > 0.5, (before, stats(p), rate)


@limit(1500)
def scenario_killed_under_traffic(lab):
    """Filters and connections of a killed switch forward. The next switch removes them, and forwards by its own. No frame arrives
    twice. The next switch drops frames after ten seconds without rules, so a slow machine loses some."""
    p = started(lab)
    # A switch without rules forwards by the filters of the last one alone.
    p.vsctl("set-fail-mode br-int secure")
    wire = Wire(p)
    firewall(p)
    # Numbered frames without a checksum, which the guest makes itself.
    many = [bytearray(datagram(5003, 5001, b"%06d" % n)) for n in range(20000)]
    for frame in many:
        frame[40:42] = bytes(2)
    number = {bytes(frame): n for n, frame in enumerate(many)}
    p.run(f"seq -f %06g 0 {len(many) - 1} | sed 's/./3&/g; s/^/{many[0][:-6].hex()}/' >/run/numbered")
    entry, back = "sport=5003 dport=5001", datagram(5001, 5003, source="b", target="a")
    talk(p, wire, datagram(5003, 5001), back, entry)
    at = wire.got("b")
    p.run(f"(ip netns exec a python3 {flower.WIRE} send eth0 0.03 </run/numbered >/dev/null 2>&1 & echo $! >/run/sender)")

    def by_filters_alone():
        # The next switch knows the connection after a packet of each direction.
        wire.send("b", [back])
        before = stats(p)["forwarded-packets"]
        p.wait("frames", lambda n=wire.got("b"): wire.got("b") > n + 20)
        return kernel_conns(p, entry) and stats(p)["forwarded-packets"] - before > 20
    for _ in range(2):
        p.wait("filters to forward the frames", by_filters_alone, timeout=300)
        p.kill_daemon()
        p.wait("frames while no switch runs", lambda n=wire.got("b"): wire.got("b") > n + 100)
        p.start_daemon()
        firewall(p)
        p.wait("the old filters to go", lambda: stats(p)["adopted-flows"] == 0)
    p.run("kill $(cat /run/sender); sleep 1")
    arrived = [number[frame] for frame in wire.since("b", at)]
    missing, twice = 1 + max(arrived) - len(set(arrived)), len(arrived) - len(set(arrived))
    p.tell(f"{1 + max(arrived)} frames while the switch was killed twice: {missing} lost, {twice} arrived twice")
    assert not twice, twice


if __name__ == "__main__":
    main()
