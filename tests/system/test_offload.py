#!/usr/bin/env python3
"""Flows of veth pods in the kernel (other_config:hw-offload, eBPF): who forwards what, changes, restarts."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from test_connectivity import exchange, iperf


def offloading(lab, *config):
    """A switch that offloads, with a bridge."""
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true", *config)
    sw.stop_daemon()
    sw.start_daemon()
    lab.bridge(sw)
    return sw


def stats(sw):
    """What dpctl/offload-stats-show says, by name."""
    out = sw.appctl("dpctl/offload-stats-show")
    return {key.strip(): int(value) for key, value in re.findall(r"^ +([^:]+): +(\d+)$", out, re.M)}


def offloaded(sw):
    return sw.appctl("dpctl/dump-flows", "-m", "type=offloaded").count("offloaded:yes, dp:ebpf")


def two_pods(lab, sw, ipv6=False):
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", ipv6=ipv6)
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", ipv6=ipv6)
    return a, b


def settled(lab, sw, a, target="10.1.0.2"):
    """Packets of a ping to the target are forwarded by the program, in both directions."""
    def forwards():
        before = stats(sw)["forwarded-packets"]
        lab.net.ping(a, target, count=4)
        return stats(sw)["forwarded-packets"] - before >= 8
    wait_for("the kernel to forward pings", forwards)


@limit(300)
def scenario_pods_meet(lab):
    """All that pods do with each other works, and most of it is done by the program."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    exchange(lab, a, b)
    settled(lab, sw, a)
    before = stats(sw)
    end = iperf(lab, b, a, "10.1.0.2", "-n", "50000000")
    assert end["sum_received"]["bytes"] > 30_000_000, end["sum_received"]
    after = stats(sw)
    forwarded = after["forwarded-bytes"] - before["forwarded-bytes"]
    assert forwarded > 30_000_000, (before, after)
    assert after["to-peer"] > before["to-peer"], (before, after)


def scenario_counts_come_back(lab):
    """Rules, ports and dumps count what the program forwards, once."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.ofctl("add-flow", "br0", "priority=5,icmp,actions=NORMAL")
    settled(lab, sw, a)

    def counted():
        flow = [f for f in sw.flows("br0") if "priority=5" in f][0]
        return int(re.search(r"n_packets=(\d+)", flow).group(1))

    def port(name):
        out = sw.ofctl("dump-ports", "br0", name)
        return [int(n) for n in re.findall(r"pkts=(\d+)", out)]
    before, ports, through = counted(), port("va"), stats(sw)["forwarded-packets"]
    lab.net.ping(a, "10.1.0.2", count=20)
    through = stats(sw)["forwarded-packets"] - through
    assert through >= 40, through
    assert counted() - before == 40, (before, counted())
    assert [now - then >= 20 for now, then in zip(port("va"), ports)] == [True, True], (ports, port("va"))
    shown = sw.appctl("dpctl/dump-flows", "-m", "type=offloaded")
    assert "offloaded:yes, dp:ebpf" in shown, shown
    assert "offloaded:yes" not in sw.appctl("dpctl/dump-flows", "-m", "type=non-offloaded")
    assert "dp:ebpf" not in sw.appctl("dpctl/dump-flows"), "only those who want to see all see that"


def scenario_the_host_hears_nothing(lab):
    """What the program does not know goes to the switch and to nobody else: the host's stack never answers."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    sw.ofctl("add-flow", "br0", "priority=9,arp,actions=drop")
    sw.ofctl("add-flow", "br0", "priority=9,ip,actions=drop")
    # An address of the host on the port's own device, that the pod knows by heart.
    lab.net.ip(sw.netns, "addr", "add", "10.1.0.77/24", "dev", "va")
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/va/address").strip()
    lab.net.ip(a, "neigh", "add", "10.1.0.77", "lladdr", mac, "dev", "eth0")
    lab.net.no_ping(a, "10.1.0.77")


