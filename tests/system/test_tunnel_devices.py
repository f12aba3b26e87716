#!/usr/bin/env python3
"""Tunnels whose packets leave by a device that is in no bridge, as with the kernel's datapath."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from test_tunnels import POD_MTU, address, link, reach, transfer, tunnel

# The filter's place among the classifiers of a device.
PRIORITY = "18501"


def node(lab, number, v6=False, args=()):
    """A switch with br-int alone. Its host has the node's address at up0."""
    sw = lab.switch(*args, netns=False, start=False)
    sw.netns = lab.net.namespace(f"node{number}", ipv6=v6)
    sw.start()
    lab.bridge(sw, "br-int")
    return sw


def own(lab, ns, number, v6=False, dev="up0"):
    """Gives the device the node's address."""
    lab.net.ip(ns, "addr", "add", address(number, v6) + ("/64" if v6 else "/24"), "dev", dev, *(("nodad",) if v6 else ()))


def pod_of(lab, sw, number, **kw):
    pod = lab.veth_pod(sw, f"pod{number}", f"10.5.0.{number}/24", bridge="br-int", **kw)
    lab.net.ip(pod, "link", "set", "eth0", "mtu", str(POD_MTU))
    lab.net.ip(sw.netns, "link", "set", f"vpod{number}", "mtu", str(POD_MTU))
    return pod


def kernel_vxlan(lab, ns, local, remote, inner, key=77, dev="vx0", port=4789, more=()):
    """A VXLAN device of the kernel, as on a machine without a switch."""
    if "dstport" not in lab.net.ip(ns, "link", "add", dev, "type", "vxlan", "help", check=False):
        raise Skip("no vxlan here")
    lab.net.ip(ns, "link", "add", dev, "type", "vxlan", "id", str(key), "local", local, "remote", remote, "dstport", str(port), *more)
    lab.net.address(ns, dev, inner)
    lab.net.ip(ns, "link", "set", dev, "mtu", str(POD_MTU))


def status(sw, name="tun0"):
    return sw.get("interface", name, "status")


def wait_up(sw, dev="up0"):
    wait_for(f"an egress by {dev}", lambda: f"tunnel_egress_iface={dev}," in status(sw) and "error" not in status(sw), 30)


def n_filters(lab, sw, dev="up0"):
    return lab.net.run(sw.netns, "tc", "filter", "show", "dev", dev, "ingress").count(f"pref {PRIORITY} bpf chain 0 handle")


def is_error(frame):
    """Whether the frame is an ICMP error: destination unreachable."""
    if frame[12:14] == b"\x08\0":
        return frame[23] == 1 and frame[34] == 3
    return frame[12:14] == b"\x86\xdd" and frame[20] == 58 and frame[54] == 1


def one_switch(lab, kind="vxlan", **options):
    """A node with a tunnel to a kernel's VXLAN device at 172.31.0.2; returns the switch, its pod and the host."""
    sw = node(lab, 1)
    peer = lab.net.namespace("host")
    link(lab, sw.netns, peer)
    own(lab, sw.netns, 1)
    own(lab, peer, 2)
    kernel_vxlan(lab, peer, "172.31.0.2", "172.31.0.1", "10.5.0.2/24")
    tunnel(sw, kind, "172.31.0.2", **options)
    pod = pod_of(lab, sw, 1)
    wait_up(sw)
    return sw, pod, peer


def until_reply(lab, pod, target="10.5.0.2"):
    wait_for("an answer", lambda: lab.net.ping(pod, target, count=1, lossless=False) == 1, 30)


