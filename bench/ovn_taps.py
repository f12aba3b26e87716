"""Pods on internal ports (taps in namespaces) under OVN: two nodes, each a namespace with a switch. TCP by iperf3, request and response by sockperf.

The switch of the first node has core 1, the other end of the path, as in bench/run, core 0. Over Geneve the second node's switch has core 0 and those who talk take what
is free; else the second node's switch is stopped.
"""

import os
import signal

import measures
from cluster import Cluster, POD_MTU
from lab.shell import wait_for
from ovn_paths import BALANCED, Paths

PODS = {"client": ("02:00:00:00:0a:01", "10.0.0.9"), "server": ("02:00:00:00:0a:02", "20.0.0.9"), "remote": ("02:00:00:00:0a:03", "20.0.0.9")}
SERVICES = [("tcp", 5301), ("udp", 5303)]
# Ways to the router that leads to the other end.
ROUTERS = {"client": "10.99.99.1", "server": "20.99.99.1", "remote": "20.99.99.2"}
TO_REMOTE = "10.99.99.2"


class Nodes(Cluster):
    """OVN with two nodes, switch N on a core of its own."""

    def __init__(self, binary, settings, stem):
        self.settings = settings
        super().__init__(binary, chassis=2, stem=stem)

    def start_switch(self, sw, number):
        core = number % 2
        sw.start_ovsdb()
        sw.vsctl("--no-wait", "set", "open_vswitch", ".", f"other_config:pmd-cpu-mask={1 << core:x}", *self.settings)
        command = sw.command
        sw.command = lambda *args: ["taskset", "-c", str(core), *command(*args)]
        sw.start_daemon()


class OvnTaps:
    """A contender."""

    client_cores = "0"

    def __init__(self, name, binary, tso=False):
        self.name, self.binary, self.tso = name, binary, tso
        self.nodes = None

    def able(self, case):
        # Open vSwitch 3.1 forwards no GSO packets into tunnels; elsewhere it is faster with them.
        return case.taps and not (self.name.startswith("ovs") and self.tso == (case.path == "geneve"))

    def setup(self, _ports):
        settings = ["other_config:userspace-tso-enable=true"] if self.tso else []
        self.nodes = Nodes(self.binary, settings, f"bp{os.getpid()}-{self.name}")
        self.net, self.trace = self.nodes.net, self.nodes.trace
        self.switches = [chassis.sw for chassis in self.nodes.chassis]
        self.paths = Paths(self.nodes, PODS, SERVICES)
        self.paths.make()
        for pod, chassis in (("client", 0), ("server", 0), ("remote", 1)):
            self.pod(pod, self.nodes.chassis[chassis])
        self.switches[0].vsctl("add-port", "br-int", "other", "--", "set", "interface", "other", "type=internal", "external_ids:iface-id=other")
        for pod in PODS:
            wait_for(f"{pod} to be bound", lambda: self.nodes.nbctl("lsp-get-up", pod, quiet=True).strip() == "up")
        self.nodes.sync()
        for path in ("router", "geneve"):
            self.turn_to(path)
            wait_for(f"{self.name}: the first answer, {path}", lambda: self.net.ping(self.a, self.target, count=1, lossless=False))

    def pod(self, name, node):
        """A namespace with an internal port of br-int."""
        ns, device = self.net.namespace(name), f"t{name}"
        mac, address = PODS[name]
        node.sw.vsctl("add-port", "br-int", device, "--", "set", "interface", device, "type=internal", f"external_ids:iface-id={name}")
        self.net.move(device, node.ns, ns)
        self.net.address(ns, device, f"{address}/8", mac=mac)
        self.net.ip(ns, "link", "set", device, "mtu", str(POD_MTU))
        if node.sw.is_reference and not self.tso:
            # Open vSwitch without TSO takes complete checksums, and segments of the MTU's size.
            self.net.run(ns, "ethtool", "-K", device, "tx", "off", check=False)
        self.net.ip(ns, "route", "add", "default", "via", ROUTERS[name])
        self.nodes.pods[name] = ns

    def turn_to(self, path):
        """Sets the client's peer and router."""
        pods = self.nodes.pods
        self.a, self.b = pods["client"], pods["remote" if path == "geneve" else "server"]
        self.target = BALANCED if path == "lb" else PODS["server"][1]
        self.client_cores = "0,1" if path == "geneve" else "0"
        self.net.ip(self.a, "route", "replace", "default", "via", TO_REMOTE if path == "geneve" else ROUTERS["client"])

    def measure(self, case, seconds):
        self.paths.become(case.path)
        self.turn_to(case.path)
        if case.path != "geneve":
            os.kill(self.switches[1].pid, signal.SIGSTOP)
        # Neighbours, flows.
        self.net.ping(self.a, self.target if case.path != "lb" else PODS["server"][1], count=1, lossless=False)
        whole = max(2, round(seconds))
        return measures.tcp(self, whole, 1) | measures.latency(self, whole)

    def signal(self, what):
        for switch in self.switches if self.nodes else ():
            if switch.pid:
                os.kill(switch.pid, what)

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)

    def close(self):
        if self.nodes:
            self.thaw()
            self.nodes.close()
            self.nodes = None
