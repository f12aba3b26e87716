#!/usr/bin/env python3
"""Network cards by AF_XDP: ports of type afxdp, and of type dpdk without DPDK. veth pairs stand for the cards."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from lab.shell import wait_for
from test_connectivity import exchange, iperf
from test_offload import settled
from test_offload_auto import start
from test_tunnel_devices import kernel_vxlan, pod_of
from test_tunnels import tunnel

CARD = "nic0"
WIRE = "eth0"


def cable(lab, sw, address="10.1.0.2/24", name="wire", dev=CARD, queues=1, mtu=None):
    """A card of the switch's machine, and a host at the other end of its cable."""
    ns = lab.net.namespace(name)
    many = ("numrxqueues", str(queues), "numtxqueues", str(queues))
    lab.net.ip(sw.netns, "link", "add", dev, *many, "type", "veth", "peer", "name", WIRE, *many, "netns", ns)
    # A cable carries finished checksums; a veth pair carries none, unless this is off.
    lab.net.run(ns, "ethtool", "-K", WIRE, "tx", "off")
    for where, what in ((sw.netns, dev), (ns, WIRE)):
        if mtu:
            lab.net.ip(where, "link", "set", what, "mtu", str(mtu))
        lab.net.ip(where, "link", "set", what, "up")
    lab.net.address(ns, WIRE, address)
    return ns


def plug(sw, kind="afxdp", name=CARD, bridge="br0", **options):
    settings = [f"options:{key.replace('_', '-') if key not in ('n_rxq', 'n_rxq_desc') else key}={value}"
                for key, value in options.items()]
    sw.vsctl("add-port", bridge, name, "--", "set", "interface", name, f"type={kind}", *settings)


def error(sw, name=CARD):
    return sw.get("interface", name, "error")


def has_program(lab, sw, dev=CARD):
    return "xdp" in lab.net.ip(sw.netns, "link", "show", dev)


def until_reply(lab, ns, target="10.1.0.2"):
    wait_for("an answer", lambda: lab.net.ping(ns, target, count=1, lossless=False) == 1, 30)


def one(lab, kind="afxdp", name=CARD, cable_options=None, **options):
    """A switch with a card and a pod on an internal port."""
    sw = lab.switch()
    lab.bridge(sw)
    wire = cable(lab, sw, **(cable_options or {}))
    pod = lab.internal_pod(sw, "a", "10.1.0.1/24")
    plug(sw, kind, name, **options)
    assert error(sw, name) == "[]", error(sw, name)
    return sw, wire, pod


@limit(300)
def scenario_native_mode(lab):
    sw, wire, pod = one(lab)
    assert "xdp-mode=native" in sw.get("interface", CARD, "status")
    assert f"port: {CARD}" in sw.appctl("dpif-netdev/pmd-rxq-show")
    # Packets for pods have addresses that are not the card's.
    assert "promiscuity 1" in lab.net.ip(sw.netns, "-d", "link", "show", CARD)
    host = lab.net.raw(sw.netns, CARD)
    exchange(lab, pod, wire)
    # The host's stack does not see what comes in.
    host.setblocking(False)
    seen = []
    while True:
        try:
            frame, (_, _, kind, *_) = host.recvfrom(2000)
        except BlockingIOError:
            break
        if kind != 4:  # PACKET_OUTGOING
            seen.append(frame[:40].hex())
    assert not seen, seen[:3]
    wait_for("statistics", lambda: re.search(r"rx_packets=\d{3,}.*xsk_queue_0_rx_dropped=\d+",
                                             sw.get("interface", CARD, "statistics")), 30)
    # A tag that the card takes out of a packet would be lost.
    offload = "rx-vlan-offload: "
    assert offload + "off" in lab.net.run(sw.netns, "ethtool", "-k", CARD)
    sw.vsctl("del-port", CARD)
    assert not has_program(lab, sw)
    assert offload + "on" in lab.net.run(sw.netns, "ethtool", "-k", CARD)


