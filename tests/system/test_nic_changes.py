#!/usr/bin/env python3
"""Network cards by AF_XDP that change while packets pass: kill -9, other options, other numbers of queues, other names."""

import contextlib
import os
import re
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from lab.shell import wait_for
from test_nic import CARD, WIRE, cable, error, has_program, one, plug, until_reply

SLOW = os.environ.get("HEDDLE_SLOW")
OTHER = "nic1"


def sockets(lab, sw):
    """The number of AF_XDP sockets of the switch's machine."""
    table = lab.net.run(sw.netns, "cat", "/proc/net/protocols", quiet=True)
    return int(re.search(r"^XDP +\d+ +(\d+)", table, re.M)[1])


def frames(sw):
    """The switch's mappings of memory for frames, as ranges of addresses."""
    with open(f"/proc/{sw.pid}/maps") as file:
        return [line.split()[0] for line in file if "heddle-xsk" in line]


@contextlib.contextmanager
def packets(ns, target, size):
    """500 pings a second, as long as this lasts."""
    process = subprocess.Popen(["ip", "netns", "exec", ns, "ping", "-n", "-q", "-i", "0.002", "-s", str(size), target],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.poll() is None, "the ping has ended"
    finally:
        process.kill()
        process.wait()


def nothing_left(lab, sw, *cards):
    wait_for("the sockets to go", lambda: not sockets(lab, sw))
    assert not any(has_program(lab, sw, dev) for dev in cards)
    if sw.pid:
        wait_for("the frames to go", lambda: not frames(sw))


@limit(600)
def scenario_killed_under_traffic(lab):
    """20 times (HEDDLE_SLOW=1; otherwise 5): no program and no socket is left, and the successor forwards."""
    sw, wire, _ = one(lab)
    far = cable(lab, sw, "10.1.0.3/24", name="far", dev=OTHER)
    plug(sw, name=OTHER)
    until_reply(lab, far)
    with packets(wire, "10.1.0.3", 1400):
        for _ in range(20 if SLOW else 5):
            until_reply(lab, far)
            assert sockets(lab, sw) == 2, sockets(lab, sw)
            os.kill(sw.pid, signal.SIGKILL)
            wait_for("the programs to go", lambda: not has_program(lab, sw) and not has_program(lab, sw, OTHER))
            wait_for("the sockets to go", lambda: not sockets(lab, sw))
            sw.start_daemon()
            assert (error(sw), error(sw, OTHER)) == ("[]", "[]"), (error(sw), error(sw, OTHER))
        until_reply(lab, far)
    lab.net.ping(far, "10.1.0.2", size=1400)
    sw.vsctl("del-port", CARD, "--", "del-port", OTHER)
    nothing_left(lab, sw, CARD, OTHER)


@limit(300)
def scenario_number_of_queues_changes(lab):
    """`ethtool -L` under an open port: the log and Interface.status show queues whose packets the host gets."""
    sw, wire, pod = one(lab, cable_options={"queues": 4}, n_rxq=4)
    # The other end of a pair may not have more queues than this one.
    lab.net.run(wire, "ethtool", "-L", WIRE, "tx", "2")
    key = "xdp-queues-of-host"
    status = lambda: sw.get("interface", CARD, "status")  # noqa: E731
    assert key not in status(), status()
    sw.vsctl("set", "interface", CARD, "options:n_rxq=2")
    wait_for("the status", lambda: f'{key}="2"' in status() or f"{key}=2" in status())
    assert error(sw) == "[]", error(sw)
    lab.net.run(sw.netns, "ethtool", "-L", CARD, "rx", "3")
    wait_for("the log", lambda: f"{CARD}: the host's stack gets packets of 1 of its 3 receive queues" in sw.log(), 30)
    wait_for("the status", lambda: f'{key}="1"' in status() or f"{key}=1" in status(), 30)
    lab.net.run(sw.netns, "ethtool", "-L", CARD, "rx", "2")
    wait_for("the status", lambda: key not in status(), 30)
    assert error(sw) == "[]"
    until_reply(lab, pod)
    lab.net.ping(pod, "10.1.0.2", count=10)


@limit(240)
def scenario_two_names_of_a_device(lab):
    """An alternative name is the same device: one port has it."""
    sw, _, pod = one(lab)
    lab.net.ip(sw.netns, "link", "property", "add", "dev", CARD, "altname", "uplink0")
    sw.vsctl("add-port", "br0", "uplink0", "--", "set", "interface", "uplink0", "type=afxdp")
    why = f"could not open network device uplink0 (it is the device of port {CARD})"
    assert why in error(sw, "uplink0"), error(sw, "uplink0")
    sw.vsctl("set", "interface", "uplink0", "type=dpdk", "options:dpdk-devargs=net_af_xdp0,iface=uplink0")
    assert why in error(sw, "uplink0"), error(sw, "uplink0")
    lab.net.ping(pod, "10.1.0.2")
    # The device changes hands: now a port has it by its other name.
    sw.vsctl("del-port", CARD)
    wait_for("no error", lambda: error(sw, "uplink0") == "[]", 30)
    until_reply(lab, pod)
    sw.vsctl("add-port", "br0", CARD)
    assert f"could not open network device {CARD} (it is the device of port uplink0)" in error(sw), error(sw)


if __name__ == "__main__":
    main()
