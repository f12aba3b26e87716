#!/usr/bin/env python3
"""Three ways to attach pods, compared inside one emulated machine: veth on Open vSwitch's kernel datapath,
VDUSE and tap on Heddle.

    tests/lab/guests/vduse_speed.py [--svg FILE]

Prints a table of ratios (veth = 1), each the median of three rounds in turns. The processor is emulated: these are ratios of instructions at best.
"""

import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import main
from lab.podlab import RUN, PodLab
from lab.runner import limit

PEER = "/usr/lib/openvswitch-switch/ovs-vswitchd"
ROUNDS, SECONDS = 3, 3
WAYS = {"veth": "veth, kernel Open vSwitch", "vduse": "VDUSE, Heddle", "tap": "tap, Heddle"}
CASES = [("TCP, writes of 128 B", 128), ("TCP, writes of 1 KiB", 1024), ("TCP, writes of 16 KiB", 16384), ("TCP, writes of 128 KiB", 131072),
         ("UDP, 1400 B", "udp"), ("requests and answers", "rr")]


def kernel_switch(p):
    """Open vSwitch with its kernel datapath beside the other switch, and two pods on veth."""
    run, env = "/run/peer", "OVS_RUNDIR=/run/peer OVS_LOGDIR=/run/peer OVS_DBDIR=/run/peer"
    p.run(f"mkdir {run}; {env} ovsdb-tool create {run}/conf.db /usr/share/openvswitch/vswitch.ovsschema && "
          f"{env} ovsdb-server {run}/conf.db --remote=punix:{run}/db.sock --detach --no-chdir --pidfile={run}/db.pid --unixctl={run}/db.ctl "
          f"--log-file={run}/db.log -vconsole:off && ovs-vsctl --db=unix:{run}/db.sock --no-wait init && "
          f"{env} {PEER} unix:{run}/db.sock --pidfile={run}/vs.pid --unixctl={run}/vs.ctl --log-file={run}/vs.log --no-chdir --detach -vconsole:off", timeout=90)
    vsctl = f"ovs-vsctl --db=unix:{run}/db.sock --timeout=50"
    p.run(f"{vsctl} add-br br-peer")
    for name, address in (("veth1", "10.8.0.1"), ("veth2", "10.8.0.2")):
        p.run(f"ip netns add {name} && ip link add h{name} type veth peer name eth0 netns {name} && ip link set h{name} up && "
              f"ip -n {name} addr add {address}/24 dev eth0 && ip -n {name} link set eth0 up && ip -n {name} link set lo up && "
              f"{vsctl} add-port br-peer h{name}")


def pods(p):
    """The pair of pods of each way, and the second one's address."""
    p.bridge()
    p.pod("vduse1", "10.9.0.1")
    p.pod("vduse2", "10.9.0.2")
    for name, address in (("tap1", "10.9.0.3"), ("tap2", "10.9.0.4")):
        p.vsctl(f"add-port br-int {name} -- set interface {name} type=internal")
        p.pod(name, address, device=name)
    kernel_switch(p)
    return {"veth": ("veth1", "veth2", "10.8.0.2"), "vduse": ("vduse1", "vduse2", "10.9.0.2"), "tap": ("tap1", "tap2", "10.9.0.4")}


def measured(p, pair, case):
    """More is better: Mbit/s, or requests in a second."""
    pod, _, address = pair
    if case == "udp":
        return p.datagrams(pod, address, SECONDS)
    if case == "rr":
        return 1e6 / (2 * p.request_response(pod, address, SECONDS))
    return p.stream(pod, address, SECONDS, size=case)


def draw(path, rows):
    """Draws bars, as fractions of veth's results."""
    width, left, bar, gap = 760, 190, 14, 16
    colours = {"veth": "#888888", "vduse": "#1f77b4", "tap": "#e08e2d"}
    most = max(max(row.values()) for row in rows.values())
    scale = (width - left - 70) / most
    y, out = 44, []
    for label, row in rows.items():
        out.append(f'<text x="{left - 8}" y="{y + 27}" text-anchor="end">{label}</text>')
        for way, value in row.items():
            out.append(f'<rect x="{left}" y="{y}" width="{value * scale:.1f}" height="{bar - 2}" fill="{colours[way]}"/>'
                       f'<text x="{left + value * scale + 5:.1f}" y="{y + 10}">{value:.2f}</text>')
            y += bar
        y += gap
    legend = "".join(f'<rect x="{left + i * 185}" y="14" width="12" height="12" fill="{colours[way]}"/><text x="{left + 17 + i * 185}" y="24">{text}</text>'
                     for i, (way, text) in enumerate(WAYS.items()))
    with open(path, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" font-family="sans-serif" font-size="12">'
                   f'<rect width="{width}" height="{y}" fill="white"/>{legend}{"".join(out)}</svg>\n')


@limit(1400)
def scenario_ratios(lab):
    """TCP by the size of writes, UDP, requests and replies, in turns."""
    p = PodLab(lab, modules=(*PodLab.MODULES, "openvswitch"), memory=1536)
    pairs = pods(p)
    for pair in pairs.values():
        p.meet(pair[0], pair[2])
        p.serve(pair[1])
    values = {label: {way: [] for way in WAYS} for label, _ in CASES}
    for round_ in range(ROUNDS):
        for label, case in CASES:
            for way in list(WAYS)[round_ % 3:] + list(WAYS)[:round_ % 3]:
                values[label][way].append(measured(p, pairs[way], case))
    rows = {}
    for label, _ in CASES:
        base = statistics.median(values[label]["veth"])
        rows[label] = {way: statistics.median(values[label][way]) / base for way in WAYS}
        lab.trace.note(f"{label}: {values[label]}")
    print("| | " + " | ".join(WAYS.values()) + " |\n| --- |" + " --- |" * len(WAYS))
    for label, row in rows.items():
        print(f"| {label} | " + " | ".join(f"{value:.2f}" for value in row.values()) + " |", flush=True)
    if SVG:
        draw(SVG, rows)
    assert "panicked" not in p.run(f"cat {RUN}/heddled.log")


SVG = None
if __name__ == "__main__":
    if "--svg" in sys.argv:
        at = sys.argv.index("--svg")
        SVG = os.path.abspath(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    main()