def two_switches(lab, kind, v6=False, **options):
    """Pings and TCP between pods; the hosts' own stacks stay silent and reach each other."""
    switches = [node(lab, number, v6) for number in (1, 2)]
    one, two = (sw.netns for sw in switches)
    link(lab, one, two)
    pods = []
    for number, sw in zip((1, 2), switches):
        own(lab, sw.netns, number, v6)
        tunnel(sw, kind, address(3 - number, v6), **options)
        pods.append(pod_of(lab, sw, number))
    for sw in switches:
        wait_up(sw)
        assert "carrier=up" in status(sw), status(sw)
        shown = sw.appctl("dpctl/show")
        assert re.search(r"port \d+: up0\b", shown), shown
        ends = sw.appctl("tnl/ports/show", "-v")
        assert address(1 if sw is switches[0] else 2, v6) in ends, ends
    wires = [lab.net.raw(ns, "up0") for ns in (one, two)]
    reach(lab, pods)
    lab.net.ping(one, address(2, v6))
    for wire in wires:
        wire.setblocking(False)
        assert receive(wire, is_error, 0.5) is None, "an ICMP error"
    for sw in switches:
        flows = sw.appctl("dpctl/dump-flows")
        assert re.search(r"tnl_push\(.*out_port\((up0|\d+)\)\),(up0|\d+)", flows), flows
        assert re.search(r"in_port\((up0|\d+)\).*actions:tnl_pop\(", flows), flows
        drops = sw.appctl("coverage/show")
        assert "tunnel_pop_error" not in drops and "tunnel_bad_csum" not in drops, drops
        # A tunnel is in use at both ends, and its device is released with it.
        assert n_filters(lab, sw) == 1
        sw.vsctl("del-port", "tun0")
        wait_for("the device to be the host's", lambda: n_filters(lab, sw) == 0)
        assert "up0: no tunnel uses this device any more" in sw.log()
        assert not re.search(r"port \d+: up0\b", sw.appctl("dpctl/show"))


@limit(240)
def scenario_geneve(lab):
    two_switches(lab, "geneve", csum="true")


@limit(240)
def scenario_geneve_over_ipv6(lab):
    two_switches(lab, "geneve", v6=True)


@limit(240)
def scenario_vxlan(lab):
    two_switches(lab, "vxlan")


@limit(240)
def scenario_gre(lab):
    two_switches(lab, "gre")


@limit(240)
def scenario_gre_over_ipv6(lab):
    two_switches(lab, "ip6gre", v6=True)


@limit(240)
def scenario_stt(lab):
    two_switches(lab, "stt")


@limit(240)
def scenario_flows_choose_the_remote_address(lab):
    """remote_ip=flow on both sides: the first packet may arrive before any was sent."""
    switches = [node(lab, number) for number in (1, 2)]
    link(lab, *(sw.netns for sw in switches))
    pods = []
    for number, sw in zip((1, 2), switches):
        own(lab, sw.netns, number)
        tunnel(sw, "geneve", "flow", key="flow")
        pods.append(pod_of(lab, sw, number))
        sw.ofctl("add-flow", "br-int", f"in_port=vpod{number},actions=set_field:5->tun_id,set_field:{address(3 - number, False)}->tun_dst,tun0")
        sw.ofctl("add-flow", "br-int", f"in_port=tun0,actions=vpod{number}")
    for sw in switches:
        wait_for("the device", lambda: re.search(r"port \d+: up0\b", sw.appctl("dpctl/show")), 30)
    reach(lab, pods)


@limit(240)
def scenario_the_kernel_at_the_other_end(lab):
    """GSO packets and checksums of both sides are right; no neighbour was known before."""
    sw, pod, peer = one_switch(lab, csum="true")
    wire = lab.net.raw(peer, "up0")
    reach(lab, (pod, peer))
    assert receive(wire, is_error, 0.5) is None
    assert sw.appctl("tnl/neigh/show").count("172.31.0.2") == 0, "the kernel's neighbours are used"


@limit(240)
def scenario_another_program_on_the_same_port(lab):
    """VXLAN devices of the kernel on this host, at the same UDP port with other remote addresses, keep working
    beside the switch's tunnel."""
    sw, pod, peer = one_switch(lab)
    other = lab.net.namespace("other")
    lab.net.veth(sw.netns, "up1", other, "up0")
    lab.net.ip(sw.netns, "addr", "add", "172.30.0.1/24", "dev", "up1")
    lab.net.ip(other, "addr", "add", "172.30.0.2/24", "dev", "up0")
    # The other machine is behind the tunnel's device as well.
    lab.net.ip(peer, "addr", "add", "172.31.0.3/24", "dev", "up0")
    kernel_vxlan(lab, sw.netns, "172.31.0.1", "172.31.0.3", "10.6.0.1/24", key=88, dev="vxk")
    kernel_vxlan(lab, peer, "172.31.0.3", "172.31.0.1", "10.6.0.2/24", key=88, dev="vxk")
    kernel_vxlan(lab, sw.netns, "172.30.0.1", "172.30.0.2", "10.7.0.1/24", key=99, dev="vxo")
    kernel_vxlan(lab, other, "172.30.0.2", "172.30.0.1", "10.7.0.2/24", key=99, dev="vxo")
    for _ in range(2):
        until_reply(lab, pod)
        lab.net.ping(pod, "10.5.0.2")
        for target in ("10.6.0.2", "10.7.0.2"):
            until_reply(lab, sw.netns, target)
            lab.net.ping(sw.netns, target)
    reach(lab, (pod, peer))
    drops = sw.appctl("coverage/show")
    assert "drop_action_no_tunnel_port" not in drops, drops


