#!/usr/bin/env python3
"""Tunnels over the card's uplink: ports are registered first, decapsulation filters reach the card by the tunnel's device."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode, figure
from lab.runner import main
from lab.shell import wait_for

HERE, THERE, BEHIND = "172.31.0.1", "172.31.0.2", "10.6.0.77"


def tunnelled(lab, kind, device, *settings, **options):
    """A pod on vf0, a tunnel over up0, and the peer behind wire0 with a tunnel device of the kernel."""
    n = CardNode(lab, *settings)
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
    n.dump("all")
    n.switch.appctl("heddle/offload", check=False)
    return n


def in_card(n, kind, registered):
    """Checks that filters of the tunnel reached the card, after the block of its device and, if registered, its UDP port."""
    events = n.events()
    place = {what: next((i for i, line in enumerate(events) if what in line), None) for what in ("udp port", "indirect bind")}
    added = next((i for i, line in enumerate(events) if " added " in line and "up0" not in line and " rep" not in line), None)
    figure(f"{kind}: filters with tunnel_key set", len(n.filters("tunnel_set")), "filters")
    figure(f"{kind}: filters on the tunnel's device", len([line for line in n.filters(" tunnel") if not line.startswith("rep")]), "filters")
    figure(f"{kind}: tunnel's port registered with the card", "yes" if place["udp port"] is not None else "no", "-")
    if added is not None:
        assert place["indirect bind"] is not None and place["indirect bind"] < added, events
        if registered:
            assert place["udp port"] is not None and place["udp port"] < added, f"a filter came before the port: {events}"
    elif not n.is_reference:
        raise AssertionError(f"no filter on the tunnel's device: {events}")


def by_workers(n):
    """Checks that no filter is on the tunnel's device, and none leads into it."""
    assert not n.filters("tunnel"), n.filters()
    assert "its tunnel" in n.switch.appctl("heddle/offload"), n.switch.appctl("heddle/offload")


def in_software(n):
    """Checks that tc has the tunnel's filters both ways, and that the card has none."""
    assert not n.filters(), n.filters()
    shown = n.net.run(n.host, "sh", "-c", "for d in /sys/class/net/*; do tc filter show dev ${d##*/} ingress; done")
    assert "skip_hw" in shown and "tunnel_key" in shown, shown


def scenario_vxlan(lab):
    """VXLAN: pings of all sizes and a stream each way."""
    in_card(tunnelled(lab, "vxlan", f"vxlan id 77 local {THERE} remote {HERE} dstport 4789", key=77), "vxlan", True)


def scenario_vxlan_in_software(lab):
    """VXLAN with `tc-policy=skip_hw`: the same, by tc's software."""
    in_software(tunnelled(lab, "vxlan", f"vxlan id 77 local {THERE} remote {HERE} dstport 4789", "tc-policy=skip_hw", key=77))


def scenario_geneve(lab):
    """Geneve: pings of all sizes and a stream each way."""
    in_card(tunnelled(lab, "geneve", f"geneve id 77 remote {HERE} dstport 6081", key=77), "geneve", True)


def scenario_geneve_in_software(lab):
    """Geneve with `tc-policy=skip_hw`: the same, by tc's software."""
    in_software(tunnelled(lab, "geneve", f"geneve id 77 remote {HERE} dstport 6081", "tc-policy=skip_hw", key=77))


def scenario_gre(lab):
    """GRE with a key: pings of all sizes and a stream each way. With Heddle, workers forward them."""
    n = tunnelled(lab, "gre", f"gretap local {THERE} remote {HERE} key 77", key=77)
    if n.is_reference:
        in_card(n, "gre", False)
    else:
        by_workers(n)


def scenario_gre_in_software(lab):
    """GRE with a key with `tc-policy=skip_hw`: the same, by tc's software or Heddle's workers."""
    n = tunnelled(lab, "gre", f"gretap local {THERE} remote {HERE} key 77", "tc-policy=skip_hw", key=77)
    if n.is_reference:
        in_software(n)
    else:
        by_workers(n)


if __name__ == "__main__":
    main()
