#!/usr/bin/env python3
"""A guest and a pod on one bridge: ping and iperf3 both ways, over either kind of vhost-user port."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, median_rtt_ms
from lab.runner import limit


def pod_and_guest(lab, client, **options):
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("vm", 2, client, **options)
    g.meet(pod, address(2))
    g.net.ping(pod, address(2), count=20)
    g.net.ping(pod, address(2), size=1400)
    rtt = median_rtt_ms(g.net, pod, address(2))
    to_guest, _ = Iperf(g.net, pod, guest, address(2), 5).result()
    from_guest, _ = Iperf(g.net, pod, guest, address(2), 5, backwards=True).result()
    g.tell(f"{options.get('qemu', 'qemu10')}: ping {rtt:.2f} ms, pod to guest {to_guest:.0f} Mbit/s, "
           f"guest to pod {from_guest:.0f} Mbit/s")
    assert min(to_guest, from_guest) > 5, "hardly anything gets through"


@limit(150)
def scenario_client_port(lab):
    """dpdkvhostuserclient: QEMU owns the socket."""
    pod_and_guest(lab, True)


@limit(150)
def scenario_server_port(lab):
    """dpdkvhostuser: the switch owns the socket."""
    pod_and_guest(lab, False)


@limit(150)
def scenario_older_qemu(lab):
    """QEMU 7.2, without MSI-X."""
    pod_and_guest(lab, True, qemu="qemu7")


if __name__ == "__main__":
    main()
