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


@limit(300)
def scenario_pods_on_veths(lab):
    """Pings, streams, connections and a restart: most packets are forwarded by the program."""
    p = PodLab(lab, modules=("veth", "tun", "sch_ingress", "cls_bpf"), settings=("hw-offload=true",))
    assert "eBPF is on" in p.run(f"cat {RUN}/heddled.log"), p.run(f"grep offload {RUN}/heddled.log", check=False)
    p.bridge()
    for name, last in (("a", 1), ("b", 2)):
        p.run(f"ip netns add {name} && ip link add v{name} type veth peer name eth0 netns {name} && ip link set v{name} up && "
              f"ip -n {name} addr add 10.9.0.{last}/24 dev eth0 && ip -n {name} link set lo up && ip -n {name} link set eth0 up")
        p.vsctl(f"add-port br-int v{name}")
    p.meet("a", "10.9.0.2")

    def forwards():
        before = stats(p)["forwarded-packets"]
        p.pings("a", "10.9.0.2", 4, lost=4)
        return stats(p)["forwarded-packets"] - before >= 8
    p.wait("the kernel to forward pings", forwards)
    p.pings("a", "10.9.0.2", 10)
    p.serve("b")
    for rules in ("", "ct"):
        if rules:
            for rule in ("priority=20,ip,ct_state=-trk,actions=ct\\(table=1,zone=5\\)",
                         "table=1,ip,ct_state=+trk+new,actions=ct\\(commit,zone=5\\),NORMAL",
                         "table=1,ip,ct_state=+trk+est,actions=NORMAL"):
                p.run(f"ovs-ofctl add-flow {RUN}/br-int.mgmt {rule}")
        before = stats(p)
        rate = p.stream("a", "10.9.0.2", seconds=6)
        after = stats(p)
        share = (after["forwarded-bytes"] - before["forwarded-bytes"]) * 8e-6 / (rate * 6)
        p.tell(f"{rules or 'plain'}: {rate:.0f} Mbit/s, {share:.0%} of it by the program")
        assert share > 0.5, (before, after, rate)
    p.kill_daemon()
    p.start_daemon()
    p.meet("a", "10.9.0.2")
    p.wait("the kernel to forward pings again", forwards)


if __name__ == "__main__":
    main()
