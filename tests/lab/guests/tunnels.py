#!/usr/bin/env python3
"""Tunnels to the kernel's own: Geneve, VXLAN, GRE, GRE over IPv6 and ERSPAN, both ways, with segmentation on and off.

The guest is a node without a switch, on the uplink of the bridge with this node's address. It runs this machine's programs under a kernel that has
all these devices.
"""

import base64
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guest import CACHE, Guest
from lab.guestlab import GuestLab, main
from lab.runner import limit
from lab.shell import wait_for

MTU = 1400
MIB = 3
# Server and client hash the data that they send or receive; an argument gives the server's direction.
PEER = """
import hashlib, os, socket, sys
role, way, host, port = sys.argv[1:5]
if role == "serve":
    s = socket.create_server((host, int(port)))
    c, _ = s.accept()
else:
    c = socket.create_connection((host, int(port)), timeout=30)
c.settimeout(100)
h = hashlib.sha256()
if way == "get":
    while data := c.recv(1 << 16):
        h.update(data)
else:
    for _ in range(%d):
        data = os.urandom(1 << 16)
        h.update(data)
        c.sendall(data)
    c.shutdown(socket.SHUT_WR)
    c.recv(1)
print(h.hexdigest())
""" % (MIB * 16)

HERE4, THERE4, HERE6, THERE6 = "172.31.0.1", "172.31.0.2", "fd00:31::1", "fd00:31::2"
V4, V6 = f"local {THERE4} remote {HERE4}", f"local {THERE6} remote {HERE6}"


class Node:
    """The switch, its pod 10.5.0.1, and the guest, which gets 10.5.0.2 on tunnel devices."""

    def __init__(self, lab, *modules):
        g = GuestLab(lab)
        self.g, self.net, self.switch = g, lab.net, g.switch
        sw = self.switch
        self.net.run(sw.netns, "sh", "-c", "for d in all default br0; do echo 0 >/proc/sys/net/ipv6/conf/$d/disable_ipv6; done")
        lab.bridge(sw, "br-int")
        self.net.ip(sw.netns, "addr", "add", f"{HERE4}/24", "dev", "br0")
        self.net.ip(sw.netns, "addr", "add", f"{HERE6}/64", "dev", "br0", "nodad")
        self.net.ip(sw.netns, "link", "set", "br0", "up")
        self.pod = lab.veth_pod(sw, "pod", "10.5.0.1/24", bridge="br-int")
        self.net.ip(self.pod, "link", "set", "eth0", "mtu", str(MTU))
        self.guest = Guest(lab.trace, "node", [g.nic(g.port("up"), 2)], memory=768, host=True)
        lab.cleanups.append(self.guest.close)
        self.guest.start(timeout=180)
        with open(f"{CACHE}/kernel/.release") as file:
            release = file.read().strip()
        self.run("; ".join(f"modprobe -d {CACHE}/kernel -S {release} {m}" for m in modules), 120)
        self.run(f"for d in all default eth0; do echo 0 >/proc/sys/net/ipv6/conf/$d/disable_ipv6; done; ip link set eth0 up; "
                 f"ip addr add {THERE4}/24 dev eth0; ip addr add {THERE6}/64 dev eth0 nodad")
        with open(f"{sw.dir}/peer.py", "w") as file:
            file.write(PEER)
        # The guest has a /tmp of its own, and reads what is given to it on a command line.
        self.script = f"{sw.dir}/peer.py"
        self.run(f"echo {base64.b64encode(PEER.encode()).decode()} | base64 -d >/tmp/peer.py")
        self.port = 7000

    def run(self, command, timeout=60, check=True):
        return self.guest.run(command, timeout=timeout, check=check)

    def tunnel(self, kernel, kind, remote, **options):
        """A device of the guest's kernel, and a port of the switch for it."""
        sw = self.switch
        sw.vsctl("--if-exists", "del-port", "br-int", "tun0", "--", "add-port", "br-int", "tun0", "--", "set", "interface", "tun0", f"type={kind}",
                 f"options:remote_ip={remote}", "options:key=77", *(f"options:{k}={v}" for k, v in options.items()))
        self.run("ip link del tun9 2>/dev/null; true")
        self.run(f"ip link add tun9 type {kernel} && ip addr add 10.5.0.2/24 dev tun9 && ip link set tun9 mtu {MTU} up")
        self.net.ip(self.pod, "neigh", "flush", "all")

    def compare(self, to_guest):
        """Some MiB one way over TCP; both ends' hashes."""
        self.port += 1
        here, there = ("put", "get") if to_guest else ("get", "put")
        self.run(f"python3 /tmp/peer.py serve {there} 10.5.0.2 {self.port} >/tmp/sum 2>&1 &"
                 f"for i in $(seq 300); do ss -Hltn | grep -q :{self.port} && exit 0; sleep 0.1; done; cat /tmp/sum; exit 1", 90)
        mine = self.net.run(self.pod, "timeout", "120", "python3", self.script, "call", here, "10.5.0.2", str(self.port), timeout=130)
        theirs = []

        def said():
            theirs[:] = self.run("cat /tmp/sum", check=False).split()
            return theirs
        wait_for("the guest's sum", said, 60, 0.3)
        assert mine.split() == theirs, (mine, theirs)

    def reach(self, what):
        wait_for(f"{what}: the first answer", lambda: self.net.ping(self.pod, "10.5.0.2", count=1, lossless=False), 60)
        for size in (8, 1000, MTU - 28):
            self.net.ping(self.pod, "10.5.0.2", size=size, df=True)
        for state in ("on", "off"):
            self.net.run(self.pod, "ethtool", "-K", "eth0", "tso", state, "gso", state)
            self.run(f"ethtool -K eth0 tso {state} gso {state}; ethtool -K tun9 tso {state} gso {state}; true", check=False)
            for to_guest in (True, False):
                self.compare(to_guest)
        drops = self.switch.appctl("coverage/show")
        assert "tunnel_bad_csum" not in drops and "tunnel_pop_error" not in drops, drops
        self.g.tell(f"{what}: pings, {4 * MIB} MiB compared")


