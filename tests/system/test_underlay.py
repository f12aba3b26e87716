#!/usr/bin/env python3
"""Routes and neighbours for tunnels: given by hand, followed from the kernel, learned from packets."""

import os
import re
import socket
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, main
from lab.shell import wait_for

HEAD = "IP" + " " * 44 + "MAC" + " " * 17 + "Bridge\n" + "=" * 74 + "\n"


def dummy_switch(lab):
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", netns=False)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy")
    return sw


def scenario_neighbours_by_hand(lab):
    sw = dummy_switch(lab)
    sw.appctl("time/stop")
    assert sw.appctl("tnl/neigh/show") == HEAD
    sw.appctl("tnl/neigh/set", "br0", "1.1.2.92", "f8:bc:12:44:34:b6")
    sw.appctl("tnl/arp/set", "br0", "2001:cafe::92", "f8:bc:12:44:34:b7")
    line = "{:46}{}   br0\n".format
    first, second = line("1.1.2.92", "f8:bc:12:44:34:b6"), line("2001:cafe::92", "f8:bc:12:44:34:b7")
    assert sw.appctl("tnl/arp/show") == HEAD + first + second
    assert sw.appctl("tnl/neigh/aging").strip() == "900"
    sw.appctl("tnl/neigh/aging", "5")
    sw.appctl("time/warp", "7000", "1000")
    assert sw.appctl("tnl/neigh/show") == HEAD
    sw.appctl("tnl/neigh/set", "br0", "1.1.2.92", "f8:bc:12:44:34:b6")
    sw.appctl("tnl/neigh/flush")
    assert sw.appctl("tnl/neigh/show") == HEAD


def scenario_routes_by_hand(lab):
    sw = dummy_switch(lab)
    sw.vsctl("add-port", "br0", "vtep0", "--", "set", "interface", "vtep0", "type=dummy")
    sw.appctl("netdev-dummy/ip4addr", "vtep0", "10.0.0.11/24")
    cached = "Route Table:\nCached: 10.0.0.11/32 dev vtep0 SRC 10.0.0.11 local\nCached: 10.0.0.0/24 dev vtep0 SRC 10.0.0.11\n"
    assert sw.appctl("ovs/route/show") == cached
    sw.appctl("ovs/route/add", "20.0.0.0/8", "vtep0", "10.0.0.1")
    assert sw.appctl("ovs/route/lookup", "20.1.1.1") == "src 10.0.0.11\ngateway 10.0.0.1\ndev vtep0\n"
    sw.appctl("ovs/route/del", "20.0.0.0/8")
    assert sw.appctl("ovs/route/show") == cached
    sw.vsctl("del-port", "br0", "vtep0")
    assert sw.appctl("ovs/route/show") == "Route Table:\n"


def found(sw, *query):
    """(source, gateway, device) of a lookup, None without a route."""
    out = sw.appctl("ovs/route/lookup", *query, check=False)
    match = re.fullmatch(r"src (\S+)\ngateway (\S+)\ndev (\S+)\n", out)
    return match.groups() if match else None


def until(sw, want, *query):
    """Waits for the result of a lookup."""
    wait_for(f"the way of {query} to be {want}", lambda: found(sw, *query) == want)


