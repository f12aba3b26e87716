#!/usr/bin/env python3
"""Tunnels in the kernel (other_config:hw-offload): between two switches, and between a switch and the kernel's own device."""

import os
import signal
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.runner import limit, main
from lab.shell import wait_for
from test_offload import FIREWALL, conversation, offloaded, says, stats
from test_tunnels import POD_MTU, address, attach, iperf, kernel_node, link, long_packets, tunnel

SO_RCVBUFFORCE = 33
OVN_OPTION = "{class=0x102,type=0x80,len=4}->tun_metadata0"


def node(lab, number, v6=False, bridges=("br-ex", "br-int")):
    """A switch that offloads, with these bridges."""
    sw = lab.switch(netns=False, start=False)
    sw.netns = lab.net.namespace(f"node{number}", ipv6=v6)
    sw.start_ovsdb()
    sw.vsctl("--no-wait", "set", "open_vswitch", ".", "other_config:hw-offload=true")
    sw.start_daemon()
    for bridge in bridges:
        lab.bridge(sw, bridge)
    return sw


def add_pod(lab, sw, number, ipv6=False):
    pod = lab.veth_pod(sw, f"pod{number}", f"10.5.0.{number}/24", bridge="br-int", ipv6=ipv6)
    lab.net.ip(pod, "link", "set", "eth0", "mtu", str(POD_MTU))
    if ipv6:
        lab.net.ip(pod, "addr", "add", f"fd05::{number}/64", "dev", "eth0", "nodad")
    return pod


def nodes(lab, kind, ipv6=False, v6=False, **options):
    """Two nodes with a pod each, which may have IPv6, and a tunnel, over IPv6 if v6; returns switches and pods."""
    switches = [node(lab, n, v6) for n in (1, 2)]
    link(lab, *(sw.netns for sw in switches))
    pods = []
    for number, sw in zip((1, 2), switches):
        attach(lab, sw, number, v6)
        tunnel(sw, kind, address(3 - number, v6), **options)
        pods.append(add_pod(lab, sw, number, ipv6))
    return switches, pods


def ups(sw):
    """Packets that the program sent to the workers, ever."""
    return sum(n for name, n in stats(sw).items() if name.startswith("up-"))


def settle(lab, switches, pod, target):
    """The programs of these switches forward pings through the tunnel, in both directions."""
    def forward():
        before = [stats(sw)["forwarded-packets"] for sw in switches]
        if lab.net.ping(pod, target, count=4, lossless=False) < 4:
            return False
        return all(stats(sw)["forwarded-packets"] - n >= 8 for sw, n in zip(switches, before))
    wait_for("the kernel to forward pings", forward)


def bulk(lab, switches, pods, least=0.8):
    """TCP in both directions: checksums are right, and the programs forward at least this share."""
    for server, client, target in ((pods[1], pods[0], "10.5.0.2"), (pods[0], pods[1], "10.5.0.1")):
        before = [(stats(sw)["forwarded-bytes"], ups(sw)) for sw in switches]
        got = iperf(lab, server, client, target, "-t", "2")["sum_received"]["bytes"]
        assert got > 1_000_000, got
        for sw, (forwarded, up) in zip(switches, before):
            done, up = stats(sw)["forwarded-bytes"] - forwarded, ups(sw) - up
            lab.trace.note(f"{done} bytes were forwarded in the kernel, {up} packets went up")
            assert done > got * least, (done, got, stats(sw))
    for pod in pods:
        snmp = lab.net.run(pod, "cat", "/proc/net/snmp")
        header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
        assert dict(zip(header, values))["InCsumErrors"] == "0", snmp


def quiet_workers(lab, switches, pod, target, count=40):
    """Pings of which workers see next to nothing."""
    before = [ups(sw) for sw in switches]
    for size in (8, 1000, POD_MTU - (48 if ":" in target else 28)):
        lab.net.ping(pod, target, count=count, size=size, df=True)
    for sw, up in zip(switches, before):
        # ARP of pods and nodes goes up.
        assert ups(sw) - up < count, (up, ups(sw), stats(sw))


