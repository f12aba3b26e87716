#!/usr/bin/env python3
"""Offload by eBPF under Linux 6.12: does the program load there, and forward what it should? In one emulated machine."""

import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import main
from lab.podlab import RUN, PodLab
from lab.runner import limit


def stats(p):
    out = p.appctl("dpctl/offload-stats-show")
    return {key.strip(): int(value) for key, value in re.findall(r"^ +([^:]+): +(\d+)$", out, re.M)}


def offloading(lab, *modules):
    """A switch that offloads, and its integration bridge."""
    p = PodLab(lab, modules=("veth", "tun", "sch_ingress", "cls_bpf", *modules), settings=("hw-offload=true",))
    assert "eBPF is on" in p.run(f"cat {RUN}/heddled.log"), p.run(f"grep offload {RUN}/heddled.log", check=False)
    p.bridge()
    return p


def pod(p, name, last):
    p.run(f"ip netns add {name} && ip link add v{name} type veth peer name eth0 netns {name} && ip link set v{name} up && "
          f"ip -n {name} addr add 10.9.0.{last}/24 dev eth0 && ip -n {name} link set lo up && ip -n {name} link set eth0 up")
    p.vsctl(f"add-port br-int v{name}")


def settled(p, target):
    """The program forwards pings of pod a in both directions."""
    p.meet("a", target)

    def forwards():
        before = stats(p)["forwarded-packets"]
        p.pings("a", target, 4, lost=4)
        return stats(p)["forwarded-packets"] - before >= 8
    p.wait(f"the kernel to forward pings to {target}", forwards)
    p.pings("a", target, 10)


def streamed(p, target, what):
    """A stream of TCP, of which the program forwards most."""
    before = stats(p)
    rate = p.stream("a", target, seconds=6)
    after = stats(p)
    share = (after["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 6)
    p.tell(f"{what}: {rate:.0f} Mbit/s, {share:.0%} of it by the program")
    assert share > 0.5, (before, after, rate)


@limit(300)
def scenario_pods_on_veths(lab):
    """Pings, streams, connections, the host's own port and a restart: most packets are forwarded by the program."""
    p = offloading(lab)
    for name, last in (("a", 1), ("b", 2)):
        pod(p, name, last)
    settled(p, "10.9.0.2")
    p.run("ip addr add 10.9.0.9/24 dev br-int && ip link set br-int up")
    settled(p, "10.9.0.9")
    p.serve("b")
    for rules in ("", "ct"):
        if rules:
            for rule in ("priority=20,ip,ct_state=-trk,actions=ct\\(table=1,zone=5\\)",
                         "table=1,ip,ct_state=+trk+new,actions=ct\\(commit,zone=5\\),NORMAL",
                         "table=1,ip,ct_state=+trk+est,actions=NORMAL"):
                p.run(f"ovs-ofctl add-flow {RUN}/br-int.mgmt {rule}")
        streamed(p, "10.9.0.2", rules or "plain")
    p.kill_daemon()
    p.start_daemon()
    settled(p, "10.9.0.2")


@limit(300)
def scenario_tunnels(lab):
    """Geneve and VXLAN to devices of the kernel in another namespace, with outer checksums and without."""
    p = offloading(lab, "geneve", "vxlan")
    pod(p, "a", 1)
    p.run("ip -n a link set eth0 mtu 1400")
    p.run("ip netns add peer && ip link add up0 type veth peer name up0 netns peer && ip link set up0 up && "
          "ip -n peer addr add 172.31.0.2/24 dev up0 && ip -n peer link set lo up && ip -n peer link set up0 up")
    p.bridge("br-ex")
    p.vsctl("add-port br-ex up0")
    p.run("ip addr add 172.31.0.1/24 dev br-ex && ip link set br-ex up")
    p.serve("peer")
    ends = (("geneve", "remote 172.31.0.1 dstport 6081"), ("vxlan", "local 172.31.0.2 remote 172.31.0.1 dstport 4789"))
    for kind, end in ends:
        p.run(f"ip -n peer link add tun0 type {kind} id 77 {end} udpcsum && ip -n peer addr add 10.9.0.2/24 dev tun0 && "
              f"ip -n peer link set tun0 mtu 1400 up")
        p.vsctl(f"add-port br-int tun0 -- set interface tun0 type={kind} options:key=77 options:remote_ip=172.31.0.2")
        for csum in ("true", "false"):
            p.vsctl(f"set interface tun0 options:csum={csum}")
            settled(p, "10.9.0.2")
            streamed(p, "10.9.0.2", f"{kind}, csum={csum}")
        p.vsctl("del-port br-int tun0")
        p.run("ip -n peer link del tun0 && ip -n a neigh flush all")
    snmp = [line.split()[1:] for line in p.run("ip netns exec peer cat /proc/net/snmp").splitlines() if line.startswith("Udp:")]
    assert dict(zip(*snmp))["InCsumErrors"] == "0", snmp


if __name__ == "__main__":
    main()
