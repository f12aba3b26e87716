#!/usr/bin/env python3
"""Tunnels over a device with an address that is in no bridge, as the kernel's datapath has them."""

import errno
import os
import re
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.parity.node import Node
from lab.runner import Skip, limit, main
from lab.shell import wait_for

POD, BEHIND = "10.5.0.1", "10.5.0.2"  # the pod of the switch, and the address behind the other end
HERE4, THERE4, HERE6, THERE6 = "172.31.0.1", "172.31.0.2", "fd00:31::1", "fd00:31::2"
LOOP_HERE, LOOP_THERE = "172.31.9.1", "172.31.9.2"
KIND = {"geneve": "udp dport 6081", "vxlan": "udp dport 4789", "gre": "ip protocol gre"}


class Underlay:
    """A switch with a pod, the host's device u0 in no bridge, and the namespace `peer` with tunnels of the kernel."""

    def __init__(self, lab):
        self.lab, self.node = lab, Node(lab)
        n = self.node
        self.pod, self.peer = n.pod("pod", f"{POD}/24"), n.namespace("peer")
        n.wire("u0", self.peer, "eth0", f"{THERE4}/24", f"{THERE6}/64")
        n.up(n.host, "u0", f"{HERE4}/24", f"{HERE6}/64")
        n.net.ip(self.pod, "link", "set", "eth0", "mtu", "1400")
        # The replies of the host's stack if it, and not the switch, gets packets of a tunnel.
        n.nft(self.peer, ["refused", "first", "second"],
              "chain in { type filter hook input priority filter; icmp type destination-unreachable counter name refused; "
              "icmpv6 type destination-unreachable counter name refused; }",
              "chain pre { type filter hook prerouting priority filter; iifname eth0 udp dport 6081 counter name first; "
              "iifname eth1 udp dport 6081 counter name second; }")

    def tunnel(self, kind, remote=THERE4, device=f"geneve id 77 remote {HERE4} dstport 6081", key="77", **options):
        """A tunnel of the switch, and the peer's device for it."""
        n = self.node
        n.switch.vsctl("add-port", "br0", "tun0", "--", "set", "interface", "tun0", f"type={kind}",
                       f"options:remote_ip={remote}", f"options:key={key}",
                       *(f"options:{name}={value}" for name, value in options.items()))
        self.end(device)

    def end(self, device):
        """The peer's device, in the place of the one before."""
        net = self.node.net
        net.ip(self.peer, "link", "del", "tun9", check=False)
        net.ip(self.peer, "link", "add", "tun9", "type", *device.split())
        net.ip(self.peer, "link", "set", "tun9", "mtu", "1400", "address", "02:00:00:00:00:99")
        self.node.up(self.peer, "tun9", f"{BEHIND}/24")

    def meet(self, seconds=15):
        """Waits for the first reply through the tunnel."""
        wait_for("an answer through the tunnel", lambda: self.node.net.ping(self.pod, BEHIND, count=1, lossless=False), seconds, 0.3)

    def works(self):
        """Pings of all sizes and a stream each way; the host's stack refuses nothing."""
        self.meet()
        before = self.node.packets(self.peer, "refused")
        for size in (8, 1372):
            self.node.net.ping(self.pod, BEHIND, size=size, df=True)
        self.node.stream(self.pod, self.peer, BEHIND, 7000)
        self.node.stream(self.peer, self.pod, POD, 7001)
        refused = self.node.packets(self.peer, "refused") - before
        assert refused == 0, f"{refused} packets of the tunnel were answered by ICMP errors"


def scenario_geneve(lab):
    """Geneve as OVN configures it: pings, streams, no ICMP error of the host's stack."""
    u = Underlay(lab)
    u.tunnel("geneve", key="flow", csum="true")
    u.node.flows("priority=0,actions=NORMAL", "priority=10,in_port=pod,actions=set_field:77->tun_id,tun0")
    u.works()


def scenario_geneve_over_ipv6(lab):
    """Geneve between addresses of IPv6."""
    u = Underlay(lab)
    u.tunnel("geneve", THERE6, f"geneve id 77 remote {HERE6} dstport 6081", csum="true")
    u.works()


def scenario_vxlan(lab):
    """VXLAN: pings, streams, no ICMP error of the host's stack."""
    u = Underlay(lab)
    u.tunnel("vxlan", device=f"vxlan id 77 local {THERE4} remote {HERE4} dstport 4789")
    u.works()


def scenario_gre(lab):
    """GRE with a key: pings, streams, no ICMP error of the host's stack."""
    u = Underlay(lab)
    u.tunnel("gre", device=f"gretap local {THERE4} remote {HERE4} key 77")
    u.works()


