#!/usr/bin/env python3
"""Virtual functions of an emulated card (igb, SR-IOV) go to pods by `heddle-cni`, with a netdev and by vfio-pci.

An igb has no representors. So the card has a cable to a virtio card. All frames of the virtual function to other
devices are on this cable, so the virtio card stands for the function."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.cni import plugin_path
from lab.guestlab import main
from lab.podlab import RUN, PodLab, Wired
from lab.runner import limit

MODULES = ("igb", "igbvf", "virtio_net", "tun", "vfio_iommu_type1", "vfio-pci")
# Address of the card, and of the other end of its cable.
CARD, FAR = "52:54:00:00:02:00", "52:54:00:00:03:00"
MAC, VLAN, PEER = "02:00:00:00:00:05", 7, "10.1.0.9"


class Machine(PodLab):
    """A card pf0 with two virtual functions, the end rep0 of its cable, and a pod on VLAN 7."""

    def __init__(self, lab):
        super().__init__(lab, modules=MODULES, cards=[Wired("igb", 0, CARD, bus="port0"), Wired("virtio-net-pci", 0, FAR)],
                         machine=["-device", "pcie-root-port,id=port0,chassis=1,slot=1"], iommu=True, kernel="intel_iommu=on")
        for name, mac in (("pf0", CARD), ("rep0", FAR)):
            self.run(f"device=$(basename $(dirname $(grep -l {mac} /sys/class/net/*/address))) && "
                     f"ip link set $device down && ip link set $device name {name}")
        self.bridge("br0")
        self.run("ip link set pf0 up")
        self.card = self.run("basename $(readlink -f /sys/class/net/pf0/device)").strip()
        self.node("apply", "virtual_functions = 2")
        self.vsctl(f"add-port br0 peer tag={VLAN} -- set interface peer type=internal")
        self.run("ip netns add peer && ip link set peer netns peer && ip -n peer link set peer up && "
                 f"ip -n peer addr add {PEER}/24 dev peer && mkdir -p /var/log/heddle")

    def node(self, command, setting, **keys):
        """`heddle node`, with one setting of the card."""
        heddle = os.environ.get("HEDDLE") or f"{os.path.dirname(self.binary)}/heddle"
        self.put("/run/node.toml", f'database = "unix:{RUN}/db.sock"\n[[pci]]\naddress = "{self.card}"\n{setting}\n')
        return self.run(f"{heddle} node {command} /run/node.toml --state /run/node.json 2>&1", **keys)

    def functions(self):
        return self.run("cat /sys/class/net/pf0/device/sriov_numvfs").strip()

    def function(self, number):
        """PCI address of a virtual function."""
        return self.run(f"basename $(readlink -f /sys/class/net/pf0/device/virtfn{number})").strip()

    def settings(self, number):
        """Address of a virtual function at the card, and whether it is trusted."""
        line = re.search(rf"vf {number} .*", self.run("ip -d link show pf0")).group()
        return re.search(r"link/ether (\S+)", line).group(1), "trust on" in line

    def is_port(self):
        """Whether the representor is a port."""
        return "rep0" in self.vsctl("list-ports br0").split()

    def netdev(self, pci):
        return self.run(f"ls /sys/bus/pci/devices/{pci}/net 2>/dev/null", check=False).strip()

    def bind(self, pci, driver):
        """Gives a virtual function to another driver."""
        self.run(f"cd /sys/bus/pci/devices/{pci} && if [ -e driver ]; then echo {pci} >driver/unbind; fi; "
                 f"echo {driver} >driver_override && echo {pci} >/sys/bus/pci/drivers_probe")
        assert self.run(f"basename $(readlink -f /sys/bus/pci/devices/{pci}/driver)").strip() == driver

    def cni(self, command, pod, conf, refused=None):
        """Runs the plug-in; returns its result. refused: number of the error that it has to report."""
        whole = {"cniVersion": "1.1.0", "name": "fast", "type": "heddle-cni", "bridge": "br0", "kind": "device", "database": f"unix:{RUN}/db.sock",
                 "timeoutSeconds": 60, **conf}
        self.put("/run/conf.json", json.dumps(whole))
        out = self.run(f"CNI_COMMAND={command} CNI_CONTAINERID=id-{pod} CNI_IFNAME=net1 CNI_NETNS=/run/netns/{pod} CNI_PATH=/run "
                       f"HEDDLE_CNI_DIRS={RUN} HEDDLE_CNI_DEVICES='rep*' {plugin_path()} </run/conf.json", check=False, timeout=120)
        result = json.loads(out) if out.strip() else {}
        assert result.get("code") == refused, result
        return result

    def talk(self, pod, device, address):
        self.run(f"ip -n {pod} addr add {address}/24 dev {device} && ip -n {pod} link set {device} up")
        self.meet(pod, PEER)
        self.pings(pod, PEER)


def as_before(m, pci, name, settings):
    assert (m.netdev(pci), m.is_port(), m.settings(0)) == (name, False, settings)


@limit(1200)
def scenario_functions_for_pods(lab):
    """One machine for both, since it takes minutes to boot while others are busy."""
    m = Machine(lab)
    a_netdev(m)
    passed_through(m)
    set_up_and_undone(m)


def a_netdev(m):
    """Address, VLAN, trust and rate of a virtual function with a netdev; the fallback while there is no free one."""
    pci = m.function(0)
    name, settings = m.netdev(pci), m.settings(0)
    m.run("ip netns add one && ip netns add two")
    conf = {"deviceID": pci, "vlan": VLAN, "mac": MAC, "trust": True, "bandwidth": {"egressRate": 400_000_000, "ingressRate": 300_000_000}}
    assert "has no representor" in m.cni("ADD", "one", conf, refused=102)["msg"]
    as_before(m, pci, name, settings)
    conf["representor"] = "rep0"
    assert "the kernel cannot limit kind device" in m.cni("ADD", "one", conf, refused=102)["msg"]
    as_before(m, pci, name, settings)
    m.load("sch_htb")
    made = m.cni("ADD", "one", conf)
    assert made["heddle"]["kind"] == "device" and made["interfaces"][1]["pciID"] == pci and made["interfaces"][1]["mac"] == MAC, made
    assert m.settings(0) == (MAC, True) and m.netdev(pci) == ""
    assert m.vsctl("get port rep0 tag") == str(VLAN) and m.get("rep0", "ingress_policing_rate") == "400000"
    assert MAC in m.run("ip -n one link show net1")
    m.cni("CHECK", "one", {**conf, "prevResult": made})
    m.talk("one", "net1", "10.1.0.5")
    # The same function for another pod: an error, or the other kind.
    assert "another pod has it" in m.cni("ADD", "two", conf, refused=102)["msg"]
    other = {**conf, "mac": "02:00:00:00:00:06"}
    fallen = m.cni("ADD", "two", {**other, "fallback": "internal"})
    assert fallen["heddle"]["kind"] == "internal" and "another pod has it" in fallen["heddle"]["why"], fallen
    m.talk("two", "net1", "10.1.0.6")
    m.cni("DEL", "two", {**other, "fallback": "internal"})
    m.pings("one", PEER)
    m.cni("DEL", "one", conf)
    as_before(m, pci, name, settings)
    # The pod's namespace goes first: the kernel moves the function to the host.
    m.cni("ADD", "one", conf)
    m.run("ip netns del one")
    m.wait("the function at the host", lambda: m.netdev(pci))
    m.cni("DEL", "one", conf)
    as_before(m, pci, name, settings)
    m.tell(f"{name} ({pci}) to a pod and back")


def passed_through(m):
    """A virtual function of vfio-pci stays where it is; its port, address and trust are set, as a virtual machine needs them."""
    pci, settings = m.function(1), m.settings(1)
    m.bind(pci, "vfio-pci")
    m.run("ip netns add vm")
    conf = {"deviceID": pci, "vlan": VLAN, "mac": MAC, "trust": True, "representor": "rep0"}
    made = m.cni("ADD", "vm", conf)
    assert made["heddle"]["kind"] == "device", made
    assert made["interfaces"][1] == {"name": "net1", "sandbox": "/run/netns/vm", "mac": MAC, "pciID": pci}, made
    assert m.settings(1) == (MAC, True) and m.vsctl("get port rep0 tag") == str(VLAN)
    assert m.run(f"basename $(readlink -f /sys/bus/pci/devices/{pci}/driver)").strip() == "vfio-pci"
    m.cni("CHECK", "vm", {**conf, "prevResult": made})
    # Another pod does not get the port.
    m.run("ip netns add other")
    assert "is a port already" in m.cni("ADD", "other", {**conf, "mac": "02:00:00:00:00:06"}, refused=102)["msg"]
    assert m.settings(1) == (MAC, True)
    # The driver of a virtual machine gets the address from the card, as that of this machine does.
    m.bind(pci, "igbvf")
    name = m.wait("the netdev", lambda: m.netdev(pci))
    assert MAC in m.run(f"ip link show {name}")
    m.run(f"ip link set {name} netns vm")
    m.talk("vm", name, "10.1.0.5")
    m.bind(pci, "vfio-pci")
    m.cni("DEL", "vm", conf)
    m.cni("DEL", "vm", conf)
    assert (m.settings(1)[1], m.is_port()) == (settings[1], False) and m.settings(1)[0] != MAC
    m.tell(f"{pci} passed through")


def set_up_and_undone(m):
    """`heddle node` has made the functions; another number, mistakes and undo. An igb has no eswitch."""
    two = "virtual_functions = 2"
    assert m.node("apply", two) == "nothing to do\n" and "differs" not in m.node("status", two)
    more = m.node("apply", "virtual_functions = 3")
    assert f"virtual functions of {m.card}: 2 -> 3" in more and m.functions() == "3", more
    for setting, words in (("virtual_functions = 900", f"virtual_functions=900 of {m.card}: the card has at most 7"),
                           ('eswitch_mode = "switchdev"', f"eswitch of {m.card}: "), ('eswitch_mode = "on"', "expected legacy or switchdev")):
        said = m.node("apply", setting, check=False)
        assert words in said and m.functions() == "3", said
    m.node("undo", two)
    assert m.functions() == "0"
    m.tell("functions made and removed by heddle node")


if __name__ == "__main__":
    main()