def both_ways(lab, kind, **options):
    switches, pods = nodes(lab, kind, ipv6=True, **options)
    settle(lab, switches, pods[0], "10.5.0.2")
    quiet_workers(lab, switches, pods[0], "10.5.0.2")
    bulk(lab, switches, pods)
    # IPv6 inside.
    settle(lab, switches, pods[0], "fd05::2")
    for sw in switches:
        flows = sw.appctl("dpctl/dump-flows", "-m", "type=offloaded")
        assert "tnl_push(" in flows and "tnl_pop(" in flows and "tun_id=0x4d" in flows, flows
    # GSO packets pass unsegmented, and the received bytes are those that were sent.
    many = long_packets(lab, pods)
    assert many > 50, many
    return switches, pods


def device_nodes(lab, kind, v6=False, **options):
    """The same without br-ex: the device belongs to no bridge, and has the node's address."""
    switches = [node(lab, n, v6, bridges=("br-int",)) for n in (1, 2)]
    link(lab, *(sw.netns for sw in switches))
    pods = []
    for number, sw in zip((1, 2), switches):
        lab.net.ip(sw.netns, "addr", "add", address(number, v6) + ("/64" if v6 else "/24"), "dev", "up0", *(("nodad",) if v6 else ()))
        tunnel(sw, kind, address(3 - number, v6), **options)
        pods.append(add_pod(lab, sw, number, True))
    return switches, pods


def by_devices(lab, kind, **options):
    """The kernel forwards both directions. Other packets of the devices are the host's."""
    switches, pods = device_nodes(lab, kind, **options)
    settle(lab, switches, pods[0], "10.5.0.2")
    quiet_workers(lab, switches, pods[0], "10.5.0.2")
    one, two = (sw.netns for sw in switches)
    before = [ups(sw) for sw in switches]
    far = address(2, options.get("v6", False))
    lab.net.ping(one, far, count=20)
    got = iperf(lab, two, one, far, "-t", "1")["sum_received"]["bytes"]
    assert got > 1_000_000, got
    assert all(ups(sw) - n < 20 for sw, n in zip(switches, before)), "the host's packets reach the switch"
    bulk(lab, switches, pods)
    settle(lab, switches, pods[0], "fd05::2")
    for sw in switches:
        flows = sw.appctl("dpctl/dump-flows", "-m", "type=offloaded")
        assert "tnl_push(" in flows and "tnl_pop(" in flows and "tun_id=0x4d" in flows, flows
    many = long_packets(lab, pods)
    assert many > 50, many
    return switches, pods


def filters(lab, sw):
    return lab.net.run(sw.netns, "tc", "filter", "show", "dev", "up0", "ingress").count("bpf chain 0 handle")


