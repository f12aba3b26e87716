#!/usr/bin/env python3
"""VLANs, patch ports, MAC learning and fail modes, seen frame by frame."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import main
from lab.shell import PATIENCE, wait_for

A, B, C = "50:54:00:00:00:0a", "50:54:00:00:00:0b", "50:54:00:00:00:0c"
ALL = "ff:ff:ff:ff:ff:ff"


class Wires:
    """Pods on veth ports, each with a raw socket; frames carry a serial number that identifies them."""

    def __init__(self, lab, sw, ports, bridge="br0"):
        """ports: pod name -> extra words of add-port."""
        self.sw = sw
        self.serial = 0
        self.socks = {}
        for pod, words in ports.items():
            ns = lab.veth_pod(sw, pod, bridge=bridge, column=words)
            # Tags must reach the socket as they are on the wire.
            lab.net.run(ns, "ethtool", "-K", "eth0", "txvlan", "off", "rxvlan", "off", check=False)
            lab.net.run(sw.netns, "ethtool", "-K", f"v{pod}", "txvlan", "off", "rxvlan", "off", check=False)
            self.socks[pod] = lab.net.raw(ns, "eth0")

    def send(self, source, dst, src, vid=None, arrive=None):
        """Sends one frame; `arrive` maps a pod to the VLAN ID that it must carry there (None: untagged). No
        other pod may see it."""
        self.serial += 1
        # The reference corrects cached decisions a little later than it learns.
        self.sw.appctl("revalidator/wait")
        mark = b"heddle%06d" % self.serial + b"." * 40
        tags = [(0x8100, vid)] if vid is not None else []
        self.socks[source].send(frames.ethernet(dst, src, 0x9000, mark, tags))
        for pod, sock in self.socks.items():
            if pod == source:
                continue
            wanted = pod in (arrive or {})
            got = receive(sock, lambda data: mark in data, PATIENCE if wanted else 0.4)
            assert (got is not None) == wanted, f"{source} -> {pod}: {'nothing' if got is None else got.hex()}"
            if wanted:
                tag = int.from_bytes(got[14:16], "big") & 0xfff if got[12:14] == b"\x81\0" else None
                assert tag == arrive[pod], f"{source} -> {pod}: VLAN {tag} instead of {arrive[pod]}"


def scenario_access_and_trunk(lab):
    sw = lab.switch()
    lab.bridge(sw)
    wires = Wires(lab, sw, {"a": ["tag=10"], "b": ["tag=10"], "c": ["tag=20"], "t": [], "u": ["trunks=20,30"]})
    wires.send("a", ALL, A, arrive={"b": None, "t": 10})
    wires.send("c", ALL, C, arrive={"t": 20, "u": 20})
    wires.send("t", ALL, B, 10, arrive={"a": None, "b": None})
    wires.send("t", ALL, B, 30, arrive={"u": 30})
    wires.send("t", ALL, B, arrive={})            # VLAN 0 has no other member: u does not carry it
    wires.send("a", ALL, A, 10, arrive={})        # an access port takes no tagged frames
    wires.send("u", ALL, C, 10, arrive={})        # not one of its trunks


def scenario_native_vlans(lab):
    sw = lab.switch()
    lab.bridge(sw)
    wires = Wires(lab, sw, {"n": ["vlan_mode=native-untagged", "tag=10"], "m": ["vlan_mode=native-tagged", "tag=10"],
                            "a": ["tag=10"], "c": ["tag=20"]})
    wires.send("n", ALL, A, arrive={"m": 10, "a": None})
    wires.send("m", ALL, B, arrive={"n": None, "a": None})
    wires.send("n", ALL, A, 20, arrive={"m": 20, "c": None})
    wires.send("c", ALL, C, arrive={"n": 20, "m": 20})


def scenario_pods_in_vlans(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24", column=("tag=100",))
    lab.internal_pod(sw, "b", "10.1.0.2/24", column=("tag=100",))
    lab.internal_pod(sw, "c", "10.1.0.3/24", column=("tag=200",))
    trunk = lab.internal_pod(sw, "t", "10.9.9.9/24")
    out = lab.net.ip(trunk, "link", "add", "link", "t0", "name", "t0.100", "type", "vlan", "id", "100", check=False)
    lab.net.ping(a, "10.1.0.2")
    if "Unknown device type" not in out:  # a kernel without VLAN devices
        lab.net.address(trunk, "t0.100", "10.1.0.4/24")
        lab.net.ping(a, "10.1.0.4")
    lab.net.no_ping(a, "10.1.0.3")
    sw.vsctl("set", "port", "c0", "tag=100")
    lab.net.ping(a, "10.1.0.3")


def scenario_two_bridges_with_patch_ports(lab):
    sw = lab.switch()
    lab.bridge(sw, "br0")
    lab.bridge(sw, "br1")
    sw.vsctl("add-port", "br0", "p0", "--", "set", "interface", "p0", "type=patch", "options:peer=p1",
             "--", "add-port", "br1", "p1", "--", "set", "interface", "p1", "type=patch", "options:peer=p0")
    a = lab.internal_pod(sw, "a", "10.1.0.1/24", bridge="br0")
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", bridge="br1")
    lab.net.ping(a, "10.1.0.2")
    lab.net.ping(b, "10.1.0.1", size=1400)
    assert "patch: peer=p1" in sw.appctl("dpif/show")
    sw.vsctl("del-port", "p1")
    lab.net.no_ping(a, "10.1.0.2")
    sw.vsctl("add-port", "br1", "p1", "--", "set", "interface", "p1", "type=patch", "options:peer=p0")
    lab.net.ping(a, "10.1.0.2")


def scenario_learning_and_the_fdb_commands(lab):
    sw = lab.switch()
    lab.bridge(sw)
    wires = Wires(lab, sw, {"a": [], "b": [], "c": []})
    ports = {pod: sw.get("interface", f"v{pod}", "ofport") for pod in "abc"}

    def fdb():
        return {row[2]: (row[0], row[1]) for row in map(str.split, sw.appctl("fdb/show", "br0").splitlines()[1:])}
    wires.send("a", B, A, arrive={"b": None, "c": None})
    assert fdb()[A] == (ports["a"], "0"), fdb()
    wires.send("b", A, B, arrive={"a": None})
    wires.send("a", B, A, arrive={"b": None})
    # The address moves with the station.
    wires.send("c", A, B, arrive={"a": None})
    wait_for("the move", lambda: fdb()[B] == (ports["c"], "0"))
    wires.send("a", B, A, arrive={"c": None})
    # Group addresses are never learned.
    wires.send("a", ALL, "01:00:5e:00:00:01", arrive={"b": None, "c": None})
    assert "01:00:5e:00:00:01" not in fdb()
    sw.appctl("fdb/flush", "br0")
    assert not fdb()
    wires.send("a", B, A, arrive={"b": None, "c": None})
    sw.appctl("fdb/add", "br0", "vb", "0", C)
    wires.send("a", C, A, arrive={"b": None})
    assert "static" in sw.appctl("fdb/show", "br0")
    sw.appctl("fdb/del", "br0", "0", C)
    assert C not in fdb()
    assert sw.appctl("fdb/stats-show", "br0").strip()


def scenario_ageing(lab):
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("set", "bridge", "br0", "other_config:mac-aging-time=15")
    wires = Wires(lab, sw, {"a": [], "b": [], "c": []})
    wires.send("a", B, A, arrive={"b": None, "c": None})
    assert A in sw.appctl("fdb/show", "br0")
    wait_for("the address to age out", lambda: A not in sw.appctl("fdb/show", "br0"), interval=0.5)
    wires.send("b", A, B, arrive={"a": None, "c": None})


def scenario_table_size(lab):
    """A flood of sources cannot grow the table beyond its limit."""
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("set", "bridge", "br0", "other_config:mac-table-size=20")
    wires = Wires(lab, sw, {"a": [], "b": []})
    for i in range(200):
        wires.socks["a"].send(frames.ethernet(B, f"50:54:00:00:01:{i:02x}", 0x9000, b"y" * 60))
    wait_for("a full table", lambda: len(sw.appctl("fdb/show", "br0").splitlines()) - 1 >= 15)
    assert len(sw.appctl("fdb/show", "br0").splitlines()) - 1 <= 20
    wires.send("b", ALL, B, arrive={"a": None})


def scenario_flood_vlans(lab):
    sw = lab.switch()
    lab.bridge(sw)
    wires = Wires(lab, sw, {"a": ["tag=10"], "b": ["tag=10"], "c": ["tag=10"]})
    sw.vsctl("set", "bridge", "br0", "flood_vlans=10")
    wires.send("a", B, A, arrive={"b": None, "c": None})
    wires.send("b", A, B, arrive={"a": None, "c": None})
    sw.vsctl("clear", "bridge", "br0", "flood_vlans")
    sw.appctl("revalidator/purge")  # a cached decision that learned nothing must not linger in the reference
    wires.send("a", B, A, arrive={"b": None, "c": None})
    wires.send("b", A, B, arrive={"a": None})


def scenario_reserved_multicast(lab):
    sw = lab.switch()
    lab.bridge(sw)
    wires = Wires(lab, sw, {"a": [], "b": []})
    wires.send("a", "01:80:c2:00:00:00", A, arrive={})
    wires.send("a", "01:80:c2:00:00:0e", A, arrive={})
    wires.send("a", "01:80:c2:00:00:10", A, arrive={"b": None})
    sw.vsctl("set", "bridge", "br0", "other_config:forward-bpdu=true")
    wires.send("a", "01:80:c2:00:00:00", A, arrive={"b": None})


def scenario_fail_modes(lab):
    """Without a controller both modes keep their flows; a new bridge in secure mode forwards nothing."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    wires = Wires(lab, sw, {"a": [], "b": []})
    wires.send("a", ALL, A, arrive={})
    assert not sw.flows("br0")
    sw.ofctl("add-flow", "br0", "actions=NORMAL")
    wires.send("a", ALL, A, arrive={"b": None})
    sw.vsctl("set-fail-mode", "br0", "standalone")
    sw.ofctl("del-flows", "br0")
    lab.bridge(sw, "br1", "fail_mode=standalone")
    flows = sw.flows("br1")
    assert len(flows) == 1 and "actions=NORMAL" in flows[0], flows
    # A controller that cannot be reached: a standalone bridge learns addresses, a secure one keeps its rules.
    sw.vsctl("set-controller", "br1", "tcp:127.0.0.1:1", "--", "set-fail-mode", "br1", "secure")
    wait_for("no flows in secure mode", lambda: not sw.flows("br1"))


if __name__ == "__main__":
    main()
