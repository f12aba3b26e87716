#!/usr/bin/env python3
"""Network cards by AF_XDP: the drivers of igb, e1000e and virtio_net under Linux 6.12 and 7.3, in one emulated machine.

Each card under test has a cable to another one, of which a namespace has the device: a host at the other end."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.podlab import RUN, PodLab, Wired
from lab.runner import limit, main

MAC, FAR_MAC = "52:54:00:00:00:01", "52:54:00:00:00:02"


class Card(PodLab):
    """A machine whose card `card0` leads to 10.9.0.2 in the namespace `far`; the bridge has 10.9.0.1."""

    def __init__(self, lab, model, driver, variant="", **properties):
        super().__init__(lab, modules=(driver, "virtio_net", "tun"), variant=variant, cards=[
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
    changes(card)


def changes(card):
    """Queues, links and rings of a card change under a port."""
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


@limit(1200)
def scenario_igb_zero_copy(lab):
    """Linux 7.3: the driver reads and writes the switch's memory."""
    card = Card(lab, "igb", "igb", variant="-next")
    exercise(card, "native-with-zerocopy")
    changes(card)


@limit(1200)
def scenario_virtio_net_zero_copy(lab):
    """Linux 7.3; the driver has zero copy where the device's DMA goes by the platform, and guest offloads are off."""
    off = {f"guest_{name}": "off" for name in ("csum", "tso4", "tso6", "ecn", "ufo", "uso4", "uso6")}
    card = Card(lab, "virtio-net-pci", "virtio_net", variant="-next", mq="on", vectors=10, iommu_platform="on",
                **{"disable-legacy": "on"}, **off)
    exercise(card, "native-with-zerocopy")


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


NODES = [word for node in (0, 1) for word in (
    "-device", f"pxb-pcie,id=pxb{node},bus_nr={64 + 64 * node},numa_node={node},bus=pcie.0",
    "-device", f"pcie-root-port,id=port{node},bus=pxb{node},chassis={node + 1},slot={node + 1}")]


@limit(600)
def scenario_numa_nodes(lab):
    """Two NUMA nodes, a card behind the PCI bridge of each: frames and workers are those of the card's node."""
    macs = [f"52:54:00:00:01:0{node}" for node in (0, 1)]
    lab = PodLab(lab, modules=("igb", "tun"), cpus=4, nodes=2, memory=1536, machine=NODES, settings=("pmd-cpu-mask=0xf",),
                 cards=[Wired("igb", node, macs[node], bus=f"port{node}") for node in (0, 1)])
    lab.bridge("br-ex")
    for node in (0, 1):
        device = lab.run(f"grep -l {macs[node]} /sys/class/net/*/address").split("/")[4]
        lab.run(f"ip link set {device} down && ip link set {device} name card{node} && ip link set card{node} up")
        assert lab.run(f"cat /sys/class/net/card{node}/device/numa_node").strip() == str(node)
        # The thread that opens the queues is on the other node: memory does not come from where it happens to run.
        lab.run(f"taskset -a -p {3 if node else 12:x} $(cat /run/ovs/vswitchd.pid)")
        lab.vsctl(f"add-port br-ex card{node} -- set interface card{node} type=dpdk options:dpdk-devargs=net_af_xdp0,iface=card{node}")
        assert lab.get(f"card{node}", "error") == "[]", lab.get(f"card{node}", "error")
        assert lab.get(f"card{node}", "status:numa_id") == str(node)
    maps = [line for line in lab.run("cat /proc/$(cat /run/ovs/vswitchd.pid)/numa_maps").splitlines() if "heddle-xsk" in line]
    assert len(maps) == 2, maps
    pages = [{int(n): int(count) for n, count in re.findall(r" N(\d)=(\d+)", line)} for line in maps]
    assert sorted(list(p) for p in pages) == [[0], [1]], maps
    shown = lab.appctl("dpif-netdev/pmd-rxq-show")
    lab.tell(f"pages by node: {pages}")
    found = re.findall(r"numa_id (\d) core_id (\d):\n(?:  (?!port).*\n)*  port: (card\d)", shown)
    threads = {port: (numa, core) for numa, core, port in found}
    assert threads["card0"][0] == "0" and threads["card1"][0] == "1", shown
    for port, (node, core) in threads.items():
        assert int(core) in ((0, 1), (2, 3))[int(node)], (port, node, core)
    # The workers' own threads are pinned there.
    tasks = lab.run("for t in /proc/$(cat /run/ovs/vswitchd.pid)/task/*; do echo $(cat $t/comm) $(grep Cpus_allowed_list $t/status); done")
    assert all(re.search(rf"Cpus_allowed_list: {core}$", tasks, re.M) for _, core in threads.values()), tasks
    # A user's wish for another node is shown.
    lab.vsctl("set interface card1 other_config:pmd-rxq-affinity=0:0")
    lab.wait("the crossing", lambda: re.search(r"numa_id 0 core_id 0:\n(?:  .*\n)*?  port: card1.*the port is on numa_id 1",
                                               lab.appctl("dpif-netdev/pmd-rxq-show")))
    lab.tell(lab.appctl("dpif-netdev/pmd-rxq-show"))


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


