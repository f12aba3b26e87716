#!/usr/bin/env python3
"""GSO packets cross a tap unsegmented: in tunnels, between a switch and the kernel's VXLAN device; of UDP, between
internal ports."""

import ctypes
import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from test_tunnels import POD_MTU, address, attach, node, reach, transfer, tunnel

# Mean bytes of a packet on the tap in the direction of the data; segmented packets have less than an MTU.
LONG = 4000


def counters(lab, ns, dev="up0"):
    read = lambda name: int(lab.net.run(ns, "cat", f"/sys/class/net/{dev}/statistics/{name}", quiet=True))
    return {d: (read(f"{d}_bytes"), read(f"{d}_packets")) for d in ("rx", "tx")}


def mean(lab, ns, direction, send, dev="up0"):
    """Mean length of packets on the tap while `send` sends."""
    before = counters(lab, ns, dev)[direction]
    send()
    after = counters(lab, ns, dev)[direction]
    return (after[0] - before[0]) / (after[1] - before[1])


def datagrams(lab, receiver, sender, to):
    """GSO packets of UDP, one after the other: each arrives whole."""
    size, count, segment, force = 1000, 40, 103, 33
    udp = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with lab.net.socket(receiver, udp) as here, lab.net.socket(sender, udp) as there:
        here.setsockopt(socket.SOL_SOCKET, force, 1 << 22)
        here.settimeout(5)
        here.bind(("0.0.0.0", 5003))
        there.setsockopt(socket.IPPROTO_UDP, segment, size)
        for number in range(50):
            there.sendto(b"".join(bytes([number, i]) * (size // 2) for i in range(count)), (to, 5003))
            got = [here.recv(65535) for _ in range(count)]
            assert got == [bytes([number, i]) * (size // 2) for i in range(count)], f"GSO packet {number}"


def tag_packets(lab, dev):
    """Replaces a VLAN device above `dev`, which not each kernel has: tags sent packets, untags received
    ones."""
    def bpf(command, layout, *values):
        attributes = struct.pack(layout, *values)
        fd = ctypes.CDLL(None, use_errno=True).syscall(321, command, ctypes.create_string_buffer(attributes, 128), 128)
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"bpf command {command}")
        lab.cleanups.append(lambda: os.close(fd))
        return fd

    load, link, scheduler = 5, 28, 3
    push, pop, ingress, egress = 18, 19, 46, 47
    two = struct.pack("<" + "BBhi" * 2, 0xb7, 2, 0, socket.htons(0x8100), 0xb7, 3, 0, 10)  # r2 = type; r3 = tag
    call = lambda function: struct.pack("<" + "BBhi" * 3, 0x85, 0, 0, function, 0xb7, 0, 0, -1, 0x95, 0, 0, 0)  # r0 = next; return
    license = ctypes.create_string_buffer(b"GPL")
    for code, hook in ((two + call(push), egress), (call(pop), ingress)):
        text = ctypes.create_string_buffer(code, len(code))
        program = bpf(load, "<IIQQ", scheduler, len(code) // 8, ctypes.addressof(text), ctypes.addressof(license))
        bpf(link, "<IIII", program, socket.if_nametoindex(dev), hook, 0)


def with_the_kernel(lab, v6, csum, tagged=False):
    """Both directions, with GSO packets and without; the outer packets have a VLAN tag on the tap, or
    none."""
    sw = node(lab, 1, v6)
    sw.vsctl("add-port", "br-ex", "up0", "--", "set", "interface", "up0", "type=internal")
    host = lab.net.namespace("host", ipv6=v6)
    lab.net.move("up0", sw.netns, host)
    lab.net.ip(host, "link", "set", "up0", "up")
    if tagged:
        lab.net.socket(host, lambda: tag_packets(lab, "up0"))
        sw.vsctl("set", "port", "br-ex", "tag=10")
    lab.net.ip(host, "addr", "add", address(2, v6) + ("/64" if v6 else "/24"), "dev", "up0", *(("nodad",) if v6 else ()))
    outer = ("udp6zerocsumtx", "udp6zerocsumrx") if v6 else ("noudpcsum",)
    outer = (("noudp6zerocsumtx",) if v6 else ("udpcsum",)) if csum else outer
    lab.net.ip(host, "link", "add", "vx0", "type", "vxlan", "id", "77", "local", address(2, v6), "remote", address(1, v6), "dstport", "4789", *outer)
    lab.net.address(host, "vx0", "10.5.0.2/24")
    attach(lab, sw, 1, v6)
    tunnel(sw, "vxlan", address(2, v6), csum="true" if csum else "false")
    pod = lab.veth_pod(sw, "pod1", "10.5.0.1/24", bridge="br-int")
    lab.net.ip(pod, "link", "set", "eth0", "mtu", str(POD_MTU))
    lab.net.ip(host, "link", "set", "vx0", "mtu", str(POD_MTU))
    reach(lab, (pod, host))
    to_host = mean(lab, host, "rx", lambda: transfer(lab, host, pod, "10.5.0.2"))
    to_pod = mean(lab, host, "tx", lambda: transfer(lab, pod, host, "10.5.0.1"))
    print(f"bytes of a packet on the tap: {to_host:.0f} to the kernel, {to_pod:.0f} from it")
    assert to_host > LONG and to_pod > LONG, (to_host, to_pod)
    to_host = mean(lab, host, "rx", lambda: datagrams(lab, host, pod, "10.5.0.2"))
    to_pod = mean(lab, host, "tx", lambda: datagrams(lab, pod, host, "10.5.0.1"))
    print(f"of UDP: {to_host:.0f} to the kernel, {to_pod:.0f} from it")
    assert to_host > LONG and to_pod > LONG, (to_host, to_pod)
    for ns, dev in ((pod, "eth0"), (host, "vx0")):
        lab.net.run(ns, "ethtool", "-K", dev, "tso", "off", "gso", "off", "tx", "off")
        reach(lab, (pod, host))
    events = sw.appctl("coverage/show")
    assert "tunnel_bad_csum" not in events and "tunnel_pop_error" not in events, events
    bad = lab.net.run(host, "nstat", "-asz", "TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", quiet=True)
    errors = [line.split()[1] for line in bad.splitlines() if "CsumErrors" in line]
    assert errors and all(n == "0" for n in errors), bad


@limit(60)
def scenario_datagrams_of_internal_ports(lab):
    """A GSO packet of UDP crosses the switch in one piece."""
    sw = lab.switch()
    lab.bridge(sw)
    pods = [lab.internal_pod(sw, f"pod{n}", f"10.1.0.{n}/24", dev=f"up{n}") for n in (1, 2)]
    lab.net.ping(pods[0], "10.1.0.2")
    length = mean(lab, pods[1], "rx", lambda: datagrams(lab, pods[1], pods[0], "10.1.0.2"), "up2")
    print(f"bytes of a packet on the tap: {length:.0f}")
    assert length > LONG, length


@limit(240)
def scenario_ipv4(lab):
    with_the_kernel(lab, v6=False, csum=False)


@limit(240)
def scenario_ipv4_with_checksums(lab):
    with_the_kernel(lab, v6=False, csum=True)


@limit(240)
def scenario_ipv6_with_checksums(lab):
    with_the_kernel(lab, v6=True, csum=True)


@limit(240)
def scenario_tagged(lab):
    with_the_kernel(lab, v6=False, csum=True, tagged=True)


@limit(240)
def scenario_tagged_ipv6(lab):
    with_the_kernel(lab, v6=True, csum=True, tagged=True)


if __name__ == "__main__":
    main()
