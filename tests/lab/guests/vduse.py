#!/usr/bin/env python3
"""Pods on VDUSE devices: the switch, its bridges and its pods inside one emulated machine with Linux 6.12."""

import json
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "system"))
from lab.cni import plugin_path, reference
from lab.guest import CACHE
from lab.guestlab import main
from lab.podlab import RUN, PodLab
from lab.runner import limit
from lab.vhost import heddle_path
from test_cni import FIRST


def two_pods(lab, options="", **lab_options):
    p = PodLab(lab, **lab_options)
    p.bridge()
    p.pod("a", "10.9.0.1", options=options)
    p.pod("b", "10.9.0.2", options=options)
    p.meet("a", "10.9.0.2")
    return p


@limit(600)
def scenario_two_pods(lab):
    """Ping, streams both ways, datagrams; address, MTU and link are the port's; split rings."""
    p = PodLab(lab)
    p.bridge()
    p.pod("a", "10.9.0.1", columns='mac=\\"02:00:00:00:0a:01\\" mtu_request=1400')
    # The form of Open vSwitch 3.5.
    p.pod("b", "10.9.0.2", kind="dpdkvhostuserclient", options="options:vhost-server-path=/dev/vduse/pod-b")
    p.meet("a", "10.9.0.2")
    p.pings("a", "10.9.0.2", 20)
    link = p.run("ip -n a link show eth0")
    assert "02:00:00:00:0a:01" in link and "mtu 1400" in link, link
    assert "mtu 1500" in p.run("ip -n b link show eth0")
    assert p.get("a", "mac_in_use") == "02:00:00:00:0a:01" and p.get("a", "link_state") == "up"
    features = int(re.search(r'features="?(0x[0-9a-f]+)', p.get("a", "status")).group(1), 16)
    for bit, name in ((0, "CSUM"), (7, "GUEST_TSO4"), (11, "HOST_TSO4"), (15, "MRG_RXBUF"), (28, "INDIRECT_DESC"), (29, "EVENT_IDX"),
                      (32, "VERSION_1"), (33, "ACCESS_PLATFORM"), (54, "GUEST_USO4"), (56, "HOST_USO")):
        assert features >> bit & 1, f"{name} was not negotiated: {features:#x}"
    p.serve("b")
    there, back = p.stream("a", "10.9.0.2"), p.stream("a", "10.9.0.2", options="-R")
    p.tell(f"{there:.0f} Mbit/s there, {back:.0f} back, {p.datagrams('a', '10.9.0.2', size=1300):.0f} of datagrams")
    # The link follows the port.
    p.run(f"ovs-ofctl mod-port {RUN}/br-int.mgmt a down")
    p.wait("no carrier", lambda: p.run("ip netns exec a cat /sys/class/net/eth0/carrier").strip() == "0")
    p.run(f"ovs-ofctl mod-port {RUN}/br-int.mgmt a up")
    p.wait("carrier", lambda: p.run("ip netns exec a cat /sys/class/net/eth0/carrier").strip() == "1")
    p.pings("a", "10.9.0.2", 5)
    # Without the port no device is left.
    p.vsctl("del-port a")
    p.wait("its end", lambda: "No such" in p.run("ls /dev/vduse/a 2>&1", check=False))
    assert "eth0" not in p.run("ip -n a link")


def killed(p):
    """Kills the daemon under traffic and starts it again; returns pings lost and how long it was away, seconds."""
    p.run("(ip netns exec a ping -n -q -i 0.1 -c 50 10.9.0.2 >/run/pings 2>&1 &) ; sleep 1")
    # The network device's address shows whether it is the same one afterwards.
    before = p.run("ip netns exec a cat /sys/class/net/eth0/ifindex /sys/class/net/eth0/address")
    p.run("cat /proc/uptime >/run/t0")
    p.kill_daemon()
    p.start_daemon()
    p.run("cat /proc/uptime >/run/t1")
    p.wait("the end of pings", lambda: "transmitted" in p.run("cat /run/pings"), 120)
    assert p.run("ip netns exec a cat /sys/class/net/eth0/ifindex /sys/class/net/eth0/address") == before
    down = float(p.run("cat /run/t1").split()[0]) - float(p.run("cat /run/t0").split()[0])
    sent, got = re.search(r"(\d+) packets transmitted, (\d+) received", p.run("cat /run/pings")).groups()
    return int(sent) - int(got), down