@limit(1800)
def scenario_igb_to_igb_without_copy(lab):
    """Linux 7.3: a packet goes out by the other card from the frame that received it, while cards, queues and ports change."""
    macs = [f"52:54:00:00:02:0{number}" for number in range(4)]
    lab = PodLab(lab, modules=("igb", "virtio_net", "tun"), variant="-next", memory=1536, cards=[
        Wired(model, number, macs[2 * number + end]) for number in (0, 1) for end, model in enumerate(("igb", "virtio-net-pci"))])
    lab.bridge("br-ex")
    # Few frames, so that all of them are needed again and again.
    add = "add-port br-ex card{0} -- set interface card{0} type=afxdp options:n_rxq_desc=512 options:n_txq_desc=512"
    for number in (0, 1):
        for name, mac in ((f"card{number}", macs[2 * number]), (f"far{number}", macs[2 * number + 1])):
            device = lab.run(f"grep -l {mac} /sys/class/net/*/address").split("/")[4]
            lab.run(f"ip link set {device} down && ip link set {device} name {name} && ip link set {name} up")
        lab.run(f"ip netns add n{number} && ip link set far{number} netns n{number} && ip -n n{number} addr add 10.9.0.{number + 2}/24 dev far{number}"
                f" && ip -n n{number} link set far{number} up")
        lab.vsctl(add.format(number))
        assert lab.get(f"card{number}", "error") == "[]", lab.get(f"card{number}", "error")
        assert lab.get(f"card{number}", "status:xdp-mode") == "native-with-zerocopy"
    maps = lambda: [line.split()[0] for line in lab.run("cat /proc/$(cat /run/ovs/vswitchd.pid)/maps").splitlines() if "heddle-xsk" in line]  # noqa: E731
    assert len(maps()) == 1, maps()

    def pings(size, count=20):
        out = lab.run(f"ip netns exec n0 ping -n -q -i 0.05 -c {count} -W 5 -M do -s {size} 10.9.0.3", check=False)
        assert " 0% packet loss" in out, out

    def without_copy():
        """Packets of both cards that were not copied."""
        text = lab.vsctl("--bare --columns=statistics list interface card0 card1")
        return [int(n) for n in re.findall(r"tx_without_copy=(\d+)", text)]

    def replies():
        lab.wait("10.9.0.3 to answer", lambda: " 1 received" in lab.run("ip netns exec n0 ping -n -q -c 1 -W 1 10.9.0.3", check=False))

    def transfer():
        lab.run("ip netns exec n1 iperf3 -s -D -1 -I /run/iperf3.pid; sleep 1")
        end = json.loads(lab.run("ip netns exec n0 iperf3 -J -c 10.9.0.3 -n 2M", timeout=150))["end"]["sum_received"]
        assert end["bytes"] > 1_000_000, end
    replies()
    for size in (0, 200, 1000, 1472):
        pings(size)
    lab.wait("the counters", lambda: sum(without_copy()) >= 2 * 40)
    transfer()
    # More packets than all frames together: each frame comes back.
    lab.run("ip netns exec n0 ping -n -q -f -c 3000 -s 1400 10.9.0.3", timeout=400, check=False)
    pings(1472)
    lab.tell(f"without a copy: {without_copy()}")
    lab.run("ip netns exec n0 sh -c 'ping -n -q -i 0.01 -s 1400 10.9.0.3 >/dev/null 2>&1 &'")
    for change in (lambda: lab.run("ip link set card1 down; sleep 1; ip link set card1 up"),
                   lambda: lab.run("ethtool -r card0"),
                   lambda: lab.run("ethtool -G card1 rx 512"),
                   lambda: lab.vsctl("set interface card1 options:n_rxq=2"),
                   lambda: lab.vsctl("set interface card1 options:n_rxq=1"),
                   lambda: lab.vsctl("set interface card0 options:n_rxq_desc=256"),
                   lambda: lab.vsctl("set interface card0 options:n_rxq_desc=512"),
                   lambda: (lab.vsctl("del-port card1"), lab.vsctl(add.format(1))),
                   lambda: (lab.kill_daemon(), lab.start_daemon())):
        change()
        replies()
        pings(1472)
        for number in (0, 1):
            assert lab.get(f"card{number}", "error") == "[]", lab.get(f"card{number}", "error")
        lab.tell(f"memory: {maps()}, without a copy: {without_copy()}")
    lab.vsctl("del-port card0 -- del-port card1")
    lab.wait("the frames to go", lambda: not maps())


