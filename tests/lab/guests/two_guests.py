#!/usr/bin/env python3
"""Two guests on one bridge: ping and iperf3 both ways, with every mixture of port kinds and rings."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import guest_to_guest
from lab.runner import limit


def two_guests(lab, first=None, second=None, **both):
    g = GuestLab(lab)
    a = g.guest("a", 2, **(first or {}), **both)
    b = g.guest("b", 3, **(second or {}), **both)
    g.meet_from(a, address(3))
    a.run(f"ping -n -q -c 20 -i 0.1 -W 2 {address(3)} | grep ' 0% packet loss'")
    a.run(f"ping -n -q -c 3 -s 1400 -W 2 {address(3)} | grep ' 0% packet loss'")
    there = guest_to_guest(a, b, address(3), 5)
    back = guest_to_guest(b, a, address(2), 5)
    g.tell(f"guest to guest {there:.0f} Mbit/s, and the other way {back:.0f} Mbit/s")
    assert min(there, back) > 5, "hardly anything gets through"


@limit(240)
def scenario_client_ports(lab):
    two_guests(lab)


@limit(240)
def scenario_packed_rings_to_split_ring(lab):
    """The first guest has packed rings and a server port, the second split rings and a client port."""
    two_guests(lab, {"nic": {"packed": "on"}, "client": False})


@limit(240)
def scenario_mergeable_buffers_on_one_side(lab):
    """The second guest's receive buffers hold one whole packet each."""
    two_guests(lab, second={"nic": {"mrg_rxbuf": "off"}})


if __name__ == "__main__":
    main()