def restarts(lab, options):
    p = two_pods(lab, options)
    p.run("ip -n a neigh replace 10.9.0.2 lladdr $(ip netns exec b cat /sys/class/net/eth0/address) dev eth0")
    p.run("ip -n b neigh replace 10.9.0.1 lladdr $(ip netns exec a cat /sys/class/net/eth0/address) dev eth0")
    devices = p.run("ls -i /dev/vduse")
    for _ in range(2):
        lost, down = killed(p)
        p.tell(f"killed under traffic: away for {down:.1f} s, {lost} of 50 pings lost")
        # Rings hold packets sent meanwhile; lost ones were on their way to a pod whose port came later.
        assert lost <= 10 * down, "more than its down time"
    assert p.run("ls -i /dev/vduse") == devices, "no device was made anew"
    p.serve("b")
    p.run("(ip netns exec a iperf3 -c 10.9.0.2 -t 12 -f m >/run/stream 2>&1 &) ; sleep 2")
    p.kill_daemon()
    p.start_daemon()
    p.wait("the stream's end", lambda: "receiver" in p.run("cat /run/stream"), 60)
    p.pings("a", "10.9.0.2", 20)


@limit(600)
def scenario_killed_split(lab):
    """kill -9 under traffic: pods keep their devices, and no ping is lost beyond its down time."""
    restarts(lab, "")


@limit(600)
def scenario_killed_packed(lab):
    """The same with packed rings, whose positions are in the journal."""
    restarts(lab, "options:packed-ring=true")


@limit(600)
def scenario_twenty(lab):
    """20 pods come and go at once, twice."""
    p = PodLab(lab)
    p.bridge()
    names = [f"p{i}" for i in range(20)]
    for round_ in range(2):
        p.run("cat /proc/uptime >/run/t0")
        p.vsctl(" -- ".join(f"add-port br-int {n} -- set interface {n} type=vduse" for n in names))
        p.wait("20 devices", lambda: p.run("ls -d /sys/bus/vdpa/devices/p*/virtio*/net/* 2>/dev/null | wc -l", check=False).strip() == "20")
        p.run("cat /proc/uptime >/run/t1")
        if round_ == 0:
            # The second round does not move devices into namespaces.
            p.run("for i in $(seq 0 19); do n=p$i; d=$(ls /sys/bus/vdpa/devices/$n/virtio*/net); ip netns add $n; "
                  "ip link set $d netns $n; ip -n $n link set $d name eth0; ip -n $n addr add 10.9.0.$((i + 1))/24 dev eth0; "
                  "ip -n $n link set eth0 up; done", timeout=300)
            p.meet("p0", "10.9.0.20")
            p.pings("p7", "10.9.0.13", 5)
        p.vsctl(" -- ".join(f"del-port {n}" for n in names))
        p.wait("their end", lambda: p.run("ls /dev/vduse").split() == ["control"])
        p.run("cat /proc/uptime >/run/t2")
        t = [float(p.run(f"cat /run/t{i}").split()[0]) for i in range(3)]
        p.tell(f"20 pods: {t[1] - t[0]:.1f} s to come" + (f", {t[2] - t[1]:.1f} s to go" if round_ else ""))
    assert "panicked" not in p.run(f"cat {RUN}/heddled.log")


