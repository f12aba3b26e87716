#!/usr/bin/env python3
"""Packet marks cross internal ports, in both directions, as the kernel's datapath carries them."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.parity.node import Node
from lab.runner import main
from lab.shell import wait_for

HOST, POD, FAR = "10.1.0.254", "10.1.0.1", "10.9.9.9"
STRANGER, STRANGER_MAC = "10.1.0.77", "02:00:00:00:00:77"


def host(lab):
    """A node whose bridge has an address."""
    n = Node(lab)
    n.up(n.host, "br0", f"{HOST}/24")
    return n


def matched_on_local(n, actions="drop"):
    """Flows that count datagrams to port 9 with mark 0x42 (cookie 1) and the others (cookie 2)."""
    n.neighbour(n.host, "br0", STRANGER, STRANGER_MAC)
    n.flows(f"cookie=1,priority=20,in_port=LOCAL,udp,tp_dst=9,pkt_mark=0x42,actions={actions}",
            "cookie=2,priority=10,in_port=LOCAL,udp,tp_dst=9,actions=drop")


def scenario_socket_mark_matches_on_local(lab):
    """The mark of a socket (SO_MARK) is pkt_mark of its packets from the bridge's port; other packets have none."""
    n = host(lab)
    matched_on_local(n)
    n.datagrams(n.host, STRANGER, 9, count=4, mark=0x42)
    n.datagrams(n.host, STRANGER, 9, count=3)
    n.datagrams(n.host, STRANGER, 9, count=2, mark=0x43)
    n.wait_count(1, 4)
    n.wait_count(2, 5)


def scenario_nft_mark_matches_on_local(lab):
    """A mark that nft sets on output is pkt_mark at the bridge's port; a masked match sees its bits."""
    n = host(lab)
    n.neighbour(n.host, "br0", STRANGER, STRANGER_MAC)
    n.nft(n.host, [], "chain out { type filter hook output priority mangle; udp dport 9 meta mark set 0xa0000042; }")
    n.flows("cookie=1,priority=20,in_port=LOCAL,udp,pkt_mark=0xa0000000/0xf0000000,actions=drop",
            "cookie=2,priority=10,in_port=LOCAL,udp,actions=drop")
    n.datagrams(n.host, STRANGER, 9, count=4)
    n.datagrams(n.host, STRANGER, 10, count=3)
    n.wait_count(1, 4)
    n.wait_count(2, 3)


def scenario_mark_survives_recirculation(lab):
    """The mark of a packet from the bridge's port is still there after ct() has recirculated it."""
    n = host(lab)
    n.neighbour(n.host, "br0", STRANGER, STRANGER_MAC)
    n.flows("priority=10,in_port=LOCAL,udp,actions=ct(table=1,zone=9)",
            "cookie=1,table=1,priority=20,udp,pkt_mark=0x42,actions=drop",
            "cookie=2,table=1,priority=10,udp,actions=drop")
    n.datagrams(n.host, STRANGER, 9, count=4, mark=0x42)
    n.datagrams(n.host, STRANGER, 9, count=3)
    n.wait_count(1, 4)
    n.wait_count(2, 3)


SEEN = ("chain in { type filter hook prerouting priority mangle; "
        "%s udp dport {9, 10} meta mark 0x43 counter name marked; %s udp dport {9, 10} counter name total; }")


def seen_by_nft(n, ns, pod, address, device):
    """The pod's datagrams to port 9 get the mark 0x43, those to port 10 none; nft sees both where they arrive."""
    n.nft(ns, ["marked", "total"], SEEN % ((f"iifname \"{device}\"",) * 2))
    n.datagrams(pod, address, 9, count=4)
    n.datagrams(pod, address, 10, count=3)
    wait_for("datagrams to arrive", lambda: n.packets(ns, "total") >= 7, 10, 0.2)
    assert n.packets(ns, "marked") == 4, n.counters(ns)


def scenario_set_mark_reaches_nft(lab):
    """A mark that a flow sets is the packet's mark where the host's nft sees it come from the bridge's device."""
    n = host(lab)
    pod = n.pod("pa", f"{POD}/24")
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=pa,udp,tp_dst=9,actions=set_field:0x43->pkt_mark,LOCAL")
    seen_by_nft(n, n.host, pod, HOST, "br0")


