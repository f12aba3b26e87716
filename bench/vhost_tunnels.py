"""Tunnels between vhost-user ports: a bridge with an address of this host, from which outer packets leave, or turn back.

The generator sends and receives plain frames. Into tunnels: packets leave by the other port with outer
headers, and the generator does not count them as its own. The switch's cycles per packet are measured.
Through tunnels: the bridge of the outer packets sends them back to its own address, where they come out. The
addresses are in this namespace, others for each contender.
"""

import subprocess

from lab.shell import wait_for

PORTS = {"out": 1001, "patch": 1002}
MAC = "02:00:00:00:31:{:02x}"


class Underlay:
    """The bridge below, the tunnel port on the bridge above, and neighbours."""

    numbers = {}

    def __init__(self, contender, above):
        self.switch, self.above = contender.switch, above
        self.net = 100 + Underlay.numbers.setdefault(contender.name, len(Underlay.numbers))
        self.bridge = f"bu-{contender.name}"[:15]
        self.own = f"172.31.{self.net}.1"
        sw = self.switch
        sw.vsctl("add-br", self.bridge, "--", "set", "bridge", self.bridge, "datapath_type=netdev", "fail_mode=secure")
        subprocess.run(["ip", "addr", "add", f"{self.own}/24", "dev", self.bridge], check=True)
        subprocess.run(["ip", "link", "set", self.bridge, "up"], check=True)
        sw.vsctl("add-port", above, "tun0", "--", "set", "interface", "tun0", "type=geneve", "options:remote_ip=flow", "options:key=7",
                 f"ofport_request={PORTS['out']}",
                 "--", "add-port", above, "pa0", "--", "set", "interface", "pa0", "type=patch", "options:peer=pb0", f"ofport_request={PORTS['patch']}",
                 "--", "add-port", self.bridge, "pb0", "--", "set", "interface", "pb0", "type=patch", "options:peer=pa0", "ofport_request=1")
        wait_for("the route", lambda: self.bridge in sw.appctl("ovs/route/lookup", self.host(0), check=False, quiet=True))
        for number in range(100):
            sw.appctl("tnl/neigh/set", self.bridge, self.host(number), MAC.format(number), quiet=True)

    def host(self, number):
        return f"172.31.{self.net}.{10 + number}"

    def rules(self, case):
        """The rules of the bridge above, as text; those of the bridge below are set."""
        sw = self.switch
        sw.vsctl("set", "interface", "tun0", f"options:csum={str(case.csum).lower()}")
        mac = sw.get("interface", self.bridge, "mac_in_use")
        back = f"move:NXM_OF_IP_DST[]->NXM_OF_IP_SRC[],mod_dl_dst:{mac},mod_nw_dst:{self.own},in_port"
        sw.ofctl("del-flows", self.bridge)
        sw.ofctl("add-flow", self.bridge, f"udp,tp_dst=6081,actions={back if case.tunnel == 'through' else 'output:1'}")

        def to(number):
            return f"set_field:{self.host(number)}->tun_dst,output:{PORTS['out']}"
        lines = [f"in_port={PORTS['out']},actions=output:2", f"in_port={PORTS['patch']},actions=output:2"]
        if case.hosts == 1:
            lines.append(f"in_port=1,udp,tp_dst=5001,actions={to(0)}")
        else:
            # Flows differ in their source ports.
            lines += [f"in_port=1,udp,tp_src={low:#x}/0x7f,actions={to(low % case.hosts)}" for low in range(128)]
        return "\n".join(lines) + "\n"

    def close(self):
        subprocess.run(["ip", "addr", "del", f"{self.own}/24", "dev", self.bridge], check=False, stderr=subprocess.DEVNULL)
        self.switch.vsctl("--no-wait", "del-br", self.bridge, check=False)