@limit(240)
def scenario_vxlan_by_a_device_in_no_bridge(lab):
    """Also: an MTU of the route, filters that another program removes, and a device that is given back."""
    (one, two), (a, b) = by_devices(lab, "vxlan")
    assert filters(lab, one) == 3
    lab.net.ip(one.netns, "route", "replace", "172.31.0.0/24", "dev", "up0", "src", "172.31.0.1", "mtu", "1400")
    ping = lambda: lab.net.run(a, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", str(POD_MTU - 28), "10.5.0.2", check=False)
    wait_for("an ICMP error with the MTU", lambda: "1350" in ping(), 30, 0.2)
    settle(lab, (one, two), a, "10.5.0.2")
    assert "check_pkt_len(" in one.appctl("dpctl/dump-flows", "-m", "type=offloaded")
    lab.net.run(one.netns, "tc", "qdisc", "del", "dev", "up0", "clsact")
    wait_for("the filters to be back", lambda: filters(lab, one) == 3, 40)
    settle(lab, (one, two), a, "10.5.0.2")
    lab.net.ping(one.netns, "172.31.0.2")
    one.vsctl("del-port", "br-int", "tun0")
    wait_for("the device to be the host's", lambda: filters(lab, one) == 0, 30)
    lab.net.ping(one.netns, "172.31.0.2")
    tunnel(one, "vxlan", "172.31.0.2")
    settle(lab, (one, two), a, "10.5.0.2")


@limit(240)
def scenario_geneve_with_checksums_by_a_device_in_no_bridge(lab):
    by_devices(lab, "geneve", csum="true")


@limit(240)
def scenario_a_restart_with_a_device_in_no_bridge(lab):
    """Pods keep their traffic without a switch, and the host its own. Tunnels that are removed meanwhile leave nothing
    at the device."""
    (one, two), (a, b) = device_nodes(lab, "vxlan")
    settle(lab, (one, two), a, "10.5.0.2")
    one.stop_daemon(signal.SIGKILL)
    lab.net.ping(a, "10.5.0.2", count=20)
    lab.net.ping(one.netns, "172.31.0.2")
    one.start_daemon()
    lab.net.ping(one.netns, "172.31.0.2", count=20)
    settle(lab, (one, two), a, "10.5.0.2")
    one.stop_daemon(signal.SIGKILL)
    one.vsctl("--no-wait", "del-port", "tun0")
    one.start_daemon()
    lab.net.ping(one.netns, "172.31.0.2", count=20)
    wait_for("the device to be the host's", lambda: filters(lab, one) == 0, 30)
    lab.net.ping(one.netns, "172.31.0.2")


@limit(240)
def scenario_offload_begins_with_a_device_that_is_open(lab):
    """The device of a tunnel is opened anew when its bridge gets a type whose flows the kernel forwards, and the other way round."""
    sw = lab.switch(netns=False, start=False, system=True)
    sw.netns = lab.net.namespace("node1")
    sw.start_ovsdb()
    sw.start_daemon()
    peer = lab.net.namespace("peer")
    link(lab, sw.netns, peer)
    lab.bridge(sw, "br-int")
    lab.net.ip(sw.netns, "addr", "add", "172.31.0.1/24", "dev", "up0")
    tunnel(sw, "vxlan", "172.31.0.2")
    wait_for("the filter of workers", lambda: filters(lab, sw) == 1, 30)
    for kind, n in (("system", 3), ("netdev", 1), ("system", 3)):
        sw.vsctl("set", "bridge", "br-int", f"datapath_type={kind}")
        wait_for(f"{n} filters", lambda: filters(lab, sw) == n, 30)


@limit(240)
def scenario_vxlan_between_switches(lab):
    """Also rules: a change or removal is in force at once; counts come back to rules."""
    (one, two), (a, _) = both_ways(lab, "vxlan")
    one.ofctl("add-flow", "br-int", "priority=9,icmp,in_port=vpod1,actions=NORMAL")
    settle(lab, (one, two), a, "10.5.0.2")

    def counted():
        return int(one.flows("br-int", "icmp,in_port=vpod1")[0].split("n_packets=")[1].split(",")[0])
    before = counted()
    lab.net.ping(a, "10.5.0.2", count=20)
    assert counted() - before == 20, (before, counted())
    one.ofctl("mod-flows", "br-int", "icmp,in_port=vpod1,actions=drop")
    lab.net.no_ping(a, "10.5.0.2")
    one.ofctl("del-flows", "br-int", "icmp")
    settle(lab, (one, two), a, "10.5.0.2")
    one.vsctl("del-port", "br-int", "tun0")
    lab.net.no_ping(a, "10.5.0.2")
    tunnel(one, "vxlan", address(2, False))
    settle(lab, (one, two), a, "10.5.0.2")
    # The other end's tunnel is removed: packets to it belong to no port.
    two.vsctl("del-port", "br-int", "tun0")
    lab.net.no_ping(a, "10.5.0.2")


@limit(240)
def scenario_geneve_between_switches(lab):
    both_ways(lab, "geneve")


@limit(240)
def scenario_geneve_with_the_option_of_ovn(lab):
    """Option and identifier are matched: packets with other values take another path."""
    switches, pods = nodes(lab, "geneve")
    macs = [lab.net.run(pod, "cat", "/sys/class/net/eth0/address").strip() for pod in pods]
    for number, (sw, pod) in enumerate(zip(switches, pods), 1):
        lab.net.ip(pod, "neigh", "replace", f"10.5.0.{3 - number}", "lladdr", macs[2 - number], "dev", "eth0",
                   "nud", "permanent")
        sw.ofctl("add-tlv-map", "br-int", OVN_OPTION)
        sw.ofctl("del-flows", "br-int")
        sw.ofctl("add-flow", "br-int", f"in_port=vpod{number},actions=set_field:0x10002->tun_metadata0,tun0")
        sw.ofctl("add-flow", "br-int", f"in_port=tun0,tun_metadata0=0x10002,actions=vpod{number}")
    settle(lab, switches, pods[0], "10.5.0.2")
    quiet_workers(lab, switches, pods[0], "10.5.0.2")
    bulk(lab, switches, pods)
    flows = switches[0].appctl("dpctl/dump-flows", "-m", "type=offloaded")
    assert "class=0x102,type=0x80" in flows, flows
    switches[0].ofctl("mod-flows", "br-int", "in_port=vpod1,actions=set_field:0x10003->tun_metadata0,tun0")
    lab.net.no_ping(pods[0], "10.5.0.2")


def kernel_pods(lab, host, ipv6=False):
    """A pod at the kernel's bridge with its VXLAN device vx0, as the second of two."""
    lab.net.ip(host, "link", "add", "kbr", "type", "bridge")
    pods = [None, lab.net.namespace("pod2", ipv6=ipv6)]
    lab.net.veth(host, "vpod2", pods[1], "eth0")
    lab.net.address(pods[1], "eth0", "10.5.0.2/24")
    for dev in ("vx0", "vpod2"):
        lab.net.ip(host, "link", "set", dev, "master", "kbr", "up")
    lab.net.ip(host, "link", "set", "kbr", "up")
    lab.net.ip(pods[1], "link", "set", "eth0", "mtu", str(POD_MTU))
    return pods


def wrong_sums(lab, ns, proto="Udp"):
    """Packets that the namespace's stack dropped for their checksums."""
    if proto == "Udp6":
        return int(dict(line.split() for line in lab.net.run(ns, "cat", "/proc/net/snmp6").splitlines())["Udp6InCsumErrors"])
    lines = [line.split()[1:] for line in lab.net.run(ns, "cat", "/proc/net/snmp").splitlines() if line.startswith(proto + ":")]
    return int(dict(zip(*lines))["InCsumErrors"])


@limit(240)
def scenario_vxlan_with_the_kernel(lab):
    """The other end is the kernel's device on the kernel's bridge, with a pod at it."""
    sw = node(lab, 1)
    host = kernel_node(lab, sw)
    lab.net.ip(host, "addr", "flush", "dev", "vx0")
    pods = kernel_pods(lab, host)
    attach(lab, sw, 1, False)
    tunnel(sw, "vxlan", "172.31.0.2")
    pods[0] = add_pod(lab, sw, 1)
    settle(lab, (sw,), pods[0], "10.5.0.2")
    quiet_workers(lab, (sw,), pods[0], "10.5.0.2")
    bulk(lab, (sw,), pods)
    # With outer checksums: the kernel drops packets with a wrong one.
    sw.vsctl("set", "interface", "tun0", "options:csum=true")
    settle(lab, (sw,), pods[0], "10.5.0.2")
    quiet_workers(lab, (sw,), pods[0], "10.5.0.2")
    bulk(lab, (sw,), pods)
    # Segmented packets with complete checksums.
    for ns, dev in ((pods[0], "eth0"), (pods[1], "eth0"), (host, "vx0")):
        lab.net.run(ns, "ethtool", "-K", dev, "tso", "off", "gso", "off", "tx", "off")
    bulk(lab, (sw,), pods)
    assert wrong_sums(lab, host) == 0


@limit(240)
def scenario_vxlan_over_ipv6_with_the_kernel(lab):
    """The kernel's device drops packets without an outer checksum, unless it was configured to take them."""
    sw = node(lab, 1, v6=True)
    host = lab.net.namespace("host", ipv6=True)
    link(lab, sw.netns, host)
    lab.net.ip(host, "addr", "add", "fd00::2/64", "dev", "up0", "nodad")

    def device(*options):
        lab.net.ip(host, "link", "del", "vx0", check=False)
        lab.net.ip(host, "link", "add", "vx0", "type", "vxlan", "id", "77", "local", "fd00::2", "remote", "fd00::1",
                   "dstport", "4789", *options)
    device()
    pods = kernel_pods(lab, host, ipv6=True)
    attach(lab, sw, 1, True)
    tunnel(sw, "vxlan", "fd00::2")
    pods[0] = add_pod(lab, sw, 1, ipv6=True)
    lab.net.ip(pods[1], "addr", "add", "fd05::2/64", "dev", "eth0", "nodad")
    settle(lab, (sw,), pods[0], "10.5.0.2")
    quiet_workers(lab, (sw,), pods[0], "10.5.0.2")
    # GSO packets of the pod whose last segment is shorter go by workers, and so do the packets after them.
    bulk(lab, (sw,), pods, least=0)
    assert stats(sw)["up-uneven-train"] > 0, stats(sw)
    assert (wrong_sums(lab, host, "Udp6"), [wrong_sums(lab, pod, "Tcp") for pod in pods]) == (0, [0, 0])
    # Single packets go in the kernel again when that is over.
    settle(lab, (sw,), pods[0], "10.5.0.2")
    settle(lab, (sw,), pods[0], "fd05::2")
    # Both endpoints are configured to allow missing checksums.
    device("udp6zerocsumrx", "udp6zerocsumtx")
    lab.net.ip(host, "link", "set", "vx0", "master", "kbr", "up")
    sw.vsctl("set", "interface", "tun0", "options:csum=false")
    settle(lab, (sw,), pods[0], "10.5.0.2")
    bulk(lab, (sw,), pods)
    # Segmented packets with complete checksums.
    for ns, dev in ((pods[0], "eth0"), (pods[1], "eth0"), (host, "vx0")):
        lab.net.run(ns, "ethtool", "-K", dev, "tso", "off", "gso", "off", "tx", "off")
    bulk(lab, (sw,), pods)
    assert wrong_sums(lab, host, "Udp6") == 0


@limit(240)
def scenario_vxlan_over_ipv6_between_switches(lab):
    """With csum=false GSO packets with a shorter segment at their end go without an outer checksum."""
    switches, _ = both_ways(lab, "vxlan", v6=True, csum="false")
    assert all(stats(sw)["up-uneven-train"] == 0 for sw in switches)


def outer_checksums(lab, pods, ns):
    """Sends data by TCP; returns how many outer checksums that came in at a node are right, zero, wrong."""
    right = zero = wrong = 0
    sock = lab.net.raw(ns, "up0", timeout=3)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    iperf(lab, pods[1], pods[0], "10.5.0.2", "-n", "4000000")
    while True:
        try:
            data = sock.recv(65536)
        except TimeoutError:
            return right, zero, wrong
        if data[12:14] == b"\x86\xdd" and data[20] == 17 and data[22:38] == socket.inet_pton(socket.AF_INET6, "fd00::1"):
            addresses, udp = data[22:54], data[54:54 + int.from_bytes(data[18:20], "big")]
        elif data[12:14] == b"\x08\x00" and data[23] == 17 and data[26:30] == socket.inet_aton("172.31.0.1"):
            addresses, udp = data[26:34], data[34:14 + int.from_bytes(data[16:18], "big")]
        else:
            continue
        if udp[6:8] == b"\0\0":
            zero += 1
        elif frames.checksum(addresses + struct.pack("!HH", 17, len(udp)) + udp) == 0:
            right += 1
        else:
            wrong += 1


@limit(240)
def scenario_tunnels_with_checksums(lab):
    """csum=true, as OVN requires: each packet on the wire, also each segment of a GSO packet, has a right
    outer checksum."""
    switches, pods = both_ways(lab, "geneve", csum="true")
    # The node's device neither segments nor completes checksums: the kernel does, and the test can check
    # them.
    lab.net.run(switches[0].netns, "ethtool", "-K", "up0", "tx", "off")
    before = stats(switches[0])["forwarded-bytes"]
    right, zero, wrong = outer_checksums(lab, pods, switches[1].netns)
    lab.trace.note(f"{right} outer checksums are right, {zero} are zero, {wrong} wrong")
    assert stats(switches[0])["forwarded-bytes"] - before > 2_000_000, stats(switches[0])
    # GSO packets with a shorter segment at their end have none.
    assert wrong == 0 and right > 500 and right > zero, (right, zero, wrong)
    bulk(lab, switches, pods)


@limit(240)
def scenario_geneve_over_ipv6(lab):
    """Each packet has a right outer checksum; packets without GSO go in the kernel."""
    switches, pods = nodes(lab, "geneve", v6=True, ipv6=True, csum="true")
    for target in ("10.5.0.2", "fd05::2"):
        settle(lab, switches, pods[0], target)
        quiet_workers(lab, switches, pods[0], target)
    bulk(lab, switches, pods, least=0)
    lab.net.run(switches[0].netns, "ethtool", "-K", "up0", "tx", "off")
    right, zero, wrong = outer_checksums(lab, pods, switches[1].netns)
    lab.trace.note(f"{right} outer checksums are right, {zero} are zero, {wrong} wrong")
    assert right > 500 and wrong == zero == 0, (right, zero, wrong)
    # Pods without GSO: all packets go in the kernel.
    for pod in pods:
        lab.net.run(pod, "ethtool", "-K", "eth0", "tso", "off", "gso", "off")
    settle(lab, switches, pods[0], "10.5.0.2")
    bulk(lab, switches, pods)
    right, zero, wrong = outer_checksums(lab, pods, switches[1].netns)
    assert right > 500 and wrong == zero == 0, (right, zero, wrong)


@limit(240)
def scenario_what_stays_with_workers(lab):
    """Packets that are too long for the path go up, and so do tunnels whose packets may be fragmented; the
    reason is shown."""
    switches, pods = nodes(lab, "geneve")
    one = switches[0]
    settle(lab, switches, pods[0], "10.5.0.2")
    lab.net.ip(one.netns, "link", "set", "up0", "mtu", "1200")
    lab.net.ip(one.netns, "link", "set", "br-ex", "mtu", "1200", check=False)

    def too_long():
        before = stats(one)["up-too-long"]
        lab.net.run(pods[0], "ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", "-s", "1300", "10.5.0.2", check=False)
        return stats(one)["up-too-long"] - before >= 3
    wait_for("long packets to go up", too_long)
    settle(lab, switches, pods[0], "10.5.0.2")
    lab.net.ip(one.netns, "link", "set", "up0", "mtu", "1500")
    one.vsctl("set", "interface", "tun0", "options:df_default=false")
    lab.net.ping(pods[0], "10.5.0.2", count=10)
    wait_for("a reason", lambda: "be fragmented" in one.appctl("heddle/offload", "icmp,in_port=vpod1"))
    one.vsctl("remove", "interface", "tun0", "options", "df_default")
    settle(lab, switches, pods[0], "10.5.0.2")
    assert "offloaded to ebpf" in one.appctl("heddle/offload", "icmp,in_port=vpod1")


@limit(240)
def scenario_connections_and_a_restart(lab):
    """Connections are tracked before the tunnel and behind it; established ones outlive the switch's death."""
    switches, pods = nodes(lab, "geneve")
    settle(lab, switches, pods[0], "10.5.0.2")
    one = switches[0]
    one.ofctl("del-flows", "br-int")
    for rule in FIREWALL:
        one.ofctl("add-flow", "br-int", rule.replace("va", "vpod1").replace("vb", "tun0"))
    here, there = conversation(lab, pods[1], pods[0], "10.5.0.2")

    def forwards():
        before = stats(one)["forwarded-packets"]
        for _ in range(20):
            says(there, here)
            says(here, there)
        now = stats(one)
        return now["connections"] > 0 and now["forwarded-packets"] - before >= 40
    wait_for("the program to forward the connection", forwards)
    assert offloaded(one) > 0
    one.ofctl("del-flows", "br-int")
    one.ofctl("add-flow", "br-int", "actions=NORMAL")
    for number, pod in enumerate(pods, 1):
        mac = lab.net.run(pods[2 - number], "cat", "/sys/class/net/eth0/address").strip()
        lab.net.ip(pod, "neigh", "replace", f"10.5.0.{3 - number}", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    settle(lab, switches, pods[0], "10.5.0.2")
    one.stop_daemon(signal.SIGKILL)
    lab.net.ping(pods[0], "10.5.0.2", count=20)
    one.start_daemon()
    lab.net.ip(one.netns, "addr", "replace", "172.31.0.1/24", "dev", "br-ex")
    lab.net.ip(one.netns, "link", "set", "br-ex", "up")
    assert "took over" in one.log(), "nothing was taken over"
    settle(lab, switches, pods[0], "10.5.0.2")
    wait_for("what was left to be dropped", lambda: stats(one)["adopted-flows"] == 0)
    settle(lab, switches, pods[0], "10.5.0.2")


if __name__ == "__main__":
    main()
