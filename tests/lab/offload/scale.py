#!/usr/bin/env python3
"""Many filters: how fast they are installed and removed, the memory and the idle time of the switch."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode, figure
from lab.runner import limit, main

# Copying a field makes a flow depend on all of its bits: a flow for each source.
EXACT = "priority=10,udp,in_port=rep0,actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG0[],move:NXM_OF_UDP_SRC[]->NXM_NX_REG1[0..15],rep1"
IDLE_S = 10
MAX_QUIET_S = 25


def many(lab, count):
    n = CardNode(lab, "max-idle=3600000", "flow-limit=300000")
    n.vfs()
    n.switch.appctl("upcall/set-flow-limit", str(3 * count), check=False)
    n.flows("priority=0,actions=NORMAL", EXACT)
    n.frames(0, 1)
    memory, before = n.memory_mb(), n.count_of("added")
    began = time.monotonic()
    cpu = n.cpu_s()
    there, last, sent = 0, began, 0
    while there < count and time.monotonic() - last < MAX_QUIET_S:
        # In portions: the switch's queue holds some hundred packets that miss.
        if sent < 3 * count and n.count_of("added") - before >= there:
            portion = min(200, count)
            n.frames(0, portion, source=1 + sent % count)
            sent += portion
        now = n.count_of("added") - before
        if now > there:
            there, last = now, time.monotonic()
    took = last - began
    figure(f"{count} filters: installed", there, "filters")
    figure(f"{count} filters: rate of installation", there / took, "filters/s")
    figure(f"{count} filters: processor time of installation", n.cpu_s() - cpu, "s")
    print(f"threads: {n.busiest_threads()}", flush=True)
    figure(f"{count} filters: memory of the switch", n.memory_mb() - memory, "MB")
    cpu = n.cpu_s()
    time.sleep(IDLE_S)
    figure(f"{count} filters: processor of the idle switch", 100 * (n.cpu_s() - cpu) / IDLE_S, "%")
    began = time.monotonic()
    n.switch.ofctl("-O", "OpenFlow14", "del-flows", "br0", timeout=600)
    # Open vSwitch removes the filters. Heddle makes them drop, until they are idle.
    while len(n.filters("redirect")) > 8 and time.monotonic() - began < 300:
        time.sleep(0.5)
    figure(f"{count} filters: forward no more after deletion of rules", time.monotonic() - began, "s")
    figure(f"{count} filters: that forward after deletion", len(n.filters("redirect")), "filters")
    assert there >= (count * 9 // 10 if count <= 1000 or not n.is_reference else 1), f"{there} of {count} installed"
    return n


def scenario_1000(lab):
    """1,000 filters."""
    many(lab, 1000)


def scenario_10000(lab):
    """10,000 filters."""
    many(lab, 10_000)


@limit(3000)
def scenario_100000(lab):
    """100,000 filters."""
    many(lab, 100000)


if __name__ == "__main__":
    main()
