#!/usr/bin/env python3
"""Pods on internal (tap) and system (veth) ports of one bridge: pings, TCP and UDP, both ways and mixed."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from lab.shell import wait_for


# Four streams have at most 40 MB in their sockets when iperf3 ends, and do not count these.
BYTES = "80000000"


def iperf(lab, server, client, address, *args):
    """One iperf3 run; returns its result as a dictionary."""
    daemon = subprocess.Popen(["ip", "netns", "exec", server, "iperf3", "-s", "-1", "-p", "5202"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("iperf3 to listen", lambda: ":5202" in lab.net.run(server, "ss", "-Hltn", quiet=True))
        out = lab.net.run(client, "iperf3", "-J", "-c", address, "-p", "5202",
                          "--connect-timeout", "60000", *args, timeout=120, quiet=True)
    finally:
        try:
            daemon.wait(timeout=20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    result = json.loads(out)
    lab.trace.note(f"iperf3 {args}: {json.dumps(result['end'].get('sum_received') or result['end'].get('sum'))}")
    return result["end"]


def exchange(lab, a, b):
    """Pings of all sizes, TCP in both directions, UDP; pods are 10.1.0.1 and 10.1.0.2."""
    lab.net.ping(a, "10.1.0.2")
    lab.net.ping(a, "10.1.0.2", size=1472, df=True)
    lab.net.ping(b, "10.1.0.1", size=8000)      # fragments
    lab.net.ping(b, "10.1.0.1", size=0)         # short frames, padded or not
    for args in ((), ("-R",), ("-P", "4")):
        end = iperf(lab, b, a, "10.1.0.2", "-n", BYTES, *args)
        assert end["sum_received"]["bytes"] > 5_000_000, end["sum_received"]

    def datagrams():
        """Sockets have little room: a machine that stands still for long loses datagrams, so each gets a
        second try."""
        total = iperf(lab, b, a, "10.1.0.2", "-u", "-b", "8M", "-l", "1000", "-n", "1500000")["sum"]
        assert total["packets"] > 1000, total
        return total["lost_percent"] < 5
    wait_for("a run without losses", datagrams)


@limit(300)
def scenario_internal_ports(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    b = lab.internal_pod(sw, "b", "10.1.0.2/24")
    exchange(lab, a, b)


@limit(300)
def scenario_veth_ports(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24")
    b = lab.veth_pod(sw, "b", "10.1.0.2/24")
    exchange(lab, a, b)


@limit(300)
def scenario_internal_and_veth(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    b = lab.veth_pod(sw, "b", "10.1.0.2/24")
    exchange(lab, a, b)


def scenario_bridge_local_port(lab):
    """The bridge's own device, in the daemon's namespace, reaches the pods."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.net.address(sw.netns, "br0", "10.1.0.9/24")
    lab.net.ping(a, "10.1.0.9")
    lab.net.ping(sw.netns, "10.1.0.1")


@limit(300)
def scenario_offloads_toggled(lab):
    """Each sender's segmentation and checksum offload on and off: the receiver checks every checksum."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    b = lab.veth_pod(sw, "b", "10.1.0.2/24")
    for setting in (("tso", "off"), ("gso", "off"), ("tx", "off")):
        lab.net.run(a, "ethtool", "-K", "a0", *setting, check=False)
        lab.net.run(b, "ethtool", "-K", "eth0", *setting, check=False)
        for client, server, address in ((a, b, "10.1.0.2"), (b, a, "10.1.0.1")):
            end = iperf(lab, server, client, address, "-n", BYTES)
            assert end["sum_received"]["bytes"] > 2_000_000, (setting, end["sum_received"])
    for pod in (a, b):
        snmp = lab.net.run(pod, "cat", "/proc/net/snmp")
        for proto, field in (("Tcp", "InCsumErrors"), ("Udp", "InCsumErrors"), ("Icmp", "InCsumErrors")):
            header, values = [line.split()[1:] for line in snmp.splitlines() if line.startswith(proto + ":")]
            assert dict(zip(header, values))[field] == "0", (pod, proto, field)


def scenario_ipv6(lab):
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24", ipv6=True)
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", ipv6=True)
    lab.net.ip(a, "addr", "add", "fd00:1::1/64", "dev", "a0", "nodad")
    lab.net.ip(b, "addr", "add", "fd00:1::2/64", "dev", "eth0", "nodad")
    lab.net.ping(a, "fd00:1::2")
    lab.net.ping(b, "fd00:1::1", size=1400)
    end = iperf(lab, b, a, "fd00:1::2", "-n", BYTES)
    assert end["sum_received"]["bytes"] > 5_000_000, end["sum_received"]


if __name__ == "__main__":
    main()