@limit(300)
def scenario_generic_mode(lab):
    sw, wire, pod = one(lab, xdp_mode="generic", use_need_wakeup="false", n_rxq_desc="512")
    assert "xdp-mode=generic" in sw.get("interface", CARD, "status")
    exchange(lab, pod, wire)
    # Another mode while packets pass.
    sw.vsctl("set", "interface", CARD, "options:xdp-mode=native")
    wait_for("the other mode", lambda: "xdp-mode=native" in sw.get("interface", CARD, "status"))
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2")
    # A mode that the card has not: an error at once, and the port comes back with a mode that it has.
    for option in ("xdp-mode=native-with-zerocopy", "start-qid=3"):
        sw.vsctl("set", "interface", CARD, f"options:{option}")
        assert "could not open network device" in error(sw), error(sw)
        sw.vsctl("set", "interface", CARD, "options:xdp-mode=native", "options:start-qid=0")
        assert error(sw) == "[]", error(sw)
        until_reply(lab, pod)
    # The end of the process gives the card its settings back.
    sw.stop_daemon()
    assert "rx-vlan-offload: on" in lab.net.run(sw.netns, "ethtool", "-k", CARD)
    sw.start_daemon()
    until_reply(lab, pod)


@limit(240)
def scenario_jumbo_frames(lab):
    """Packets that take several frames."""
    sw, wire, pod = one(lab, cable_options={"mtu": 9000})
    lab.net.ip(pod, "link", "set", "a0", "mtu", "9000")
    sw.vsctl("set", "interface", "a0", "mtu_request=9000")
    wait_for("the bridge's MTU", lambda: "9000" in sw.get("interface", "a0", "mtu"))
    for size in (3700, 3900, 4100, 8972):
        lab.net.ping(pod, "10.1.0.2", size=size, df=True)
        lab.net.ping(wire, "10.1.0.1", size=size, df=True)
    end = iperf(lab, wire, pod, "10.1.0.2", "-n", "50000000")
    assert end["sum_received"]["bytes"] > 25_000_000


@limit(240)
def scenario_two_cards(lab):
    """From card to card, with tags."""
    sw, wire, _ = one(lab)
    other = cable(lab, sw, "10.1.0.3/24", name="far", dev="nic1")
    plug(sw, name="nic1", use_need_wakeup="true")
    lab.net.ping(other, "10.1.0.2")
    lab.net.ping(wire, "10.1.0.3", size=1472, df=True)
    sw.vsctl("set", "port", CARD, "tag=7")
    lab.net.no_ping(other, "10.1.0.2")
    sw.vsctl("set", "port", "nic1", "tag=7")
    until_reply(lab, other)
    end = iperf(lab, wire, other, "10.1.0.2", "-n", "50000000")
    assert end["sum_received"]["bytes"] > 25_000_000


@limit(300)
def scenario_several_queues(lab):
    """Each queue is a worker's; their number changes under traffic."""
    sw, wire, pod = one(lab, cable_options={"queues": 4}, n_rxq=4)
    shown = sw.appctl("dpif-netdev/pmd-rxq-show")
    assert all(re.search(rf"port: {CARD} +queue-id: +{queue} ", shown) for queue in range(4)), shown
    iperf(lab, pod, wire, "10.1.0.1", "-P", "8", "-n", "20000000")
    for n in (1, 3, 4):
        sw.vsctl("set", "interface", CARD, f"options:n_rxq={n}")
        wait_for(f"{n} queues", lambda: len(re.findall(f"port: {CARD} ", sw.appctl("dpif-netdev/pmd-rxq-show"))) == n)
        if n < 4:
            wait_for("the warning", lambda: f"the host's stack gets packets of {4 - n} of its 4" in sw.log())
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2", count=10)
    sw.vsctl("set", "interface", CARD, "options:n_rxq=9")
    wait_for("an error", lambda: "it has 4 receive queues, and n_rxq=9" in error(sw))
    sw.vsctl("set", "interface", CARD, "options:n_rxq=4")
    wait_for("no error", lambda: error(sw) == "[]")
    until_reply(lab, pod)


@limit(300)
def scenario_killed_and_started(lab):
    """A process that is killed leaves no program, and its successor takes the card again."""
    sw, _, pod = one(lab)
    lab.net.ping(pod, "10.1.0.2")
    for _ in range(5):
        assert has_program(lab, sw)
        os.kill(sw.pid, signal.SIGKILL)
        wait_for("the program to go", lambda: not has_program(lab, sw))
        sw.start_daemon()
        assert error(sw) == "[]", error(sw)
        until_reply(lab, pod)
    sw.vsctl("del-port", CARD)
    assert not has_program(lab, sw)