def host(lab):
    """A switch whose bridge br0 has the address 10.1.0.1, with a neighbour `peer` at 10.1.0.2 behind it."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.address(sw.netns, "br0", "10.1.0.1/24")
    peer = lab.veth_pod(sw, "peer", "10.1.0.2/24", mac="02:00:00:00:00:02")
    return sw, peer


def scenario_routes_of_the_kernel(lab):
    sw, _ = host(lab)
    ip = lambda *args, **kw: lab.net.ip(sw.netns, *args, **kw)
    until(sw, ("10.1.0.1", "::", "br0"), "10.1.0.9")
    ip("route", "add", "10.9.0.0/16", "via", "10.1.0.2")
    until(sw, ("10.1.0.1", "10.1.0.2", "br0"), "10.9.1.1")
    shown = sw.appctl("ovs/route/show")
    assert "Cached: 10.9.0.0/16 dev br0 GW 10.1.0.2 SRC 10.1.0.1\n" in shown, shown
    assert "Cached: 10.1.0.1/32 dev br0 SRC 10.1.0.1 local\n" in shown, shown
    # Another source address, other tables by destination and by mark.
    ip("addr", "add", "10.1.0.7/24", "dev", "br0")
    ip("route", "replace", "10.9.0.0/16", "via", "10.1.0.3", "src", "10.1.0.7")
    until(sw, ("10.1.0.7", "10.1.0.3", "br0"), "10.9.1.1")
    ip("route", "add", "default", "via", "10.1.0.4", "table", "100")
    ip("rule", "add", "to", "10.8.0.0/16", "lookup", "100")
    ip("rule", "add", "fwmark", "5", "lookup", "100")
    until(sw, ("10.1.0.1", "10.1.0.4", "br0"), "10.8.1.1")
    until(sw, ("10.1.0.1", "10.1.0.4", "br0"), "10.9.1.1", "pkt_mark=5")
    assert "Cached: 0.0.0.0/0 dev br0 GW 10.1.0.4 SRC 10.1.0.1\n" in sw.appctl("ovs/route/show", "table=100")
    ip("rule", "del", "to", "10.8.0.0/16", "lookup", "100")
    until(sw, None, "10.8.1.1")
    # A route by hand, before the kernel's.
    sw.appctl("ovs/route/add", "10.9.0.0/16", "br0", "10.1.0.5")
    assert found(sw, "10.9.1.1") == ("10.1.0.1", "10.1.0.5", "br0")
    sw.appctl("ovs/route/del", "10.9.0.0/16")
    assert found(sw, "10.9.1.1") == ("10.1.0.7", "10.1.0.3", "br0")
    ip("route", "add", "unreachable", "10.9.1.0/24")
    until(sw, None, "10.9.1.1")
    ip("link", "set", "br0", "down")
    until(sw, None, "10.9.2.1")
    ip("link", "set", "br0", "up")
    until(sw, ("10.1.0.1", "::", "br0"), "10.1.0.9")
    ip("addr", "del", "10.1.0.1/24", "dev", "br0")
    ip("addr", "flush", "dev", "br0")
    until(sw, None, "10.1.0.9")


def scenario_answers_are_the_kernels(lab):
    """The same results as `ip route get`, for addresses of all kinds."""
    ns = lab.net.namespace("sw", ipv6=True)
    sw = lab.switch(netns=False, start=False)
    sw.netns = ns
    sw.start()
    lab.bridge(sw)
    lab.bridge(sw, "br1")
    ip = lambda *args, **kw: lab.net.ip(ns, *args, **kw)
    for dev, addresses in (("br0", ("10.1.0.1/24", "10.1.0.3/24", "10.2.0.1/16", "2001:db8:1::1/64", "fd00::1/64")),
                           ("br1", ("10.3.0.1/30", "2001:db8:2::1/64"))):
        for address in addresses:
            ip("addr", "add", address, "dev", dev, *(("nodad",) if ":" in address else ()))
        ip("link", "set", dev, "up")
    for route in ("10.20.0.0/16 via 10.1.0.9", "10.20.5.0/24 via 10.2.0.9", "10.20.5.128/25 dev br1", "10.20.6.0/24 via 10.3.0.2 src 10.1.0.3",
                  "blackhole 10.20.7.0/24", "10.20.7.64/26 via 10.3.0.2", "10.21.0.0/16 via 10.1.0.9 metric 20", "10.21.0.0/16 via 10.3.0.2 metric 10",
                  "default via 10.3.0.2", "throw 10.30.0.0/16 table 7", "10.0.0.0/8 via 10.2.0.7 table 7",
                  "10.40.0.0/16 nexthop via 10.1.0.9 nexthop via 10.1.0.9"):
        ip("route", "add", *route.split())
    for route in ("2001:db8:10::/48 via 2001:db8:1::9", "2001:db8:11::/48 via 2001:db8:2::9", "default via 2001:db8:2::9", "unreachable 2001:db8:12::/48"):
        ip("-6", "route", "add", *route.split())
    for rule in ("from 10.2.0.1 lookup 7 pref 100", "to 10.31.0.0/16 lookup 7 pref 200", "not to 10.0.0.0/8 prohibit pref 300", "iif br1 lookup 7 pref 50",
                 "to 10.32.0.0/16 goto 5000 pref 400", "to 10.0.0.0/8 lookup 7 suppress_prefixlength 8 pref 500"):
        ip("rule", "add", *rule.split())
    asked = ["10.1.0.77", "10.2.3.4", "10.3.0.2", "10.20.0.1", "10.20.5.1", "10.20.5.200", "10.20.6.1", "10.20.7.1", "10.20.7.65", "10.21.0.1", "10.30.0.1",
             "10.31.0.1", "10.32.0.1", "10.40.0.1", "10.50.0.1", "192.0.2.1", "2001:db8:1::77", "2001:db8:2::77", "2001:db8:10::1", "2001:db8:11::1",
             "2001:db8:12::1", "2001:db8:99::1", "fd00::9", "fd01::9"]
    asked = [(to, None) for to in asked] + [(to, "10.2.0.1") for to in asked if ":" not in to]
    differ = []

    def kernel(to, source):
        out = ip("route", "get", to, *(("from", source) if source else ()), check=False)
        if re.search(r"^(blackhole|unreachable|prohibit|RTNETLINK)", out) or not out.strip():
            return None
        pick = lambda word: (re.search(rf" {word} (\S+)", out) or [None, None])[1]
        return source or pick("src"), pick("via") or "::", pick("dev")

    def same():
        differ[:] = [(q, mine, theirs) for q in asked
                     if (mine := found(sw, q[0], *([f"src={q[1]}"] if q[1] else []))) != (theirs := kernel(*q))]
        return not differ
    try:
        wait_for("", same, 20, 0.5)
    except AssertionError:
        raise AssertionError("\n".join(f"{q}: switch {mine}, kernel {theirs}" for q, mine, theirs in differ)) from None


def scenario_many_routes_at_once(lab):
    """More notices than the socket holds: some are lost, but no change is missed."""
    sw, _ = host(lab)
    nets = [f"10.{64 + n // 256}.{n % 256}.0/24" for n in range(20000)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as batch:
        for verb, want in (("add", ("10.1.0.1", "10.1.0.2", "br0")), ("del", None)):
            batch.seek(0)
            batch.truncate()
            batch.writelines(f"route {verb} {net} via 10.1.0.2\n" for net in nets)
            batch.flush()
            lab.net.ip(sw.netns, "-batch", batch.name)
            for net in (nets[0], nets[-1]):
                until(sw, want, net.split("/")[0])


def scenario_by_hand_alone(lab):
    """--disable-system-route: the kernel's addresses count, its routes and neighbours do not."""
    sw = lab.switch("--disable-system-route")
    lab.bridge(sw)
    lab.net.address(sw.netns, "br0", "10.1.0.1/24")
    wait_for("the address", lambda: "OK" in sw.appctl("ovs/route/add", "10.9.0.0/16", "br0", "10.1.0.2", check=False))
    assert found(sw, "10.9.0.1") == ("10.1.0.1", "10.1.0.2", "br0")
    assert found(sw, "10.1.0.2") is None
    assert sw.appctl("ovs/route/show") == "Route Table:\nUser: 10.9.0.0/16 dev br0 GW 10.1.0.2 SRC 10.1.0.1\n"