@limit(900)
def scenario_geneve_and_vxlan(lab):
    n = Node(lab, "geneve", "vxlan")
    n.tunnel(f"geneve id 77 remote {HERE4} dstport 6081 noudpcsum", "geneve", THERE4)
    n.reach("Geneve")
    n.tunnel(f"geneve id 77 remote {HERE6} dstport 6081", "geneve", THERE6, csum="true")
    n.reach("Geneve over IPv6 with checksums")
    n.tunnel(f"vxlan id 77 {V4} dstport 4789 udpcsum", "vxlan", THERE4, csum="true")
    n.reach("VXLAN with checksums")


@limit(900)
def scenario_gre(lab):
    n = Node(lab, "ip_gre", "ip6_gre")
    n.tunnel(f"gretap {V4} key 77", "gre", THERE4)
    n.reach("GRE")
    n.tunnel(f"gretap {V4} key 77 csum", "gre", THERE4, csum="true")
    n.reach("GRE with checksums")
    n.tunnel(f"ip6gretap {V6} key 77 encaplimit none", "ip6gre", THERE6)
    n.reach("GRE over IPv6")


@limit(600)
def scenario_erspan(lab):
    n = Node(lab, "ip_gre", "ip6_gre")
    n.tunnel(f"erspan {V4} seq key 77 erspan_ver 1 erspan 5", "erspan", THERE4, erspan_ver=1, erspan_idx=5)
    n.reach("ERSPAN 1")
    n.tunnel(f"erspan {V4} seq key 77 erspan_ver 2 erspan_dir ingress erspan_hwid 7", "erspan", THERE4, erspan_ver=2, erspan_dir=0, erspan_hwid=7)
    n.reach("ERSPAN 2")


if __name__ == "__main__":
    main()