def scenario_set_mark_crosses_a_patch_port(lab):
    """A mark set on one bridge arrives with the packet at the device of another bridge, behind patch ports."""
    n = host(lab)
    n.bridge("br1")
    n.switch.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=patch", "options:peer=p1", "--",
                   "add-port", "br1", "p1", "--", "set", "interface", "p1", "type=patch", "options:peer=p0")
    pod = n.pod("pa", f"{POD}/24", bridge="br1")
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=pa,udp,tp_dst=9,actions=set_field:0x43->pkt_mark,p1",
            bridge="br1")
    seen_by_nft(n, n.host, pod, HOST, "br0")


def scenario_set_mark_chooses_a_route(lab):
    """`ip rule fwmark` routes by a mark that a flow has set: EgressIP in local gateway mode."""
    n = host(lab)
    pod, far = n.pod("pa", f"{POD}/24"), n.namespace("far")
    n.wire("out", far, "eth0", "172.31.5.2/24")
    n.up(n.host, "out", "172.31.5.1/24")
    n.up(far, "lo", f"{FAR}/32")
    n.net.ip(far, "route", "add", "10.1.0.0/24", "via", "172.31.5.1")
    n.net.ip(pod, "route", "add", "default", "via", HOST)
    n.sysctl(n.host, "net.ipv4.ip_forward=1")
    n.net.ip(n.host, "rule", "add", "fwmark", "0x44", "lookup", "100")
    n.net.ip(n.host, "route", "add", f"{FAR}/32", "via", "172.31.5.2", "table", "100")
    n.flows("priority=0,actions=NORMAL")
    n.net.no_ping(pod, FAR)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=pa,icmp,actions=set_field:0x44->pkt_mark,LOCAL")
    n.net.ping(pod, FAR)


def scenario_marks_of_a_port_in_another_namespace(lab):
    """An internal port in a pod's namespace carries marks too, from the pod and to it."""
    n = Node(lab)
    pod, inner = n.pod("pa", f"{POD}/24"), n.internal("i0", f"{STRANGER}/24")
    n.neighbour(inner, "i0", "10.1.0.78", STRANGER_MAC)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=pa,udp,tp_dst=9,actions=set_field:0x43->pkt_mark,i0",
            "cookie=1,priority=20,in_port=i0,udp,tp_dst=11,pkt_mark=0x42,actions=drop",
            "cookie=2,priority=10,in_port=i0,udp,tp_dst=11,actions=drop")
    seen_by_nft(n, inner, pod, STRANGER, "i0")
    n.datagrams(inner, "10.1.0.78", 11, count=4, mark=0x42)
    n.datagrams(inner, "10.1.0.78", 11, count=3)
    n.wait_count(1, 4)
    n.wait_count(2, 3)


WHOLE = ("chain out { type filter hook output priority mangle; meta l4proto tcp meta mark set %s; }",
         "chain in { type filter hook prerouting priority mangle; meta l4proto tcp meta mark %s jump whole; }",
         "chain whole { counter name total; meta length > 3000 counter name large; }")


def scenario_marked_segments_stay_whole(lab):
    """Segments with marks stay as large as TCP has made them, from the bridge's port to a pod's and back."""
    n = host(lab)
    inner = n.internal("i0", f"{POD}/24")
    n.flows("priority=0,actions=NORMAL", "priority=10,tcp,actions=drop",
            "priority=20,in_port=LOCAL,tcp,pkt_mark=0x42,actions=set_field:0x43->pkt_mark,i0",
            "priority=20,in_port=i0,tcp,pkt_mark=0x45,actions=set_field:0x46->pkt_mark,LOCAL")
    for ns, mine, theirs in ((n.host, "0x42", "0x46"), (inner, "0x45", "0x43")):
        out, into, count = WHOLE
        n.nft(ns, ["total", "large"], count, out % mine, into % theirs)
    for client, server, address in ((n.host, inner, POD), (inner, n.host, HOST)):
        n.stream(client, server, address, 7000, size=2 << 20, timeout=20)
        found = n.counters(server)
        assert found["total"][1] > 2 << 20, f"not all segments had their mark: {found}"
        assert found["large"][1] > found["total"][1] / 2, f"most segments were cut: {found}"


if __name__ == "__main__":
    main()
