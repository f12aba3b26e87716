#!/usr/bin/env python3
"""Packed rings (QEMU 10), and what else a driver may negotiate: small rings, no indirection, no merging."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Stream, median_rtt_ms
from lab.runner import limit


def rings(lab, client=True, **properties):
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("vm", 2, client, nic=properties)
    g.meet(pod, address(2))
    g.net.ping(pod, address(2), count=20)
    rtt = median_rtt_ms(g.net, pod, address(2))
    streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    guest.run("sleep 3")
    total = sum(stream.finish() for stream in streams)
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 4).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 4, backwards=True).result()
    g.tell(f"{properties}: ping {rtt:.2f} ms, pod to guest {to_guest:.0f} Mbit/s, guest to pod {from_guest:.0f} Mbit/s, "
           f"{total:.0f} MiB compared")


@limit(150)
def scenario_packed(lab):
    rings(lab, packed="on")


@limit(150)
def scenario_packed_server_port(lab):
    rings(lab, client=False, packed="on")


@limit(150)
def scenario_packed_in_order(lab):
    rings(lab, packed="on", in_order="on")


@limit(150)
def scenario_split_without_indirect_merge_and_event_idx(lab):
    rings(lab, indirect_desc="off", mrg_rxbuf="off", event_idx="off")


@limit(150)
def scenario_packed_without_indirect_merge_and_event_idx(lab):
    rings(lab, packed="on", indirect_desc="off", mrg_rxbuf="off", event_idx="off")


@limit(150)
def scenario_large_rings(lab):
    rings(lab, rx_queue_size=1024, tx_queue_size=1024)


if __name__ == "__main__":
    main()