@limit(300)
def scenario_ports_of_dpdk(lab):
    """Open vSwitch's lines for a DPDK port, with a device that the kernel drives."""
    sw, wire, pod = one(lab, "dpdk", "phys0", dpdk_devargs=f"net_af_xdp0,iface={CARD}", n_rxq="1", n_rxq_desc="1024")
    status = sw.get("interface", "phys0", "status")
    for part in ("heddle-backend=afxdp", f"heddle-device={CARD}", "driver_name=veth", "xdp-mode=native", 'link_speed="10Gbps"'):
        assert part in status, status
    exchange(lab, pod, wire)
    sw.vsctl("set", "open_vswitch", ".", "other_config:dpdk-init=true")
    assert sw.get("open_vswitch", ".", "dpdk_initialized") == "true"
    for devargs, why in (
        (None, "options:dpdk-devargs is missing"),
        ("0000:ff:1f.7", "there is no PCI device 0000:ff:1f.7"),
        ("net_null0", "there are no drivers of DPDK here"),
        ("class=eth,mac=02:00:00:00:00:99", "no network card of the kernel has the address"),
        ("net_af_xdp1,iface=nope", "No such device"),
        (f"net_af_xdp1,iface={CARD}", "another program has an XDP program at the device"),
    ):
        options = {"dpdk_devargs": devargs} if devargs else {}
        plug(sw, "dpdk", "phys1", **options)
        assert why in error(sw, "phys1"), (devargs, error(sw, "phys1"))
        sw.vsctl("del-port", "phys1")
    lab.net.ping(pod, "10.1.0.2")


@limit(300)
def scenario_faults(lab):
    """One sentence in Interface.error; other ports continue."""
    sw, _, pod = one(lab)
    for name, options, why in (
        ("nope", {}, "could not open network device nope (No such device)"),
        ("lo", {}, "a loopback device cannot be a port"),
        (CARD + "x", {"xdp_mode": "skb"}, "options:xdp-mode=skb: expected best-effort"),
        (CARD + "x", {"n_rxq_desc": "1000"}, "options:n_rxq_desc=1000: expected a power of two"),
        (CARD + "x", {"xdp_mode": "native-with-zerocopy"}, "native-with-zerocopy: queue 0: "),
    ):
        if name.endswith("x") and name not in lab.net.ip(sw.netns, "-o", "link", "show"):
            cable(lab, sw, "10.1.9.2/24", name="spare", dev=name)
        plug(sw, name=name, **options)
        assert why in error(sw, name), (name, error(sw, name))
        sw.vsctl("del-port", name)
    lab.net.ping(pod, "10.1.0.2")
    # The device goes, and comes back.
    lab.net.ip(sw.netns, "link", "del", CARD)
    wait_for("an error", lambda: "No such device" in error(sw))
    again = cable(lab, sw, "10.1.0.5/24", name="again")
    wait_for("no error", lambda: error(sw) == "[]")
    until_reply(lab, pod, "10.1.0.5")
    # Another namespace gets the device.
    lab.net.ip(sw.netns, "link", "set", CARD, "netns", lab.net.namespace("elsewhere"))
    wait_for("an error", lambda: "No such device" in error(sw))
    lab.net.ping(pod, "10.1.0.1")
    assert again


@limit(300)
def scenario_uplink(lab):
    """br-ex has the host's address and an AF_XDP uplink: the host, and a tunnel, use it; also after kill -9."""
    sw = lab.switch()
    lab.bridge(sw, "br-ex")
    lab.bridge(sw, "br-int")
    peer = cable(lab, sw, "172.31.0.2/24")
    plug(sw, "dpdk", "phys0", bridge="br-ex", dpdk_devargs=f"net_af_xdp0,iface={CARD}")
    assert error(sw, "phys0") == "[]", error(sw, "phys0")
    lab.net.address(sw.netns, "br-ex", "172.31.0.1/24")
    kernel_vxlan(lab, peer, "172.31.0.2", "172.31.0.1", "10.5.0.2/24")
    tunnel(sw, "vxlan", "172.31.0.2")
    pod = pod_of(lab, sw, 1)
    until_reply(lab, sw.netns, "172.31.0.2")
    until_reply(lab, pod, "10.5.0.2")
    for _ in range(2):
        lab.net.ping(pod, "10.5.0.2", size=1300, df=True)
        end = iperf(lab, peer, pod, "10.5.0.2", "-n", "20000000")
        assert end["sum_received"]["bytes"] > 15_000_000
        os.kill(sw.pid, signal.SIGKILL)
        wait_for("the program to go", lambda: not has_program(lab, sw))
        sw.start_daemon()
        assert "172.31.0.1/24" in lab.net.ip(sw.netns, "addr", "show", "br-ex")
        until_reply(lab, pod, "10.5.0.2")