@limit(600)
def scenario_node(lab):
    """`heddle node`: queues, rings, interrupts and the port of a card, and undo; plan and status show the same."""
    card = Card(lab, "igb", "igb")
    heddle = os.environ.get("HEDDLE") or f"{os.path.dirname(card.binary)}/heddle"
    node = lambda command: card.run(f"{heddle} node {command} /run/node.toml --state /run/node.json")  # noqa: E731

    def interrupts():
        """Processors of the card's interrupts."""
        return card.run("for i in $(ls /sys/class/net/card0/device/msi_irqs); do cat /proc/irq/$i/smp_affinity_list; done").split()

    def ring():
        return re.findall(r"^RX:\s+(\d+)", card.run("ethtool -g card0").partition("Current")[2], re.M)[0]
    state = lambda: (queues(card), ring(), interrupts(), card.vsctl("--columns=name,type,options list interface"))  # noqa: E731
    # The host has the card first.
    card.run("ip addr del 10.9.0.1/24 dev br-ex; ip addr add 10.9.0.1/24 dev card0")
    card.run("ping -n -q -c 1 -W 5 10.9.0.2")
    before = state()
    common = f"""database = "unix:{RUN}/db.sock"
check = "10.9.0.2"
[[bridge]]
name = "br-ex"
nic = "card0"
[[nic]]
name = "card0"
rx_ring = 512
irq_cores = "1"
"""
    for more, kind in (("queues = 2\n", "system"), ("port_type = 'afxdp'\nxdp_mode = 'generic'\n", "afxdp")):
        card.put("/run/node.toml", common + more)
        lab.trace.note(node("plan"))
        lab.trace.note(node("apply"))
        assert card.get("card0", "type").strip('"') in (kind, "" if kind == "system" else kind), card.get("card0", "type")
        assert kind != "afxdp" or card.mode() == "generic", card.get("card0", "status")
        assert queues(card) == ("1" if kind == "afxdp" else "2") and ring() == "512" and set(interrupts()) == {"1"}, state()
        card.ping()
        assert node("apply") == "nothing to do\n" and "differs" not in node("status"), node("status")
        node("undo")
        card.run("ping -n -q -c 1 -W 5 10.9.0.2")
        assert state() == before, (state(), before)
        assert "xdp" not in card.run("ip link show card0")


if __name__ == "__main__":
    main()