@limit(240)
def scenario_routes_that_move(lab):
    """The route leads to another device, to none, and back; a route that flaps opens and closes nothing. Replies
    arrive by the device that has the address."""
    sw, pod, peer = one_switch(lab, local_ip="172.31.0.1")
    until_reply(lab, pod)
    lab.net.veth(sw.netns, "up1", peer, "up1")
    lab.net.ip(sw.netns, "addr", "add", "172.29.0.1/24", "dev", "up1")
    lab.net.ip(peer, "addr", "add", "172.29.0.2/24", "dev", "up1")
    lab.net.ip(sw.netns, "route", "add", "172.31.0.2/32", "via", "172.29.0.2")
    for ns in (sw.netns, peer):
        for dev in ("all", "up0", "up1"):
            lab.net.run(ns, "sh", "-c", f"echo 0 > /proc/sys/net/ipv4/conf/{dev}/rp_filter")
    wait_up(sw, "up1")
    until_reply(lab, pod)
    time.sleep(11)  # a device that nothing needs is given back after ten seconds
    lab.net.ping(pod, "10.5.0.2")
    sent = lambda dev: int(lab.net.run(sw.netns, "cat", f"/sys/class/net/{dev}/statistics/tx_packets"))
    before = sent("up1")
    lab.net.ping(pod, "10.5.0.2", count=5)
    assert sent("up1") >= before + 5
    opened = sw.log().count("tunnels use this device")
    for _ in range(20):
        lab.net.ip(sw.netns, "route", "del", "172.31.0.2/32")
        lab.net.ip(sw.netns, "route", "add", "172.31.0.2/32", "via", "172.29.0.2")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2", count=5)
    assert sw.log().count("tunnels use this device") <= opened + 1, "flapping routes open devices"
    # No route at all, and back.
    lab.net.ip(sw.netns, "route", "replace", "unreachable", "172.31.0.2/32")
    lab.net.ip(sw.netns, "route", "del", "172.31.0.2/32", "via", "172.29.0.2", check=False)
    wait_for("no route", lambda: "no route to 172.31.0.2" in status(sw), 30)
    lab.net.ip(sw.netns, "route", "del", "unreachable", "172.31.0.2/32")
    wait_up(sw, "up0")
    until_reply(lab, pod)
    # The device that no route needs is the host's again after a while.
    wait_for("up1 to be closed", lambda: n_filters(lab, sw, "up1") == 0, 40)
    assert n_filters(lab, sw, "up0") == 1


@limit(240)
def scenario_devices_and_neighbours_that_change(lab):
    """The next hop gets another Ethernet address, the device another name, and is deleted and made again."""
    sw, pod, peer = one_switch(lab)
    until_reply(lab, pod)
    lab.net.ip(peer, "link", "set", "up0", "address", "02:00:00:00:00:0c")
    lab.net.ip(peer, "neigh", "flush", "dev", "up0")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    lab.net.ip(sw.netns, "link", "set", "up0", "address", "02:00:00:00:00:0d")
    lab.net.ip(peer, "neigh", "flush", "dev", "up0")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    lab.net.ip(sw.netns, "link", "set", "up0", "down")
    lab.net.ip(sw.netns, "link", "set", "up0", "name", "wan0")
    lab.net.ip(sw.netns, "link", "set", "wan0", "up")
    wait_up(sw, "wan0")
    until_reply(lab, pod)
    lab.net.ip(sw.netns, "link", "del", "wan0")
    wait_for("no route", lambda: "tunnel_egress_error" in status(sw), 30)
    link(lab, sw.netns, peer)
    own(lab, sw.netns, 1)
    own(lab, peer, 2)
    wait_up(sw)
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    assert sw.alive()