@limit(600)
def scenario_given_up(lab):
    """A daemon that does not reply in time: its device is broken, destroyed and made again."""
    p = two_pods(lab)
    p.run("echo 1 >/sys/class/vduse/a/msg_timeout")
    p.run(f"kill -STOP $(cat {RUN}/vswitchd.pid); readlink -f /sys/bus/vdpa/devices/a/driver; echo a >/sys/bus/vdpa/drivers/virtio_vdpa/unbind; "
          f"kill -CONT $(cat {RUN}/vswitchd.pid)")
    p.wait("a word in the log", lambda: "destroyed and made anew" in p.run(f"cat {RUN}/heddled.log"))
    p.run("ip netns del a")
    p.pod("a", "10.9.0.1", device=p.netdev("a"))
    p.meet("a", "10.9.0.2")


@limit(600)
def scenario_without_module(lab):
    """Without the kernel's modules the port reports an error, and works when they are loaded."""
    p = PodLab(lab, modules=())
    p.bridge()
    p.vsctl("add-port br-int a -- set interface a type=vduse", check=False)
    p.wait("a word", lambda: "the kernel's module vduse is not loaded (modprobe vduse)" in p.get("a", "error"))
    for module in p.MODULES:
        p.load(module)
    p.pod("a", "10.9.0.1", device=p.netdev("a"))
    assert p.get("a", "error") == "[]"
    p.vsctl("add-port br-int bad -- set interface bad type=vduse options:queue-size=100", check=False)
    assert "queue-size=100 is no power of two from 64 to 4096" in p.get("bad", "error")
    # The daemon ends as it should, and the pod keeps its device for the next one.
    p.pod("b", "10.9.0.2")
    p.meet("a", "10.9.0.2")
    p.run(f"kill $(cat {RUN}/vswitchd.pid); while test -e {RUN}/vswitchd.pid; do sleep 0.1; done")
    p.start_daemon()
    p.meet("a", "10.9.0.2")


@limit(600)
def scenario_beside(lab):
    """br-int and br-ex; beside pods on VDUSE one with ipvlan and one with a device of the host."""
    p = two_pods(lab, modules=(*PodLab.MODULES, "ipvlan", "dummy"))
    p.bridge("br-ex")
    p.vsctl("add-port br-int to-ex -- set interface to-ex type=patch options:peer=to-int -- "
            "add-port br-ex to-int -- set interface to-int type=patch options:peer=to-ex")
    # The machine's own card is a port of br-ex.
    p.run("ip link add nic type veth peer name wire && ip link set nic up && ip netns add world && ip link set wire netns world && "
          "ip -n world addr add 10.9.0.100/24 dev wire && ip -n world link set wire up")
    p.vsctl("add-port br-ex nic")
    p.meet("a", "10.9.0.100")
    # ipvlan on a device of the switch, and a device of the host that is given away whole.
    p.run("ip link set br-ex up && ip netns add i && ip link add iv link br-ex type ipvlan mode l2 && ip link set iv netns i && "
          "ip -n i addr add 10.9.0.50/24 dev iv && ip -n i link set iv up")
    p.run("ip link add card type veth peer name card0 && ip link set card0 up && ip netns add h && ip link set card netns h && "
          "ip -n h addr add 10.9.0.60/24 dev card && ip -n h link set card up")
    p.vsctl("add-port br-ex card0")
    for target in ("10.9.0.50", "10.9.0.60", "10.9.0.100"):
        p.meet("a", target)
        p.pings("a", target, 5)
    p.meet("i", "10.9.0.60")
    p.pings("h", "10.9.0.2", 5)


# Settings that a command of the plug-in needs; the pods' files are the guest's own.
CNI = f"HEDDLE_CNI_DIRS={RUN} NETCONFPATH=/run/net.d CNI_PATH=/run/bin"


