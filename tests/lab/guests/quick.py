#!/usr/bin/env python3
"""The short version: one boot, ping, iperf3 both ways, and the switch killed and restarted under traffic."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import time

from restart import kill_switch

from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Pings, median_rtt_ms
from lab.runner import limit


@limit(120)
def scenario_smoke(lab):
    g = GuestLab(lab)
    pod = g.veth("pod", 1)
    guest = g.guest("vm", 2)
    g.meet(pod, address(2))
    g.net.ping(pod, address(2), count=10)
    rtt = median_rtt_ms(g.net, pod, address(2))
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 3).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 3, backwards=True).result()
    g.tell(f"ping {rtt:.2f} ms, pod to guest {to_guest:.0f} Mbit/s, guest to pod {from_guest:.0f} Mbit/s")
    running = Iperf(g.net, pod, guest, address(2), 6)
    pings = Pings(g.net, pod, address(2))
    pings.wait_answer()
    time.sleep(1)
    kill_switch(g)
    pings.wait_answer()
    _, intervals = running.result()
    sent, lost, gap = pings.stop()
    g.net.ping(pod, address(2), count=10)
    g.tell(f"switch killed: longest silence {gap:.0f} ms, {lost} of {sent} pings lost, iperf3 {max(intervals[-3:]):.0f} Mbit/s after it")


if __name__ == "__main__":
    main()