def tunnel(sw, remote, kind="vxlan", **options):
    """A bridge br-int with a tunnel t1."""
    sw.vsctl("add-br", "br-int", "--", "set", "bridge", "br-int", "datapath_type=netdev", "--", "add-port", "br-int", "t1", "--", "set", "interface", "t1",
             f"type={kind}", f"options:remote_ip={remote}", "options:key=7", *(f"options:{k}={v}" for k, v in options.items()))


def pushed(sw):
    """The destination and source addresses of the frames that t1 makes."""
    out = sw.appctl("ofproto/trace", "br-int", "in_port=LOCAL,dl_dst=ff:ff:ff:ff:ff:ff,ip")
    match = re.search(r"tnl_push.*?eth\(dst=([0-9a-f:]+),src=([0-9a-f:]+)", out)
    return match.groups() if match else None


def scenario_neighbours_of_the_kernel(lab):
    sw, _ = host(lab)
    tunnel(sw, "10.1.0.5")
    own = sw.get("interface", "br0", "mac_in_use")
    assert pushed(sw) is None
    for mac in ("02:00:00:00:00:05", "02:00:00:00:00:06"):
        lab.net.ip(sw.netns, "neigh", "replace", "10.1.0.5", "lladdr", mac, "dev", "br0")
        wait_for(f"frames to {mac}", lambda: pushed(sw) == (mac, own))
    lab.net.ip(sw.netns, "neigh", "del", "10.1.0.5", "dev", "br0")
    wait_for("nobody", lambda: pushed(sw) is None)


