#!/usr/bin/env python3
"""Pods of two nodes over tunnels: between two switches, and between a switch and the kernel."""

import json
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from lab.shell import wait_for

BYTES = 30_000_000
# Outer headers of Geneve and VXLAN over IPv6, with an inner Ethernet header.
POD_MTU = 1500 - 40 - 8 - 8 - 14


def node(lab, number, v6=False):
    """A switch with br-ex, which has the node's address and the uplink, and br-int."""
    sw = lab.switch(netns=False, start=False)
    sw.netns = lab.net.namespace(f"node{number}", ipv6=v6)
    sw.start()
    lab.bridge(sw, "br-ex")
    lab.bridge(sw, "br-int")
    return sw


def link(lab, one, two):
    """A cable between two namespaces, with a device `up0` at either end."""
    lab.net.veth(one, "up0", two, "up0")


def address(number, v6):
    return f"fd00::{number}" if v6 else f"172.31.0.{number}"


def attach(lab, sw, number, v6):
    sw.vsctl("--may-exist", "add-port", "br-ex", "up0")
    args = ("addr", "add", address(number, v6) + ("/64" if v6 else "/24"), "dev", "br-ex", *(("nodad",) if v6 else ()))
    lab.net.ip(sw.netns, *args)
    lab.net.ip(sw.netns, "link", "set", "br-ex", "up")


def tunnel(sw, kind, remote, **options):
    key = [] if kind == "srv6" or "key" in options else ["options:key=77"]
    sw.vsctl("add-port", "br-int", "tun0", "--", "set", "interface", "tun0", f"type={kind}", f"options:remote_ip={remote}", *key, *(f"options:{k}={v}" for k, v in options.items()))


def tap_link(lab, one, two):
    """The cable is a tap of the first switch, which is a device of the second: a tap that cuts TCP and knows no tunnel."""
    one.vsctl("add-port", "br-ex", "up0", "--", "set", "interface", "up0", "type=internal")
    lab.net.move("up0", one.netns, two.netns)
    lab.net.ip(two.netns, "link", "set", "up0", "up")


def nodes(lab, kind, v6=False, tap=False, tap_between=False, **options):
    """Two nodes with a pod each; returns switches and pods."""
    switches = [node(lab, n, v6) for n in (1, 2)]
    if tap_between:
        tap_link(lab, *switches)
    else:
        link(lab, *(sw.netns for sw in switches))
    pods = []
    for number, sw in zip((1, 2), switches):
        attach(lab, sw, number, v6)
        tunnel(sw, kind, address(3 - number, v6), **options)
        make = lab.internal_pod if tap else lab.veth_pod
        pod = make(sw, f"pod{number}", f"10.5.0.{number}/24", bridge="br-int")
        dev = f"pod{number}0" if tap else "eth0"
        lab.net.ip(pod, "link", "set", dev, "mtu", str(POD_MTU))
        pods.append(pod)
    return switches, pods


