"""A switch with vhost-user ports under OVN: unmodified northd, databases and ovn-controller.

All of it is in one namespace and one switch process. The other node of the path over Geneve is a second
integration bridge with an ovn-controller of its own. The bridge below returns packets to the other node's
address, as if they came from the other node. So the packets go into a tunnel and come out of one, and one
worker does the work of both nodes.
"""

import dataclasses
import os
import signal
import subprocess
import sys

from cluster import Central
from lab.net import Net
from lab.shell import wait_for
from lab.switch import end_process, read_pid
from ovn_paths import Paths
from vhost_switches import Failed, Vhost, generate, settle

# The generator's: crates/loadgen/src/frame.rs and flows.rs.
PODS = {"client": ("02:68:64:6c:00:00", "10.0.0.0"), "server": ("02:68:64:6c:00:01", "20.0.0.0"),
        "remote": ("02:68:64:6c:00:01", "20.0.0.0")}
SERVICES = [("udp", 5001)]
BRIDGES = {"ch1": "br-int", "ch2": "br-int2"}
# The nodes' addresses, as each sees the other, and the address that the switch really has.
NODES = {"ch1": "172.31.0.11", "ch2": "172.31.0.12"}
OWN, NEIGHBOUR = "172.31.0.1", "02:00:00:00:97:01"


class OvnVhost(Vhost):
    """A contender."""

    bridge = BRIDGES["ch1"]

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.net, self.central, self.controllers = Net(self.trace), Central(self.trace), []
        self.net.stem = f"bo{os.getpid()}-{self.name}"

    def setup(self, ports):
        self.netns = self.net.namespace("sw")
        super().setup(ports)
        sw = self.switch
        sw.vsctl("set", "bridge", self.bridge, "fail_mode=secure", "--", "add-br", BRIDGES["ch2"], "--", "set", "bridge", BRIDGES["ch2"], "datapath_type=netdev",
                 "fail_mode=secure", "--", "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev", "fail_mode=secure")
        self.add_port(2, BRIDGES["ch2"])
        self.below()
        sw.vsctl("add-port", self.bridge, "other", "--", "set", "interface", "other", "type=internal")
        for interface, pod in (("vhost0", "client"), ("vhost1", "server"), ("vhost2", "remote"), ("other", "other")):
            sw.vsctl("set", "interface", interface, f"external_ids:iface-id={pod}")
        self.central.start_central()
        self.paths = Paths(self.central, PODS, SERVICES)
        self.paths.make()
        ids = {"ovn-remote": self.central.sb, "ovn-encap-type": "geneve", "ovn-bridge-datapath-type": "netdev", "hostname": "here", "ovn-monitor-all": "true"}
        for chassis, bridge in BRIDGES.items():
            ids |= {f"ovn-bridge-{chassis}": bridge, f"ovn-encap-ip-{chassis}": NODES[chassis]}
        sw.vsctl("set", "open_vswitch", ".", *(f'external_ids:{key}="{value}"' for key, value in ids.items()))
        for chassis in BRIDGES:
            self.controller(chassis)
        for pod in (*PODS, "other"):
            wait_for(f"{pod} to be bound", lambda: self.central.nbctl("lsp-get-up", pod, quiet=True).strip() == "up")
        self.central.sync()

    def below(self):
        """The bridge with the node's address: packets to a node come back from the other one."""
        sw = self.switch
        self.net.address(self.netns, "br-ex", f"{OWN}/24")
        mac = sw.get("interface", "br-ex", "mac_in_use")
        for here, there in (("ch1", "ch2"), ("ch2", "ch1")):
            sw.ofctl("add-flow", "br-ex", f"udp,nw_dst={NODES[there]},tp_dst=6081,"
                     f"actions=mod_nw_src:{NODES[here]},mod_nw_dst:{OWN},mod_dl_dst:{mac},in_port")
        wait_for("the route", lambda: "br-ex" in sw.appctl("ovs/route/lookup", NODES["ch2"], check=False, quiet=True))
        self.neighbours()

    def neighbours(self):
        for address in NODES.values():
            self.switch.appctl("tnl/neigh/set", "br-ex", address, NEIGHBOUR, quiet=True)

    def controller(self, chassis):
        sw = self.switch
        run = f"{sw.dir}/{chassis}"
        os.mkdir(run)
        self.controllers.append(f"{run}/ovn-controller.pid")
        # ovn-controller looks for the bridges' sockets in the switch's run directory.
        sw.run("ip", "netns", "exec", self.netns, "ovn-controller", "-n", chassis, sw.db, "--detach", "--no-chdir", f"--pidfile={self.controllers[-1]}",
               "-vconsole:off", f"--log-file={run}/ovn-controller.log", env={"OVN_RUNDIR": run, "OVN_LOGDIR": run})

    def sockets(self, case):
        return [self.socket(0), self.socket(2 if case.path == "geneve" else 1)]

    def prepare(self, case):
        self.unixctl.call("upcall/set-flow-limit", "200000")
        self.paths.become(case.path)
        if case.path == "geneve":
            self.neighbours()
        self.unixctl.call("dpctl/flush-conntrack")
        if case.ct:
            self.open(case)
        settle(self.switch.pid, 5.0)

    def open(self, case):
        """The client opens all connections before the server replies."""
        ports = [word for path in self.sockets(case) for word in ("--port", f"listen:{path}")]
        result = generate(self.heddle, ["vhost", *ports, *dataclasses.replace(case, answers=False).arguments(0.2)], pid=self.switch.pid)
        if not result["received_pps"] or self.connections() != case.flows:
            raise Failed(f"{result['received_pps']:.0f} packets a second arrive, {self.connections()} connections")

    def changing(self, case):
        if not case.changes:
            return None
        here = os.path.dirname(os.path.abspath(__file__))
        return subprocess.Popen([sys.executable, f"{here}/ovn_churn.py", self.central.nb, str(case.changes)], stdout=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True)

    def able(self, case):
        return not case.taps

    def close(self):
        self.thaw()
        for pidfile in self.controllers:
            end_process(read_pid(pidfile), signal.SIGTERM)
        super().close()
        self.central.stop_central()
        self.net.close()