def plug_ins(p, name, *plugins):
    """A list of plug-ins for cnitool inside the guest."""
    # cnitool keeps its results there.
    p.run(f"mkdir -p /run/net.d /run/bin && (mountpoint -q /var/lib || mount -t tmpfs tmp /var/lib) && "
          f"ln -sf {plugin_path()} {reference()}/* /run/bin/")
    p.put(f"/run/net.d/{name}.conflist", json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": plugins}))


OWN = {"type": "heddle-cni", "bridge": "br-int", "kind": "vduse", "database": f"unix:{RUN}/db.sock", "timeoutSeconds": 120, "logFile": "/var/log/heddle/cni.log"}


@limit(900)
def scenario_twenty_by_cnitool(lab):
    """20 pods come and go at once through cnitool, with the kind that the plug-in chooses: VDUSE."""
    p = PodLab(lab)
    p.bridge()
    plug_ins(p, "net", {**OWN, "ipam": {"type": "host-local", "dataDir": "/run/ipam", "ranges": [[{"subnet": "10.9.0.0/24"}]]}})
    each = "for i in $(seq 20); do n=p$i; "
    p.run(each + "ip netns add $n; done")
    p.run("cat /proc/uptime >/run/t0")
    p.run(each + f"({CNI} /run/bin/cnitool add net /run/netns/$n >/run/add-$n 2>&1; echo status $? >>/run/add-$n) & done; wait", timeout=400)
    p.run("cat /proc/uptime >/run/t1")
    said = p.run("cat /run/add-*")
    assert said.count("status 0") == 20, said
    assert p.run("cat /var/log/heddle/cni.log").count("kind vduse") == 20
    addresses = [re.search(r'"address": "([\d.]+)/24"', p.run(f"cat /run/add-p{i}")).group(1) for i in (1, 20)]
    assert "virtio_net" in p.run("ip netns exec p7 ethtool -i eth0")
    p.meet("p7", addresses[0])
    p.pings("p1", addresses[1], 5)
    p.run(each + f"{CNI} /run/bin/cnitool del net /run/netns/$n >>/run/del 2>&1 & done; wait", timeout=400)
    p.wait("their end", lambda: p.run("ls /dev/vduse").split() == ["control"])
    p.run("cat /proc/uptime >/run/t2")
    assert not p.run("ls /run/ipam/net | grep ^10", check=False) and p.vsctl("list-ports br-int") == ""
    t = [float(p.run(f"cat /run/t{i}").split()[0]) for i in range(3)]
    p.tell(f"20 pods by cnitool: {t[1] - t[0]:.1f} s to come, {t[2] - t[1]:.1f} s to go")


@limit(600)
def scenario_chained(lab):
    """After a controller's plug-in: its veth becomes a VDUSE device with the same name, addresses, routes, identity and port number."""
    p = PodLab(lab)
    p.bridge()
    p.pod("peer", "10.244.0.250")
    first = {"type": "first", "database": f"unix:{RUN}/db.sock", "bridge": "br-int", "mac": "0a:58:0a:f4:00:11", "address": "10.244.0.11/24",
             "address6": "fd01::11/64", "gateway": "10.244.0.1"}
    plug_ins(p, "net", first, {key: value for key, value in OWN.items() if key != "bridge"})
    p.put("/run/bin/first", FIRST.replace("/usr/bin/env python3", "/usr/bin/python3"))
    p.run("chmod +x /run/bin/first; ip netns add a")
    p.run(f"{CNI} /run/bin/cnitool add net /run/netns/a", timeout=200)
    assert "virtio_net" in p.run("ip netns exec a ethtool -i eth0")
    link, routes = p.run("ip -n a link show eth0"), p.run("ip -n a route")
    assert "0a:58:0a:f4:00:11" in link and "mtu 1342" in link, link
    assert "default via 10.244.0.1" in routes and "10.99.0.0/16" in routes, routes
    name = p.vsctl("--bare --columns=name find interface external_ids:iface-id=ns_pod")
    assert p.get(name, "type") == "vduse" and p.get(name, "ofport") == p.get(name, "ofport_request")
    p.meet("peer", "10.244.0.11")
    p.run(f"{CNI} /run/bin/cnitool del net /run/netns/a", timeout=200)
    p.wait("its end", lambda: p.vsctl("list-ports br-int") == "peer")


@limit(600)
def scenario_node(lab):
    """`heddle node` on a machine of its own: modules, hugepages, interrupts of VDUSE devices, RPS, RFS and rings of a NIC; and undo."""
    p = PodLab(lab, modules=("vdpa", "veth", "tun"), nic="e1000e")
    p.bridge()
    heddle = os.environ.get("HEDDLE") or f"{os.path.dirname(p.binary)}/heddle"
    # The guest's root is that of another machine, which has no modules for its kernel.
    modules = f"MODPROBE_OPTIONS='-d {CACHE}/kernel -S {p.run('uname -r').strip()}'"
    node = lambda command, **keys: p.run(f"{modules} {heddle} node {command} /run/node.toml --state /run/node.json", **keys)
    p.put("/run/node.toml", f"""database = "unix:{RUN}/db.sock"
modules = ["vduse", "virtio_vdpa"]
[[nic]]
name = "eth0"
rx_ring = 512
tx_ring = 1024
rps_cores = "0-1"
rfs_flows = 4096
[vduse]
irq_cores = "1"
[hugepages]
size_kib = 2048
count = 3
[datapath]
sleep_us = 50
""")
    rings = lambda: re.findall(r"^[RT]X:\s+(\d+)", p.run("ethtool -g eth0").partition("Current")[2], re.M)
    queue = "/sys/class/net/eth0/queues/rx-0"
    files = (f"{queue}/rps_cpus", f"{queue}/rps_flow_cnt", "/proc/sys/net/core/rps_sock_flow_entries",
             "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    state = lambda: ([p.run(f"cat {file}").strip() for file in files], rings())
    before = state()
    out = node("apply")
    assert "module vduse loaded: no -> yes" in out, out
    assert state() == (["3", "4096", "4096", "3"], ["512", "1024"]), state()
    p.pod("a", "10.9.0.1")
    p.pod("b", "10.9.0.2")
    affinity = lambda: p.run("cat /sys/class/vduse/a/vq*/irq_cb_affinity").split()
    assert "irq_cb_affinity" in node("plan"), "of devices that came later"
    node("apply")
    assert [int(mask.replace(",", ""), 16) for mask in affinity()] == [2, 2], affinity()
    p.meet("a", "10.9.0.2")
    assert node("apply") == "nothing to do\n" and "differs" not in node("status")
    node("undo")
    assert state() == before and "pmd-sleep-max" not in p.vsctl("get Open_vSwitch . other_config"), (state(), before)
    assert [int(mask.replace(",", ""), 16) for mask in affinity()] == [3, 3], affinity()
    p.pings("a", "10.9.0.2", 5)


@limit(600)
def scenario_measured(lab):
    """`heddle measure` makes pods on VDUSE devices, on one node and across, and others that this kernel has; nothing is left."""
    p = PodLab(lab, modules=(*PodLab.MODULES, "ipvlan", "macvlan"))
    p.bridge()
    p.run(f"ln -sf vswitchd.pid {RUN}/ovs-vswitchd.pid")
    before = p.run("ip -br link; ip netns; ls /dev/vduse") + p.vsctl("list-br")
    p.run(f"{heddle_path()} measure --between new --attachments vduse,internal,ipvlan-l2,ipvlan-l3,macvlan --deployments same,across "
          f"--pattern rr --connections 1 --sizes 1x1 --seconds 0.5 --warmup 0.2 --rounds 1 --most-rounds 1 --rundir {RUN} --out /run/m.jsonl",
          timeout=400)
    found = [json.loads(line) for line in p.run("cat /run/m.jsonl").splitlines()]
    measured = {r["contender"] for r in found if r["record"] == "series"}
    assert {"vduse", "vduse across", "internal", "ipvlan-l2", "ipvlan-l3", "macvlan"} <= measured, measured
    for r in found:
        if r["record"] == "series" and "vduse" in r["contender"]:
            p.tell(f"{r['contender']} {r['case']['pattern']}: {r['transactions_per_s']:.0f}/s, {r['mib_per_s']:.1f} MiB/s")
    p.wait("nothing to be left", lambda: p.run("ip -br link; ip netns; ls /dev/vduse") + p.vsctl("list-br") == before)


if __name__ == "__main__":
    main()
