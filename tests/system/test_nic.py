#!/usr/bin/env python3
"""Network cards by AF_XDP: ports of type afxdp, and of type dpdk without DPDK. veth pairs stand for the cards."""

import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import bpf, xsk
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
    # An internal port in the switch's own namespace is a device, too.
    sw.vsctl("add-port", "br0", "a-br", "--", "set", "interface", "a-br", "type=internal")
    for devargs, why in (
        (None, "options:dpdk-devargs is missing"),
        ("0000:ff:1f.7", "there is no PCI device 0000:ff:1f.7"),
        ("net_null0", "there are no drivers of DPDK here"),
        ("class=eth,mac=02:00:00:00:00:99", "no network card of the kernel has the address"),
        ("net_af_xdp1,iface=nope", "No such device"),
        (f"net_af_xdp1,iface={CARD}", f"could not open network device {CARD} (it is the device of port phys0)"),
        ("net_af_packet1,iface=a-br", "(it is the device of port a-br)"),
    ):
        options = {"dpdk_devargs": devargs} if devargs else {}
        plug(sw, "dpdk", "phys1", **options)
        assert why in error(sw, "phys1"), (devargs, error(sw, "phys1"))
        sw.vsctl("del-port", "phys1")
    # The other way round, and for a bridge of its own.
    sw.vsctl("add-port", "br0", CARD)
    assert f"could not open network device {CARD} (it is the device of port phys0)" in error(sw), error(sw)
    lab.net.ping(pod, "10.1.0.2")
    # The device changes hands in one transaction.
    sw.vsctl("del-port", "phys0")
    assert error(sw) == "[]", error(sw)
    until_reply(lab, pod)
    sw.vsctl("del-port", CARD, "--", "add-port", "br0", "phys0", "--", "set", "interface", "phys0", "type=dpdk",
             f"options:dpdk-devargs=net_af_xdp0,iface={CARD}")
    assert error(sw, "phys0") == "[]", error(sw, "phys0")
    until_reply(lab, pod)


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


def program_of(lab, sw, dev=CARD):
    """Number of the XDP program at a device."""
    found = re.search(r"prog/xdp(?:generic)? id (\d+)", lab.net.ip(sw.netns, "-d", "link", "show", dev))
    return int(found[1]) if found else None


@limit(300)
def scenario_other_programs(lab):
    """Another program has the card: an error until it leaves; then the port comes without a change of the database. Other ports continue."""
    sw, _, pod = one(lab)
    cable(lab, sw, "10.1.0.3/24", name="far", dev="nic1")
    link = bpf.attach(lab, sw.netns, "nic1", "xdp")
    plug(sw, name="nic1")
    assert "another program has an XDP program at the device" in error(sw, "nic1"), error(sw, "nic1")
    assert "xdp" in lab.net.ip(sw.netns, "link", "show", "nic1")
    lab.net.ping(pod, "10.1.0.2")
    os.close(link)
    wait_for("no error", lambda: error(sw, "nic1") == "[]")
    until_reply(lab, pod, "10.1.0.3")
    sw.vsctl("del-port", "nic1")
    with xsk.bound(lab, sw.netns, "nic1"):
        plug(sw, name="nic1")
        assert "queue 0: Device or resource busy" in error(sw, "nic1"), error(sw, "nic1")
        # The switch tries again every two seconds, and has a program there meanwhile.
        wait_for("no program", lambda: not has_program(lab, sw, "nic1"))
        lab.net.ping(pod, "10.1.0.2")
    wait_for("no error", lambda: error(sw, "nic1") == "[]")
    until_reply(lab, pod, "10.1.0.3")
    # Another program removes the switch's own, and keeps the place for a while.
    old = program_of(lab, sw)
    bpf.detach(old)
    link = bpf.attach(lab, sw.netns, CARD, "xdp")
    wait_for("an error", lambda: "another program has an XDP program at the device" in error(sw))
    assert "another program has detached its XDP program" in sw.log()
    lab.net.ping(pod, "10.1.0.3")
    os.close(link)
    wait_for("no error", lambda: error(sw) == "[]")
    until_reply(lab, pod)
    assert program_of(lab, sw) not in (None, old)
    # Removed, without another one.
    bpf.detach(program_of(lab, sw))
    wait_for("the program", lambda: has_program(lab, sw))
    until_reply(lab, pod)


