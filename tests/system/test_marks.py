#!/usr/bin/env python3
"""Packet marks (skb->mark) cross internal ports in both directions, as OVN-Kubernetes and Antrea use them."""

import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, limit, main
from lab.shell import wait_for

HOST, POD = "10.68.0.1", "10.68.0.2"
HOST6, POD6 = "fd68::1", "fd68::2"
# An address that `ip rule fwmark` forbids to packets without the mark.
HIDDEN = "10.99.0.1"
IN, OUT = 0x42, 0x12345678
PRIORITY = "18502"
FROM_HOST = f"priority=5,in_port=LOCAL,pkt_mark={IN:#x},actions=set_field:{OUT:#x}->pkt_mark,output:pod"
UNMARKED = "priority=4,in_port=LOCAL,pkt_mark=0,actions=output:pod"


def start(lab, *rules, config=(), daemon=None):
    """The host's own port and a pod's internal port, whose packets nft counts by their mark."""
    if not shutil.which("nft", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        raise Skip("nft is not installed")
    sw = lab.switch()
    if config or daemon:
        if config:
            sw.vsctl("set", "open_vswitch", ".", *config)
        sw.stop_daemon()
        if daemon:
            daemon(sw)
        sw.start_daemon()
    lab.bridge(sw, "brm", "fail_mode=secure")
    sw.vsctl("add-port", "brm", "pod", "--", "set", "interface", "pod", "type=internal")
    pod = lab.net.namespace("pod", ipv6=True)
    lab.net.run(sw.netns, "sh", "-c", "echo 0 > /proc/sys/net/ipv6/conf/brm/disable_ipv6")
    lab.net.move("pod", sw.netns, pod)
    lab.net.address(sw.netns, "brm", f"{HOST}/24", mac="02:00:00:00:00:01")
    lab.net.address(pod, "pod", f"{POD}/24", mac="02:00:00:00:00:02")
    for ns, dev, own in (sw.netns, "brm", HOST6), (pod, "pod", POD6):
        lab.net.ip(ns, "-6", "addr", "add", f"{own}/64", "dev", dev, "nodad")
    set_rules(sw, *rules)
    lab.net.run(pod, "nft", "-f", "-", stdin=counters("pod", OUT))
    wait_for("programs at both devices", lambda: programs(lab, sw.netns, "brm") + programs(lab, pod, "pod") == 4)
    return sw, pod


def set_rules(sw, *rules):
    sw.ofctl("del-flows", "brm")
    sw.ofctl("add-flows", "brm", "-", stdin="\n".join((
        "priority=9,arp,actions=NORMAL", "priority=9,icmp6,icmp_type=135,actions=NORMAL",
        "priority=9,icmp6,icmp_type=136,actions=NORMAL", *rules)) + "\n")


def counters(dev, mark):
    """A table of nft that counts packets from a device: with that mark, with another one, without any."""
    rules = "".join(f'  iifname "{dev}" meta mark {what} counter\n' for what in (mark, f"!= {{0, {mark}}}", "0"))
    # The kernel sends reports of listeners (with a random mark) and solicitations when it likes.
    return ("table inet m {\n chain in {\n  type filter hook prerouting priority mangle;\n"
            "  icmpv6 type != { echo-request, echo-reply } accept\n"
            f"{rules} }}\n}}\n")


def counted(lab, ns):
    """(packets, bytes) that nft counted: with the mark, with another one, without any; counts begin anew."""
    found = re.findall(r"packets (\d+) bytes (\d+)", lab.net.run(ns, "nft", "list", "table", "inet", "m"))
    return [(int(packets), int(size)) for packets, size in found]


def forget(lab, ns, dev, mark):
    lab.net.run(ns, "nft", "-f", "-", stdin="flush table inet m\ndelete table inet m\n" + counters(dev, mark))


def programs(lab, ns, dev):
    """The number of the programs that are at a device's hooks."""
    return sum(name in lab.net.run(ns, "tc", "filter", "show", "dev", dev, hook, check=False)
               for hook, name in (("ingress", "hd_mark_in"), ("egress", "hd_mark_out")))


def ping(lab, ns, target, mark=None, count=3):
    marked = ("-m", str(mark)) if mark is not None else ()
    out = lab.net.run(ns, "ping", "-n", "-c", count, "-i", "0.1", "-W", "2", *marked, target, check=False)
    return int(re.search(r"(\d+) received", out)[1])


def matched(sw, text):
    return sum(int(re.search(r"n_packets=(\d+)", flow)[1]) for flow in sw.flows("brm") if text in flow)


def crosses(lab, sw, pod):
    """Marks cross both ports: pings with the mark meet the pod with the other one, others without any."""
    forget(lab, pod, "pod", OUT)
    before = matched(sw, f"pkt_mark={IN:#x}")
    assert ping(lab, sw.netns, POD, IN) == 3
    assert ping(lab, sw.netns, POD) == 3
    assert ping(lab, sw.netns, POD, 7) == 0
    (marked, _), (other, _), (plain, _) = counted(lab, pod)
    assert (marked, other) == (3, 0) and plain >= 3, (marked, other, plain)
    assert matched(sw, f"pkt_mark={IN:#x}") - before == 3


RULES = FROM_HOST, UNMARKED, "priority=4,in_port=pod,actions=LOCAL"


def scenario_marks_cross_in_both_directions(lab):
    """A mark of the host is matched, another one is set, and the pod's `ip rule fwmark` and nft see that."""
    sw, pod = start(lab, *RULES)
    crosses(lab, sw, pod)
    # Only marked packets reach the address. The rule comes before the local table.
    lab.net.ip(pod, "addr", "add", f"{HIDDEN}/32", "dev", "lo")
    lab.net.ip(pod, "rule", "add", "pref", "9", "lookup", "local")
    lab.net.ip(pod, "rule", "add", "pref", "5", "fwmark", f"{OUT:#x}", "lookup", "local")
    lab.net.ip(pod, "rule", "add", "pref", "6", "to", HIDDEN, "prohibit")
    lab.net.ip(pod, "rule", "del", "pref", "0")
    lab.net.ip(sw.netns, "route", "add", f"{HIDDEN}/32", "via", POD)
    assert ping(lab, sw.netns, HIDDEN, IN) == 3
    assert ping(lab, sw.netns, HIDDEN) == 0
    # The other direction: a mark that the pod's own nft sets is matched, and a rule sets another one.
    set_rules(sw, FROM_HOST, UNMARKED, "priority=5,in_port=pod,pkt_mark=0x77/0xff,actions=load:0x99->NXM_NX_PKT_MARK[0..7],LOCAL")
    lab.net.run(pod, "nft", "-f", "-", stdin="table inet out {\n chain out {\n  type filter hook output priority mangle;\n"
                f'  oifname "pod" meta mark set 0xab77\n }}\n}}\n')
    lab.net.run(sw.netns, "nft", "-f", "-", stdin=counters("brm", 0xab99))
    assert ping(lab, sw.netns, POD) == 3
    (marked, _), (other, _), _ = counted(lab, sw.netns)
    assert (marked, other) == (3, 0), (marked, other)
    # IPv6 and ARP, too: a packet of another type than IPv4 takes the device's receive path again.
    forget(lab, pod, "pod", OUT)
    assert ping(lab, sw.netns, POD6, IN) == 3
    assert counted(lab, pod)[0][0] == 3, counted(lab, pod)
    set_rules(sw, f"priority=10,arp,in_port=LOCAL,actions=set_field:{OUT:#x}->pkt_mark,output:pod",
              "priority=10,arp,in_port=pod,actions=LOCAL", "actions=NORMAL")
    lab.net.ip(sw.netns, "neigh", "flush", "all")
    assert ping(lab, sw.netns, POD) == 3


def scenario_marks_of_tagged_packets(lab):
    """Packets of VLAN devices on top of both ports have their marks, and keep their tags."""
    sw, pod = start(lab, *RULES)
    if "Unknown device type" in lab.net.ip(sw.netns, "link", "add", "link", "brm", "name", "brm.7", "type", "vlan", "id", "7", check=False):
        raise Skip("this kernel has no VLAN devices")
    lab.net.ip(pod, "link", "add", "link", "pod", "name", "pod.7", "type", "vlan", "id", "7")
    lab.net.address(sw.netns, "brm.7", "10.70.0.1/24")
    lab.net.address(pod, "pod.7", "10.70.0.2/24")
    set_rules(sw, "priority=8,in_port=LOCAL,dl_vlan=7,pkt_mark=0,actions=output:pod", "priority=4,in_port=pod,actions=LOCAL",
              f"priority=8,in_port=LOCAL,dl_vlan=7,pkt_mark={IN:#x},actions=set_field:{OUT:#x}->pkt_mark,output:pod")
    forget(lab, pod, "pod.7", OUT)
    assert ping(lab, sw.netns, "10.70.0.2", IN) == 3
    assert ping(lab, sw.netns, "10.70.0.2", 7) == 0
    (marked, _), (other, _), _ = counted(lab, pod)
    assert (marked, other) == (3, 0), (marked, other)


TRANSFER = """
import socket, sys
mark, target, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET)
s.setsockopt(socket.SOL_SOCKET, 36, mark)
s.settimeout(60)
s.connect((target, 5001))
s.sendall(b"x" * size)
s.shutdown(1)
print(s.recv(100).decode())
"""
SERVER = """
import socket
s = socket.create_server(("::", 5001), family=socket.AF_INET6, dualstack_ipv6=True)
print("up", flush=True)
while True:
    c = s.accept()[0]
    n = 0
    while d := c.recv(1 << 20):
        n += len(d)
    c.send(str(n).encode())
    c.close()
"""
DATAGRAMS = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 36, int(sys.argv[1]))
s.setsockopt(17, 103, 1000)
for _ in range(10):
    s.sendto(b"u" * 20500, (sys.argv[2], 5002))