def scenario_rules_change_under_traffic(lab):
    """Once a change is confirmed no packet goes by the old rule, and none comes twice."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sock = lab.net.raw(b, "eth0", timeout=1)
    dst, src = (lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (b, a))
    tx = lab.net.raw(a, "eth0")
    for number in (1, 2):
        sw.ofctl("add-flow", "br0", f"priority=7,udp,tp_dst=7,actions=mod_nw_tos:{number << 2},NORMAL")

    def number_now(n):
        payload = frames.udp("10.1.0.1", "10.1.0.2", 7, 7, n.to_bytes(4, "big"))
        packet = frames.ipv4("10.1.0.1", "10.1.0.2", 17, payload)
        return frames.ethernet(dst, src, 0x0800, packet)
    n, rounds, fast = 0, 0, 0
    end = time.monotonic() + 8
    seen = {}
    while time.monotonic() < end:
        tos = 4 * (1 + rounds % 60)
        sw.ofctl("mod-flows", "br0", f"udp,tp_dst=7,actions=mod_nw_tos:{tos},NORMAL")
        before = stats(sw)["forwarded-packets"] if rounds % 10 == 9 else None
        first = n
        for _ in range(20):
            tx.send(number_now(n))
            n += 1
        while len([k for k in seen if k >= first]) < n - first:
            data = sock.recv(2048)
            if data[12:14] == b"\x08\x00" and data[23] == 17 and data[36:38] == b"\0\x07":
                k = int.from_bytes(data[42:46], "big")
                assert k not in seen, f"packet {k} came twice"
                seen[k] = data[15]
                assert data[15] == tos, f"packet {k} came with tos {data[15]:#x}, {tos:#x} is confirmed"
                assert frames.checksum(data[14:34]) == 0, "bad IP checksum"
        rounds += 1
        if before is not None:
            fast += stats(sw)["forwarded-packets"] - before
    assert len(seen) == n and rounds > 20, (len(seen), n, rounds)
    assert fast > 0, "the program forwarded none of them"
    lab.trace.note(f"{rounds} changes, {n} packets")


@limit(120)
def scenario_killed_under_traffic(lab):
    """While the switch is down, established pods talk on; the next one takes the program over."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    mac = lab.net.run(b, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(a, "neigh", "replace", "10.1.0.2", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(b, "neigh", "replace", "10.1.0.1", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    settled(lab, sw, a)
    sw.stop_daemon(signal.SIGKILL)
    lab.net.ping(a, "10.1.0.2", count=20)
    sw.start_daemon()
    lab.net.ping(a, "10.1.0.2", count=10)
    assert "took over" in sw.log(), "nothing was taken over"
    settled(lab, sw, a)
    wait_for("what was left to be dropped", lambda: stats(sw)["adopted-flows"] == 0)
    lab.net.ping(a, "10.1.0.2", count=10)