def scenario_remote_set_by_a_flow(lab):
    """A tunnel with remote_ip=flow: flows set the other end's address."""
    u = Underlay(lab)
    u.tunnel("geneve", remote="flow", key="flow")
    u.node.flows("priority=0,actions=drop", "in_port=tun0,actions=pod",
                 f"in_port=pod,actions=set_field:77->tun_id,set_field:{THERE4}->tun_dst,tun0")
    u.works()


def two_ways(u):
    """A second device u1, and addresses of the loopback devices that both routes lead to."""
    n = u.node
    n.wire("u1", u.peer, "eth1", "172.31.1.2/24")
    n.up(n.host, "u1", "172.31.1.1/24")
    n.up(n.host, "lo", f"{LOOP_HERE}/32")
    n.up(u.peer, "lo", f"{LOOP_THERE}/32")
    n.net.ip(u.peer, "route", "add", LOOP_HERE, "via", HERE4, "src", LOOP_THERE)
    u.tunnel("geneve", LOOP_THERE, f"geneve id 77 remote {LOOP_HERE} dstport 6081", local_ip=LOOP_HERE)


def arrives(u, counter, seconds=15):
    """Waits until pings have replies and the outer packets come in by the device of that counter."""
    def probe():
        before = u.node.packets(u.peer, counter)
        return u.node.net.ping(u.pod, BEHIND, count=2, lossless=False) == 2 and u.node.packets(u.peer, counter) >= before + 2
    wait_for(f"pings by the {counter} device", probe, seconds, 0.3)


def scenario_route_changes(lab):
    """Outer packets follow the route: to another device, away, and back."""
    u = Underlay(lab)
    two_ways(u)
    ip = u.node.net.ip
    ip(u.node.host, "route", "add", LOOP_THERE, "via", THERE4)
    arrives(u, "first")
    ip(u.node.host, "route", "replace", LOOP_THERE, "via", "172.31.1.2")
    arrives(u, "second")
    ip(u.node.host, "route", "del", LOOP_THERE)
    wait_for("pings to end", lambda: not u.node.net.ping(u.pod, BEHIND, count=1, lossless=False), 15, 0.3)
    ip(u.node.host, "route", "add", LOOP_THERE, "via", THERE4)
    arrives(u, "first")


def scenario_device_goes_down(lab):
    """The device of the best route goes down: outer packets take the other route."""
    u = Underlay(lab)
    two_ways(u)
    ip = u.node.net.ip
    ip(u.node.host, "route", "add", LOOP_THERE, "via", THERE4, "metric", "10")
    ip(u.node.host, "route", "add", LOOP_THERE, "via", "172.31.1.2", "metric", "20")
    arrives(u, "first")
    ip(u.peer, "route", "replace", LOOP_HERE, "via", "172.31.1.1", "src", LOOP_THERE)
    ip(u.node.host, "link", "set", "u0", "down")
    arrives(u, "second")


def scenario_neighbour_changes_its_mac(lab):
    """The other end gets another Ethernet address without announcing it: the kernel's neighbour table finds out."""
    u = Underlay(lab)
    u.node.sysctl(u.node.host, *(f"net.ipv4.neigh.u0.{name}={value}" for name, value in
                                 (("base_reachable_time_ms", 1000), ("delay_first_probe_time", 1), ("retrans_time_ms", 300))))
    u.tunnel("geneve")
    u.meet()
    u.node.net.ip(u.peer, "link", "set", "eth0", "address", "02:00:00:00:31:02")
    u.meet(40)
    u.works()


def scenario_address_changes(lab):
    """The host's address changes on its device: the next packets leave from the new one, and are taken at it."""
    u = Underlay(lab)
    u.tunnel("geneve")
    u.meet()
    ip = u.node.net.ip
    ip(u.node.host, "addr", "add", "172.31.0.11/24", "dev", "u0")
    ip(u.node.host, "addr", "del", f"{HERE4}/24", "dev", "u0")
    # With the first address of a network the kernel removes the others.
    if "172.31.0.11" not in ip(u.node.host, "-4", "addr", "show", "dev", "u0"):
        ip(u.node.host, "addr", "add", "172.31.0.11/24", "dev", "u0")
    u.end("geneve id 77 remote 172.31.0.11 dstport 6081")
    u.works()


def scenario_address_moves_to_a_bridge(lab):
    """The device becomes a port and its address moves to the bridge, as OVN-Kubernetes does, and back."""
    u = Underlay(lab)
    n = u.node
    u.tunnel("geneve")
    u.works()
    n.bridge("br-ex")
    n.switch.vsctl("add-port", "br-ex", "u0")
    n.net.ip(n.host, "addr", "del", f"{HERE4}/24", "dev", "u0")
    n.net.ip(n.host, "link", "set", "br-ex", "address", n.mac(n.host, "u0"))
    n.up(n.host, "br-ex", f"{HERE4}/24")
    n.net.ip(u.peer, "neigh", "flush", "all")
    u.works()
    n.net.ip(n.host, "addr", "del", f"{HERE4}/24", "dev", "br-ex")
    n.switch.vsctl("del-br", "br-ex")
    n.up(n.host, "u0", f"{HERE4}/24")
    u.works()


