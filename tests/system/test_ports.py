#!/usr/bin/env python3
"""Ports and their columns in the database: MTU, MAC, admin state, errors, status columns."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import main
from lab.shell import PATIENCE, wait_for

A, B = "50:54:00:00:00:0a", "50:54:00:00:00:0b"


def scenario_database_columns(lab):
    """Everything that a controller reads back from the database is filled in."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.namespace("x")
    lab.net.veth(sw.netns, "v0", f"{lab.net.stem}-x", "eth0")
    mac = lab.net.ip(sw.netns, "-br", "link", "show", "v0").split()[2]
    sw.vsctl("add-port", "br0", "v0", "--", "set", "interface", "v0", "ofport_request=7")
    sw.wait_column("interface", "v0", "ofport", 7)
    sw.wait_column("interface", "v0", "link_state", "up")
    sw.wait_column("interface", "v0", "admin_state", "up")
    sw.wait_column("interface", "v0", "mtu", 1500)
    sw.wait_column("interface", "v0", "mac_in_use", mac)
    assert sw.get("interface", "v0", "error") == "[]"
    assert int(sw.get("interface", "v0", "ifindex")) > 0
    assert "driver_name=veth" in sw.get("interface", "v0", "status").replace('"', "")
    sw.wait_column("interface", "v0", "statistics", lambda value: "rx_packets=" in value and "tx_bytes=" in value)
    assert sw.get("open_vswitch", ".", "cur_cfg") == sw.get("open_vswitch", ".", "next_cfg")
    types = sw.get("open_vswitch", ".", "iface_types")
    for kind in ("internal", "patch", "system", "tap"):
        assert kind in types, types
    assert "netdev" in sw.get("open_vswitch", ".", "datapath_types")
    if not sw.is_reference:  # there a start script fills these in
        assert sw.get("open_vswitch", ".", "ovs_version")[0].isdigit()
        assert sw.get("open_vswitch", ".", "db_version")[0].isdigit()
    assert len(sw.get("bridge", "br0", "datapath_id")) == 16
    assert sw.get("bridge", "br0", "datapath_version") not in ("", "[]")
    assert sw.get("interface", "br0", "ofport") == "65534"
    assert sw.get("interface", "br0", "mac_in_use") != "[]"
    assert "netdev" in sw.appctl("dpctl/dump-dps")


def scenario_statistics_follow_the_traffic(lab):
    sw = lab.switch()
    lab.bridge(sw)
    lab.veth_pod(sw, "a")
    lab.veth_pod(sw, "b")
    out, into = lab.net.raw(f"{lab.net.stem}-b", "eth0"), lab.net.raw(f"{lab.net.stem}-a", "eth0")
    frame = frames.ethernet(B, A, 0x9000, b"x" * 86)
    for _ in range(50):
        into.send(frame)
    assert receive(out, lambda got: got[:14] == frame[:14]), "nothing arrived"
    sw.vsctl("set", "open_vswitch", ".", "other_config:stats-update-interval=1000")

    def counted(port, name):
        text = sw.get("interface", port, "statistics")
        pairs = dict(item.split("=") for item in text.strip("{}").split(", ") if "=" in item)
        return int(pairs.get(name, 0))
    wait_for("50 received in the database", lambda: counted("va", "rx_packets") >= 50)
    wait_for("50 sent in the database", lambda: counted("vb", "tx_packets") >= 50)
    assert counted("va", "rx_bytes") >= 50 * 100
    # Counters that only the device has.
    sw.vsctl("add-port", "br0", "i0", "--", "set", "interface", "i0", "type=internal")
    for port in ("va", "i0"):
        text = sw.wait_column("interface", port, "statistics", lambda value: "collisions=" in value)
        for name in ("rx_crc_err", "rx_frame_err", "rx_missed_errors", "rx_multicast_packets", "rx_over_err"):
            assert f"{name}=" in text, text
    dump = sw.ofctl("dump-ports", "br0", "va")
    assert "frame=0, over=0, crc=0" in dump and "coll=0" in dump, dump


