#!/usr/bin/env python3
"""Kube-OVN's set-up for OVS-DPDK with each BOND_TYPE: its commands for ovs-vsctl, on bonds of devices of the kernel.

The commands are those of Kube-OVN's dist/images/start-ovs-dpdk-v2.sh (version 1.17), in its order. DPDK_DEV names devices
of the kernel, as OVS-DPDK also allows.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from test_bonds import active, members

HERE, THERE = "172.31.0.1", "172.31.0.2"
DPDK_DEV = ("net_af_xdp0,iface=u0", "net_af_xdp1,iface=u1")
# Bytes of an inner packet that fit into one of 1,500 bytes in Geneve.
POD_MTU = 1400
SPREAD = """
import socket
for port in range(7000, 7200):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("", port))
    s.sendto(b"x", ("10.5.0.2", port))
"""


class Node:
    """The node that the commands set up, with pod a (10.5.0.1) on br-int. Both links lead to a switch, and behind that
    is Open vSwitch's node with pod b."""

    def __init__(self, lab, bond_type):
        if not os.access(REFERENCE, os.X_OK):
            raise Skip("no ovs-vswitchd on this machine")
        self.lab, self.bond_type = lab, bond_type
        self.sw, self.peer = lab.switch(), lab.switch(binary=REFERENCE)
        for n in range(2):
            lab.net.veth(self.sw.netns, f"u{n}", self.peer.netns, f"n{n}")
            # A cable carries finished checksums.
            lab.net.run(self.peer.netns, "ethtool", "-K", f"n{n}", "tx", "off")
        # The kernel sees the frames of Open vSwitch's ports, too: it is not to reply for the address of br-ex there.
        lab.net.run(self.peer.netns, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore")
        self.start_script(bond_type)
        self.a = self.end(self.sw, THERE, "a", "10.5.0.1/24")
        # Else the address changes when ports are added, and neighbours keep the old one for a while.
        lab.bridge(self.peer, "br-ex", "other-config:hwaddr=02:00:00:00:00:e1")
        if bond_type == "lacp":
            self.peer.vsctl("add-bond", "br-ex", "rack", "n0", "n1", "bond_mode=balance-tcp", "lacp=active")
        else:
            self.peer.vsctl("add-port", "br-ex", "n0", "--", "add-port", "br-ex", "n1")
        lab.net.address(self.peer.netns, "br-ex", f"{THERE}/24")
        lab.bridge(self.peer, "br-int")
        self.b = self.end(self.peer, HERE, "b", "10.5.0.2/24")

    def start_script(self, bond_type, bridge="br-phy"):
        """The commands of the script."""
        sw = self.sw
        sw.vsctl("--may-exist", "add-br", bridge, "--", "set", "Bridge", bridge, "datapath_type=netdev",
                 "--", "br-set-external-id", bridge, "bridge-id", bridge, "--", "set", "bridge", bridge, "fail-mode=standalone")
        devices = [words for n, devargs in enumerate(DPDK_DEV)
                   for words in ("--", "set", "Interface", f"p{n}", "type=dpdk", f"options:dpdk-devargs={devargs}")]
        if bond_type == "":
            sw.vsctl("--timeout", "10", "add-port", bridge, "dpdk0", "--", "set", "Interface", "dpdk0", "type=dpdk",
                     f"options:dpdk-devargs={DPDK_DEV[0]}")
        else:
            sw.vsctl("--timeout", "10", "add-bond", bridge, "dpdk0", "p0", "p1", *devices)
            mode = {"lacp": "balance-tcp"}.get(bond_type, bond_type)
            sw.vsctl("set", "port", "dpdk0", f"bond_mode={mode}")
        if bond_type == "lacp":
            sw.vsctl("set", "port", "dpdk0", "lacp=active")
        sw.vsctl("set", "port", bridge, "tag=0")
        self.lab.net.ip(sw.netns, "link", "set", bridge, "up")
        self.lab.net.ip(sw.netns, "addr", "replace", f"{HERE}/24", "dev", bridge)
        sw.vsctl("--may-exist", "add-br", "br-int", "--", "set", "Bridge", "br-int", "datapath_type=netdev",
                 "--", "br-set-external-id", "br-int", "bridge-id", "br-int", "--", "set", "bridge", "br-int", "fail-mode=secure")

    def add_rules(self, switch):
        """ovn-controller adds rules, also after a restart: br-int is secure."""
        switch.ofctl("add-flow", "br-int", "actions=normal")

    def end(self, switch, remote, pod, address):
        """A tunnel, as ovn-controller adds it, and a pod."""
        switch.vsctl("add-port", "br-int", "ovn0", "--", "set", "interface", "ovn0", "type=geneve", f"options:remote_ip={remote}", "options:key=flow")
        self.add_rules(switch)
        ns = self.lab.veth_pod(switch, pod, address, bridge="br-int", offload=False)
        self.lab.net.ip(ns, "link", "set", "eth0", "mtu", str(POD_MTU))
        return ns

    def reach(self):
        for ns, target in ((self.sw.netns, THERE), (self.a, "10.5.0.2")):
            wait_for(f"{target} to reply", lambda ns=ns, target=target: self.lab.net.ping(ns, target, count=1, lossless=False) == 1, 40)
            self.lab.net.ping(ns, target)
        self.lab.net.ping(self.a, "10.5.0.2", size=POD_MTU - 28, df=True)

    def sent(self):
        """Packets that each device has sent."""
        return [int(self.lab.net.run(self.sw.netns, "cat", f"/sys/class/net/u{n}/statistics/tx_packets", quiet=True)) for n in range(2)]

    def lose_a_link(self, n):
        self.lab.net.ip(self.peer.netns, "link", "set", f"n{n}", "down")
        wait_for("the member to be disabled", lambda: members(self.sw, "dpdk0") == {"enabled": 1, "disabled": 1}, 20)
        self.reach()
        self.lab.net.ip(self.peer.netns, "link", "set", f"n{n}", "up")
        wait_for("both members", lambda: members(self.sw, "dpdk0") == {"enabled": 2}, 40)
        self.reach()

    def restart(self):
        """The container is killed. The script finds the bridge, and adds no port again."""
        os.kill(self.sw.pid, signal.SIGKILL)
        wait_for("the end", lambda: not self.sw.alive())
        self.sw.start_daemon()
        self.add_rules(self.sw)
        self.reach()


def scenario_one_port(lab):
    """BOND_TYPE is empty: the first device alone."""
    node = Node(lab, "")
    node.reach()
    assert node.sw.appctl("bond/list") == "bond\ttype\trecircID\tmembers\n"
    node.restart()


@limit(300)
def scenario_active_backup(lab):
    node = Node(lab, "active-backup")
    node.reach()
    show = node.sw.appctl("bond/show", "dpdk0")
    assert "bond_mode: active-backup\n" in show and "lacp_status: off\n" in show and "member p0: enabled\n" in show, show
    assert node.sw.appctl("lacp/show") == ""
    node.lose_a_link(int(active(node.sw, "dpdk0")[1:]))
    node.restart()


@limit(300)
def scenario_balance_slb(lab):
    node = Node(lab, "balance-slb")
    node.reach()
    show = node.sw.appctl("bond/show", "dpdk0")
    assert "bond_mode: balance-slb\n" in show and "next rebalance: " in show and members(node.sw, "dpdk0") == {"enabled": 2}, show
    node.lose_a_link(0)
    node.lose_a_link(1)
    node.restart()


@limit(300)
def scenario_lacp(lab):
    """BOND_TYPE=lacp is balance-tcp. Packets of pods differ in the tunnel's source port, so they take both links."""
    node = Node(lab, "lacp")
    wait_for("LACP", lambda: "status: active negotiated" in node.sw.appctl("lacp/show", "dpdk0", quiet=True)
             and members(node.sw, "dpdk0") == {"enabled": 2} == members(node.peer, "rack"), 40)
    node.reach()
    show, lacp = node.sw.appctl("bond/show", "dpdk0"), node.sw.appctl("lacp/show", "dpdk0")
    assert "bond_mode: balance-tcp\n" in show and "lacp_status: negotiated\n" in show, show
    assert lacp.count("current attached") == 2 and len(re.findall(r"member: p[01]: ", lacp)) == 2, lacp
    before = node.sent()
    node.lab.net.run(node.a, "python3", "-c", SPREAD)
    wait_for("200 packets", lambda: sum(node.sent()) - sum(before) >= 200, 10)
    spread = [now - old for now, old in zip(node.sent(), before)]
    assert min(spread) >= 40, spread
    node.lose_a_link(1)
    node.restart()
    assert "status: active negotiated" in node.sw.appctl("lacp/show", "dpdk0")


if __name__ == "__main__":
    main()