def scenario_status_of_a_tunnel(lab):
    sw, _ = host(lab)
    tunnel(sw, "10.9.1.1")
    status = lambda: sw.get("interface", "t1", "status")
    wait_for("no route", lambda: status() == '{tunnel_egress_error="no route to 10.9.1.1"}', 20)
    assert "t1: no route to 10.9.1.1, packets into it are dropped" in sw.log()
    lab.net.ip(sw.netns, "route", "add", "10.9.0.0/16", "via", "10.1.0.2")
    wait_for("a route", lambda: status() == "{tunnel_egress_iface=br0, tunnel_egress_iface_carrier=up}", 20)
    lab.net.ip(sw.netns, "route", "del", "10.9.0.0/16")
    wait_for("no route", lambda: "no route" in status(), 20)
    # The address is on a device that is no port of a bridge.
    lab.net.ip(sw.netns, "link", "add", "nic", "type", "veth", "peer", "name", "far")
    lab.net.ip(sw.netns, "link", "set", "far", "up")
    lab.net.address(sw.netns, "nic", "10.9.1.2/24")
    wait_for("the device", lambda: status() == "{tunnel_egress_iface=nic, tunnel_egress_iface_carrier=up}", 20)
    # A device that cannot be used.
    lab.net.ip(sw.netns, "link", "del", "nic")
    lab.net.ip(sw.netns, "route", "add", "10.9.0.0/16", "dev", "lo")
    why = "the route to 10.9.1.1 leads to lo: "
    wait_for("a word of the device", lambda: f'tunnel_egress_error="{why}' in status() and "loopback" in status(), 20)
    assert f"t1: {why}" in sw.log()


