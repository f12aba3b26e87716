#!/usr/bin/env python3
"""A guest behind an emulated IOMMU: the switch sees only addresses that the guest has mapped."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Stream
from lab.runner import limit


def behind_iommu(lab, **properties):
    g = GuestLab(lab, "vhost-iommu-support=true")
    pod = g.pod()
    guest = g.guest("vm", 2, iommu=True, memory=384, kernel="intel_iommu=on iommu.passthrough=0",
                    nic={"iommu_platform": "on", "ats": "on", "disable-legacy": "on", **properties})
    guest.run("ls /sys/class/iommu/ | grep dmar")
    guest.run("readlink /sys/class/net/eth0/device/../iommu_group")
    g.meet(pod, address(2))
    # A switch that does not know a buffer's address yet may drop the packet while it requests the address.
    pings = g.net.ping(pod, address(2), count=50, lossless=False)
    streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    guest.run("sleep 3")
    total = sum(stream.finish() for stream in streams)
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 4).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 4, backwards=True).result()
    g.tell(f"{pings} of 50 pings answered, pod to guest {to_guest:.0f} Mbit/s, guest to pod {from_guest:.0f} Mbit/s, {total:.0f} MiB compared; "
           f"negotiated {g.switch.vsctl('get', 'interface', 'vm', 'status:features', check=False)}")


@limit(200)
def scenario_split(lab):
    behind_iommu(lab)


@limit(200)
def scenario_packed(lab):
    behind_iommu(lab, packed="on")


if __name__ == "__main__":
    main()
