#!/usr/bin/env python3
"""eBPF forwarding as it is with nothing set: bridges of type system, devices of others, what the CNI plug-in makes of it.

`churn [--seconds N]` runs everything_changes_around_two_pods alone for so long (1200 seconds). HEDDLE_SEED=N repeats
its changes.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import bpf, frames
from lab.cni import Node
from lab.runner import Skip, limit, main
from lab.shell import CommandError, wait_for
from lab.vhost import heddle_path
from test_cni import controllers_plugin
from test_connectivity import iperf
from test_offload import offloaded, settled, stats, two_pods

CHURN = __name__ == "__main__" and sys.argv[1:2] == ["churn"]
CHURN_SECONDS = 30
if CHURN:
    CHURN_SECONDS = 1200
    if "--seconds" in sys.argv:
        CHURN_SECONDS = int(sys.argv[sys.argv.index("--seconds") + 1])
    sys.argv[1:] = ["everything_changes_around_two_pods"]

OFF = "offload is off"
# The longest time until the switch looks at a device again, and some.
SOON = 30


def start(lab, *settings):
    """A switch with a bridge br0 of the default type; settings of other_config."""
    sw = lab.switch(start=False, system=True)
    sw.start_ovsdb()
    for setting in settings:
        sw.vsctl("--no-wait", "set", "open_vswitch", ".", f"other_config:{setting}")
    sw.start_daemon()
    sw.vsctl("add-br", "br0")
    return sw


def is_on(sw, bridge="br0"):
    return "heddle_ebpf=" in sw.get("bridge", bridge, "status")


def forwarded(lab, sw, ns, target):
    """Packets that the program forwards of ten pings."""
    before = stats(sw)["forwarded-packets"]
    lab.net.ping(ns, target, count=10)
    return stats(sw)["forwarded-packets"] - before


def scenario_on_with_nothing_set(lab):
    """The first bridge of type system turns it on. Ports of other bridges stay with workers; dumps and
    other_config stay as they were."""
    sw = lab.switch(system=True)
    lab.bridge(sw, "br1")
    c, _ = (lab.veth_pod(sw, name, f"10.2.0.{n}/24", bridge="br1") for n, name in ((1, "c"), (2, "d")))
    assert OFF in sw.appctl("heddle/offload") and "eBPF" not in sw.log()
    sw.vsctl("add-br", "br0")
    assert sw.log().count("eBPF is on") == 1, sw.log()
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    assert is_on(sw) and not is_on(sw, "br1")
    lab.net.ping(c, "10.2.0.2", count=5)
    assert forwarded(lab, sw, c, "10.2.0.2") == 0
    assert "input port is not offloaded" in sw.appctl("heddle/offload", "in_port=vc") or "no cached" in sw.appctl("heddle/offload", "in_port=vc")
    assert "hdm" in lab.net.ip(sw.netns, "-br", "link")
    # Each flow is listed once, without a word about its place.
    settled(lab, sw, a)
    flows = sw.appctl("dpctl/dump-flows", "system@ovs-system")
    assert "eth_type(0x0800)" in flows and "offloaded" not in flows and "dp:" not in flows, flows
    keys = [line.split(", packets:")[0] for line in flows.splitlines()]
    assert len(keys) == len(set(keys)), flows
    assert offloaded(sw) > 0
    assert sw.get("open_vswitch", ".", "other_config") == "{}"
    # The last bridge of the type goes, another comes.
    sw.vsctl("del-br", "br0", "--", "add-br", "br2", "--", "add-port", "br2", "va", "--", "add-port", "br2", "vb")
    settled(lab, sw, a)
    sw.vsctl("set", "bridge", "br2", "datapath_type=netdev")
    wait_for("the bridge without the mark", lambda: not is_on(sw, "br2"))
    lab.net.ping(a, "10.1.0.2")
    assert forwarded(lab, sw, a, "10.1.0.2") == 0
    assert "hdm" not in lab.net.ip(sw.netns, "-br", "link")


def scenario_one_setting_is_enough(lab):
    """heddle-ebpf=false turns it off, and the next start removes the program. hw-offload=false does not, and a bad
    value is the default."""
    sw = start(lab, "hw-offload=false", "heddle-ebpf=maybe")
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    assert "other_config:heddle-ebpf=maybe is not auto, true or false: auto is used" in sw.log()
    sw.vsctl("set", "open_vswitch", ".", "other_config:heddle-ebpf=false")
    assert "take effect when the switch is restarted" in sw.log()
    sw.stop_daemon(signal.SIGKILL)
    sw.start_daemon()
    lab.net.ping(a, "10.1.0.2")
    assert OFF in sw.appctl("heddle/offload") and not is_on(sw)
    assert "hdm" not in lab.net.ip(sw.netns, "-br", "link")
    assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
    sw.vsctl("remove", "open_vswitch", ".", "other_config", "heddle-ebpf")
    sw.vsctl("add-br", "br9")
    wait_for("the program", lambda: is_on(sw, "br9"))
    assert sw.get("open_vswitch", ".", "other_config") == '{hw-offload="false"}'


@limit(300)
def scenario_devices_of_others(lab):
    """A device with another program's filter, tcx or XDP program stays with workers, and the reason is shown. When
    that has gone, the kernel forwards again."""
    sw = start(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    tc = ("tc", "filter", "add", "dev", "va", "ingress", "protocol", "all", "prio", "7", "bpf", "da", "bytecode", "1,6 0 0 4294967295,")

    def left():
        return [line for line in sw.appctl("heddle/offload").splitlines() if "port va stays with workers" in line]

    def changes_sides(change):
        """Packets may be lost until the port is open again, about a second after the reason is shown."""
        opened = lambda: sw.log().count("assigned port 'va' rx queue 0")
        before = opened()
        change()
        wait_for("va to be opened again", lambda: opened() > before, SOON)

    def stays(words):
        wait_for(f"va to stay with workers: {words}", lambda: words in "".join(left()), SOON)
        wait_for("pings", lambda: lab.net.ping(a, "10.1.0.2", lossless=False))
        # Only what the other port sends is forwarded by the program.
        wait_for("workers", lambda: 0 <= forwarded(lab, sw, a, "10.1.0.2") <= 10)
        assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
        assert "stays" not in sw.appctl("heddle/offload", "in_port=vb")
        assert "left to workers" in sw.appctl("heddle/offload", "in_port=va"), sw.appctl("heddle/offload", "in_port=va")

    def goes():
        wait_for("va to be offloaded again", lambda: not left(), SOON)
        wait_for("pings", lambda: lab.net.ping(a, "10.1.0.2", lossless=False))
        settled(lab, sw, a)
    changes_sides(lambda: lab.net.run(sw.netns, *tc))
    stays("a filter of another program (tc filter show dev va ingress: pref 7 bpf)")
    # A switch that is restarted finds it before it takes the device.
    sw.stop_daemon()
    changes_sides(sw.start_daemon)
    stays("pref 7 bpf")
    changes_sides(lambda: lab.net.run(sw.netns, "tc", "filter", "del", "dev", "va", "ingress", "prio", "7"))
    goes()
    for place, words in (("xdp", "its device has an XDP program"), ("tcx ingress", "its device has a tcx program of another program")):
        links = []
        try:
            changes_sides(lambda place=place: links.append(bpf.attach(lab, sw.netns, "va", place)))
        except OSError as exc:
            lab.trace.note(f"{place}: {exc}")
            continue
        try:
            stays(words)
        finally:
            changes_sides(lambda: os.close(links.pop()))
        goes()
    assert "|WARN|" not in "".join(line for line in sw.log().splitlines(True) if "netdev_offload" in line), sw.log()


@limit(200)
def scenario_what_others_do_to_packets_that_leave(lab):
    """A queueing discipline at a port's device, as the plug-in bandwidth sets one, and an XDP program in a pod see
    what the program sends."""
    sw = start(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    before = stats(sw)["to-peer"]
    lab.net.ping(a, "10.1.0.2", count=5)
    assert stats(sw)["to-peer"] - before >= 10
    lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "vb", "root", "handle", "8:", "pfifo", "limit", "100")

    def counted():
        shown = lab.net.run(sw.netns, "tc", "-s", "qdisc", "show", "dev", "vb", "root")
        return int(re.search(r"Sent \d+ bytes (\d+) pkt", shown).group(1))

    def through():
        was, packets = counted(), stats(sw)["forwarded-packets"]
        lab.net.ping(a, "10.1.0.2", count=10)
        return counted() - was >= 10 and stats(sw)["forwarded-packets"] - packets >= 20
    wait_for("offloaded packets in the discipline", through, SOON)
    lab.net.run(sw.netns, "tc", "qdisc", "del", "dev", "vb", "root")
    # An XDP program of the pod's: packets have to be sent to the device, not put into it.
    link = bpf.attach(lab, b, "eth0", "xdp")
    try:
        def indirect():
            peers = stats(sw)["to-peer"]
            lab.net.ping(a, "10.1.0.2", count=10)
            return 8 <= stats(sw)["to-peer"] - peers <= 12
        wait_for("only the way back to go directly", indirect, SOON)
    finally:
        os.close(link)
    # The host's own discipline at an internal port.
    lab.net.address(sw.netns, "br0", "10.1.0.100/24")
    settled(lab, sw, a, "10.1.0.100")
    lab.net.run(sw.netns, "tc", "qdisc", "replace", "dev", "br0", "root", "handle", "9:", "pfifo", "limit", "100")
    wait_for("br0 to stay with workers", lambda: "port br0 stays with workers: its device has the queueing discipline pfifo" in sw.appctl("heddle/offload"), SOON)
    wait_for("pings", lambda: lab.net.ping(a, "10.1.0.100", lossless=False))
    lab.net.run(sw.netns, "tc", "qdisc", "del", "dev", "br0", "root")
    wait_for("br0 to be offloaded", lambda: "port br0" not in sw.appctl("heddle/offload"), SOON)
    settled(lab, sw, a, "10.1.0.100")
    # Rates are the workers' work.
    for set_it, end, why in (
            (("set", "interface", "va", "ingress_policing_rate=100000"), ("set", "interface", "va", "ingress_policing_rate=0"), "ingress policing"),
            (("set", "port", "va", "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-noop"), ("clear", "port", "va", "qos"), "QoS (linux-noop)")):
        sw.vsctl(*set_it)
        wait_for(why, lambda: f"port va stays with workers: it has {why}" in sw.appctl("heddle/offload"), SOON)
        sw.vsctl(*end)
        wait_for("va to be offloaded", lambda: "port va" not in sw.appctl("heddle/offload"), SOON)


def scenario_without_the_right(lab):
    """A switch that may not load programs logs that in one line, which is no warning, and forwards as ever."""
    if not shutil.which("capsh"):
        raise Skip("capsh is not installed")
    sw = lab.switch(start=False, system=True)
    sw.start_ovsdb()
    sw.before = ["capsh", "--drop=cap_sys_admin,cap_bpf,cap_perfmon", "--", "-c", 'exec "$@"', "sh"]
    sw.start_daemon()
    sw.vsctl("add-br", "br0")
    a, _ = two_pods(lab, sw)
    lab.net.ping(a, "10.1.0.2")
    lines = [line for line in sw.log().splitlines() if "netdev_offload" in line]
    assert len(lines) == 1 and "|INFO|eBPF is off, all packets are forwarded by workers" in lines[0], lines
    assert OFF in sw.appctl("heddle/offload") and not is_on(sw)


def scenario_kinds_of_the_plugin(lab):
    """The CNI plug-in's kind auto is veth where the kernel forwards veths, and internal elsewhere. After another
    plug-in, such a veth stays."""
    sw = start(lab)
    lab.bridge(sw, "br1")
    node = Node(lab, sw)
    pods = [node.pod() for _ in range(3)]
    first = node.add(node.conf(kind="auto"), pods[0])
    own = first["heddle"]
    assert (own["kind"], own["why"]) == ("veth", "the kernel forwards the bridge's veths (eBPF is on)"), first
    second = node.add(node.conf(kind=None), pods[1])
    assert second["heddle"]["kind"] == "veth"
    target = second["ips"][0]["address"].partition("/")[0]
    settled(lab, sw, pods[0], target)
    other = node.add(node.conf(kind="auto", bridge="br1"), pods[2])
    assert (other["heddle"]["kind"], other["heddle"]["why"]) == ("internal", "eBPF is not on at the bridge"), other
    for words in ("kind veth: the kernel forwards the bridge's veths", "kind internal: eBPF is not on at the bridge"):
        assert words in node.log(), node.log()
    for conf, pod in ((node.conf(kind="auto"), pods[0]), (node.conf(kind="auto"), pods[1]), (node.conf(kind="auto", bridge="br1"), pods[2])):
        node.delete(conf, pod)
    # Behind a controller's plug-in.
    plugin = {"type": "heddle-cni", "kind": "auto", "database": sw.db, "logFile": f"{node.dir}/cni.log"}
    pod = node.pod()
    node.write("chain", controllers_plugin(node, 0), plugin)
    node.tool("add", "chain", pod)
    name = sw.vsctl("list-ports", "br0")
    assert sw.get("interface", name, "type") in ("", "system") and f"eBPF is on); the veth {name} stays" in node.log(), node.log()
    node.tool("check", "chain", pod)
    node.tool("del", "chain", pod)
    assert not sw.vsctl("list-ports", "br0")


# OVN-Kubernetes' rules of a node's bridge, and what they need of br-int; {host}, {out} and {pod} are addresses.
NODE = """priority=205,udp,dl_dst={host},tp_dst=6081,actions=LOCAL
priority=200,udp,in_port=LOCAL,tp_dst=6081,actions=output:up0
priority=105,ip,in_port=pe,dl_src={host},pkt_mark=0x3f0,actions=ct(commit,zone=64000,nat(src=172.18.0.2),exec(set_field:0x1->ct_mark)),output:up0
priority=100,ip,in_port=pe,dl_src={host},actions=ct(commit,zone=64000,exec(set_field:0x1->ct_mark)),output:up0
priority=100,ip,in_port=LOCAL,actions=ct(commit,zone=64000,exec(set_field:0x2->ct_mark)),output:up0
priority=50,ip,in_port=up0,dl_dst={host},actions=ct(zone=64000,nat,table=1)
priority=10,in_port=up0,dl_dst={host},actions=pe,LOCAL
priority=9,in_port=pe,actions=drop
priority=0,actions=NORMAL
table=1,priority=100,ip,ct_state=+est+trk,ct_mark=0x1,actions=pe
table=1,priority=100,ip,ct_state=+est+trk,ct_mark=0x2,actions=LOCAL
table=1,priority=10,ip,dl_dst={host},actions=LOCAL
table=1,priority=0,actions=NORMAL
"""
INT = """priority=20,ip,in_port=va,nw_dst=10.244.0.2,actions=ct(table=5,zone=1)
priority=20,ip,in_port=ovn-k8s-mp0,nw_dst=10.244.0.5,actions=ct(table=5,zone=1)
priority=10,ip,in_port=va,actions=resubmit(,10)
priority=10,ip,in_port=pi,actions=ct(table=11,zone=3,nat)
table=5,priority=5,ip,ct_state=+new+trk,actions=ct(commit,zone=1),resubmit(,6)
table=5,priority=5,ip,ct_state=+est+trk,actions=resubmit(,6)
table=6,ip,nw_dst=10.244.0.2,actions=output:ovn-k8s-mp0
table=6,ip,nw_dst=10.244.0.5,actions=output:va
table=10,ip,actions=mod_dl_src:{host},mod_dl_dst:{out},dec_ttl,ct(commit,table=12,zone=3,nat(src=172.18.0.2))
table=12,ip,actions=output:pi
table=11,ip,nw_dst=10.244.0.5,actions=mod_dl_dst:{pod},dec_ttl,output:va
"""


@limit(200)
def scenario_a_nodes_own_traffic(lab):
    """OVN-Kubernetes' rules: the kernel forwards TCP of the node by its bridge, of pods to the outside, and between
    the node and its pods."""
    sw = lab.switch(system=True)
    outside = lab.net.namespace("out")
    lab.net.veth(sw.netns, "up0", outside, "eth0")
    sw.vsctl("add-br", "breth0", "--", "add-port", "breth0", "up0", "--", "add-br", "br-int", "--", "set", "bridge", "br-int", "fail_mode=secure",
             *("-- add-port breth0 pe -- set interface pe type=patch options:peer=pi -- add-port br-int pi -- set interface pi type=patch options:peer=pe "
               "-- add-port br-int ovn-k8s-mp0 -- set interface ovn-k8s-mp0 type=internal").split())
    pod = lab.veth_pod(sw, "a", "10.244.0.5/24", bridge="br-int")
    lab.net.address(outside, "eth0", "172.18.0.1/16")
    lab.net.address(sw.netns, "breth0", "172.18.0.2/16")
    lab.net.address(sw.netns, "ovn-k8s-mp0", "10.244.0.2/24")
    mac = {dev: lab.net.run(ns, "cat", f"/sys/class/net/{dev}/address").strip() for ns, dev in ((sw.netns, "breth0"), (sw.netns, "ovn-k8s-mp0"))}
    host, out, inside = mac["breth0"], *(lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (outside, pod))
    for ns, dev, addr, to in ((pod, "eth0", "10.244.0.1", "0a:58:0a:f4:00:01"), (pod, "eth0", "10.244.0.2", mac["ovn-k8s-mp0"]),
                              (sw.netns, "ovn-k8s-mp0", "10.244.0.5", inside), (sw.netns, "breth0", "172.18.0.1", out), (outside, "eth0", "172.18.0.2", host)):
        lab.net.ip(ns, "neigh", "replace", addr, "lladdr", to, "dev", dev, "nud", "permanent")
    lab.net.ip(pod, "route", "add", "default", "via", "10.244.0.1")
    for bridge, rules in (("breth0", NODE), ("br-int", INT)):
        sw.ofctl("add-flows", bridge, "-", stdin=rules.format(host=host, out=out, pod=inside))
    for server, client, to in ((outside, pod, "172.18.0.1"), (outside, sw.netns, "172.18.0.1"), (sw.netns, outside, "172.18.0.2"),
                               (sw.netns, pod, "10.244.0.2"), (pod, sw.netns, "10.244.0.5")):
        before = stats(sw)["forwarded-bytes"]
        got = iperf(lab, server, client, to, "-t", "4", "-b", "100M")["sum_received"]["bytes"]
        shown = sw.appctl("heddle/offload", "ip")
        assert stats(sw)["forwarded-bytes"] - before > got / 2 > 1_000_000, (client, to, got, shown)


def scenario_captures_and_drops(lab):
    """Packets that the kernel drops by a rule are counted among the switch's drops. During a capture, the kernel
    forwards nothing, and afterwards it forwards again."""
    sw = start(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)

    def dropped():
        return int(sw.appctl("coverage/read-counter", "drop_action_of_pipeline"))
    sw.ofctl("add-flow", "br0", "priority=9,udp,tp_dst=9,actions=drop")
    macs = [lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (b, a)]
    frame = frames.ethernet(*macs, 0x0800, frames.ipv4("10.1.0.1", "10.1.0.2", 17, frames.udp("10.1.0.1", "10.1.0.2", 7, 9, b"x")))
    sock = lab.net.raw(a, "eth0")

    def in_kernel():
        was = stats(sw)["dropped"]
        for _ in range(10):
            sock.send(frame)
        return stats(sw)["dropped"] - was == 10
    wait_for("the kernel to drop", in_kernel)
    wait_for("the counts", lambda: dropped() >= 10)
    time.sleep(1)
    before = dropped()
    for _ in range(50):
        sock.send(frame)
    wait_for("fifty more", lambda: dropped() == before + 50)
    name = f"{sw.dir}/va.pcap"
    run = subprocess.Popen([heddle_path(), "capture", "--port", "va", "-w", name, "--seconds", "5", "-t", sw.ctl], stderr=subprocess.PIPE, text=True)
    try:
        wait_for("the capture", lambda: "a capture is under way" in sw.appctl("heddle/offload"))
        lab.net.ping(a, "10.1.0.2", count=10, size=777)
        shown = run.communicate(timeout=30)[1]
    finally:
        run.kill()
    with open(name, "rb") as file:
        # Requests and replies, as the port receives and sends them.
        packets = len(re.findall(rb"\x08\x00\x45.{8}\x01..\x0a\x01\x00[\x01\x02]", file.read(), re.S))
    assert packets >= 20, (packets, shown)
    wait_for("the kernel again", lambda: "a capture" not in sw.appctl("heddle/offload"))
    settled(lab, sw, a)


class Checked:
    """Numbered datagrams from one pod to another. Each has to arrive once, as it was sent."""

    OUTSTANDING = 64

    def __init__(self, lab, ns_from, ns_to):
        mac = {ns: lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (ns_from, ns_to)}
        self.header = (mac[ns_to], mac[ns_from])
        self.tx, self.rx = lab.net.raw(ns_from, "eth0"), lab.net.raw(ns_to, "eth0", timeout=1)
        self.sent = self.received = 0
        self.arrived = bytearray()
        self.over = threading.Event()
        self.wrong = None
        self.threads = [threading.Thread(target=f) for f in (self.send, self.receive)]

    def frame(self, n):
        payload = frames.udp("10.1.0.1", "10.1.0.2", 7, 1 + n % 8, n.to_bytes(8, "big") * (1 + n % 100))
        return frames.ethernet(*self.header, 0x0800, frames.ipv4("10.1.0.1", "10.1.0.2", 17, payload))

    def send(self):
        while not self.over.is_set() and not self.wrong:
            if self.sent - self.received >= self.OUTSTANDING:
                time.sleep(0.0005)
                continue
            n = self.sent
            self.arrived.append(0)
            self.sent += 1
            self.tx.send(self.frame(n))

    def receive(self):
        try:
            quiet = time.monotonic()
            while not self.over.is_set() or self.received < self.sent:
                try:
                    data = self.rx.recv(2048)
                except TimeoutError:
                    assert self.received == self.sent or time.monotonic() < quiet + 20, f"{self.sent - self.received} packets are lost"
                    continue
                if data[12:14] != b"\x08\x00" or data[23] != 17 or data[34:36] != b"\0\x07":
                    continue
                quiet = time.monotonic()
                n = int.from_bytes(data[42:50], "big")
                assert n < self.sent and data == self.frame(n), f"packet {n} of {self.sent} is changed: {data.hex()}"
                assert not self.arrived[n], f"packet {n} came twice"
                self.arrived[n] = 1
                self.received += 1
        except Exception as exc:  # for the thread that waits
            self.wrong = exc

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(timeout=60)

    def check(self):
        if self.wrong:
            raise self.wrong


def changes(lab, rng, sw):
    """Random changes that concern no packet between the two pods."""
    def ctl(*args):
        sw.vsctl(*args, quiet=True)

    def rule(*args):
        sw.ofctl(*args, check=False, quiet=True)

    def device(*args):
        lab.net.run(sw.netns, *args, check=False, quiet=True)
    port = rng.choice(["vc", "vd", "i0"])
    kind = "internal" if port == "i0" else "system"
    filter_ = ("dev", port, "ingress", "protocol", "all", "prio", "7")
    return [
        lambda: ctl("--if-exists", "del-port", port),
        lambda: ctl("--may-exist", "add-port", "br0", port, "--", "set", "interface", port, f"type={kind}"),
        lambda: ctl("--may-exist", "add-port", "br0", port, f"tag={rng.randrange(1, 9)}", "--", "set", "interface", port, f"type={kind}"),
        lambda: ctl("set", "port", port, f"tag={rng.randrange(1, 9)}"),
        lambda: ctl("set", "interface", port, f"ingress_policing_rate={rng.choice([0, 1000])}"),
        lambda: ctl("--may-exist", "add-br", "br1", "--", "set", "bridge", "br1", f"datapath_type={rng.choice(['system', 'netdev'])}"),
        lambda: ctl("set", "bridge", "br1", f"datapath_type={rng.choice(['system', 'netdev'])}"),
        lambda: ctl("--if-exists", "del-br", "br1"),
        lambda: ctl("--may-exist", "add-port", "br1", port, "--", "set", "interface", port, f"type={kind}"),
        lambda: ctl("set", "open_vswitch", ".", f"other_config:max-idle={rng.choice([500, 10000])}"),
        lambda: ctl("set", "open_vswitch", ".", f"other_config:flow-limit={rng.choice([100, 200000])}"),
        lambda: ctl("--", "--id=@p", "get", "port", port, "--", "--id=@m", "create", "mirror", "name=m", "select-all=true", "output-port=@p", "--", "set", "bridge", "br0", "mirrors=@m"),
        lambda: ctl("clear", "bridge", "br0", "mirrors"),
        lambda: rule("add-flow", "br0", f"priority={rng.randrange(9)},udp,tp_dst={rng.randrange(1, 9)},actions=NORMAL"),
        lambda: rule("add-flow", "br0", f"priority={rng.randrange(9)},udp,tp_dst={rng.randrange(1, 9)},nw_ttl={rng.choice([64, 63])},actions=NORMAL"),
        lambda: rule("add-flow", "br0", f"priority=9,icmp,actions={rng.choice(['drop', 'NORMAL', 'ct(commit),NORMAL'])}"),
        lambda: rule("del-flows", "br0", f"udp,tp_dst={rng.randrange(1, 9)}"),
        lambda: rule("del-flows", "br0", "icmp"),
        lambda: sw.appctl("revalidator/purge", check=False, quiet=True),
        lambda: sw.appctl("dpctl/del-flows", check=False, quiet=True),
        lambda: sw.appctl("fdb/flush", "br0", check=False, quiet=True),
        lambda: sw.appctl("dpctl/dump-flows", "-m", check=False, quiet=True),
        lambda: device("ip", "link", "set", port, "mtu", rng.choice(["1300", "1500", "9000"])),
        lambda: device("ip", "link", "set", port, rng.choice(["up", "down"])),
        lambda: device("ip", "link", "del", port),
        lambda: device("ip", "link", "add", port, "type", "veth", "peer", "name", f"{port}x"),
        lambda: device("tc", "filter", "add", *filter_, "bpf", "da", "bytecode", "1,6 0 0 4294967295,"),
        lambda: device("tc", "filter", "del", "dev", port, "ingress", "prio", "7"),
        lambda: device("tc", "qdisc", "replace", "dev", port, "root", "handle", "8:", "pfifo", "limit", "100"),
        lambda: device("tc", "qdisc", "del", "dev", port, rng.choice(["root", "clsact"])),
    ]


@limit(CHURN_SECONDS + 240)
def scenario_everything_changes_around_two_pods(lab):
    """Random changes of ports, bridges, rules and devices, and kill -9: no packet between two pods is lost, changed
    or doubled."""
    seed = int(os.environ.get("HEDDLE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HEDDLE_SEED={seed}", flush=True)
    rng = random.Random(seed)
    sw = start(lab)
    a, b = two_pods(lab, sw)
    for name in ("vc", "vd"):
        lab.net.ip(sw.netns, "link", "add", name, "type", "veth", "peer", "name", f"{name}x")
    settled(lab, sw, a)
    before, kills, done, through = stats(sw)["forwarded-packets"], 0, 0, 0
    with Checked(lab, a, b) as traffic:
        end, next_kill = time.monotonic() + CHURN_SECONDS, time.monotonic() + 10
        while time.monotonic() < end and not traffic.wrong:
            with contextlib.suppress(CommandError):
                rng.choice(changes(lab, rng, sw))()
            done += 1
            if time.monotonic() < next_kill:
                continue
            # All flows of the traffic are in the kernel: a switch that is down forwards no others. Flows to ports with
            # rates, by a mirror or because the address is not known, would stay with workers.
            sw.vsctl("clear", "bridge", "br0", "mirrors")
            traffic.rx.send(frames.ethernet(traffic.header[1], traffic.header[0], 0x88b5, b"x" * 46))
            wait_for("the flows to be in the kernel", lambda: traffic.wrong or all_in_kernel(sw))
            through += stats(sw)["forwarded-packets"] - before
            sw.stop_daemon(signal.SIGKILL)
            time.sleep(rng.random())
            sw.start_daemon()
            before, kills, next_kill = 0, kills + 1, time.monotonic() + rng.uniform(5, 20)
    traffic.check()
    through += stats(sw)["forwarded-packets"] - before
    told = (f"{done} changes, {kills} times killed, {traffic.received} packets, {through} forwarded by the program; none wrong, lost or doubled")
    lab.trace.note(told)
    print(told, flush=True)
    assert traffic.received == traffic.sent and kills > 0 and through > traffic.received / 4, told


def all_in_kernel(sw):
    """Whether the eight flows of the traffic, or the fewer that stand for them, are all offloaded."""
    others = sw.appctl("dpctl/dump-flows", "-m", "--names", "type=non-offloaded", check=False)
    return not any("in_port(va)" in line and "proto=17" in line for line in others.splitlines()) and offloaded(sw) > 0


if __name__ == "__main__":
    main()