@limit(240)
def scenario_the_device_becomes_a_port(lab):
    """A bridge takes the device, with the address, and gives it back."""
    sw, pod, _ = one_switch(lab)
    until_reply(lab, pod)
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/up0/address").strip()
    lab.bridge(sw, "br-ex", f"other_config:hwaddr={mac}")
    lab.net.ip(sw.netns, "addr", "flush", "dev", "up0")
    sw.vsctl("add-port", "br-ex", "up0")
    lab.net.address(sw.netns, "br-ex", "172.31.0.1/24")
    wait_up(sw, "br-ex")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    lab.net.ping(sw.netns, "172.31.0.2")
    sw.vsctl("del-br", "br-ex")
    own(lab, sw.netns, 1)
    wait_up(sw)
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    lab.net.ping(sw.netns, "172.31.0.2")


def outer(source, destination, port=4789):
    """A VXLAN packet of another network, as the kernel would send it."""
    inner = frames.ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", 0x9000, b"x" * 60)
    header = b"\x08\0\0\0" + (4711).to_bytes(3, "big") + b"\0"
    return frames.ipv4(source, destination, 17, frames.udp(source, destination, 5000, port, header + inner))


@limit(240)
def scenario_the_host_is_silent_while_the_switch_is_down(lab):
    """No ICMP error replies to a tunnel's packets when the switch ends, is killed and starts again. The next
    switch takes its filters over, or removes them."""
    sw, pod, peer = one_switch(lab)
    until_reply(lab, pod)
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/up0/address").strip()
    theirs = lab.net.run(peer, "cat", "/sys/class/net/up0/address").strip()
    wire = lab.net.raw(peer, "up0")

    def errors(source="172.31.0.2", port=4789):
        frame = frames.ethernet(mac, theirs, 0x0800, outer(source, "172.31.0.1", port))
        while receive(wire, lambda _: True, 0.05):
            pass
        for _ in range(3):
            wire.send(frame)
        return receive(wire, is_error, 1) is not None
    # Packets of another sender are the host's, and no program there has opened the port.
    lab.net.ip(sw.netns, "neigh", "replace", "172.31.0.9", "lladdr", theirs, "dev", "up0")
    assert errors(source="172.31.0.9"), "the host does not reply at all"
    assert errors(port=4790)
    assert not errors()
    for sig in (signal.SIGTERM, signal.SIGKILL):
        sw.stop_daemon(sig)
        assert n_filters(lab, sw) == 1
        assert not errors(), sig
        sw.start_daemon()
        wait_up(sw)
        until_reply(lab, pod)
        assert n_filters(lab, sw) == 1 and not errors(), sig
    # The tunnel goes while no switch runs.
    sw.stop_daemon(signal.SIGKILL)
    sw.vsctl("--no-wait", "del-port", "tun0")
    sw.start_daemon()
    wait_for("the device to be the host's", lambda: n_filters(lab, sw) == 0, 30)
    assert errors()
    # The end with --cleanup gives the device back.
    tunnel(sw, "vxlan", "172.31.0.2")
    wait_up(sw)
    until_reply(lab, pod)
    pid, sw.pid = sw.pid, None
    sw.appctl("exit", "--cleanup")
    wait_for("the switch to end", lambda: not os.path.exists(f"/proc/{pid}"))
    assert n_filters(lab, sw) == 0


@limit(240)
def scenario_filters_of_others_stay(lab):
    """Classifiers of another program at the device are left alone."""
    sw = node(lab, 1)
    peer = lab.net.namespace("host")
    link(lab, sw.netns, peer)
    own(lab, sw.netns, 1)
    own(lab, peer, 2)
    lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "up0", "clsact")
    lab.net.run(sw.netns, "tc", "filter", "add", "dev", "up0", "ingress", "protocol", "all", "prio", "7", "bpf", "da", "bytecode", "1,6 0 0 4294967295,")
    tunnel(sw, "vxlan", "172.31.0.2")
    wait_up(sw)
    shown = lambda: lab.net.run(sw.netns, "tc", "filter", "show", "dev", "up0", "ingress")
    wait_for("the filter", lambda: n_filters(lab, sw) == 1)
    assert "pref 7 bpf" in shown(), shown()
    sw.vsctl("del-port", "tun0")
    wait_for("the device to be the host's", lambda: n_filters(lab, sw) == 0)
    assert "pref 7 bpf" in shown(), shown()