@limit(120)
def scenario_no_right(lab):
    """A switch without CAP_BPF and CAP_SYS_ADMIN: one sentence, and a packet socket still serves the card."""
    sw = lab.switch(start=False)
    sw.before = ["setpriv", "--bounding-set", "-bpf,-sys_admin"]
    sw.start()
    lab.bridge(sw)
    cable(lab, sw)
    plug(sw)
    assert "no right to load or attach an XDP program" in error(sw), error(sw)
    pod = lab.internal_pod(sw, "a", "10.1.0.1/24")
    sw.vsctl("set", "interface", CARD, "type=system")
    assert error(sw) == "[]", error(sw)
    until_reply(lab, pod)


@limit(300)
def scenario_host_shares_the_card(lab):
    """Packets that `heddle-xdp-pass` names go to the host's stack, are counted, and no others; also after kill -9."""
    sw, wire, pod = one(lab)
    host = "10.1.0.9"
    lab.net.address(sw.netns, CARD, f"{host}/24")
    # The bridge's own device has no address: the host has the card's.
    lab.net.no_ping(wire, host)

    def share(items):
        sw.vsctl("set", "interface", CARD, f'other_config:heddle-xdp-pass="{items}"')

    def passed():
        return int(re.search(r"xdp_passed_packets=(\d+)", sw.get("interface", CARD, "statistics"))[1])
    share(f"ip={host}")
    wait_for("the status", lambda: f'heddle-xdp-pass="ip={host}"' in sw.get("interface", CARD, "status"))
    until_reply(lab, wire, host)
    lab.net.ping(wire, host, size=1400)
    lab.net.ping(sw.netns, "10.1.0.2")
    lab.net.ping(pod, "10.1.0.2")
    wait_for("the count", lambda: passed() >= 6, 30)
    # Another mode keeps them; kill -9 ends them with the program, and the successor has them again.
    sw.vsctl("set", "interface", CARD, "options:xdp-mode=generic")
    wait_for("the mode", lambda: "xdp-mode=generic" in sw.get("interface", CARD, "status"))
    lab.net.ping(wire, host)
    os.kill(sw.pid, signal.SIGKILL)
    wait_for("the program to go", lambda: not has_program(lab, sw))
    sw.start_daemon()
    lab.net.ping(wire, host)
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2")
    def known():
        """Both know the other's MAC address, without ARP."""
        for ns, dev, other, of, address in ((wire, WIRE, sw.netns, CARD, host), (sw.netns, CARD, wire, WIRE, "10.1.0.2")):
            mac = re.search(r"link/ether (\S+)", lab.net.ip(other, "link", "show", of))[1]
            lab.net.ip(ns, "neigh", "replace", address, "lladdr", mac, "dev", dev, "nud", "permanent")
    share("tcp=5202,ether=0x88cc")
    known()
    lab.net.no_ping(wire, host)
    known()
    end = iperf(lab, sw.netns, wire, host, "-n", "5000000")
    assert end["sum_received"]["bytes"] > 1_000_000  # the rest may wait in sockets
    share("udp=68 tcp=x")
    wait_for("an error", lambda: "'tcp=x': expected ip=ADDRESS, tcp=PORT" in error(sw))
    # The list that is in force stays.
    iperf(lab, sw.netns, wire, host, "-n", "1000000")
    share("proto=1")
    assert error(sw) == "[]", error(sw)
    lab.net.ping(wire, host)
    sw.vsctl("remove", "interface", CARD, "other_config", "heddle-xdp-pass")
    wait_for("the status", lambda: "heddle-xdp-pass" not in sw.get("interface", CARD, "status"))
    lab.net.no_ping(wire, host)
    share("proto=1")
    known()
    lab.net.ping(wire, host)
    sw.vsctl("del-port", CARD)
    assert not has_program(lab, sw)
    # Another type has no such program.
    sw.vsctl("add-port", "br0", CARD, "--", "set", "interface", CARD, "other_config:heddle-xdp-pass=proto=1")
    wait_for("a line", lambda: f"interface {CARD}: other_config:heddle-xdp-pass is not supported yet and changes nothing" in sw.log())


@limit(300)
def scenario_host_shares_the_card_by_ipv6(lab):
    sw, wire, pod = one(lab)
    ns = lab.net.namespace("six", ipv6=True)
    lab.net.ip(wire, "link", "set", WIRE, "netns", ns, "up")
    lab.net.ip(ns, "addr", "add", "fd01::2/64", "dev", WIRE, "nodad")
    lab.net.run(sw.netns, "sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{CARD}/disable_ipv6")
    lab.net.ip(sw.netns, "addr", "add", "fd01::9/64", "dev", CARD, "nodad")
    lab.net.no_ping(ns, "fd01::9")
    # Also solicitations for the address, which go to a group.
    sw.vsctl("set", "interface", CARD, 'other_config:heddle-xdp-pass="ip=fd01::9"')
    until_reply(lab, ns, "fd01::9")
    lab.net.ping(ns, "fd01::9", size=1400)
    assert pod


