#!/usr/bin/env python3
"""Checksum and segmentation offloads, switched on and off inside the guest and in what the device offers."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Stream, guest_to_guest
from lab.runner import limit


def compare(g, pod, guest, what):
    streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    guest.run("sleep 1")
    total = sum(stream.finish() for stream in streams)
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 2).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 2, backwards=True).result()
    udp, _ = Iperf(g.net, pod, guest, address(2), 2, backwards=True, extra=["-u", "-b", "20M", "-l", 4000]).result()
    g.tell(f"{what}: pod to guest {to_guest:.0f} Mbit/s, guest to pod {from_guest:.0f} Mbit/s, fragmented UDP {udp:.0f} of 20 "
           f"Mbit/s, {total:.0f} MiB compared")
    assert udp > 15, "datagrams in fragments get lost"


@limit(280)
def scenario_switched_in_the_guest(lab):
    """ethtool -K while the device stays up (the driver notifies it through the control queue)."""
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("vm", 2)
    g.meet(pod, address(2))
    g.trace.note(guest.run("ethtool -k eth0 | grep -E 'checksumming|segmentation-offload|gro-hw|receive-offload'"))
    compare(g, pod, guest, "as negotiated")
    for words in ("tso off", "gso off gro off", "tx off sg off", "rx off", "rx on tx on sg on tso on gso on gro on"):
        guest.run(f"ethtool -K eth0 {words}", check=False)
        compare(g, pod, guest, words)


@limit(200)
def scenario_device_without_any(lab):
    """The guest's device offers none, the pod's takes them: the switch segments and completes checksums."""
    g = GuestLab(lab)
    pod = g.pod()
    off = ("csum", "gso", "host_tso4", "host_tso6", "host_ecn", "host_ufo", "guest_csum", "guest_tso4", "guest_tso6", "guest_ecn",
           "guest_ufo", "host_uso", "guest_uso4", "guest_uso6")
    guest = g.guest("vm", 2, nic={name: "off" for name in off})
    g.meet(pod, address(2))
    compare(g, pod, guest, "no offload offered")


@limit(280)
def scenario_one_guest_without(lab):
    """Two guests, of which the second has no offload at all."""
    g = GuestLab(lab)
    off = ("csum", "gso", "host_tso4", "host_tso6", "guest_csum", "guest_tso4", "guest_tso6", "host_uso", "guest_uso4", "guest_uso6")
    a = g.guest("a", 2)
    b = g.guest("b", 3, nic={name: "off" for name in off})
    g.meet_from(a, address(3))
    there, back = guest_to_guest(a, b, address(3), 4), guest_to_guest(b, a, address(2), 4)
    udp = guest_to_guest(a, b, address(3), 2, "-u -b 20M -l 4000")
    g.tell(f"to the plain guest {there:.0f} Mbit/s, from it {back:.0f} Mbit/s, fragmented UDP {udp:.0f} of 20 Mbit/s")
    assert udp > 15, "datagrams in fragments get lost"


if __name__ == "__main__":
    main()
