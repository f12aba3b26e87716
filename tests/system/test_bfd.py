#!/usr/bin/env python3
"""BFD: a switch that has too much to do, or stood still, does not take its peers for silent."""

import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import main
from lab.shell import wait_for

SESSIONS = 40


def sessions(lab):
    """Two bridges of one switch with a pair of patch ports per session, all of them up."""
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=netdev")
    words = []
    for n in range(SESSIONS):
        for bridge, own, other in (("br0", f"p{n}", f"q{n}"), ("br1", f"q{n}", f"p{n}")):
            words += ["--", "add-port", bridge, own, "--", "set", "interface", own, "type=patch", f"options:peer={other}", "bfd:enable=true", "bfd:min_tx=100", "bfd:min_rx=100"]
    sw.vsctl(*words[1:])
    wait_for("all sessions", lambda: [state for state, _ in states(sw)] == ["up"] * 2 * SESSIONS)
    return sw


def states(sw):
    """(state, flap count) of each session."""
    out = sw.vsctl("--format=csv", "--no-headings", "--columns=bfd_status", "find", "interface", "type=patch", quiet=True)
    field = lambda line, name: (re.search(rf'\b{name}="*(\w+)', line) or [None, "none"])[1]
    return [(field(line, "state"), field(line, "flap_count")) for line in out.splitlines()]


def scenario_a_switch_that_stood_still(lab):
    """Stopped for a second, as a machine in a migration: three times the detection time."""
    sw = sessions(lab)
    for _ in range(3):
        os.kill(sw.pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(sw.pid, signal.SIGCONT)
        time.sleep(1)
    assert states(sw) == [("up", "1")] * 2 * SESSIONS, states(sw)


FLOOD = """
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.connect(('10.1.0.9',9)); n=0; began=time.monotonic()
while time.monotonic()<began+12:
    try: s.send(b'x'*64)
    except OSError: pass
    n+=1
    if n/1500>time.monotonic()-began: time.sleep(0.01)
"""


def scenario_packets_for_controllers_and_bundles(lab):
    """More than a thousand packets a second go to a controller, and bundles of rules are loaded: no session
    goes down."""
    sw = sessions(lab)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24")
    lab.net.ip(a, "neigh", "replace", "10.1.0.9", "lladdr", "02:00:00:00:00:09", "dev", "eth0")
    sw.ofctl("add-flow", "br0", "priority=100,udp,actions=controller")
    with open(f"{sw.dir}/rules.txt", "w") as file:
        file.write("\n".join(f"table=9,priority={n % 97},ip,nw_src=10.0.{n >> 8}.{n & 255},actions=drop" for n in range(5000)))
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    monitor = subprocess.Popen(["ovs-ofctl", "monitor", "br0", "65534"], env=dict(os.environ, **sw.env), **quiet)
    flood = subprocess.Popen(["ip", "netns", "exec", a, "python3", "-c", FLOOD], **quiet)
    try:
        while flood.poll() is None:
            sw.ofctl("-O", "OpenFlow14", "--bundle", "add-flows", "br0", f"{sw.dir}/rules.txt")
            sw.ofctl("-O", "OpenFlow14", "del-flows", "br0", "table=9")
        flows = sw.ofctl("dump-flows", "br0", "udp")
        assert int(re.search(r"n_packets=(\d+)", flows)[1]) > 3000, flows
        assert states(sw) == [("up", "1")] * 2 * SESSIONS, states(sw)
    finally:
        flood.kill()
        flood.wait()
        monitor.kill()
        monitor.wait()


if __name__ == "__main__":
    main()