@limit(240)
def scenario_mtu_of_the_path(lab):
    """The device's MTU and the route's are those of outer packets. Senders of longer ones get an ICMP error, which comes
    out of the tunnel for rules; packets that get none are dropped by name."""
    sw, pod, peer = one_switch(lab)
    until_reply(lab, pod)
    for ns in (sw.netns, peer):
        lab.net.ip(ns, "link", "set", "up0", "mtu", "1400")
    ping = lambda fragments: lab.net.run(pod, "ping", "-n", "-c", "1", "-W", "1", "-M", fragments, "-s", str(POD_MTU - 28),
                                         "10.5.0.2", check=False)
    forget = lambda: lab.net.ip(pod, "route", "flush", "cache")
    wait_for("the MTU of the device", lambda: re.search(r"mtu ?= ?1350", ping("do")), 30, 0.2)
    lab.net.ping(pod, "10.5.0.2", size=1350 - 28, df=True)
    lab.net.ip(sw.netns, "route", "replace", "172.31.0.0/24", "dev", "up0", "src", "172.31.0.1", "mtu", "1300")

    def is_1250():
        forget()
        return re.search(r"mtu ?= ?1250", ping("do"))
    wait_for("the MTU of the route", is_1250, 30, 0.2)
    transfer(lab, pod, peer, "10.5.0.1")
    counted = lambda: int(sw.appctl("coverage/read-counter", "datapath_drop_tunnel_mtu") or 0)
    forget()
    before = counted()
    ping("dont")
    wait_for("the drop's name", lambda: counted() > before, 10, 0.2)
    sw.ofctl("add-flow", "br-int", "priority=9,in_port=tun0,icmp,icmp_type=3,icmp_code=4,nw_src=10.5.0.2,tun_src=172.31.0.2,actions=drop")
    forget()
    assert not re.search(r"mtu ?=", ping("do"))
    wait_for("an error by the rule", lambda: "n_packets=0," not in sw.ofctl("dump-flows", "br-int", "icmp"), 10, 0.2)


def narrow_path(lab, v6=False, bridge=False):
    """A node, a router and a host. The link behind the router carries packets of 1300 bytes, or 1400 over IPv6. The
    node has a tunnel of the switch and a VXLAN device of its kernel to two addresses of the host."""
    sw, router, peer = node(lab, 1, v6), lab.net.namespace("router", ipv6=v6), lab.net.namespace("host", ipv6=v6)
    link(lab, sw.netns, router)
    lab.net.veth(router, "up1", peer, "up0")
    mtu = 1400 if v6 else 1300
    lab.net.ip(router, "link", "set", "up1", "mtu", str(mtu))
    lab.net.ip(peer, "link", "set", "up0", "mtu", str(mtu))
    lab.net.run(router, "sh", "-c", f"echo 1 > /proc/sys/net/{'ipv6/conf/all/forwarding' if v6 else 'ipv4/ip_forward'}")
    lab.net.run(sw.netns, "sh", "-c", f"echo 20 > /proc/sys/net/{'ipv6' if v6 else 'ipv4'}/route/mtu_expires")
    dev = "br-ex" if bridge else "up0"
    if bridge:
        lab.bridge(sw, "br-ex")
        sw.vsctl("add-port", "br-ex", "up0")
        lab.net.ip(sw.netns, "link", "set", "br-ex", "up")
    own(lab, sw.netns, 1, v6, dev)
    own(lab, router, 254, v6)
    far = (lambda n: f"fd01::{n}") if v6 else (lambda n: f"172.30.0.{n}")
    give = lambda ns, n, dev: lab.net.ip(ns, "addr", "add", far(n) + ("/64" if v6 else "/24"), "dev", dev, *(("nodad",) if v6 else ()))
    give(router, 254, "up1")
    for n in (2, 3):
        give(peer, n, "up0")
    family = ("-6",) if v6 else ()
    lab.net.ip(sw.netns, *family, "route", "add", far(0) + ("/64" if v6 else "/24"), "via", address(254, v6))
    lab.net.ip(peer, *family, "route", "add", "default", "via", far(254))
    kernel_vxlan(lab, peer, far(2), address(1, v6), "10.5.0.2/24")
    kernel_vxlan(lab, peer, far(3), address(1, v6), "10.6.0.2/24", key=88, dev="vxk")
    kernel_vxlan(lab, sw.netns, address(1, v6), far(3), "10.6.0.1/24", key=88, dev="vxk", more=() if v6 else ("df", "set"))
    tunnel(sw, "vxlan", far(2))
    pod = pod_of(lab, sw, 1)
    wait_up(sw, dev)
    until_reply(lab, pod)
    return sw, pod, router, peer, far


