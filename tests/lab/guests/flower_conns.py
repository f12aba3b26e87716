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
FIRST_ZONE, LAST_ZONE = 40960, 45055


def started(lab, *settings):
    # Flows and connections must not expire between two commands on a busy machine.
    p = flower.started(lab, "max-idle=120000", "tc-policy=skip_hw", *settings, modules=MODULES)
    for name in ("a", "b"):
        pod(p, name)
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
    leaves tc after ten seconds, and a process that begins may take as long on a busy machine."""

    def __init__(self, p):
        self.p, self.files = p, {}
        for name in ("a", "b"):
            run = f"ip netns exec {name} python3 {flower.WIRE}"
            p.run(f"mkfifo /run/send-{name}; ({run} send eth0 </run/send-{name} >/dev/null 2>&1 &); "
                  f"(sleep 100000 >/run/send-{name} 2>/dev/null &); "
                  f"({run} capture eth0 100000 >/run/got-{name} 2>/run/capture-{name} &)")
        for name in ("a", "b"):
            p.wait("the capture to begin", lambda n=name: "begins" in p.run(f"cat /run/capture-{n}"), timeout=300)

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
        self.p.run(f"cat {self.file(all_frames)} >/run/send-{source}")

    def sent(self, source, all_frames, target):
        """Sends these frames from pod `source`. Returns those that arrive at pod `target`, once as many have come, or none comes."""
        at = self.got(target)
        self.send(source, all_frames)
        with contextlib.suppress(AssertionError):
            self.p.wait("frames", lambda: self.got(target) - at >= len(all_frames), timeout=60)
        self.p.run("sleep 0.3")
        return self.since(target, at)


def talk(p, wire, frame, back, text):
    """Makes a connection of UDP with these frames of pods a and b, and waits until tc has it."""
    def is_there():
        assert len(wire.sent("a", [frame], "b")) == len(wire.sent("b", [back], "a")) == 1
        return kernel_conns(p, text)
    p.wait(f"a connection in the kernel's table ({text})", is_there, timeout=180)


def by_filters(p, wire, source, all_frames, target, wanted):
    """Sends these frames until filters forward all of them, in their order. Each time all of them arrive once, as wanted. Returns
    how often they were sent: the connection may have left tc meanwhile, and then workers forward the first frames."""
    for turn in range(1, 15):
        before = stats(p)["forwarded-packets"]
        arrived = wire.sent(source, all_frames, target)
        n = stats(p)["forwarded-packets"] - before
        # Filters may overtake frames that are still in the switch.
        assert sorted(arrived) == sorted(wanted), (turn, n, len(arrived), len(wanted), arrived[:1], wanted[:1])
        if n >= len(all_frames):
            assert arrived == wanted, "filters change the order of frames"
            return turn
    raise AssertionError(f"filters forwarded {n} of {len(all_frames)} frames")


def dropped(p, wire, source, all_frames, target, match):
    """Sends these frames. None arrives, though the rules that match have counted all of them."""
    before, at = counts(p, match)[0], wire.got(target)
    wire.send(source, all_frames)
    p.wait("rules to count the frames", lambda: counts(p, match)[0] - before >= len(all_frames))
    p.run("sleep 0.3")
    assert not wire.since(target, at), "frames arrive that no rule forwards"


@limit(900)
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
        talk(p, wire, there[0], back[0], "sport=5002 dport=5001")
        matches = [f"table=0,{kind}", "table=1,ct_state=+trk+est,in_port=1", "table=1,ct_state=+trk+est+rpl,in_port=2"]
        first = [counts(p, match) for match in matches]
        n, m = by_filters(p, wire, "a", there, "b", there), by_filters(p, wire, "b", back, "a", back)
        p.tell(f"{kind}: 300 frames each way by filters, sent {n} and {m} times")
        # Packets of another connection go to workers, and count once: they are new, and port 2 may begin none.
        strange = [datagram(5003, 5004, b"%06d" % k * 10, source="b", target="a", ipv6=ipv6) for k in range(100)]
        dropped(p, wire, "b", strange, "a", f"table=0,{kind}")
        last = [counts(p, match) for match in matches]
        more = [b[0] - a[0] for a, b in zip(first, last)]
        assert more == [300 * (n + m) + 100, 300 * n, 300 * m], (more, n, m)
        sizes = n * sum(map(len, there)) + m * sum(map(len, back)) + sum(map(len, strange))
        assert last[0][1] - first[0][1] == sizes, (first, last, sizes)
    # Without an entry of the kernel, packets are new again.
    talk(p, wire, there[0], back[0], "sport=5002 dport=5001")
    p.appctl("dpctl/flush-conntrack zone=5")
    p.wait("the kernel's entries to go", lambda: not kernel_conns(p))
    dropped(p, wire, "b", back[:50], "a", "table=0,udp6")
    assert not kernel_conns(p), kernel_conns(p)


# Pod a's address behind translation.
flower.LAST["outside"], MACS["outside"] = 240, MACS["a"]


@limit(900)
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
    first = counts(p, "table=0,udp"), counts(p, "table=1,ct_state=+trk+est,in_port=1")
    n, m = by_filters(p, wire, "a", there, "b", wanted), by_filters(p, wire, "b", back, "a", wanted_back)
    # Each of these needs a flow of its own in the second stage.
    odd = [datagram(5002, 5001, b"%06d" % n * 10, ttl=ttl) for n, ttl in enumerate(range(65, 165))]
    odd_wanted = [datagram(5002, 5001, b"%06d" % n * 10, source="outside", ttl=ttl - 1) for n, ttl in enumerate(range(65, 165))]
    arrived = wire.sent("a", odd, "b")
    assert sorted(arrived) == sorted(odd_wanted), (len(arrived), arrived[:1], odd_wanted[:1])
    last = counts(p, "table=0,udp"), counts(p, "table=1,ct_state=+trk+est,in_port=1")
    more = [b[0] - a[0] for a, b in zip(first, last)]
    p.tell(f"300 frames each way by filters, sent {n} and {m} times, and {len(odd)} that find no filter in the second stage")
    assert more == [300 * (n + m) + 100, 300 * n + 100], (more, n, m)
    serve(p)
    before = stats(p)
    rate = p.stream("a", "10.9.0.2", seconds=8)
    share = (stats(p)["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 8)
    for name in ("a", "b"):
        snmp = [line.split() for line in p.run(f"ip netns exec {name} cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp
    p.tell(f"TCP with translated addresses {rate:.0f} Mbit/s, {share:.0%} of it by filters")
    assert share > 0.5, (before, stats(p), rate)


@limit(900)
def scenario_killed_under_traffic(lab):
    """Filters and connections of a killed switch forward each frame. The next switch removes them, and no frame is lost or doubled."""
    p = started(lab)
    wire = Wire(p)
    firewall(p)
    serve(p)
    p.run("(ip netns exec a iperf3 -c 10.9.0.2 -t 60 >/run/stream 2>&1 &)")
    p.wait("the stream's entry in the kernel's table", lambda: kernel_conns(p, "dport=5201"))
    many = [datagram(5003, 5001, b"%06d" % n) for n in range(6000)]
    back = datagram(5001, 5003, source="b", target="a")
    talk(p, wire, datagram(5003, 5001), back, "sport=5003 dport=5001")
    at = wire.got("b")
    p.run(f"(ip netns exec a python3 {flower.WIRE} send eth0 0.03 <{wire.file(many)} >/dev/null 2>&1 & echo $! >/run/sender)")
    p.wait("frames", lambda: wire.got("b") - at > 50)
    for _ in range(2):
        p.kill_daemon()
        before = wire.got("b")
        p.wait("frames while no switch runs", lambda: wire.got("b") - before > 100)
        p.start_daemon()
        p.wait("the old filters to go", lambda: stats(p)["adopted-flows"] == 0)
        p.wait("a connection in the kernel's table", lambda: [wire.send("b", [back]), kernel_conns(p, "sport=5003 dport=5001")][1])
    p.run("kill $(cat /run/sender); sleep 1")
    arrived = wire.since("b", at)
    number = {frame: n for n, frame in enumerate(many)}
    passed = 1 + max(number[frame] for frame in arrived)
    missing, twice = passed - len(set(arrived)), len(arrived) - len(set(arrived))
    p.tell(f"{passed} frames while the switch was killed twice: {missing} lost, {twice} arrived twice")
    assert not missing and not twice, (missing, twice)
    p.wait("the stream to end", lambda: "receiver" in p.run("cat /run/stream"), timeout=180)
    p.tell(p.run("grep receiver /run/stream").strip())


if __name__ == "__main__":
    main()
