#!/usr/bin/env python3
"""Tunnels over the card's uplink: ports are registered first, decapsulation filters reach the card by the tunnel's device."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode, figure
from lab.runner import main
from lab.shell import wait_for

HERE, THERE, BEHIND = "172.31.0.1", "172.31.0.2", "10.6.0.77"


def tunnelled(lab, kind, device, registered, **options):
    """A pod on vf0, a tunnel over up0, and the peer behind wire0 with a tunnel device of the kernel."""
    n = CardNode(lab)
    n.vf(0)
    peer = n.namespace("peer")
    lab.trace.run("ip", "link", "set", "up0", "netns", n.host)
    lab.trace.run("ip", "link", "set", "wire0", "netns", peer)
    n.up(n.host, "up0", f"{HERE}/24")
    n.up(peer, "wire0", f"{THERE}/24")
    n.net.ip(n.pods[0], "link", "set", "vf0", "mtu", "1400")
    n.net.ip(peer, "link", "add", "tun9", "type", *device.split())
    n.net.ip(peer, "link", "set", "tun9", "mtu", "1400", "address", "02:00:00:00:00:99")
    n.up(peer, "tun9", f"{BEHIND}/24")
    n.switch.vsctl("add-port", "br0", "tun0", "--", "set", "interface", "tun0", f"type={kind}", f"options:remote_ip={THERE}",
                   *(f"options:{name}={value}" for name, value in options.items()))
    wait_for("pings through the tunnel", lambda: n.net.ping(n.pods[0], BEHIND, count=1, lossless=False), 60, 0.5)
    n.net.ping(n.pods[0], BEHIND, count=20)
    for size in (8, 1372):
        n.net.ping(n.pods[0], BEHIND, size=size, df=True)
    n.stream(n.pods[0], peer, BEHIND, 7000)
    n.stream(peer, n.pods[0], n.address(0), 7001)
    n.note_card()
    events = n.events()
    place = {what: next((i for i, line in enumerate(events) if what in line), None) for what in ("udp port", "indirect bind")}
    added = next((i for i, line in enumerate(events) if " added " in line and "up0" not in line and " rep" not in line), None)
    encap, decap = n.filters("tunnel_set"), n.filters(" tunnel")
    figure(f"{kind}: filters with tunnel_key set", len(encap), "filters")
    figure(f"{kind}: filters on the tunnel's device", len([line for line in decap if not line.startswith("rep")]), "filters")
    figure(f"{kind}: tunnel's port registered with the card", "yes" if place["udp port"] is not None else "no", "-")
    if added is not None:
        assert place["indirect bind"] is not None and place["indirect bind"] < added, events
        if registered:
            assert place["udp port"] is not None and place["udp port"] < added, f"a filter came before the port: {events}"
    elif not n.is_reference:
        raise AssertionError(f"no filter on the tunnel's device: {events}")


def scenario_vxlan(lab):
    """VXLAN: pings of all sizes and a stream each way."""
    tunnelled(lab, "vxlan", f"vxlan id 77 local {THERE} remote {HERE} dstport 4789", True, key=77)


def scenario_geneve(lab):
    """Geneve: pings of all sizes and a stream each way."""
    tunnelled(lab, "geneve", f"geneve id 77 remote {HERE} dstport 6081", True, key=77)


def scenario_gre(lab):
    """GRE with a key: pings of all sizes and a stream each way."""
    tunnelled(lab, "gre", f"gretap local {THERE} remote {HERE} key 77", False, key=77)


if __name__ == "__main__":
    main()
