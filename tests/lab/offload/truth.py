#!/usr/bin/env python3
"""A card that lies: it accepts filters, and drops, does not count, or does not match."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import ABSENT, DROPS, MUTE, CardNode, figure
from lab.runner import main
from lab.shell import wait_for


def lying(lab, how):
    """A switch whose flow to port 9 is in a card that lies from then on."""
    n = CardNode(lab, "max-idle=10000")
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "cookie=0x77,priority=10,udp,tp_dst=9,actions=rep1")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.filters("ports"), 30, 0.2)
    n.set("lie", how)
    return n


def scenario_drops(lab):
    """The card drops what its filters match and counts nothing: the switch finds out and forwards by itself."""
    n = lying(lab, DROPS)
    began = time.monotonic()

    def probe():
        return n.received(1, lambda: n.frames(0, 20), seconds=0.5) == 20
    try:
        wait_for("", probe, 120, 1)
        figure("card drops: traffic back after", time.monotonic() - began, "s")
    except AssertionError:
        figure("card drops: traffic back after", "never", "s")
        assert n.is_reference, "a card that drops has kept its flows for two minutes"
    if not n.is_reference:
        out = n.switch.log()
        assert "counted no packet" in out, f"nothing tells of the card that drops\n{out[-1500:]}"


def scenario_mute(lab):
    """The card forwards and does not count: the flow ages, and packets still arrive."""
    n = lying(lab, MUTE)
    got = 0
    for _ in range(25):  # longer than the idle time of a flow
        got += n.received(1, lambda: n.frames(0, 4), seconds=0.3)
        time.sleep(0.3)
    assert got >= 98, f"{got} of 100 arrived"
    figure("mute card: packets of 105 in the rule", n.count("0x77"), "packets")


def scenario_absent(lab):
    """The card accepts filters and never matches: packets come to the switch, which forwards them."""
    n = lying(lab, ABSENT)
    got = n.received(1, lambda: n.frames(0, 100))
    assert got == 100, f"{got} of 100 arrived"
    n.wait_count("0x77", 105)


def scenario_both_ways_counted_once(lab):
    """Packets that reach the card and packets that reach the switch add up in the rule, while filters come and go."""
    n = CardNode(lab, "max-idle=1000")
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "cookie=0x77,priority=10,udp,tp_dst=9,actions=rep1")
    total = 0
    for _ in range(4):
        n.frames(0, 50)
        total += 50
        time.sleep(3)  # the flow expires
    got = n.received(1, lambda: n.frames(0, 50))
    assert got == 50, f"{got} of 50 arrived"
    n.wait_count("0x77", total + 50)


if __name__ == "__main__":
    main()
