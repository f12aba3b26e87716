#!/usr/bin/env python3
"""tc in software, `tc-policy=skip_hw`: flows between veths are filters of the kernel, and the card is left out."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode
from lab.runner import main
from lab.shell import wait_for


def scenario_veths(lab):
    """Pings between veths: flows are `dp:tc`, filters are `skip_hw`, and a stream passes each way."""
    n = CardNode(lab, "tc-policy=skip_hw")
    a, b = n.pod("one", "10.8.0.1/24"), n.pod("two", "10.8.0.2/24")
    wait_for("flows of tc", lambda: n.net.ping(a, "10.8.0.2", count=5, lossless=False) == 5 and len(
        [line for line in n.dump("all") if "dp:tc" in line]) >= 2, 60, 0.3)
    shown = n.net.run(n.host, "tc", "-s", "filter", "show", "dev", "one", "ingress")
    assert "skip_hw" in shown, shown
    n.stream(a, b, "10.8.0.2", 7000)
    n.stream(b, a, "10.8.0.1", 7001)


def scenario_card_is_left_out(lab):
    """Between virtual functions, `skip_hw` keeps filters out of the card; packets arrive."""
    n = CardNode(lab, "tc-policy=skip_hw")
    n.vfs()
    wait_for("flows of tc", lambda: n.net.ping(n.pods[0], n.address(1), count=5, lossless=False) == 5 and len(
        [line for line in n.dump("all") if "dp:tc" in line]) >= 2, 60, 0.3)
    assert not n.filters(), n.filters()


def scenario_card_alone(lab):
    """`tc-policy=skip_sw`: filters are in the card alone, and packets arrive."""
    n = CardNode(lab, "tc-policy=skip_sw")
    n.vfs()
    n.established(0, n.address(1))
    shown = n.net.run(n.host, "tc", "-s", "filter", "show", "dev", "rep0", "ingress")
    assert "skip_sw" in shown, shown
    n.net.ping(n.pods[0], n.address(1), count=20)


if __name__ == "__main__":
    main()
