"""Unmodified OVN on some chassis: a namespace with a switch each, and two networks between them.

`fabric` carries the tunnels: br-ex of each chassis has the address 172.31.0.N there. `phys` is the provider's network, behind br-phys
(`localnet` ports of network `phys`), where `world` is. The databases and northd run once, for all.
"""

import json
import os
import shutil
import signal
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.net import Net
from lab.shell import Trace, wait_for
from lab.switch import Switch, end_process, read_pid

SCHEMAS = os.environ.get("OVN_PKGDATADIR", "/usr/share/ovn")
# Left of 1500 bytes inside of Geneve with OVN's option.
POD_MTU = 1442


class Chassis:
    """A node: its switch, its ovn-controller."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.name = f"ch{number}"
        net = cluster.net
        self.ns = net.namespace(self.name, ipv6=True)
        self.sw = Switch(cluster.trace, binary=cluster.binary, netns=self.ns, args=[*(["--disable-system"] if cluster.datapath == "netdev" else []), *cluster.args], prefix="ovn")
        cluster.start_switch(self.sw, number)
        self.sw.env["OVN_RUNDIR"] = self.sw.env["OVN_LOGDIR"] = self.sw.dir
        for bridge, dev, network in (("br-ex", "up0", "fabric"), ("br-phys", "ph0", "phys")):
            net.veth(self.ns, dev, cluster.fabric, f"{dev}-{number}")
            net.ip(cluster.fabric, "link", "set", f"{dev}-{number}", "master", network)
            self.sw.vsctl("add-br", bridge, "--", "set", "bridge", bridge, f"datapath_type={cluster.datapath}", "fail_mode=standalone", "--", "add-port", bridge, dev)
            if self.sw.is_reference:
                # Packet sockets of Open vSwitch neither complete checksums nor take GSO packets.
                net.run(self.ns, "ethtool", "-K", dev, "tx", "off", check=False)
        self.ip = f"172.31.0.{number}"
        net.address(self.ns, "br-ex", f"{self.ip}/24")
        ids = {"system-id": self.name, "ovn-remote": cluster.sb, "ovn-encap-type": cluster.encap, "ovn-encap-ip": self.ip,
               "ovn-bridge-datapath-type": cluster.datapath, "ovn-bridge-mappings": "phys:br-phys", "hostname": self.name, "ovn-monitor-all": "true"}
        self.sw.vsctl("set", "open_vswitch", ".", *(f'external_ids:{key}="{value}"' for key, value in ids.items()))
        self.pidfile = f"{self.sw.dir}/ovn-controller.pid"
        self.start_controller()

    def start_controller(self):
        # ovn-controller sets up queues of devices, so it has to see them.
        self.sw.run("ip", "netns", "exec", self.ns, "ovn-controller", self.sw.db, "--detach", "--no-chdir", f"--pidfile={self.pidfile}", "-vconsole:off",
                    f"--log-file={self.sw.dir}/ovn-controller.log")

    def log(self):
        with open(f"{self.sw.dir}/ovn-controller.log", errors="replace") as file:
            return file.read()

    def close(self, keep=None):
        end_process(read_pid(self.pidfile), signal.SIGTERM)
        if keep:
            os.makedirs(keep, exist_ok=True)
            shutil.copy(f"{self.sw.dir}/ovn-controller.log", f"{keep}/{self.name}-ovn-controller.log")
        self.sw.close(keep and f"{keep}/{self.name}")


class Central:
    """The databases and northd."""

    def __init__(self, trace):
        self.trace = trace
        self.dir = tempfile.mkdtemp(prefix="ovn-central-")
        self.nb, self.sb = (f"unix:{self.dir}/{name}.sock" for name in ("nb", "sb"))

    def start_central(self):
        for name in ("nb", "sb"):
            self.trace.run("ovsdb-tool", "create", f"{self.dir}/{name}.db", f"{SCHEMAS}/ovn-{name}.ovsschema")
            self.start_database(name)
        self.start_northd()
        self.nbctl("init")
        self.sbctl("init")

    def start_northd(self):
        self.trace.run("ovn-northd", f"--ovnnb-db={self.nb}", f"--ovnsb-db={self.sb}", "--detach", "--no-chdir", f"--pidfile={self.dir}/northd.pid",
                       f"--unixctl={self.dir}/northd.ctl", "-vconsole:off", f"--log-file={self.dir}/northd.log", env={"OVN_RUNDIR": self.dir})

    def start_database(self, name):
        self.trace.run("ovsdb-server", f"{self.dir}/{name}.db", f"--remote=punix:{self.dir}/{name}.sock", "--detach", "--no-chdir",
                       f"--pidfile={self.dir}/{name}.pid", f"--unixctl={self.dir}/{name}.ctl", "-vconsole:off", f"--log-file={self.dir}/{name}.log")

    def nbctl(self, *args, **kw):
        return self.trace.run("ovn-nbctl", f"--db={self.nb}", "--timeout=60", *args, **kw)

    def sbctl(self, *args, **kw):
        return self.trace.run("ovn-sbctl", f"--db={self.sb}", "--timeout=60", *args, **kw)

    def sync(self):
        """Waits until all chassis have the northbound database's configuration."""
        self.nbctl("--wait=hv", "sync")

    def stop_central(self, keep=None):
        for name in ("northd", "sb", "nb"):
            try:
                end_process(read_pid(f"{self.dir}/{name}.pid"), signal.SIGTERM)
            except Exception as exc:
                self.trace.note(f"cleanup: {exc!r}")
        if keep:
            os.makedirs(keep, exist_ok=True)
            shutil.copy(f"{self.dir}/northd.log", keep)
        shutil.rmtree(self.dir, ignore_errors=True)