def iperf(lab, server, client, target, *args):
    """iperf3's summary of one connection."""
    daemon = subprocess.Popen(["ip", "netns", "exec", server, "iperf3", "-s", "-1", "-p", "5202"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("iperf3 to listen", lambda: ":5202" in lab.net.run(server, "ss", "-Hltn", quiet=True))
        out = lab.net.run(client, "iperf3", "-J", "-c", target, "-p", "5202", "--connect-timeout", "3000", *args, check=False, timeout=120, quiet=True)
    finally:
        daemon.kill()
        daemon.wait()
    return json.loads(out).get("end", {})


def transfer(lab, server, client, target):
    got = iperf(lab, server, client, target, "-n", str(BYTES)).get("sum_received", {}).get("bytes")
    assert got and got >= BYTES // 3, got  # the rest may wait in sockets at the end


def reach(lab, pods):
    """Pings of all sizes and TCP in both directions."""
    a, b = pods
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    for size in (8, 1000, POD_MTU - 28):
        lab.net.ping(a, "10.5.0.2", size=size, df=True)
    transfer(lab, b, a, "10.5.0.2")
    transfer(lab, a, b, "10.5.0.1")


@limit(240)
def scenario_geneve_between_switches(lab):
    switches, pods = nodes(lab, "geneve")
    reach(lab, pods)
    for sw in switches:
        flows = sw.appctl("dpctl/dump-flows")
        assert "tnl_push(" in flows and "tnl_pop(" in flows and "tun_id=0x4d" in flows, flows
        drops = sw.appctl("coverage/show")
        assert "tunnel_pop_error" not in drops and "tunnel_bad_csum" not in drops, drops


BURST = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("10.5.0.2", 5204))
for n in range(150):
    s.send(b"%d" % n)
"""
TAKE = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
s.bind(("10.5.0.2", 5204))
print("ready", flush=True)
s.settimeout(20)
got = []
try:
    while len(got) < 150:
        got.append(int(s.recv(100)))
except TimeoutError:
    pass
print("all in order" if got == list(range(150)) else f"{len(got)}: {got}")
"""


def first_packets(lab, v6):
    """No neighbour is known: neither the first datagrams of a burst nor the first ping is lost."""
    switches, pods = nodes(lab, "geneve", v6=v6, csum="true")
    drops = lambda: [line for sw in switches for line in sw.appctl("coverage/show").splitlines() if "drop_action_tunnel" in line]
    mac = json.loads(lab.net.run(pods[1], "ip", "-j", "link", "show", "eth0"))[0]["address"]
    lab.net.ip(pods[0], "neigh", "replace", "10.5.0.2", "lladdr", mac, "dev", "eth0")
    wait_for("a way out", lambda: all("tunnel_egress_iface=br-ex" in sw.get("interface", "tun0", "status") for sw in switches), 30)
    for sw in switches:
        assert "br-ex" not in sw.appctl("tnl/neigh/show")
    receiver = subprocess.Popen(["ip", "netns", "exec", pods[1], "timeout", "60", "python3", "-c", TAKE], stdout=subprocess.PIPE, text=True)
    assert receiver.stdout.readline() == "ready\n"
    lab.net.run(pods[0], "python3", "-c", BURST)
    out, _ = receiver.communicate(timeout=60)
    assert out == "all in order\n", out
    assert not drops(), drops()
    # Now the pods do not know each other either, and the switches have no neighbours again.
    lab.net.ip(pods[0], "neigh", "del", "10.5.0.2", "dev", "eth0")
    for sw in switches:
        sw.appctl("tnl/neigh/flush")
        lab.net.ip(sw.netns, "neigh", "flush", "dev", "br-ex")
    lab.net.ping(pods[0], "10.5.0.2", count=1)
    assert not drops(), drops()


@limit(120)
def scenario_first_packets_wait_for_the_neighbour(lab):
    first_packets(lab, v6=False)


@limit(120)
def scenario_first_packets_wait_for_the_neighbour_over_ipv6(lab):
    first_packets(lab, v6=True)


@limit(120)
def scenario_nobody_answers(lab):
    """The other node is away: the number of waiting packets is bounded, and the rest is dropped by name."""
    (sw, other), pods = nodes(lab, "geneve")
    lab.net.ip(other.netns, "addr", "flush", "dev", "br-ex")
    lab.net.ip(pods[0], "neigh", "replace", "10.5.0.2", "lladdr", "02:00:00:00:00:77", "dev", "eth0")
    wait_for("a way out", lambda: "tunnel_egress_iface=br-ex" in sw.get("interface", "tun0", "status"), 30)
    for _ in range(4):
        lab.net.run(pods[0], "python3", "-c", BURST)
    count = lambda: sum(int(n) for n in re.findall(r"drop_action_tunnel_neighbour .*total: (\d+)", sw.appctl("coverage/show")))
    wait_for("the overflow", lambda: 600 - 256 <= count() < 600, 30)
    wait_for("the end of their time", lambda: count() >= 600, 30)


RECEIVE = """
import hashlib, socket
s = socket.create_server(("10.5.0.2", 5203))
c, _ = s.accept()
h = hashlib.sha256()
while data := c.recv(1 << 16):
    h.update(data)
print(h.hexdigest())
"""
SEND = """
import hashlib, os, socket
c = socket.create_connection(("10.5.0.2", 5203))
h = hashlib.sha256()
for _ in range(256):
    data = os.urandom(1 << 16)
    h.update(data)
    c.sendall(data)
print(h.hexdigest())
"""


def long_packets(lab, pods):
    """Sends data from one pod to the other; returns how many packets longer than the MTU came in there."""
    watch = subprocess.Popen(["ip", "netns", "exec", pods[1], "tcpdump", "-lnqi", "eth0", "-Q", "in", "tcp and greater 3000"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watch.stderr.readline()
    receiver = subprocess.Popen(["ip", "netns", "exec", pods[1], "timeout", "60", "python3", "-c", RECEIVE], stdout=subprocess.PIPE, text=True)
    try:
        wait_for("the receiver", lambda: ":5203" in lab.net.run(pods[1], "ss", "-Hltn", quiet=True))
        sent = lab.net.run(pods[0], "timeout", "60", "python3", "-c", SEND, timeout=70)
        assert receiver.communicate(timeout=60)[0].strip() == sent.strip(), "the bytes that arrived are others"
    finally:
        receiver.kill()
        watch.terminate()
    return watch.communicate(timeout=10)[0].count("\n")


@limit(240)
def scenario_packets_are_joined(lab):
    """The nodes' link takes packets of its MTU only; pods get GSO packets all the same, unless that is turned
    off."""
    switches, pods = nodes(lab, "geneve")
    for sw in switches:
        lab.net.run(sw.netns, "ethtool", "-K", "up0", "tso", "off", "gso", "off", "tx-udp-segmentation", "off")
    wait_for("the first answer", lambda: lab.net.ping(pods[0], "10.5.0.2", count=1, lossless=False))
    many = long_packets(lab, pods)
    assert many > 50, many
    for sw in switches:
        sw.vsctl("set", "open_vswitch", ".", "other_config:heddle-gro=false")
    # GSO packets come by the hundreds.
    few = long_packets(lab, pods)
    assert few <= 5, few


ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5204))
while True:
    data, source = s.recvfrom(1 << 16)
    s.sendto(data, source)
"""
ASK = """
import os, socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(0.5)
s.connect((sys.argv[1], 5204))
for size in (1, 100, 1400, 1454, 1455, 1472, 8000, 60000) * 6:
    data = os.urandom(size)
    end = time.monotonic() + 20
    while True:
        assert time.monotonic() < end, f"{size} bytes did not come back"
        s.send(data)
        try:
            back = s.recv(1 << 16)
        except (TimeoutError, ConnectionRefusedError):
            continue
        if back == data:
            break
        assert len(back) != len(data), f"{size} bytes came back as others"
print("all came back")
"""


def datagrams(lab, pods):
    """Datagrams of many sizes, whole and in fragments, go from one pod to the other and come back
    unchanged."""
    for client, server, address in ((pods[0], pods[1], "10.5.0.2"), (pods[1], pods[0], "10.5.0.1")):
        echo = subprocess.Popen(["ip", "netns", "exec", server, "timeout", "60", "python3", "-c", ECHO], stdin=subprocess.DEVNULL)
        try:
            wait_for("the echo", lambda server=server: ":5204" in lab.net.run(server, "ss", "-Hlun", quiet=True))
            assert "all came back" in lab.net.run(client, "timeout", "60", "python3", "-c", ASK, address, timeout=70)
        finally:
            # SIGTERM, so that it ends the program that it runs.
            echo.terminate()
            echo.wait()


def stt(lab, switches, pods, gso=True):
    """All traffic through STT, whose pods have the path's own MTU: frames that are too long for it go in two
    segments."""
    a, b = pods
    for pod in pods:
        dev = "eth0" if "eth0" in lab.net.run(pod, "ls", "/sys/class/net", quiet=True) else f"{pod.split('-')[-1]}0"
        lab.net.ip(pod, "link", "set", dev, "mtu", "1500")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    for size in (8, 1000, 1472):
        lab.net.ping(a, "10.5.0.2", size=size, df=True)
    datagrams(lab, pods)
    if gso:
        many = long_packets(lab, pods)
        assert many > 50, many
    transfer(lab, b, a, "10.5.0.2")
    transfer(lab, a, b, "10.5.0.1")
    for sw in switches:
        # The flow's key has all 64 bits.
        flows = sw.appctl("dpctl/dump-flows")
        assert "stt(key=0x123456789abcdef0)" in flows and "tnl_pop(" in flows and "tun_id=0x123456789abcdef0" in flows, flows
        ends = sw.appctl("tnl/ports/show", "-v")
        assert "stt_sys_7471 (" in ends and "proto=6" in ends and "tcp(dst=7471)" in ends, ends
        drops = sw.appctl("coverage/show")
        for name in ("tunnel_pop_error", "tunnel_bad_csum", "tunnel_metadata", "segment_beyond", "segment_length", "segment_overlap"):
            assert name not in drops, drops


STT_KEY = 0x123456789abcdef0


@limit(240)
def scenario_stt_between_switches(lab):
    switches, pods = nodes(lab, "stt", key=STT_KEY)
    stt(lab, switches, pods)
    trace = switches[0].appctl("ofproto/trace", "br-int", "in_port=vpod1,dl_dst=ff:ff:ff:ff:ff:ff,arp")
    assert "-> output to native tunnel" in trace and "tnl_push(" in trace, trace


@limit(240)
def scenario_stt_over_a_tap(lab):
    switches, pods = nodes(lab, "stt", tap_between=True, key=STT_KEY)
    stt(lab, switches, pods)


@limit(240)
def scenario_stt_over_ipv6_between_taps(lab):
    switches, pods = nodes(lab, "stt", v6=True, tap=True, key=STT_KEY)
    stt(lab, switches, pods, gso=False)


@limit(240)
def scenario_stt_in_segments(lab):
    """The nodes' link takes packets of its MTU only: segments come one by one, and pods get GSO packets all
    the same."""
    switches, pods = nodes(lab, "stt", key=STT_KEY)
    for sw in switches:
        lab.net.run(sw.netns, "ethtool", "-K", "up0", "tso", "off", "gso", "off", "tx", "off")
    stt(lab, switches, pods)
    switches[1].wait_column("interface", "up0", "statistics:rx_packets", lambda packets: int(packets) > 10_000)


@limit(240)
def scenario_geneve_with_checksums_over_ipv6(lab):
    _, pods = nodes(lab, "geneve", v6=True, csum="true")
    reach(lab, pods)


@limit(240)
def scenario_vxlan_between_taps(lab):
    _, pods = nodes(lab, "vxlan", tap=True)
    reach(lab, pods)


@limit(240)
def scenario_gre_with_keys_and_checksums(lab):
    _, pods = nodes(lab, "gre", csum="true", seq="true")
    reach(lab, pods)


def scenario_another_type_in_place(lab):
    """A tunnel becomes one of another type, with the same name and, maybe, the same datapath port."""
    switches, (a, _) = nodes(lab, "geneve")
    for kind in ("vxlan", "gre", "stt", "geneve"):
        for sw in switches:
            sw.vsctl("set", "interface", "tun0", f"type={kind}")
        wait_for(f"an answer through {kind}", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))


@limit(240)
def scenario_erspan_carries_frames(lab):
    _, pods = nodes(lab, "erspan", erspan_ver="2", erspan_dir="1", erspan_hwid="7")
    reach(lab, pods)


def layer_3(lab, kind, v6, **options):
    """Two nodes whose pods' IP packets go through a tunnel without Ethernet headers: rules add addresses
    again."""
    switches, pods = nodes(lab, kind, v6=v6, **options)
    for number, sw, pod in zip((1, 2), switches, pods):
        mac = lab.net.run(pod, "cat", "/sys/class/net/eth0/address").strip()
        sw.ofctl("add-flow", "br-int", f"in_port=vpod{number},ip,actions=tun0")
        sw.ofctl("add-flow", "br-int", f"in_port=tun0,actions=mod_dl_dst:{mac},mod_dl_src:02:00:00:00:00:99,vpod{number}")
        lab.net.ip(pod, "neigh", "add", f"10.5.0.{3 - number}", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    a, b = pods
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    lab.net.ping(a, "10.5.0.2", size=1000)
    transfer(lab, b, a, "10.5.0.2")
    return switches, pods


@limit(240)
def scenario_segment_routing(lab):
    """The tables of the underlay's bridge see the protocol behind the routing header, both ways: 4 or 41."""
    switches, _ = layer_3(lab, "srv6", True)
    for sw in switches:
        sw.ofctl("add-flow", "br-ex", "priority=9,ipv6,nw_proto=4,actions=NORMAL")
        sw.ofctl("add-flow", "br-ex", "priority=9,ipv6,nw_proto=41,actions=NORMAL")
        sw.ofctl("add-flow", "br-ex", "priority=9,ipv6,nw_proto=43,actions=drop")
    a = f"{lab.net.stem}-pod1"
    lab.net.ping(a, "10.5.0.2", count=5)
    for sw in switches:
        def counted(proto):
            return int(re.search(r"n_packets=(\d+)", [f for f in sw.flows("br-ex") if f"nw_proto={proto} " in f][0])[1])
        assert counted(4) >= 10 and counted(43) == 0, sw.flows("br-ex")
    for number, (sw, pod) in enumerate(zip(switches, (a, f"{lab.net.stem}-pod2")), 1):
        lab.net.run(pod, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6")
        lab.net.ip(pod, "addr", "add", f"fd55::{number}/64", "dev", "eth0", "nodad")
        lab.net.ip(pod, "neigh", "add", f"fd55::{3 - number}", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
        sw.ofctl("add-flow", "br-int", f"in_port=vpod{number},ipv6,ipv6_dst=fd55::/64,actions=tun0")
    wait_for("an answer", lambda: lab.net.ping(a, "fd55::2", count=1, lossless=False))
    lab.net.ping(a, "fd55::2", count=5)
    for sw in switches:
        shown = {proto: [f for f in sw.flows("br-ex") if f"nw_proto={proto} " in f][0] for proto in (41, 43)}
        assert int(re.search(r"n_packets=(\d+)", shown[41])[1]) >= 10 and "n_packets=0," in shown[43], shown


@limit(240)
def scenario_gtpu(lab):
    layer_3(lab, "gtpu", False)


@limit(240)
def scenario_layer_3_gre(lab):
    layer_3(lab, "gre", False, packet_type="legacy_l3")


def kernel_node(lab, sw, *options):
    """A node without a switch: a kernel's VXLAN device with the pod's address."""
    ns = lab.net.namespace("host")
    link(lab, sw.netns, ns)
    lab.net.address(ns, "up0", "172.31.0.2/24")
    lab.net.ip(ns, "link", "add", "vx0", "type", "vxlan", "id", "77", "local", "172.31.0.2", "remote", "172.31.0.1", "dstport", "4789", *options)
    lab.net.address(ns, "vx0", "10.5.0.2/24")
    return ns


@limit(240)
def scenario_vxlan_with_the_kernel(lab):
    """Checksums and GSO packets of both sides are right for the other."""
    sw = node(lab, 1)
    host = kernel_node(lab, sw, "udpcsum")
    attach(lab, sw, 1, False)
    tunnel(sw, "vxlan", "172.31.0.2", csum="true")
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    lab.net.ip(pod, "link", "set", "eth0", "mtu", str(POD_MTU))
    lab.net.ip(host, "link", "set", "vx0", "mtu", str(POD_MTU))
    reach(lab, (pod, host))
    # The same without checksums outside, and with segments that were cut before.
    lab.net.run(pod, "ethtool", "-K", "eth0", "tso", "off", "gso", "off", "tx", "off")
    sw.vsctl("remove", "interface", "tun0", "options", "csum")
    reach(lab, (pod, host))
    lab.net.run(host, "ethtool", "-K", "vx0", "tso", "off", "gso", "off", "tx", "off")
    reach(lab, (pod, host))
    drops = sw.appctl("coverage/show")
    assert "tunnel_bad_csum" not in drops and "tunnel_pop_error" not in drops, drops


@limit(120)
def scenario_no_route(lab):
    """The reason is shown in status and trace, and the packets have a drop name."""
    sw = node(lab, 1)
    tunnel(sw, "geneve", "172.31.0.9")
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    sw.ofctl("add-flow", "br-int", "in_port=vpod1,actions=tun0")
    lab.net.no_ping(pod, "10.5.0.2")
    wait_for("the drop's name", lambda: "drop_action_tunnel_route" in sw.appctl("coverage/show"))
    trace = sw.appctl("ofproto/trace", "br-int", "in_port=vpod1,arp")
    assert "native tunnel routing failed" in trace, trace


@limit(240)
def scenario_encryption_that_is_not_there(lab):
    """A tunnel that requests encryption is refused until the operator allows clear text."""
    (one, two), (a, b) = nodes(lab, "geneve")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    error = lambda: one.vsctl("get", "interface", "tun0", "error")
    for option in ("remote_name=chassis2", "psk=secret", "local_cert=/etc/c.pem", "ipsec_encapsulation=yes"):
        one.vsctl("set", "interface", "tun0", f"options:{option}")
        assert "asks for encryption" in error() and "heddle-allow-clear" in error(), error()
        lab.net.no_ping(a, "10.5.0.2")
        assert "tun0" not in one.ofctl("show", "br-int")
        one.vsctl("remove", "interface", "tun0", "options", option.split("=")[0])
        assert error().strip() == "[]", error()
    one.vsctl("set", "interface", "tun0", "options:remote_name=chassis2")
    lab.net.no_ping(a, "10.5.0.2")
    one.vsctl("set", "open_vswitch", ".", "other_config:heddle-allow-clear=true")
    assert error().strip() == "[]", error()
    wait_for("clear text", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    one.vsctl("set", "open_vswitch", ".", "other_config:heddle-allow-clear=false")
    assert "asks for encryption" in error()
    lab.net.no_ping(a, "10.5.0.2")


@limit(240)
def scenario_neighbour_moves_and_switch_restarts(lab):
    """Another Ethernet address at the other endpoint, and a switch that was killed: traffic continues."""
    (one, two), (a, b) = nodes(lab, "geneve")
    wait_for("the first answer", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    lab.net.ip(two.netns, "link", "set", "br-ex", "address", "02:00:00:00:99:99")
    lab.net.run(two.netns, "ping", "-c", "1", "-W", "2", "172.31.0.1", check=False)
    wait_for("the new address", lambda: lab.net.ping(a, "10.5.0.2", count=1, lossless=False))
    lab.net.ping(a, "10.5.0.2")
    one.stop_daemon(9)
    one.start_daemon()
    wait_for("traffic behind a restart", lambda: lab.net.ping(b, "10.5.0.1", count=1, lossless=False), 30)
    lab.net.ping(a, "10.5.0.2")


if __name__ == "__main__":
    main()