def reported_mtu(lab, ns, target):
    """The MTU that a sender of too long packets learns; such packets are lost until then."""
    def mtu():
        out = lab.net.run(ns, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(POD_MTU - 28), target, check=False)
        found = re.search(r"mtu ?= ?(\d+)", out)
        return int(found[1]) if found else None
    return wait_for(f"an MTU on the way to {target}", mtu, 30, 0.2)


def path_mtu(sw, target):
    found = re.search(r"^path_mtu (\d+)$", sw.appctl("ovs/route/lookup", target), re.M)
    return int(found[1]) if found else None


def narrow(lab, mtu, outer_len, **where):
    """A router reports its MTU. The switch's senders learn the same as those of the kernel's tunnel device, and it is
    forgotten after the same time."""
    sw, pod, router, peer, far = narrow_path(lab, **where)
    assert path_mtu(sw, far(2)) is None
    inner = reported_mtu(lab, pod, "10.5.0.2")
    assert inner == mtu - outer_len, inner
    # Over a bridge, packets to the port of the switch's tunnels are all the switch's.
    if not where.get("bridge"):
        assert reported_mtu(lab, sw.netns, "10.6.0.2") == inner, "the kernel's device reports something else"
    assert path_mtu(sw, far(2)) == mtu and path_mtu(sw, far(9)) is None
    assert re.search(rf"the path to {far(2)} by \S+ carries packets of {mtu} bytes \(ICMP error of {address(254, where.get('v6', False))}\)", sw.log())
    assert int(sw.appctl("coverage/read-counter", "tunnel_path_mtu")) == 1
    transfer(lab, peer, pod, "10.5.0.2")
    transfer(lab, pod, peer, "10.5.0.1")
    wait_for("the MTU to be forgotten", lambda: path_mtu(sw, far(2)) is None, 40)
    return sw, pod, router, peer, far


@limit(240)
def scenario_routers_report_the_mtu_of_a_path(lab):
    narrow(lab, 1300, 50)


@limit(240)
def scenario_routers_report_the_mtu_of_a_path_over_ipv6(lab):
    narrow(lab, 1400, 70, v6=True)


@limit(240)
def scenario_routers_report_the_mtu_of_a_path_by_a_bridge(lab):
    narrow(lab, 1300, 50, bridge=True)


@limit(240)
def scenario_forged_reports_of_an_mtu(lab):
    """Only errors count that quote outer headers of the tunnel. The MTU does not become smaller than the kernel's."""
    sw, pod, router, peer, far = narrow_path(lab)
    own_mac, its_mac = (lab.net.run(ns, "cat", "/sys/class/net/up0/address").strip() for ns in (sw.netns, router))
    wire = lab.net.raw(router, "up0")

    def report(source="172.31.0.1", destination="172.30.0.2", port=4789, proto=17, mtu=1200, kind=3, code=4, damage=False):
        quote = frames.ipv4(source, destination, proto, frames.udp(source, destination, 5000, port, b"x" * 20), frag=0x4000)
        error = bytearray(frames.icmp(kind, code, b"\0\0" + mtu.to_bytes(2, "big") + quote))
        error[-1] ^= damage
        wire.send(frames.ethernet(own_mac, its_mac, 0x0800, frames.ipv4("172.31.0.254", "172.31.0.1", 1, bytes(error))))
    for wrong in (dict(source="172.31.0.7"), dict(destination="172.30.0.7"), dict(port=6081), dict(proto=6), dict(proto=47), dict(code=3),
                  dict(kind=11), dict(mtu=1500), dict(mtu=9000), dict(damage=True)):
        report(**wrong)
    # A flood of them takes no worker's time, and the right one behind it is not lost for ever.
    for n in range(20000):
        report(destination=f"172.30.{n >> 8 & 255}.{n & 255}" if n & 0xffff != 2 else "172.30.9.9")
    time.sleep(1)
    assert path_mtu(sw, far(2)) is None
    report()
    wait_for("the right one", lambda: path_mtu(sw, far(2)) == 1200, 10, 0.2)
    report(mtu=1250)
    report(mtu=68)
    wait_for("the minimum", lambda: path_mtu(sw, far(2)) == 552, 10, 0.2)
    lab.net.ping(pod, "10.5.0.2", size=552 - 50 - 28)
    assert sw.alive()