class Cluster(Central):
    """See the module's text."""

    def __init__(self, binary, chassis=3, encap="geneve", args=(), stem=None, other=None, datapath="netdev"):
        super().__init__(Trace())
        self.net = Net(self.trace)
        if stem:
            self.net.stem = stem
        self.binary = binary
        # Another switch, which may take the place of this one.
        self.other = other
        self.args = args
        self.encap = encap
        # The type of all bridges.
        self.datapath = datapath
        self.pods = {}
        self.chassis = []
        # Measurements of checks, by their names.
        self.notes = {}
        # Pings that were lost, by checks' names.
        self.lost = {}
        try:
            self.start_central()
            self.fabric = self.net.namespace("fabric")
            for bridge in ("fabric", "phys"):
                self.net.ip(self.fabric, "link", "add", bridge, "type", "bridge")
                self.net.ip(self.fabric, "link", "set", bridge, "up")
            for number in range(1, chassis + 1):
                self.chassis.append(Chassis(self, number))
            self.world = self.net.namespace("world", ipv6=True)
            self.net.veth(self.world, "eth0", self.fabric, "world")
            self.net.ip(self.fabric, "link", "set", "world", "master", "phys")
            if self.chassis[0].sw.is_reference:
                self.net.run(self.world, "ethtool", "-K", "eth0", "tx", "off", check=False)
            # Fragments from outside have to fit the tunnels behind the gateway.
            self.net.ip(self.world, "link", "set", "eth0", "mtu", str(POD_MTU))
            self.net.address(self.world, "eth0", "192.168.50.10/24")
            wait_for("all chassis", lambda: self.sbctl("--bare", "--columns=name", "list", "chassis").split().__len__() == chassis, 60)
        except BaseException:
            self.close()
            raise

    def start_switch(self, sw, number):
        """The switch of chassis `number`."""
        sw.start()

    def pod(self, name, chassis, switch, mac, *addresses, gateway=None, configure=True):
        """A namespace with a veth on br-int of a chassis (1, ...), as a port of a logical switch."""
        node = self.chassis[chassis - 1]
        ns = self.net.namespace(name, ipv6=True)
        self.net.veth(node.ns, f"v{name}", ns, "eth0")
        if node.sw.is_reference:
            self.net.run(ns, "ethtool", "-K", "eth0", "tx", "off", check=False)
        self.net.ip(ns, "link", "set", "eth0", "address", mac, "mtu", str(POD_MTU))
        if configure:
            for address in addresses:
                self.net.ip(ns, "addr", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
            if gateway:
                self.net.ip(ns, "route", "add", "default", "via", gateway)
        bare = " ".join([mac, *(a.split("/")[0] for a in addresses)])
        self.nbctl("lsp-add", switch, name, "--", "lsp-set-addresses", name, bare)
        node.sw.vsctl("add-port", "br-int", f"v{name}", "--", "set", "interface", f"v{name}", f"external_ids:iface-id={name}")
        self.pods[name] = ns
        return ns

    def run(self, pod, *argv, **kw):
        """A command in a pod or the world."""
        return self.net.run(self.pods.get(pod) or getattr(self, pod), *argv, **kw)

    def reaches(self, pod, target, size=56, count=2, tries=3, **kw):
        """Whether all pings of one try get replies."""
        for _ in range(tries):
            out = self.run(pod, "ping", "-n", "-c", str(count), "-i", "0.1", "-W", "1", "-s", str(size), *kw.get("more", ()), target, check=False)
            if f" {count} received" in out:
                return True
        return False

    def tcp(self, pod, target, port, payload=b"x", timeout=3):
        """The reply of a server to one connection; "refused" or "silence" without one."""
        code = ("import socket,sys\n"
                "try:\n"
                f"    s=socket.create_connection(({target!r},{port}),timeout={timeout})\n"
                f"    s.settimeout({timeout}); s.sendall({payload!r}); print(s.recv(100).decode())\n"
                "except ConnectionRefusedError: print('refused')\n"
                "except OSError: print('silence')\n")
        return self.run(pod, "python3", "-c", code, check=False, timeout=30).strip()

    def close(self, keep=None):
        for chassis in self.chassis:
            try:
                chassis.close(keep)
            except Exception as exc:  # the others still have to be ended
                self.trace.note(f"cleanup: {exc!r}")
        self.stop_central(keep)
        self.net.close()


def has_column(table, column):
    """Whether this OVN's northbound database has a column."""
    with open(f"{SCHEMAS}/ovn-nb.ovsschema") as file:
        return column in json.load(file)["tables"].get(table, {"columns": {}})["columns"]


def server(cluster, pod, port, udp=False, v6=False):
    """A process that replies to each connection or datagram with the pod's name and its peer's address; to be
    killed."""
    import subprocess
    kind = "DGRAM" if udp else "STREAM"
    family = "AF_INET6" if v6 else "AF_INET"
    code = (f"import socket\ns=socket.socket(socket.{family},socket.SOCK_{kind})\ns.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\ns.bind(('',{port}))\n"
            + ("while True:\n    d,a=s.recvfrom(2000)\n    s.sendto(('%s %s'%(NAME,a[0])).encode(),a)\n" if udp else
               "s.listen(50)\nwhile True:\n    c,a=s.accept()\n    try:\n        c.settimeout(3); c.recv(100); c.sendall(('%s %s'%(NAME,a[0])).encode())\n"
               "    except OSError: pass\n    c.close()\n")).replace("NAME", repr(pod))
    process = subprocess.Popen(["ip", "netns", "exec", cluster.pods.get(pod) or getattr(cluster, pod), "python3", "-c", code], stdin=subprocess.DEVNULL)
    flag = "-Hlun" if udp else "-Hltn"
    wait_for("a server", lambda: f":{port} " in cluster.run(pod, "ss", flag, quiet=True))
    return process


__all__ = ["Cluster", "has_column", "server", "json"]
