#!/usr/bin/env python3
"""A card that is full, that refuses keys or actions, or that is slow: the switch forwards."""

import os
import re
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode, figure
from lab.runner import main
from lab.shell import wait_for


def counted(n):
    """Heddle counts the filters that a card took: the kernel runs the others. Open vSwitch has no such counter."""
    if not n.is_reference:
        out = n.switch.appctl("dpctl/offload-stats-show")
        filters, taken = (int(re.search(rf"^ +{name}: +(\d+)$", out, re.M).group(1)) for name in ("filters", "in-card"))
        assert taken < filters and taken == n.count_of("filters"), (out, n.filters())


def scenario_capacity(lab):
    """A table of four filters: packets of twelve flows all arrive, and no more than four filters are there."""
    n = CardNode(lab, capacity=4)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", *(f"priority=10,udp,tp_dst={7000 + i},actions=rep1" for i in range(12)))
    for _ in range(4):
        for i in range(12):
            n.frames(0, 2, port=7000 + i)
        time.sleep(0.5)
    for i in range(12):
        got = n.received(1, lambda port=7000 + i: n.frames(0, 20, port=port), seconds=2, port=7000 + i)
        assert got == 20, f"flow {i}: {got} of 20 arrived"
    stats = n.stats()
    assert 0 < stats["filters"] <= 4 and stats["peak"] <= 4 and stats["refused_full"] > 0, stats
    time.sleep(5)
    again = n.count_of("refused_full")
    figure("full card: requests refused in all", again, "requests")
    figure("full card: requests refused in 5 s without traffic", again - stats["refused_full"], "requests")
    counted(n)


def scenario_room_again(lab):
    """A card that was full gets room: a flow that was refused is taken."""
    n = CardNode(lab, capacity=1)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", *(f"priority=10,udp,tp_dst={7000 + i},actions=rep1" for i in range(4)))
    for i in range(4):
        n.frames(0, 5, port=7000 + i)
    wait_for("the card to be full", lambda: n.count_of("refused_full"), 30, 0.2)
    n.set("capacity", 100)
    began = time.monotonic()

    def probe():
        for i in range(4):
            n.frames(0, 3, port=7000 + i)
        return len([line for line in n.filters("rep0 ") if "ports" in line]) >= 4
    try:
        wait_for("the refused flows in the card", probe, 90, 0.5)
        figure("room again: refused flows taken after", time.monotonic() - began, "s")
    except AssertionError:
        figure("room again: refused flows taken after", "never", "s")
        assert n.is_reference, "a flow that a full card refused stays outside for ever"


def scenario_refused_action(lab):
    """The card refuses VLAN tags: the flow with a tag stays with the switch, the others are in the card."""
    n = CardNode(lab, refuse="vlan_push")
    a, b, _ = n.vfs(3)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=push_vlan:0x8100,set_field:4101->vlan_vid,rep2")
    n.established(0, n.address(1))
    for _ in range(10):
        n.frames(0, 20)
        time.sleep(0.1)
    n.net.ip(n.pods[2], "link", "add", "link", "vf2", "name", "v5", "type", "vlan", "id", "5")
    n.net.ip(n.pods[2], "link", "set", "v5", "up")
    n.pods["v5"] = n.pods[2]
    before = tagged(n)
    n.frames(0, 50)
    wait_for("the tagged packets", lambda: tagged(n) - before == 50, 10, 0.2)
    assert not n.filters("vlan_push") and n.count_of("refused_action") > 0, n.stats()
    figure("refused action: requests", n.count_of("refused_action"), "requests")
    counted(n)


def tagged(n):
    """Packets that the pod's VLAN device got."""
    return int(n.net.run(n.pods[2], "cat", "/sys/class/net/v5/statistics/rx_packets"))


def scenario_refused_key(lab):
    """The card refuses ports as keys: flows of rules with ports stay with the switch."""
    n = CardNode(lab, refuse="ports")
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "priority=10,udp,tp_dst=9,actions=rep1")
    n.established(0, n.address(1))
    for _ in range(10):
        n.frames(0, 20)
        time.sleep(0.1)
    got = n.received(1, lambda: n.frames(0, 50))
    assert got == 50, f"{got} of 50 arrived"
    assert n.count_of("refused_key") > 0, n.stats()
    figure("refused key: requests", n.count_of("refused_key"), "requests")
    counted(n)


def scenario_slow_card(lab):
    """A card that needs 300 ms for each request: no packet is lost while filters are on their way."""
    n = CardNode(lab, delay_ms=300)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", *(f"priority=10,udp,tp_dst={7000 + i},actions=rep1" for i in range(5)))
    for i in range(5):
        got = n.received(1, lambda port=7000 + i: steadily(n, 40, port), seconds=3, port=7000 + i)
        assert got == 40, f"flow {i}: {got} of 40 arrived"


def steadily(n, count, port, pause=0.02):
    for _ in range(count):
        n.frames(0, 1, port=port)
        time.sleep(pause)


def scenario_change_while_the_card_is_slow(lab):
    """The card needs 4 s for each request, in which the kernel holds the caller. A change of rules is confirmed later; then no packet
    goes the old way."""
    n = CardNode(lab)
    n.vfs(3)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.filters("ports"), 30, 0.2)
    n.set("delay_ms", 4000)
    began = time.monotonic()
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep2")
    n.switch.ofctl("-O", "OpenFlow14", "dump-flows", "br0")
    confirmed = time.monotonic() - began
    wrong = n.received(1, lambda: steadily(n, 100, 9), seconds=2)
    n.set("delay_ms", 0)
    figure("card of 4 s: change confirmed after", confirmed, "s")
    figure("card of 4 s: packets of 100 by the old rule", wrong, "packets")
    got = []

    def back():
        got[:] = [n.received(2, lambda: n.frames(0, 20), seconds=1)]
        return got[0] == 20
    wait_for("packets by the new rule", back, 60, 0.5)
    if not n.is_reference:
        assert wrong == 0, f"confirmed after {confirmed:.1f} s, {wrong} packets by the old rule"


def scenario_other_flows_while_the_card_is_slow(lab):
    """While requests wait for the card, packets of a flow that the card does not have are forwarded."""
    n = CardNode(lab)
    n.vfs(3)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1",
            *(f"priority=10,in_port=rep2,udp,tp_dst={7000 + i},actions=rep1" for i in range(10)))
    n.set("delay_ms", 1000)
    begin = threading.Thread(target=lambda: [n.frames(2, 3, port=7000 + i) for i in range(10)])
    begin.start()
    got = n.received(1, lambda: steadily(n, 50, 9, 0.04), seconds=3)
    begin.join()
    n.set("delay_ms", 0)
    figure("slow card: packets of another flow, of 50", got, "packets")
    if not n.is_reference:
        assert got == 50, f"{got} of 50 arrived"


if __name__ == "__main__":
    main()
