#!/usr/bin/env python3
"""Connections in tc flower under Linux 6.12, in one emulated machine: act_ct with the kernel's table, chains, translation."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import flower
from flower import MACS, counts, datagram, flows, in_tc, pod, sent, stats
from lab.guestlab import main
from lab.podlab import RUN
from lab.runner import limit

MODULES = (*flower.MODULES, "act_ct", "nf_conntrack_netlink", "nf_nat")
FIRST_ZONE, LAST_ZONE = 40960, 45055


def started(lab, *settings):
    # Flows and connections must not expire between two commands on a busy machine.
    p = flower.started(lab, "max-idle=120000", "tc-policy=skip_hw", *settings, modules=MODULES)
    for name in ("a", "b"):
        pod(p, name)
    return p


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


def talk(p, frame, back, text):
    """Makes a connection of UDP with these frames of pods a and b, and waits until tc has it."""
    def is_there():
        sent(p, "a", [frame], "b", seconds=0.3)
        sent(p, "b", [back], "a", seconds=0.3)
        return kernel_conns(p, text)
    p.wait(f"a connection in the kernel's table ({text})", is_there, timeout=180)


def forwarded(p, source, all_frames, target):
    """Frames that arrive, and the number of packets that filters forwarded meanwhile."""
    before = stats(p)["forwarded-packets"]
    arrived = sent(p, source, all_frames, target)
    return arrived, stats(p)["forwarded-packets"] - before


def by_filters(p, source, all_frames, target, wanted):
    """Sends these frames until filters forward all of them; each time they must arrive as wanted. A connection at rest leaves tc, so
    the first frames may go through workers. Returns how often they were sent."""
    for turn in range(1, 15):
        arrived, n = forwarded(p, source, all_frames, target)
        # Filters may overtake frames that are still in the switch, once.
        assert sorted(arrived) == sorted(wanted), (turn, len(arrived), len(wanted), arrived[:1], wanted[:1])
        if n >= len(all_frames):
            return turn
    raise AssertionError(f"filters forwarded {n} of {len(all_frames)} frames")


@limit(900)
def scenario_established_connections(lab):
    """Streams and datagrams of established connections are forwarded by filters, counted once in each stage, and end at once."""
    p = started(lab)
    firewall(p)
    p.serve("b")
    p.wait("the server to answer", lambda: p.run("ip netns exec a iperf3 -c 10.9.0.2 -n 1K", check=False).find("receiver") > 0)
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
        talk(p, there[0], back[0], "sport=5002 dport=5001")
        matches = [f"table=0,{kind}", "table=1,ct_state=+trk+est,in_port=1", "table=1,ct_state=+trk+est+rpl,in_port=2"]
        first = [counts(p, match) for match in matches]
        n, m = by_filters(p, "a", there, "b", there), by_filters(p, "b", back, "a", back)
        p.tell(f"{kind}: 300 frames each way by filters, sent {n} and {m} times")
        # Packets of another connection go to workers, and count once: they are new, and port 2 may begin none.
        strange = [datagram(5003, 5004, b"%06d" % k * 10, source="b", target="a", ipv6=ipv6) for k in range(100)]
        assert not sent(p, "b", strange, "a")
        last = [counts(p, match) for match in matches]
        more = [b[0] - a[0] for a, b in zip(first, last)]
        assert more == [300 * (n + m) + 100, 300 * n, 300 * m], (more, n, m)
        sizes = n * sum(map(len, there)) + m * sum(map(len, back)) + sum(map(len, strange))
        assert last[0][1] - first[0][1] == sizes, (first, last, sizes)
    # Without an entry of the kernel, packets are new again.
    p.appctl("dpctl/flush-conntrack zone=5")
    assert not sent(p, "b", back[:50], "a"), "replies pass after their connection was flushed"
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
    talk(p, there[0], back[0], "sport=5002 dport=5001")
    first = counts(p, "table=0,udp"), counts(p, "table=1,ct_state=+trk+est,in_port=1")
    n, m = by_filters(p, "a", there, "b", wanted), by_filters(p, "b", back, "a", wanted_back)
    # Each of these needs a flow of its own in the second stage.
    odd = [datagram(5002, 5001, b"%06d" % n * 10, ttl=ttl) for n, ttl in enumerate(range(65, 165))]
    odd_wanted = [datagram(5002, 5001, b"%06d" % n * 10, source="outside", ttl=ttl - 1) for n, ttl in enumerate(range(65, 165))]
    arrived = sent(p, "a", odd, "b")
    assert sorted(arrived) == sorted(odd_wanted), (len(arrived), arrived[:1], odd_wanted[:1])
    last = counts(p, "table=0,udp"), counts(p, "table=1,ct_state=+trk+est,in_port=1")
    more = [b[0] - a[0] for a, b in zip(first, last)]
    p.tell(f"300 frames each way by filters, sent {n} and {m} times, and {len(odd)} that find no filter in the second stage")
    assert more == [300 * (n + m) + 100, 300 * n + 100], (more, n, m)
    p.serve("b")
    p.wait("the server to answer", lambda: p.run("ip netns exec a iperf3 -c 10.9.0.2 -n 1K", check=False).find("receiver") > 0)
    before = stats(p)
    rate = p.stream("a", "10.9.0.2", seconds=8)
    share = (stats(p)["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 8)
    for name in ("a", "b"):
        snmp = [line.split() for line in p.run(f"ip netns exec {name} cat /proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp
    p.tell(f"TCP with translated addresses {rate:.0f} Mbit/s, {share:.0%} of it by filters")
    assert share > 0.5, (before, stats(p), rate)
    # Filters and connections of a killed switch forward; the next one removes them.
    p.kill_daemon()
    assert sent(p, "a", there[:50], "b") == wanted[:50]
    p.start_daemon()
    p.wait("the old filters to go", lambda: stats(p)["adopted-flows"] == 0)
    p.wait("the old entries to go", lambda: not kernel_conns(p, "sport=5002 dport=5001"))
    talk(p, there[0], back[0], "sport=5002 dport=5001")


if __name__ == "__main__":
    main()