def scenario_switched_off_again(lab):
    """A switch without offload takes the program of an earlier one away."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("remove", "open_vswitch", ".", "other_config", "hw-offload")
    sw.stop_daemon()
    assert "hd_ingress" in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
    sw.start_daemon()
    lab.net.ping(a, "10.1.0.2", count=10)
    assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "va", "ingress")
    assert "offload is off" in sw.appctl("heddle/offload")


def scenario_ports_come_and_go(lab):
    """A port that leaves has its device back; a device that is made again is diverted again."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("del-port", "br0", "vb")
    assert "hd_ingress" not in lab.net.run(sw.netns, "tc", "filter", "show", "dev", "vb", "ingress")
    lab.net.no_ping(a, "10.1.0.2")
    sw.vsctl("add-port", "br0", "vb")
    settled(lab, sw, a)
    lab.net.ip(sw.netns, "link", "del", "vb")
    lab.net.veth(sw.netns, "vb", b, "eth0")
    lab.net.address(b, "eth0", "10.1.0.2/24")
    # The new device has another address; the other pod would believe in the old one for half a minute.
    lab.net.ip(a, "neigh", "flush", "to", "10.1.0.2", "nud", "all")
    wait_for("the port to be back", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    settled(lab, sw, a)


def scenario_rewriting(lab):
    """VLANs and routing between two pods: tags, addresses and times to live are rewritten by the program."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.vsctl("set", "port", "va", "tag=5", "--", "set", "port", "vb", "trunks=5")
    lab.net.no_ping(a, "10.1.0.2")
    lab.net.ip(b, "link", "add", "link", "eth0", "name", "eth0.5", "type", "vlan", "id", "5", check=False)
    macs = {ns: lab.net.run(ns, "cat", "/sys/class/net/eth0/address").strip() for ns in (a, b)}
    sw.vsctl("remove", "port", "va", "tag", "5", "--", "clear", "port", "vb", "trunks")
    # A router between 10.1.0.0/24 and 10.2.0.0/24, by rules.
    router = "02:00:00:00:00:fe"
    lab.net.ip(b, "addr", "flush", "dev", "eth0")
    lab.net.ip(b, "addr", "add", "10.2.0.2/24", "dev", "eth0")
    for ns, net, via in ((a, "10.2.0.0/24", "10.1.0.254"), (b, "10.1.0.0/24", "10.2.0.254")):
        lab.net.ip(ns, "neigh", "replace", via, "lladdr", router, "dev", "eth0", "nud", "permanent")
        lab.net.ip(ns, "route", "replace", net, "via", via, "dev", "eth0", "onlink")
    for net, mac, port in (("10.1.0.0/24", macs[a], "va"), ("10.2.0.0/24", macs[b], "vb")):
        sw.ofctl("add-flow", "br0", f"priority=9,ip,nw_dst={net},dl_dst={router},actions=mod_dl_src:{router},"
                                    f"mod_dl_dst:{mac},dec_ttl,output:{port}")
    settled(lab, sw, a, "10.2.0.2")
    out = lab.net.run(a, "ping", "-n", "-c", "2", "10.2.0.2")
    assert out.count("ttl=63") == 2, out
    end = iperf(lab, b, a, "10.2.0.2", "-n", "20000000")
    assert end["sum_received"]["bytes"] > 10_000_000, end["sum_received"]
    snmp = lab.net.run(b, "cat", "/proc/net/snmp")
    header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith("Tcp:")]
    assert dict(zip(header, values))["InCsumErrors"] == "0", snmp


def scenario_without_the_right(lab):
    """A switch that may not load programs says so in one line, and forwards as ever."""
    if not shutil.which("capsh"):
        raise Skip("capsh is not installed")
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true")
    sw.stop_daemon()
    plain = sw.command

    def command(*args):
        line = plain(*args)
        at = line.index(sw.binary)
        return [*line[:at], "capsh", "--drop=cap_sys_admin,cap_bpf,cap_perfmon", "--", "-c", 'exec "$@"', "sh", *line[at:]]
    sw.command = command
    sw.start_daemon()
    lab.bridge(sw)
    a, _ = two_pods(lab, sw)
    lab.net.ping(a, "10.1.0.2")
    lines = [line for line in sw.log().splitlines() if "eBPF is off" in line]
    assert len(lines) == 1, sw.log()
    assert "offload is off" in sw.appctl("heddle/offload")


@limit(200)
def scenario_devices_change(lab):
    """MTUs change and namespaces are deleted under traffic; the program keeps to what is there."""
    sw = offloading(lab)
    a, b = two_pods(lab, sw)
    settled(lab, sw, a)
    lab.net.ping(a, "10.1.0.2", size=1400, df=True)
    # What is too long for an output is the switch's to judge.
    lab.net.ip(sw.netns, "link", "set", "vb", "mtu", "1000")

    def passes():
        out = lab.net.run(a, "ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", "1400", "10.1.0.2", check=False)
        return " 1 received" in out
    wait_for("long packets to be dropped", lambda: not passes())
    before = stats(sw)["up-too-long"]
    wait_for("the program to send them up", lambda: passes() or stats(sw)["up-too-long"] > before)
    lab.net.ping(a, "10.1.0.2", size=500)
    lab.net.ip(sw.netns, "link", "set", "vb", "mtu", "1500")
    wait_for("long packets to pass", passes)
    settled(lab, sw, a)
    # A namespace goes with its device, whatever is sent to it.
    flood = subprocess.Popen(["ip", "netns", "exec", a, "ping", "-n", "-q", "-f", "-w", "60", "10.1.0.2"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lab.trace.run("ip", "netns", "del", b)
        wait_for("the device to go", lambda: "vb:" not in lab.net.ip(sw.netns, "-br", "link"))
        lab.trace.run("ip", "netns", "add", b)
        lab.net.veth(sw.netns, "vb", b, "eth0")
        lab.net.address(b, "eth0", "10.1.0.2/24")
        lab.net.ip(a, "neigh", "flush", "to", "10.1.0.2", "nud", "all")
        wait_for("the new pod to answer", lambda: lab.net.ping(a, "10.1.0.2", lossless=False, count=1))
    finally:
        flood.kill()
        flood.wait()
    settled(lab, sw, a)
    left = lab.net.ip(sw.netns, "-br", "link")
    assert left.count("hdm") == 2, left


def scenario_explained(lab):
    """heddle offload says what is where, and why the rest is not."""
    sw = offloading(lab)
    a, _ = two_pods(lab, sw)
    settled(lab, sw, a)
    sw.ofctl("add-flow", "br0", "priority=9,icmp,actions=ct(commit),NORMAL")
    lab.net.ping(a, "10.1.0.2")
    wait_for("a reason", lambda: "its action ct is done by workers only" in sw.appctl("heddle/offload"))
    says = sw.appctl("heddle/offload", "icmp")
    assert "not offloaded: its action ct" in says, says
    sw.ofctl("del-flows", "--strict", "br0", "priority=9,icmp")
    settled(lab, sw, a)
    assert "offloaded to ebpf" in sw.appctl("heddle/offload", "icmp")


if __name__ == "__main__":
    main()
