#!/usr/bin/env python3
"""Network cards by AF_XDP: the drivers of igb, e1000e and virtio_net under Linux 6.12, in one emulated machine.

Each card under test has a cable to another one, of which a namespace has the device: a host at the other end."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.podlab import PodLab, Wired
from lab.runner import limit, main

MAC, FAR_MAC = "52:54:00:00:00:01", "52:54:00:00:00:02"


class Card(PodLab):
    """A machine whose card `card0` leads to 10.9.0.2 in the namespace `far`; the bridge has 10.9.0.1."""

    def __init__(self, lab, model, driver, **properties):
        super().__init__(lab, modules=(driver, "virtio_net", "tun"), cards=[
            Wired(model, 0, MAC, **properties), Wired("virtio-net-pci", 0, FAR_MAC)])
        for mac, name in ((MAC, "card0"), (FAR_MAC, "far0")):
            device = self.run(f"grep -l {mac} /sys/class/net/*/address").split("/")[4]
            self.run(f"ip link set {device} down && ip link set {device} name {name} && ip link set {name} up")
        self.run("ip netns add far && ip link set far0 netns far && ip -n far addr add 10.9.0.2/24 dev far0 && ip -n far link set far0 up")
        # A card's driver fills checksums in before they are on the cable; QEMU's hub carries none.
        self.bridge("br-ex")
        self.run("ip addr add 10.9.0.1/24 dev br-ex && ip link set br-ex up")

    def plug(self, options="", kind="afxdp"):
        self.vsctl(f"add-port br-ex card0 -- set interface card0 type={kind} {options}")
        assert self.get("card0", "error") == "[]", self.get("card0", "error")

    def mode(self):
        return self.get("card0", "status:xdp-mode")

    def ping(self, *args):
        self.wait("10.9.0.2 to answer", lambda: " 1 received" in self.run("ping -n -q -c 1 -W 1 10.9.0.2", check=False))
        for size in (0, 1000, 1472):
            out = self.run(f"ping -n -q -i 0.2 -c 5 -W 2 -M do -s {size} 10.9.0.2", check=False)
            assert " 0% packet loss" in out, out

    def transfer(self):
        """TCP in both directions; returns Mbit/s, mostly the emulation's."""
        self.run("ip netns exec far iperf3 -s -D -I /run/iperf3.pid; sleep 1")
        rates = []
        for option in ("", "-R"):
            out = self.run(f"iperf3 -J -c 10.9.0.2 -n 500K {option}", timeout=150)
            end = json.loads(out)["end"]["sum_received"]
            assert end["bytes"] > 100_000, end
            rates.append(end["bits_per_second"] / 1e6)
        return rates


def queues(card):
    return re.findall(r"Combined:\s+(\d+)", card.run("ethtool -l card0"))[-1]


def exercise(card, mode, options=""):
    """Traffic in that mode, kill -9, and the end of the port."""
    card.plug(options)
    assert card.mode() == mode, card.mode()
    card.ping()
    rates = card.transfer()
    card.trace.note(f"== {mode}: {rates[0]:.0f} Mbit/s out, {rates[1]:.0f} in")
    for _ in range(3):
        card.kill_daemon()
        card.wait("the program to go", lambda: "xdp" not in card.run("ip link show card0"))
        card.start_daemon()
        card.ping()
    card.vsctl("del-port card0")
    assert "xdp" not in card.run("ip link show card0")


@limit(600)
def scenario_igb(lab):
    card = Card(lab, "igb", "igb")
    exercise(card, "native")
    # The number of queues comes back with the end of the port, and not after kill -9.
    card.run("ethtool -L card0 combined 2")
    card.plug()
    assert queues(card) == "1"
    card.vsctl("del-port card0")
    card.wait("the queues", lambda: queues(card) == "2")
    # Two queues, and the card itself: links that come and go, rings of other sizes, one queue.
    card.plug("options:n_rxq=2")
    card.ping()
    card.vsctl("set interface card0 options:n_rxq=1")
    card.wait("one queue", lambda: queues(card) == "1")
    card.ping()
    for change in ("ip link set card0 down; sleep 1; ip link set card0 up", "ethtool -G card0 rx 512", "ethtool -r card0"):
        card.run(change, check=False)
        card.ping()
    card.vsctl("set interface card0 options:xdp-mode=generic")
    card.wait("the other mode", lambda: card.mode() == "generic")
    card.ping()


@limit(600)
def scenario_e1000e(lab):
    """A driver without XDP."""
    card = Card(lab, "e1000e", "e1000e")
    exercise(card, "generic")
    card.vsctl("add-port br-ex card0 -- set interface card0 type=afxdp options:xdp-mode=native")
    assert "the driver has no XDP in this mode" in card.get("card0", "error"), card.get("card0", "error")


@limit(600)
def scenario_virtio_net(lab):
    card = Card(lab, "virtio-net-pci", "virtio_net", mq="on", vectors=10)
    exercise(card, "native")


@limit(600)
def scenario_ports_of_dpdk(lab):
    """dpdk-devargs names the card by its PCI address, or its MAC; a card without its driver is an error until it has it again."""
    card = Card(lab, "igb", "igb")
    address = card.run("basename $(readlink -f /sys/class/net/card0/device)").strip()
    for devargs in (address, f"class=eth,mac={MAC}"):
        card.vsctl(f"add-port br-ex phys0 -- set interface phys0 type=dpdk options:dpdk-devargs=\\\"{devargs}\\\"")
        status = card.get("phys0", "status")
        assert "heddle-device=card0" in status and "driver_name=igb" in status, (status, card.get("phys0", "error"))
        card.ping()
        card.vsctl("del-port phys0")
    card.run(f"echo {address} >/sys/bus/pci/drivers/igb/unbind")
    card.vsctl(f"add-port br-ex phys0 -- set interface phys0 type=dpdk options:dpdk-devargs=\\\"{address}\\\"", check=False)
    assert f"{address} is bound to no driver" in card.get("phys0", "error"), card.get("phys0", "error")
    card.vsctl("del-port phys0")
    card.put("/run/node.toml", f"[[pci]]\naddress = '{address}'\ndriver = 'igb'\n")
    heddle = os.environ.get("HEDDLE") or f"{os.path.dirname(card.binary)}/heddle"
    out = card.run(f"{heddle} node apply /run/node.toml --state /run/node.json")
    assert f"driver of {address}" in out, out
    assert card.run(f"grep -l {MAC} /sys/class/net/*/address"), "the device is there again"
    card.run(f"{heddle} node undo /run/node.toml --state /run/node.json")
    assert card.run(f"ls /sys/bus/pci/devices/{address}/driver 2>/dev/null", check=False) == ""


if __name__ == "__main__":
    main()