def odd_outer_packets(lab, sw, pod, peer, dev):
    """Echo requests that come in outer packets with a priority tag, or with IPv4 options. The pod replies to all that the
    kernel's tunnel device would take."""
    read = lambda ns, dev: lab.net.run(ns, "cat", f"/sys/class/net/{dev}/address").strip()
    wire = lab.net.raw(peer, "up0")
    mac = lambda text: bytes.fromhex(text.replace(":", ""))

    def replies(ident, vlans=(), options=b""):
        echo = frames.icmp(8, 0, ident.to_bytes(2, "big") + b"\0\1abcdefgh")
        inner = frames.ethernet(read(pod, "eth0"), read(peer, "vx0"), 0x0800, frames.ipv4("10.5.0.2", "10.5.0.1", 1, echo))
        udp = frames.udp("172.31.0.2", "172.31.0.1", 5000, 4789, b"\x08\0\0\0" + (77).to_bytes(3, "big") + b"\0" + inner)
        packet = frames.ipv4("172.31.0.2", "172.31.0.1", 17, udp, options=options)
        wire.send(frames.ethernet(read(sw.netns, dev), read(peer, "up0"), 0x0800, packet, vlans=vlans))
        reply = ident.to_bytes(2, "big") + b"\0\1abcdefgh"
        return receive(wire, lambda f: f[:6] == mac(read(peer, "up0")) and f[12:14] == b"\x08\0" and reply in f[50:], 2) is not None
    assert replies(1)
    assert replies(2, vlans=((0x8100, 0),)) and replies(3, vlans=((0x8100, 5 << 13),))
    assert not replies(4, vlans=((0x8100, 5),)), "frames of a VLAN are not the device's"
    assert replies(5, options=bytes([148, 4, 0, 0])) and replies(6, options=bytes([1, 1, 1, 0]))
    assert replies(7, vlans=((0x8100, 3 << 13),), options=bytes([148, 4, 0, 0]))
    before = int(sw.appctl("coverage/read-counter", "datapath_drop_tunnel_pop_error") or 0)
    assert not replies(8, options=bytes([131, 7, 4, 10, 0, 0, 1, 0])), "a source route"
    wait_for("the drop's name", lambda: int(sw.appctl("coverage/read-counter", "datapath_drop_tunnel_pop_error")) > before, 10, 0.2)
    assert replies(9)


@limit(240)
def scenario_priority_tags_and_options_outside(lab):
    sw, pod, peer = one_switch(lab)
    until_reply(lab, pod)
    odd_outer_packets(lab, sw, pod, peer, "up0")


@limit(240)
def scenario_priority_tags_and_options_outside_by_a_bridge(lab):
    """Also the reason in the status while the device is a port of a bridge and keeps its address."""
    sw, pod, peer = one_switch(lab)
    until_reply(lab, pod)
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/up0/address").strip()
    lab.bridge(sw, "br-ex", f"other_config:hwaddr={mac}")
    sw.vsctl("add-port", "br-ex", "up0")
    wait_for("the reason", lambda: "leads to up0, a port of br-ex: its address belongs on br-ex" in status(sw), 30)
    lab.net.ip(sw.netns, "addr", "flush", "dev", "up0")
    lab.net.address(sw.netns, "br-ex", "172.31.0.1/24")
    wait_up(sw, "br-ex")
    until_reply(lab, pod)
    odd_outer_packets(lab, sw, pod, peer, "br-ex")


@limit(240)
def scenario_reasons_in_the_status(lab):
    """An own address, a loopback device and a device without Ethernet frames have one line each. Other tunnels
    continue to work."""
    sw, pod, _ = one_switch(lab)
    until_reply(lab, pod)
    lab.net.ip(sw.netns, "tuntap", "add", "dev", "l3", "mode", "tun")
    lab.net.address(sw.netns, "l3", "172.28.0.1/24")
    lab.net.ip(sw.netns, "route", "add", "172.27.0.0/16", "dev", "lo")
    for remote, why in (("172.31.0.1", "172.31.0.1 is an address of this host"),
                        ("172.28.0.2", "its frames have no Ethernet header"),
                        ("172.27.0.2", "a loopback device cannot be a port")):
        name = f"bad{remote.split('.')[1]}"
        sw.vsctl("add-port", "br-int", name, "--", "set", "interface", name, "type=vxlan", f"options:remote_ip={remote}", "options:key=9")
        wait_for(f"a reason for {remote}", lambda: why in status(sw, name), 30)
    time.sleep(3)
    for dev in ("l3", "lo"):
        assert sw.log().count(f"{dev}: tunnels cannot use this device") == 1, sw.log()
    lab.net.ping(pod, "10.5.0.2")