def scenario_counters_of_drivers(lab):
    """Ports with a device have the counters that its driver keeps; ports without one do not."""
    sw = lab.switch()
    lab.bridge(sw)
    lab.veth_pod(sw, "a")
    sw.vsctl("add-port", "br0", "t0", "--", "set", "interface", "t0", "type=geneve", "options:remote_ip=192.0.2.1")
    sw.vsctl("set", "open_vswitch", ".", "other_config:stats-update-interval=1000")
    ours = {"collisions", "rx_crc_err", "rx_frame_err", "rx_missed_errors", "rx_multicast_packets", "rx_over_err"}

    def keys(port):
        return {item.split("=")[0] for item in sw.get("interface", port, "statistics").strip("{}").split(", ")}
    for port, wanted in (("va", ours), ("br0", ours), ("t0", set())):
        wait_for(f"the counters of {port}", lambda port=port: "rx_packets" in keys(port))
        assert keys(port) & ours == wanted, (port, keys(port))


def scenario_missing_device_is_an_error_of_its_row_only(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    sw.vsctl("--no-wait", "add-port", "br0", "nosuchdev0", "--", "add-port", "br0", "odd0", "--", "set", "interface", "odd0",
             "type=nosuchtype")
    sw.wait_column("interface", "nosuchdev0", "ofport", -1)
    sw.wait_column("interface", "nosuchdev0", "error", lambda text: "nosuchdev0" in text)
    sw.wait_column("interface", "odd0", "ofport", lambda text: text in ("-1", "[]"))
    b = lab.internal_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    # The device appears later: the port starts to work without a change of the database.
    lab.net.namespace("late")
    lab.net.veth(sw.netns, "nosuchdev0", f"{lab.net.stem}-late", "eth0")
    lab.net.address(f"{lab.net.stem}-late", "eth0", "10.1.0.3/24")
    if sw.is_reference:
        lab.net.run(f"{lab.net.stem}-late", "ethtool", "-K", "eth0", "tx", "off", check=False)
    sw.wait_column("interface", "nosuchdev0", "ofport", lambda text: text.isdigit() and int(text) > 0)
    sw.wait_column("interface", "nosuchdev0", "error", "[]")
    lab.net.ping(b, "10.1.0.3")


def scenario_vanished_device(lab):
    """A veth that is deleted under the switch harms no other port, and its name can be used again."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    ns = lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    lab.net.ip(sw.netns, "link", "del", "vb")
    lab.net.no_ping(a, "10.1.0.2")
    c = lab.internal_pod(sw, "c", "10.1.0.3/24")
    lab.net.ping(a, "10.1.0.3")
    sw.vsctl("del-port", "vb")
    lab.net.ip(ns, "link", "del", "eth0", check=False)
    sw.trace.run("ip", "netns", "del", ns)
    lab.net.names.remove(ns)
    lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(c, "10.1.0.2")
    assert sw.alive()


def scenario_mtu_request(lab):
    sw = lab.switch()
    lab.bridge(sw)
    for name in ("i0", "i1"):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=internal", "mtu_request=9000")
        sw.wait_column("interface", name, "mtu", 9000)
    assert "mtu 9000" in lab.net.ip(sw.netns, "link", "show", "i0")
    a, b = lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")
    for pod, ns in (("a", a), ("b", b)):
        sw.vsctl("set", "interface", f"v{pod}", "mtu_request=9000")
        sw.wait_column("interface", f"v{pod}", "mtu", 9000)
        lab.net.ip(ns, "link", "set", "eth0", "mtu", "9000")
    lab.net.ping(a, "10.1.0.2", size=8972, df=True)
    if not sw.is_reference:
        # The reference loses sight of a tap's MTU when the tap leaves its namespace.
        c, d = lab.net.namespace("c"), lab.net.namespace("d")
        for name, ns, address in (("i0", c, "10.1.0.3/24"), ("i1", d, "10.1.0.4/24")):
            lab.net.move(name, sw.netns, ns)
            lab.net.address(ns, name, address)
        lab.net.ping(c, "10.1.0.4", size=8972, df=True)
    # A value that no device takes does not change the port.
    sw.vsctl("add-port", "br0", "i2", "--", "set", "interface", "i2", "type=internal")
    sw.vsctl("--no-wait", "set", "interface", "i2", "mtu_request=68")
    sw.wait_column("interface", "i2", "mtu", lambda text: text in ("68", "1500"))
    lab.net.ping(a, "10.1.0.2")


def scenario_mtu_of_internal_ports_follows(lab):
    """Without a wish of the user, internal ports have the smallest MTU of the others; also once the wish is withdrawn."""
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("set", "interface", "br0", "mtu_request=9000")
    sw.wait_column("interface", "br0", "mtu", 9000)
    sw.vsctl("clear", "interface", "br0", "mtu_request")
    sw.wait_column("interface", "br0", "mtu", 1500)
    lab.veth_pod(sw, "a")
    sw.vsctl("set", "interface", "va", "mtu_request=1400")
    sw.wait_column("interface", "br0", "mtu", 1400)
    sw.vsctl("set", "interface", "br0", "mtu_request=9000")
    sw.wait_column("interface", "br0", "mtu", 9000)
    sw.vsctl("clear", "interface", "br0", "mtu_request")
    sw.wait_column("interface", "br0", "mtu", 1400)
    if sw.is_reference:
        return  # There only the log reports received packets.
    sw.vsctl("--no-wait", "set", "interface", "br0", "mtu_request=100000")
    sw.wait_column("interface", "br0", "error", "could not set MTU of br0 to 100000 (Invalid argument)")
    assert sw.get("interface", "br0", "mtu") == "1400"
    sw.vsctl("clear", "interface", "br0", "mtu_request")
    sw.wait_column("interface", "br0", "error", "[]")


def scenario_mac_of_internal_port(lab):
    sw = lab.switch()
    lab.bridge(sw, "br0", "other_config:hwaddr=aa:bb:cc:00:00:01")
    sw.vsctl("add-port", "br0", "i0", "--", "set", "interface", "i0", "type=internal", 'mac="aa:bb:cc:00:00:02"')
    sw.wait_column("interface", "i0", "mac_in_use", "aa:bb:cc:00:00:02")
    sw.wait_column("interface", "br0", "mac_in_use", "aa:bb:cc:00:00:01")
    assert "aa:bb:cc:00:00:02" in lab.net.ip(sw.netns, "link", "show", "i0")
    assert sw.get("bridge", "br0", "datapath_id") == "0000aabbcc000001"


def scenario_admin_state(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    sw.ofctl("mod-port", "br0", "vb", "down")
    sw.wait_column("interface", "vb", "admin_state", "down")
    lab.net.no_ping(a, "10.1.0.2")
    sw.ofctl("mod-port", "br0", "vb", "up")
    sw.wait_column("interface", "vb", "admin_state", "up")
    lab.net.ping(a, "10.1.0.2")
    # Link down at the far end shows in link_state.
    lab.net.ip(f"{lab.net.stem}-b", "link", "set", "eth0", "down")
    sw.wait_column("interface", "vb", "link_state", "down")


def scenario_port_config_flags(lab):
    """no-flood, no-forward and no-receive of mod-port."""
    sw = lab.switch()
    lab.bridge(sw)
    for pod in ("a", "b", "c"):
        lab.veth_pod(sw, pod)
    socks = {pod: lab.net.raw(f"{lab.net.stem}-{pod}", "eth0") for pod in ("a", "b", "c")}
    frame = frames.ethernet("ff:ff:ff:ff:ff:ff", A, 0x9000, b"flag" + b"\0" * 60)

    def reaches(*wanted):
        socks["a"].send(frame)
        for pod in ("b", "c"):
            got = receive(socks[pod], lambda data: data[:18] == frame[:18], PATIENCE if pod in wanted else 0.5)
            assert (got is not None) == (pod in wanted), f"{pod}: {got}"
    reaches("b", "c")
    sw.ofctl("mod-port", "br0", "vb", "no-flood")
    reaches("c")
    sw.ofctl("mod-port", "br0", "vb", "flood")
    sw.ofctl("mod-port", "br0", "vc", "no-forward")
    reaches("b")
    sw.ofctl("mod-port", "br0", "vc", "forward")
    sw.ofctl("mod-port", "br0", "va", "no-receive")
    reaches()
    sw.ofctl("mod-port", "br0", "va", "receive")
    reaches("b", "c")


def scenario_many_ports_come_and_go(lab):
    sw = lab.switch()
    lab.bridge(sw)
    names = [f"t{i}" for i in range(30)]
    add = [word for name in names for word in ("--", "add-port", "br0", name, "--", "set", "interface", name,
                                               "type=internal")]
    sw.vsctl(*add[1:])
    ports = sw.get("bridge", "br0", "ports").count(",") + 1
    assert ports == 31, ports
    numbers = {sw.get("interface", name, "ofport") for name in names}
    assert len(numbers) == 30 and all(int(number) > 0 for number in numbers), numbers
    sw.vsctl(*[word for name in names for word in ("--", "del-port", name)][1:])
    wait_for("devices to go", lambda: "t7" not in lab.net.ip(sw.netns, "-br", "link"))
    sw.vsctl("del-br", "br0")
    wait_for("the bridge's to go", lambda: "br0" not in lab.net.ip(sw.netns, "-br", "link"))


if __name__ == "__main__":
    main()
