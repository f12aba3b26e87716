#!/usr/bin/env python3
"""Filters end with their rules, ports and switch, and outlive a crash until the next one takes over."""

import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import MODULE, CardNode, Listener, figure
from lab.runner import main
from lab.shell import wait_for

PINGS = 600

def flowing(lab, *settings):
    """A switch whose flow to port 9 is in the card."""
    n = CardNode(lab, *settings)
    n.vfs(3)
    n.flows("priority=0,actions=NORMAL", "cookie=0x77,priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.filters("ports"), 30, 0.2)
    return n


def scenario_rule_removed(lab):
    """After a rule's removal is confirmed, how many packets still take its way; the filter leaves the card."""
    n = flowing(lab)

    def send():
        n.switch.ofctl("-O", "OpenFlow14", "--strict", "mod-flows", "br0", "priority=10,in_port=rep0,udp,tp_dst=9,actions=drop")
        n.frames(0, 1000)
    wrong = n.received(1, send)
    figure("rule removed: packets of 1000 by the old rule", wrong, "packets")
    began = time.monotonic()
    wait_for("packets to end", lambda: n.received(1, lambda: n.frames(0, 20), seconds=0.5) == 0, 30, 0.2)
    figure("rule removed: packets end after", time.monotonic() - began, "s")
    if not n.is_reference:
        assert wrong == 0, f"{wrong} packets took the way of a rule whose removal was confirmed"


def scenario_rules_change_under_traffic(lab):
    """Rules send a flow to one port, then to the other, twenty times: each packet arrives once, at one of them."""
    n = flowing(lab)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1")
    sent, done = [], threading.Event()

    def steady():
        while not done.is_set():
            n.frames(0, 1)
            sent.append(1)
            time.sleep(0.01)
    listeners = [Listener(n, number) for number in (1, 2)]
    thread = threading.Thread(target=steady)
    thread.start()
    try:
        for turn in range(20):
            n.switch.ofctl("-O", "OpenFlow14", "--strict", "mod-flows", "br0",
                           f"priority=10,in_port=rep0,udp,tp_dst=9,actions=rep{1 + turn % 2}")
            time.sleep(0.3)
    finally:
        done.set()
        thread.join()
    got = [listener.count(1) for listener in listeners]
    for listener in listeners:
        listener.close()
    figure("rule changes: packets sent less packets received", len(sent) - sum(got), "packets")
    assert min(got) > 0 and sum(got) == len(sent), f"{len(sent)} sent, {got} received"


def scenario_port_removed(lab):
    """A port that is taken from the bridge has no filters any more."""
    n = flowing(lab)
    n.switch.vsctl("del-port", "br0", "rep0")
    wait_for("no filters on the port", lambda: not n.filters("rep0 "), 30, 0.2)
    assert n.received(1, lambda: n.frames(0, 20), seconds=1) == 0


def scenario_device_removed(lab):
    """The card is unloaded while its filters are in use; the switch lives on and takes the card that comes back."""
    n = flowing(lab)
    lab.trace.run("rmmod", "heddle_card", timeout=60)
    assert n.switch.alive(), "the switch died with the card"
    lab.trace.run("insmod", MODULE)
    for number in (0, 1):
        n.plug(number, n.pods[number])
    wait_for("pings", lambda: n.net.ping(n.pods[0], n.address(1), count=1, lossless=False), 60, 0.5)
    n.established(0, n.address(1))


def scenario_killed(lab):
    """kill -9: the card forwards on; the next switch leaves no filter of the first behind, and no packet is lost."""
    n = flowing(lab)
    n.established(0, n.address(1))
    # A minute of pings, which the card carries all the time.
    result, hits = [], n.count_of("hits")
    thread = threading.Thread(target=lambda: result.append(n.net.run(
        n.pods[0], "ping", "-n", "-i", "0.1", "-c", str(PINGS), "-W", "2", n.address(1), check=False, timeout=600)))
    thread.start()
    wait_for("the pings to begin", lambda: n.count_of("hits") > hits + 10)
    n.switch.stop_daemon(signal.SIGKILL)
    assert n.filters("rep0 "), "the filters went with the switch"
    hits = n.count_of("hits")
    wait_for("the card to forward on", lambda: n.count_of("hits") > hits + 10)
    n.switch.start_daemon()
    thread.join()
    count = int(result[0].split(" received")[0].split()[-1])
    figure(f"killed and restarted: pings of {PINGS} lost", PINGS - count, "pings")
    n.established(0, n.address(1))
    figure("killed and restarted: filters in the card", n.count_of("filters"), "filters")
    n.switch.ofctl("-O", "OpenFlow14", "del-flows", "br0")
    try:
        wait_for("no filter without a rule", lambda: n.received(1, lambda: n.frames(0, 20), seconds=0.5) == 0, 30, 0.5)
    except AssertionError:
        assert n.is_reference, "a filter of the killed switch still forwards"
        figure("killed and restarted: filter without a rule forwards", "yes", "-")
    if not n.is_reference:
        assert count >= PINGS - 1, f"{PINGS - count} of {PINGS} pings were lost"


def scenario_ended(lab):
    """A switch that ends in order: how many filters stay, and what becomes of traffic."""
    n = flowing(lab)
    n.switch.stop_daemon()
    time.sleep(1)
    figure("ended: filters that stay in the card", n.count_of("filters"), "filters")


def scenario_filters_of_others(lab):
    """A filter that another program made on the port stays, while the switch comes and goes. Heddle leaves such a port to workers."""
    n = flowing(lab)
    n.net.run(n.host, "tc", "filter", "add", "dev", "rep0", "ingress", "prio", "60000", "protocol", "0x88b5", "flower",
              "action", "drop")
    n.switch.stop_daemon(signal.SIGKILL)
    n.switch.start_daemon()
    if n.is_reference:
        wait_for("the flow in the card", lambda: n.frames(0, 3) and n.filters("ports"), 30, 0.5)
    else:
        wait_for("the port to stay with workers", lambda: "rep0 stays with workers" in n.switch.appctl("heddle/offload"), 60, 0.5)
        wait_for("the filters of the switch to go", lambda: not n.filters("ports"), 60, 0.5)
        wait_for("packets", lambda: n.received(1, lambda: n.frames(0, 20), seconds=1) == 20, 60, 0.5)
    shown = n.net.run(n.host, "tc", "filter", "show", "dev", "rep0", "ingress")
    kept = "88b5" in shown
    figure("filter of another program after a restart", "kept" if kept else "removed", "-")
    if not n.is_reference:
        assert kept, shown


def scenario_card_off_and_on(lab):
    """`ethtool -K rep0 hw-tc-offload off`: the card takes no new filters of that port, and packets arrive."""
    n = CardNode(lab)
    n.vfs()
    n.net.run(n.host, "ethtool", "-K", "rep0", "hw-tc-offload", "off")
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1")
    for _ in range(10):
        n.frames(0, 10)
        time.sleep(0.1)
    got = n.received(1, lambda: n.frames(0, 50))
    assert got == 50 and not n.filters("rep0 "), (got, n.filters())


if __name__ == "__main__":
    main()