def small_route(u):
    u.tunnel("geneve")
    u.meet()
    u.node.net.ip(u.node.host, "route", "replace", "172.31.0.0/24", "dev", "u0", "src", HERE4, "mtu", "1300")


def scenario_too_large_for_the_route(lab):
    """A pod whose packets (with DF) exceed the MTU of the tunnel's route gets the ICMP error with the size that fits."""
    u = Underlay(lab)
    small_route(u)
    out = u.node.net.run(u.pod, "ping", "-n", "-c", "3", "-i", "0.5", "-W", "2", "-M", "do", "-s", "1350", BEHIND, check=False)
    assert re.search(r"mtu ?= ?12[0-9][0-9]", out), out
    u.node.stream(u.pod, u.peer, BEHIND, 7000, size=1 << 18)


def scenario_fragments_of_outer_packets(lab):
    """With df_default=false, outer packets beyond the MTU of the route are fragmented, and arrive."""
    u = Underlay(lab)
    small_route(u)
    u.node.switch.vsctl("set", "interface", "tun0", "options:df_default=false")
    wait_for("a large ping to be answered", lambda: u.node.net.run(
        u.pod, "ping", "-n", "-c", "1", "-W", "2", "-M", "dont", "-s", "1350", BEHIND, check=False).count(" 1 received"), 15, 0.3)


def scenario_tunnels_through_the_host_are_forwarded(lab):
    """Geneve between two other hosts that this host routes passes through it, beside its own tunnel."""
    u = Underlay(lab)
    n = u.node
    u.tunnel("geneve")
    third = n.namespace("third")
    n.wire("u2", third, "eth0", "172.31.2.2/24")
    n.up(n.host, "u2", "172.31.2.1/24")
    n.sysctl(n.host, "net.ipv4.ip_forward=1")
    n.net.ip(third, "route", "add", "default", "via", "172.31.2.1")
    n.net.ip(u.peer, "route", "add", "172.31.2.0/24", "via", HERE4)
    for ns, remote, last in ((u.peer, "172.31.2.2", 1), (third, THERE4, 2)):
        n.net.ip(ns, "link", "add", "tun8", "type", "geneve", "id", "77", "remote", remote, "dstport", "6081")
        n.up(ns, "tun8", f"10.8.0.{last}/24")
    u.meet()
    n.net.ping(u.peer, "10.8.0.2")


def other_program(lab, make):
    """A tunnel, and what another program opens on its UDP port; Skip where the switch has the port alone."""
    u = Underlay(lab)
    n = u.node
    n.net.ip(u.peer, "addr", "add", "172.31.0.3/24", "dev", "eth0")
    u.tunnel("vxlan", device=f"vxlan id 77 local {THERE4} remote {HERE4} dstport 4789")
    wait_for("the tunnel's port", lambda: n.switch.get("interface", "tun0", "ofport") not in ("[]", "-1"))
    made = make(u)
    u.works()
    return u, made


def scenario_another_program_on_the_port(lab):
    """A program's UDP socket on the tunnel's port gets what matches none of the switch's tunnels."""
    def listen(u):
        def make():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind(("0.0.0.0", 4789))
            sock.settimeout(10)
            return sock
        try:
            return u.node.net.socket(u.node.host, make)
        except OSError as exc:
            if exc.errno == errno.EADDRINUSE:
                raise Skip("this switch has the port for itself") from None
            raise
    u, listener = other_program(lab, listen)
    with listener:
        with u.node.net.socket(u.peer, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
            sender.bind(("172.31.0.3", 0))
            sender.sendto(b"not for the switch", (HERE4, 4789))
        assert listener.recv(100) == b"not for the switch", "the program got a packet of the switch's tunnel"


def scenario_another_tunnel_on_the_port(lab):
    """A VXLAN device of the kernel on the same UDP port, to another remote, works beside the switch's tunnel."""
    def add(u):
        net, host = u.node.net, u.node.host
        net.ip(host, "link", "add", "vx9", *f"type vxlan id 9 local {HERE4} remote 172.31.0.3 dstport 4789".split())
        net.ip(host, "addr", "add", "10.8.0.1/24", "dev", "vx9")
        if "in use" in net.ip(host, "link", "set", "vx9", "up", check=False):
            raise Skip("this switch has the port for itself")
    u, _ = other_program(lab, add)
    u.node.net.ip(u.peer, "link", "add", "vx9", *f"type vxlan id 9 local 172.31.0.3 remote {HERE4} dstport 4789".split())
    u.node.up(u.peer, "vx9", "10.8.0.2/24")
    u.node.net.ping(u.node.host, "10.8.0.2")


if __name__ == "__main__":
    main()