@limit(300)
def scenario_steering(lab):
    """Fewer transmit queues than workers: they share. With `hash` the flow chooses the queue, whichever worker sends."""
    sw, wire, pod = one(lab, cable_options={"queues": 2}, n_rxq=2)
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-cpu-mask=3")

    def sent():
        """Packets by transmit queue of the card."""
        counts = lab.net.run(sw.netns, "ethtool", "-S", CARD)
        return [int(n) for n in re.findall(r"tx_queue_\d+_xdp_xmit: (\d+)", counts)]
    for steering in ("hash", "thread"):
        sw.vsctl("set", "interface", CARD, f"other_config:tx-steering={steering}")
        wait_for("the status", lambda s=steering: f"tx-steering={s}" in sw.get("interface", CARD, "status"))
        until_reply(lab, pod)
        end = iperf(lab, wire, pod, "10.1.0.2", "-P", "8", "-n", "40000000")
        assert end["sum_received"]["bytes"] > 10_000_000
        lab.trace.note(f"{steering}: {sent()}")
    # One queue for two workers: the second card, to which both workers send.
    other = cable(lab, sw, "10.1.0.3/24", name="far", dev="nic1")
    plug(sw, name="nic1")
    for steering in ("hash", "thread"):
        sw.vsctl("set", "interface", "nic1", f"other_config:tx-steering={steering}")
        until_reply(lab, other)
        iperf(lab, other, wire, "10.1.0.3", "-P", "8", "-n", "20000000")


@limit(300)
def scenario_start_script_of_kube_ovn(lab):
    """The lines of Kube-OVN's start script for Open vSwitch with DPDK, without BOND_TYPE: a tunnel over one card."""
    sw = lab.switch(start=False)
    sw.start_ovsdb()
    for line in ("dpdk-socket-mem=1024", "dpdk-init=true", "dpdk-hugepage-dir=/dev/hugepages", "n-revalidator-threads=4", "n-handler-threads=10"):
        sw.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"other_config:{line}")
    sw.start_daemon()
    assert sw.get("open_vswitch", ".", "dpdk_initialized") == "true"
    peer = cable(lab, sw, "172.31.0.2/24")
    bridge = "br-phy"
    sw.vsctl("--may-exist", "add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev", "--", "br-set-external-id", bridge,
             "bridge-id", bridge, "--", "set", "bridge", bridge, "fail-mode=standalone")
    sw.vsctl("--timeout", "10", "add-port", bridge, "dpdk0", "--", "set", "Interface", "dpdk0", "type=dpdk",
             f"options:dpdk-devargs=net_af_xdp0,iface={CARD}")
    assert error(sw, "dpdk0") == "[]", error(sw, "dpdk0")
    sw.vsctl("set", "port", bridge, "tag=0")
    lab.net.ip(sw.netns, "link", "set", bridge, "up")
    lab.net.ip(sw.netns, "addr", "replace", "172.31.0.1/24", "dev", bridge)
    sw.vsctl("--may-exist", "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev", "--", "br-set-external-id", "br-int",
             "bridge-id", "br-int", "--", "set", "bridge", "br-int", "fail-mode=secure")
    # ovn-controller adds the tunnel, and the flows.
    kernel_vxlan(lab, peer, "172.31.0.2", "172.31.0.1", "10.5.0.2/24")
    tunnel(sw, "vxlan", "172.31.0.2")
    sw.ofctl("add-flow", "br-int", "actions=NORMAL")
    pod = pod_of(lab, sw, 1)
    until_reply(lab, sw.netns, "172.31.0.2")
    until_reply(lab, pod, "10.5.0.2")
    lab.net.ping(pod, "10.5.0.2", size=1300, df=True)
    end = iperf(lab, peer, pod, "10.5.0.2", "-n", "50000000")
    assert end["sum_received"]["bytes"] > 25_000_000
    # The script runs again when its container restarts: the bridge is there, and the switch is a new one.
    sw.stop_daemon()
    sw.start_daemon()
    lab.net.ip(sw.netns, "link", "set", bridge, "up")
    lab.net.ip(sw.netns, "addr", "replace", "172.31.0.1/24", "dev", bridge)
    sw.ofctl("add-flow", "br-int", "actions=NORMAL")
    until_reply(lab, pod, "10.5.0.2")


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
        assert end["sum_received"]["bytes"] > 5_000_000  # the rest may wait in sockets at the end
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
    wait_for("the reason", lambda: "its input or output is an AF_XDP port" in shown(), 30)
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
