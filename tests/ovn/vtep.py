"""A hardware VTEP beside the chassis: Open vSwitch's emulator of one (`ovs-vtep`) with the switch that is tried under it, and OVN's `ovn-controller-vtep`.

Imported for its check."""

import os
import shutil
import signal
import subprocess

from checks import Absent, check
from lab.switch import Switch, end_process, read_pid
from probes import until

SHARE = os.environ.get("OVS_PKGDATADIR", "/usr/share/openvswitch")
ADDRESS = "172.31.0.50"


class Vtep:
    """A switch with a port `p0`, and the database that names the port's logical switch."""

    def __init__(self, c):
        self.c = c
        self.ns = c.net.namespace("vtep")
        self.sw = Switch(c.trace, binary=c.binary, netns=self.ns, args=["--disable-system"], prefix="vtep")
        self.emulator = None
        self.controller = f"{self.sw.dir}/ovn-controller-vtep.pid"

    def start(self):
        c, sw = self.c, self.sw
        sw.start()
        sw.run("ovsdb-tool", "create", f"{sw.dir}/vtep.db", f"{SHARE}/vtep.ovsschema")
        sw.run("ovs-appctl", "-t", f"{sw.dir}/ovsdb-server.ctl", "ovsdb-server/add-db", f"{sw.dir}/vtep.db")
        c.net.veth(self.ns, "up0", c.fabric, "vtep")
        c.net.ip(c.fabric, "link", "set", "vtep", "master", "fabric")
        host = c.pods["hw"] = c.net.namespace("hw")
        c.net.veth(self.ns, "p0", host, "eth0")
        if sw.is_reference:
            for ns, dev in ((self.ns, "up0"), (host, "eth0")):
                c.net.run(ns, "ethtool", "-K", dev, "tx", "off", check=False)
        sw.vsctl("add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev", "--", "add-port", "br-ex", "up0",
                 "--", "add-br", "ps0", "--", "set", "bridge", "ps0", "datapath_type=netdev", "--", "add-port", "ps0", "p0")
        c.net.address(self.ns, "br-ex", f"{ADDRESS}/24")
        c.net.ip(host, "link", "set", "eth0", "address", "02:00:00:00:00:95", "mtu", "1400")
        c.net.address(host, "eth0", "10.0.0.95/24")
        self.ctl("add-ps", "ps0", "--", "set", "physical_switch", "ps0", f"tunnel_ips={ADDRESS}")
        self.emulator = subprocess.Popen(["/usr/bin/python3", f"{SHARE}/scripts/ovs-vtep", "ps0", "-vconsole:off", f"--log-file={sw.dir}/ovs-vtep.log",
                                          f"--pidfile={sw.dir}/ovs-vtep.pid"], env=dict(os.environ, **sw.env), stdin=subprocess.DEVNULL)
        sw.run("ovn-controller-vtep", f"--vtep-db={sw.db}", f"--ovnsb-db={c.sb}", "--detach", "--no-chdir", f"--pidfile={self.controller}", "-vconsole:off",
               f"--log-file={sw.dir}/ovn-controller-vtep.log", env={"OVN_RUNDIR": sw.dir})

    def ctl(self, *args, **kw):
        return self.sw.run("vtep-ctl", f"--db={self.sw.db}", "--timeout=30", *args, **kw)

    def close(self):
        end_process(read_pid(self.controller), signal.SIGTERM)
        if self.emulator:
            self.emulator.kill()
            self.emulator.wait()
        self.sw.close()


@check
def vtep(c):
    """A host behind a VTEP is a port of a logical switch. It talks to pods of two chassis, and is found again
    after its MAC was learned."""
    if not shutil.which("ovn-controller-vtep") or not os.path.exists(f"{SHARE}/scripts/ovs-vtep"):
        raise Absent
    for node in c.chassis:
        node.sw.vsctl("set", "open_vswitch", ".", f'external_ids:ovn-encap-type="{c.encap},vxlan"' if c.encap != "vxlan" else 'external_ids:ovn-encap-type="vxlan"')
    box = Vtep(c)
    try:
        box.start()
        if not until(lambda: "p0" in box.ctl("list-ports", "ps0"), 20):
            return "the emulator does not know the port"
        c.nbctl("lsp-add", "ls0", "ls0-hw", "--", "lsp-set-type", "ls0-hw", "vtep", "--", "lsp-set-addresses", "ls0-hw", "unknown",
                "--", "lsp-set-options", "ls0-hw", "vtep-physical-switch=ps0", "vtep-logical-switch=hw0")
        box.ctl("add-ls", "hw0", "--", "bind-ls", "ps0", "p0", "0", "hw0")
        c.sync()
        if not until(lambda: "02:00:00:00:00:11" in box.ctl("list-remote-macs", "hw0", check=False, quiet=True), 30):
            return f"pods are not known there: {box.ctl('show')[:300]}"
        for pod, address in (("a1", "10.0.0.11"), ("a3", "10.0.0.13")):
            if not until(lambda address=address: c.reaches("hw", address, tries=1), 20):
                return f"{pod} does not answer the host"
        if not until(lambda: "02:00:00:00:00:95" in box.ctl("list-local-macs", "hw0", quiet=True), 15):
            return "the host's address is not learned"
        return None if c.reaches("a3", "10.0.0.95", tries=5) and c.reaches("a2", "10.0.0.95", tries=5) else "the host does not answer"
    finally:
        box.close()
        c.pods.pop("hw", None)
        c.nbctl("--if-exists", "lsp-del", "ls0-hw")
        c.sbctl("--if-exists", "chassis-del", "ps0", check=False)
        for node in c.chassis:
            node.sw.vsctl("set", "open_vswitch", ".", f'external_ids:ovn-encap-type="{c.encap}"')
        c.sync()
