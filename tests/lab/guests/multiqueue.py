#!/usr/bin/env python3
"""Several queue pairs, two virtual CPUs: every queue carries packets, and their number changes under traffic."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf
from lab.runner import limit


def interrupts(guest, way):
    """Interrupts of the guest by each queue of eth0; the driver no longer shows packets per queue."""
    lines = [line.split() for line in guest.run("grep virtio0- /proc/interrupts").splitlines()]
    return [sum(int(word) for word in line[1:] if word.isdigit()) for line in lines if f"-{way}." in line[-1]]


def multiqueue(lab, **options):
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("vm", 2, queues=2, cpus=2, start=False, **options).start()
    guest.run("ethtool -L eth0 combined 2")
    guest.address(address(2) + "/24")
    g.meet(pod, address(2))
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 5, extra=["-P", 4]).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 5, backwards=True, extra=["-P", 4]).result()
    received, sent = interrupts(guest, "input"), interrupts(guest, "output")
    g.tell(f"4 streams: pod to guest {to_guest:.0f} Mbit/s, guest to pod {from_guest:.0f} Mbit/s; interrupts per "
           f"queue: receive {received}, send {sent}")
    assert len(sent) >= 2 and all(sent), f"a queue of the guest sent nothing: {sent}"
    # Fewer queues, more queues, in the middle of a transfer.
    running = Iperf(g.net, pod, guest, address(2), 6, extra=["-P", 4])
    for count in (1, 2, 1, 2):
        guest.run(f"sleep 1; ethtool -L eth0 combined {count}")
    rate, _ = running.result()
    g.net.ping(pod, address(2), count=10)
    g.tell(f"while queues came and went: {rate:.0f} Mbit/s")


@limit(200)
def scenario_split(lab):
    multiqueue(lab)


@limit(200)
def scenario_packed(lab):
    multiqueue(lab, nic={"packed": "on"})


if __name__ == "__main__":
    main()