"""


@limit(300)
def scenario_gso_packets_stay_whole(lab):
    """Marked streams of TCP and marked datagrams cross as GSO packets; each byte and each datagram arrives."""
    sw, pod = start(lab, *RULES)
    server = subprocess.Popen(["ip", "netns", "exec", pod, "python3", "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "up\n"
        size = 30_000_000
        for target in POD, POD6:
            forget(lab, pod, "pod", OUT)
            out = lab.net.run(sw.netns, "python3", "-c", TRANSFER, str(IN), target, str(size), timeout=100)
            assert out.strip() == str(size), out
            (packets, total), (other, _), (plain, _) = counted(lab, pod)
            assert other == 0 and plain < 10, (other, plain)
            assert total > size and total / packets > 8000, (packets, total)
        forget(lab, pod, "pod", OUT)
        sock = lab.net.socket(pod, lambda: udp_server())
        lab.net.run(sw.netns, "python3", "-c", DATAGRAMS, str(IN), POD)
        got = []
        sock.settimeout(2)
        try:
            while True:
                got.append(len(sock.recv(65536)))
        except TimeoutError:
            pass
        assert sorted(got) == [500] * 10 + [1000] * 200, len(got)
        assert counted(lab, pod)[0][0] < 210, counted(lab, pod)
    finally:
        server.kill()
        server.wait(10)
        server.stdout.close()


def udp_server():
    import socket
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sock.bind((POD, 5002))
    return sock


def header(mark, kind=1):
    return b"\x08\x00\xf1" + bytes([kind]) + mark.to_bytes(4, "big")


def scenario_forged_headers_are_just_bytes(lab):
    """A frame that a sender begins with such a header crosses byte by byte, and sets no mark on either side."""
    sw, pod = start(lab, f"priority=9,pkt_mark={IN:#x},actions=drop", "in_port=LOCAL,actions=output:pod",
                    "in_port=pod,actions=LOCAL")
    lab.net.run(sw.netns, "nft", "-f", "-", stdin=counters("brm", OUT))
    ends = {"brm": lab.net.raw(sw.netns, "brm"), "pod": lab.net.raw(pod, "pod")}
    addresses = frames.mac("02:00:00:00:00:02"), frames.mac("02:00:00:00:00:01")
    udp = frames.ipv4(HOST, POD, 17, b"\x13\x89\x13\x8a\x00\x10\x00\x00forged!!")
    for source, sink, (dst, src) in ("brm", "pod", addresses), ("pod", "brm", addresses[::-1]):
        for kind, mark in (1, IN), (1, OUT), (2, OUT), (0, 0):
            for inside in b"\x08\x00" + udp, header(OUT) + b"\x08\x00" + udp, b"\x81\x00\x00\x05\x08\x00" + udp:
                for tag in b"", b"\x81\x00\x00\x07":
                    frame = dst + src + tag + header(mark, kind) + inside
                    ends[source].send(frame)
                    got = receive(ends[sink], lambda got: got[:12] == dst + src and header(mark, kind) in got)
                    # A packet socket sees the frame before the program removes the header of the switch.
                    want = (frame, dst + src + header(0) + frame[12:])
                    assert got in want, (source, got, frame)
        # Too short for a header, and a runt's length.
        for size in 20, 22, 33:
            ends[source].send((dst + src + header(OUT) + b"\x08\x00" + udp)[:size])
    assert matched(sw, f"pkt_mark={IN:#x}") == 0
    for ns in sw.netns, pod:
        (marked, _), (other, _), _ = counted(lab, ns)
        assert (marked, other) == (0, 0), (ns, marked, other)
    set_rules(sw, *RULES)
    crosses(lab, sw, pod)


@limit(300)
def scenario_programs_follow_the_device(lab):
    """A removed program comes back with a line in the log. Moves, restarts and kills of the switch are
    survived; a clean end leaves nothing at the devices."""
    sw, pod = start(lab, *RULES)
    crosses(lab, sw, pod)
    again = "another program removed the classifiers of packet marks"
    lab.net.run(sw.netns, "tc", "filter", "del", "dev", "brm", "egress", "pref", PRIORITY)
    lab.net.run(pod, "tc", "qdisc", "del", "dev", "pod", "clsact")
    wait_for("the programs to be there again",
             lambda: programs(lab, sw.netns, "brm") + programs(lab, pod, "pod") == 4, 120)
    wait_for("two lines in the log", lambda: sw.log().count(again) == 2)
    crosses(lab, sw, pod)
    other = lab.net.namespace("other")
    lab.net.move("pod", pod, other)
    lab.net.address(other, "pod", f"{POD}/24")
    lab.net.run(other, "nft", "-f", "-", stdin=counters("pod", OUT))
    wait_for("the programs to follow", lambda: programs(lab, other, "pod") == 2, 60)
    crosses(lab, sw, other)
    assert "heddle_pkt_mark" not in sw.get("interface", "pod", "status")
    for sig in signal.SIGKILL, signal.SIGTERM:
        sw.stop_daemon(sig)
        left = 4 if sig == signal.SIGKILL else 0
        assert programs(lab, sw.netns, "brm") + programs(lab, other, "pod") == left, sig
        sw.start_daemon()
        wait_for("programs", lambda: programs(lab, sw.netns, "brm") + programs(lab, other, "pod") == 4)
        set_rules(sw, *RULES)
        crosses(lab, sw, other)


def drop_rights(sw):
    plain = sw.command

    def command(*args):
        line = plain(*args)
        at = line.index(sw.binary)
        return [*line[:at], "capsh", "--drop=cap_bpf,cap_perfmon,cap_sys_admin", "--", "-c", 'exec "$@"', "sh", *line[at:]]
    sw.command = command


def scenario_without_the_right(lab):
    """A switch that may not load programs logs that in one line. Packets go without their marks, which are
    counted, with one warning."""
    if not shutil.which("capsh"):
        raise Skip("capsh is not installed")
    sw = lab.switch(start=False)
    drop_rights(sw)
    sw.start()
    lab.bridge(sw, "brm", "fail_mode=secure")
    sw.vsctl("add-port", "brm", "second", "--", "set", "interface", "second", "type=internal")
    lab.net.address(sw.netns, "brm", f"{HOST}/24", mac="02:00:00:00:00:01")
    lab.net.address(sw.netns, "second", "10.69.0.1/24", mac="02:00:00:00:00:02")
    assert programs(lab, sw.netns, "brm") == 0
    set_rules(sw, f"actions=set_field:{OUT:#x}->pkt_mark,output:second", "in_port=second,actions=LOCAL")
    lab.net.ip(sw.netns, "neigh", "replace", POD, "lladdr", "02:00:00:00:00:02", "dev", "brm")
    lab.net.run(sw.netns, "nft", "-f", "-", stdin=counters("second", OUT))
    ping(lab, sw.netns, POD, IN)
    assert counted(lab, sw.netns)[2][0] == 3, counted(lab, sw.netns)
    for port in "brm", "second":
        assert "not carried (" in sw.get("interface", port, "status:heddle_pkt_mark")
    wait_for("a count", lambda: "tx_lost_pkt_mark=3" in sw.get("interface", "second", "statistics"), 30)
    wait_for("a warning", lambda: sw.log().count("second: packets are sent without their pkt_mark (") == 1)
    assert sw.log().count("pkt_mark does not cross internal ports: its eBPF programs cannot be loaded") == 1, sw.log()


@limit(300)
def scenario_beside_offloaded_flows(lab):
    """With eBPF offload, packets without mark are forwarded by that program; packets with one take workers, in
    both directions, and match as ever."""
    sw = lab.switch()
    sw.vsctl("set", "open_vswitch", ".", "other_config:hw-offload=true")
    sw.stop_daemon()
    sw.start_daemon()
    lab.bridge(sw, "brm", "fail_mode=secure")
    pod = lab.veth_pod(sw, "a", f"{POD}/24", bridge="brm", mac="02:00:00:00:00:02")
    lab.net.address(sw.netns, "brm", f"{HOST}/24", mac="02:00:00:00:00:01")
    lab.net.run(sw.netns, "nft", "-f", "-", stdin=counters("brm", OUT))
    set_rules(sw, f"priority=5,in_port=LOCAL,pkt_mark={IN:#x},actions=output:va", "priority=4,in_port=LOCAL,pkt_mark=0,actions=output:va",
              f"priority=5,in_port=va,icmp,nw_tos=32,actions=set_field:{OUT:#x}->pkt_mark,LOCAL", "priority=4,in_port=va,actions=LOCAL")

    def stats(name):
        found = re.search(rf"^ +{name}: +(\d+)$", sw.appctl("dpctl/offload-stats-show"), re.M)
        return int(found[1])

    def settled():
        before = stats("forwarded-packets")
        ping(lab, sw.netns, POD, count=4)
        return stats("forwarded-packets") - before >= 8
    wait_for("the kernel to forward pings", settled)
    up, before = stats("up-mark"), matched(sw, f"pkt_mark={IN:#x}")
    assert ping(lab, sw.netns, POD, IN, 5) == 5
    assert ping(lab, sw.netns, POD, 9, 2) == 0
    assert stats("up-mark") - up == 7
    assert matched(sw, f"pkt_mark={IN:#x}") - before == 5
    forget(lab, sw.netns, "brm", OUT)
    out = lab.net.run(pod, "ping", "-n", "-c", "5", "-i", "0.2", "-Q", "32", HOST)
    assert " 5 received" in out, out
    (marked, _), (other, _), _ = counted(lab, sw.netns)
    assert (marked, other) == (5, 0), (marked, other)
    assert "set(skb_mark)" in sw.appctl("heddle/offload")
    wait_for("the kernel to forward pings", settled)


if __name__ == "__main__":
    main()