@limit(240)
def scenario_a_thousand_tunnels(lab):
    """A thousand tunnels over one device: one filter has all of them, and the last one forwards."""
    sw, pod, peer = one_switch(lab)
    lab.net.ip(sw.netns, "route", "add", "172.16.0.0/12", "dev", "up0")
    words = []
    for n in range(1000):
        name, remote = f"many{n}", f"172.20.{n // 200}.{n % 200 + 1}"
        words += ["--", "add-port", "br-int", name, "--", "set", "interface", name, "type=geneve", f"options:remote_ip={remote}", "options:key=5"]
    sw.vsctl(*words[1:], timeout=200)
    wait_for("the last one", lambda: "tunnel_egress_iface=up0" in status(sw, "many999"), 60)
    assert n_filters(lab, sw) == 1
    until_reply(lab, pod)
    lab.net.ping(pod, "10.5.0.2")
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/up0/address").strip()
    theirs = lab.net.run(peer, "cat", "/sys/class/net/up0/address").strip()
    wire = lab.net.raw(peer, "up0")
    received = lambda: int(re.search(r"rx pkts=(\d+)", sw.ofctl("dump-ports", "br-int", "many999"))[1])
    before = received()
    inner = frames.ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", 0x9000, b"x" * 60)
    geneve = b"\0\0\x65\x58" + (5).to_bytes(3, "big") + b"\0"
    source = "172.20.4.200"
    packet = frames.ipv4(source, "172.31.0.1", 17, frames.udp(source, "172.31.0.1", 5000, 6081, geneve + inner))

    def arrives():
        wire.send(frames.ethernet(mac, theirs, 0x0800, packet))
        return received() > before
    wait_for("a packet of the last tunnel", arrives, 30, 0.3)


@limit(240)
def scenario_offload_beside_another_program(lab):
    """With hw-offload, the kernel forwards this tunnel, and its own VXLAN device at the same UDP port works beside it. Workers
    forward what arrives while another program has a filter there."""
    sw = node(lab, 1)
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true")
    sw.stop_daemon()
    sw.start_daemon()
    peer = lab.net.namespace("host")
    link(lab, sw.netns, peer)
    own(lab, sw.netns, 1)
    own(lab, peer, 2)
    lab.net.ip(peer, "addr", "add", "172.31.0.3/24", "dev", "up0")
    kernel_vxlan(lab, peer, "172.31.0.2", "172.31.0.1", "10.5.0.2/24")
    kernel_vxlan(lab, sw.netns, "172.31.0.1", "172.31.0.3", "10.6.0.1/24", key=88, dev="vxk")
    kernel_vxlan(lab, peer, "172.31.0.3", "172.31.0.1", "10.6.0.2/24", key=88, dev="vxk")
    tunnel(sw, "vxlan", "172.31.0.2")
    pod = pod_of(lab, sw, 1)
    wait_up(sw)
    reach(lab, (pod, peer))
    if "eBPF is off" in sw.log():
        raise Skip("no eBPF here")
    lab.net.ping(pod, "10.5.0.2", count=20)
    until_reply(lab, sw.netns, "10.6.0.2")
    lab.net.ping(sw.netns, "10.6.0.2")

    def pop():
        shown = sw.appctl("heddle/offload", "in_port=up0", check=False)
        return re.search(r"tnl_pop\(.*\n  (.*)", shown)
    lab.net.ping(pod, "10.5.0.2", count=20)
    assert pop()[1] == "offloaded to ebpf", pop()
    lab.net.run(sw.netns, "tc", "filter", "add", "dev", "up0", "ingress", "protocol", "all", "prio", "20000", "bpf", "da", "bytecode", "1,6 0 0 4294967295,")
    taken = lambda: lab.net.ping(pod, "10.5.0.2", count=2, lossless=False) and pop() and "not offloaded" in pop()[1]
    wait_for("workers to forward what arrives", taken, 60, 1)
    reach(lab, (pod, peer))
    until_reply(lab, sw.netns, "10.6.0.2")
    lab.net.run(sw.netns, "tc", "filter", "del", "dev", "up0", "ingress", "prio", "20000")
    wait_for("the kernel to forward it", lambda: lab.net.ping(pod, "10.5.0.2", count=5, lossless=False) and pop() and "not" not in pop()[1], 60, 1)


if __name__ == "__main__":
    main()