def scenario_tunnels_that_lead_nowhere(lab):
    """Drops of packets that were rewritten before, or have lost their Ethernet header, are counted like
    others. Types of tunnels without headers are reported."""
    sw, _ = host(lab)
    tunnel(sw, "10.9.1.1")
    sw.vsctl("add-port", "br-int", "t2", "--", "set", "interface", "t2", "type=gre", "options:remote_ip=10.9.1.1", "options:packet_type=legacy_l3")
    for port, kind in (("t3", "lisp"), ("t4", "erspan")):
        sw.vsctl("add-port", "br-int", port, "--", "set", "interface", port, f"type={kind}", "options:remote_ip=10.1.0.2")
    wait_for("a word of LISP", lambda: "tunnels of type lisp are not supported" in sw.get("interface", "t3", "status"), 20)
    wait_for("a word of ERSPAN", lambda: "erspan without erspan_ver sends nothing" in sw.get("interface", "t4", "status"), 20)
    lab.net.ip(sw.netns, "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "br0")
    traced = lambda port: sw.appctl("ofproto/trace", "br-int", "in_port=LOCAL,ip,nw_dst=192.168.0.9,nw_ttl=9")
    for port, rewrite in (("t1", "mod_nw_dst:192.168.0.8,dec_ttl,"), ("t2", ""), ("t3", ""), ("t4", "mod_nw_tos:8,")):
        sw.ofctl("add-flow", "br-int", f"ip,actions={rewrite}output:{port}")
        assert "Datapath actions: drop\n" in traced(port), traced(port)
    pod = lab.internal_pod(sw, "pod", "192.168.0.1/24", bridge="br-int")
    lab.net.ip(pod, "neigh", "add", "192.168.0.9", "lladdr", "02:00:00:00:00:09", "dev", "pod0")
    for port, name in (("t1", "tunnel_route"), ("t2", "tunnel_route"), ("t3", "tunnel_own_address"), ("t4", "tunnel_own_address")):
        sw.ofctl("add-flow", "br-int", f"ip,actions=mod_nw_tos:16,output:{port}")
        counted = lambda: int(sw.appctl("coverage/read-counter", f"drop_action_{name}") or 0)
        before = counted()
        lab.net.ping(pod, "192.168.0.9", count=3, lossless=False)
        assert counted() >= before + 3, (port, name, before, counted())


def scenario_neighbours_are_asked_for(lab):
    """A real VXLAN device on the other side; this host has never sent to it."""
    sw, peer = host(lab)
    if "dstport" not in lab.net.ip(peer, "link", "add", "vx0", "type", "vxlan", "help", check=False):
        raise Skip("no vxlan here")
    lab.net.ip(peer, "link", "add", "vx0", "type", "vxlan", "id", "7", "remote", "10.1.0.1", "dstport", "4789")
    lab.net.address(peer, "vx0", "192.168.0.2/24")
    tunnel(sw, "10.1.0.2")
    pod = lab.internal_pod(sw, "pod", "192.168.0.1/24", bridge="br-int")
    assert sw.appctl("tnl/ports/show") == "Listening ports:\nvxlan_sys_4789 (%s) ref_cnt=1\n" % re.search(
        r"t1 \d+/(\d+)", sw.appctl("dpif/show"))[1]
    assert "nw_dst=10.1.0.1" in sw.appctl("tnl/ports/show", "-v") or "dst=10.1.0.1" in sw.appctl("tnl/ports/show", "-v")
    # Neither side knows the other's address: first packets are lost.
    wait_for("an answer", lambda: lab.net.ping(pod, "192.168.0.2", count=1, lossless=False) == 1)
    lab.net.ping(pod, "192.168.0.2")
    shown = sw.appctl("tnl/neigh/show")
    assert re.search(r"^10.1.0.2 +02:00:00:00:00:02   br0$", shown, re.M), shown
    # The peer gets another address, and announces it.
    lab.net.ip(peer, "link", "set", "eth0", "address", "02:00:00:00:00:0c")
    wait_for("an answer", lambda: lab.net.ping(pod, "192.168.0.2", count=1, lossless=False) == 1)
    lab.net.ping(pod, "192.168.0.2")
    # Neighbours learned at the port are removed with it.
    sw.vsctl("del-port", "br0", "vpeer")
    assert "10.1.0.2 " not in sw.appctl("tnl/neigh/show")


def scenario_several_neighbours_are_asked_for_at_once(lab):
    """One packet to three tunnels with unknown neighbours: three requests at once, each time."""
    sw, peer = host(lab)
    lab.net.run(peer, "sh", "-c", "echo 8 > /proc/sys/net/ipv4/conf/eth0/arp_ignore")
    lab.bridge(sw, "br-int", "fail_mode=secure")
    ports = ("t0", "t1", "t2")

    def lead_to(ends):
        sw.vsctl(*[word for port, end in zip(ports, ends) for word in (
            "--", "--may-exist", "add-port", "br-int", port, "--", "set", "interface", port, "type=vxlan", f"options:remote_ip={end}", "options:key=7")][1:])
    lead_to(("10.1.0.7", "10.1.0.8", "10.1.0.9"))
    lab.veth_pod(sw, "pod", bridge="br-int")
    sw.ofctl("add-flow", "br-int", f"in_port=vpod,actions={','.join(ports)}")
    pod, wire = lab.net.raw(f"{lab.net.stem}-pod", "eth0"), lab.net.raw(peer, "eth0")
    frame = frames.ethernet("02:00:00:00:00:01", "02:00:00:00:00:07", 0x9000, b"x" * 60)

    late = []
    for turn in range(20):
        ends = [f"10.1.0.{20 + 3 * turn + number}" for number in range(3)]
        lead_to(ends)

        def is_request(got):
            return got[12:14] == b"\x08\x06" and got[20:22] == b"\0\1" and socket.inet_ntoa(got[38:42]) in ends
        pod.send(frame)
        began, asked = time.monotonic(), set()
        while asked != set(ends) and time.monotonic() < began + 5:
            if got := receive(wire, is_request, 0.5):
                asked.add(socket.inet_ntoa(got[38:42]))
        took = time.monotonic() - began
        if asked != set(ends) or took > 0.6:
            late.append((turn, took, asked))
    assert not late, late


def scenario_an_announcement_to_all_nodes_moves_a_neighbour(lab):
    """An unsolicited neighbour advertisement with override updates a known neighbour, and adds no new one."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.run(sw.netns, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/br0/disable_ipv6")
    lab.net.ip(sw.netns, "addr", "add", "fd10::1/64", "dev", "br0", "nodad")
    lab.net.ip(sw.netns, "link", "set", "br0", "up")
    lab.veth_pod(sw, "peer")
    wire = lab.net.raw(f"{lab.net.stem}-peer", "eth0")
    sw.appctl("tnl/neigh/set", "br0", "fd10::2", "02:00:00:00:00:02")

    def announce(target, mac, flags):
        message = frames.neighbour(target, 2, mac)
        body = frames.icmp6(target, "ff02::1", 136, 0, flags.to_bytes(4, "big") + message[4:])
        wire.send(frames.ethernet("33:33:00:00:00:01", mac, 0x86dd, frames.ipv6(target, "ff02::1", 58, body, hlim=255)))

    def known(address):
        match = re.search(rf"^{address} +(\S+)", sw.appctl("tnl/neigh/show"), re.M)
        return match and match[1]
    for flags in (0, 0x40000000):
        announce("fd10::2", "02:00:00:00:00:0c", flags)
    announce("fd10::3", "02:00:00:00:00:0d", 0x20000000)
    time.sleep(0.5)
    assert (known("fd10::2"), known("fd10::3")) == ("02:00:00:00:00:02", None), sw.appctl("tnl/neigh/show")
    announce("fd10::2", "02:00:00:00:00:0c", 0x20000000)
    wait_for("the neighbour to move", lambda: known("fd10::2") == "02:00:00:00:00:0c")
    # From a router, and back.
    announce("fd10::2", "02:00:00:00:00:02", 0xa0000000)
    wait_for("the neighbour to move back", lambda: known("fd10::2") == "02:00:00:00:00:02")


def scenario_a_vlan_moves_no_neighbour(lab):
    """ARP packets of a VLAN move no neighbour outside of it; an ARP packet without a tag does."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.address(sw.netns, "br0", "10.9.0.1/24")
    lab.veth_pod(sw, "peer")
    wire = lab.net.raw(f"{lab.net.stem}-peer", "eth0")
    sw.appctl("tnl/neigh/set", "br0", "10.9.0.2", "02:00:00:00:00:02")

    def say(mac, *vlans):
        own = frames.arp(1, mac, "10.9.0.2", "00:00:00:00:00:00", "10.9.0.2")
        wire.send(frames.ethernet("ff:ff:ff:ff:ff:ff", mac, 0x0806, own, vlans))

    def known():
        return re.search(r"^10.9.0.2 +(\S+)", sw.appctl("tnl/neigh/show"), re.M)[1]
    say("02:00:00:00:00:0e", (0x8100, 3000))
    wait_for("the bridge to learn the sender", lambda: "02:00:00:00:00:0e" in sw.appctl("fdb/show", "br0"))
    assert known() == "02:00:00:00:00:02"
    say("02:00:00:00:00:0f")
    wait_for("the neighbour to move", lambda: known() == "02:00:00:00:00:0f")


if __name__ == "__main__":
    main()