@limit(240)
def scenario_beside_forwarding_in_the_kernel(lab):
    """Flows of a veth and a card stay with workers, and the reason is shown; flows between veths do not."""
    sw = start(lab)
    cable(lab, sw)
    plug(sw)
    pods = [lab.veth_pod(sw, f"p{number}", f"10.1.0.{number}/24") for number in (3, 4)]
    until_reply(lab, pods[0])
    lab.net.ping(pods[0], "10.1.0.2", count=10)
    shown = lambda: sw.appctl("heddle/offload")  # noqa: E731
    wait_for("the reason", lambda: "an output port is not offloaded" in shown() or "its input port is not offloaded" in shown(), 30)
    settled(lab, sw, pods[0], "10.1.0.4")
    lab.net.ping(pods[0], "10.1.0.2")


@limit(240)
def scenario_rates(lab):
    """The switch's own shaper and policers: packets of these ports pass no discipline of the kernel."""
    sw, wire, pod = one(lab)
    assert "linux-htb" in sw.appctl("qos/show-types", CARD)

    def mbit():
        return iperf(lab, wire, pod, "10.1.0.2", "-t", "3")["sum_received"]["bits_per_second"] / 1e6
    free = mbit()
    sw.vsctl("set", "port", CARD, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", "other-config:max-rate=20000000")
    shaped = mbit()
    assert shaped < 22 < free, (shaped, free)
    sw.vsctl("clear", "port", CARD, "qos")
    sw.vsctl("set", "interface", CARD, "ingress_policing_rate=20000", "ingress_policing_burst=2000")
    policed = iperf(lab, wire, pod, "10.1.0.2", "-t", "3", "-R")["sum_received"]["bits_per_second"] / 1e6
    assert policed < 25, policed


@limit(240)
def scenario_bond(lab):
    """A bond of two cards continues on the other card when the active one loses its link."""
    sw = lab.switch()
    lab.bridge(sw)
    pod = lab.internal_pod(sw, "a", "10.1.0.1/24")
    wire = cable(lab, sw)
    # The second cable ends at the same host: a bridge joins both ends.
    lab.net.ip(sw.netns, "link", "add", "nic1", "type", "veth", "peer", "name", "eth1", "netns", wire)
    lab.net.ip(sw.netns, "link", "set", "nic1", "up")
    lab.net.run(wire, "ethtool", "-K", "eth1", "tx", "off")
    lab.net.ip(wire, "link", "add", "join", "type", "bridge")
    lab.net.ip(wire, "addr", "flush", "dev", WIRE)
    for dev in (WIRE, "eth1"):
        lab.net.ip(wire, "link", "set", dev, "master", "join", "up")
    lab.net.address(wire, "join", "10.1.0.2/24")
    lab.net.run(wire, "ethtool", "-K", "join", "tx", "off")
    sw.vsctl("add-bond", "br0", "bond0", CARD, "nic1", "other_config:bond-primary=" + CARD,
             *(part for dev in (CARD, "nic1") for part in ("--", "set", "interface", dev, "type=afxdp")))
    assert (error(sw), error(sw, "nic1")) == ("[]", "[]")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2", size=1400)
    active = lambda: re.search(r"\nmember (\S+): \w+\n  active member", sw.appctl("bond/show", "bond0"))[1]  # noqa: E731
    assert active() == CARD
    lab.net.ip(wire, "link", "set", WIRE, "down")
    wait_for("the other member", lambda: active() == "nic1")
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2", size=1400)


@limit(240)
def scenario_down_and_up(lab):
    """Packets that are sent while the card is down are dropped, not kept."""
    sw, wire, pod = one(lab)
    lab.net.ping(pod, "10.1.0.2")
    lab.net.ip(sw.netns, "link", "set", CARD, "down")
    wait_for("the state", lambda: sw.get("interface", CARD, "admin_state") == "down")
    listener = lab.net.raw(wire, WIRE)
    lab.net.ping(pod, "10.1.0.2", count=2, lossless=False, timeout=3)
    lab.net.ip(sw.netns, "link", "set", CARD, "up")
    wait_for("the state", lambda: sw.get("interface", CARD, "admin_state") == "up")
    time.sleep(1)
    listener.setblocking(False)
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2")


if __name__ == "__main__":
    main()
