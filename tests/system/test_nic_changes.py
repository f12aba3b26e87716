#!/usr/bin/env python3
"""Network cards by AF_XDP that change while packets pass: kill -9, other options, other numbers of queues, other names."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import bpf
from lab.runner import limit, main
from lab.shell import wait_for
from test_nic import CARD, WIRE, cable, error, has_program, one, plug, program_of, until_reply

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


@limit(1500)
def scenario_random_reconfiguration(lab):
    """Random changes under traffic, for ten minutes (HEDDLE_SLOW=1; otherwise half a minute). Afterwards both ports forward, and
    nothing is left of earlier sockets."""
    seed = int(os.environ.get("HEDDLE_SEED", time.time()))
    lab.trace.note(f"HEDDLE_SEED={seed}")
    chance = random.Random(seed)
    sw, wire, _ = one(lab, cable_options={"queues": 4}, n_rxq=2)
    far = cable(lab, sw, "10.1.0.3/24", name="far", dev=OTHER)
    plug(sw, name=OTHER)
    until_reply(lab, far)

    def option(dev, key, *values):
        sw.vsctl("set", "interface", dev, f"options:{key}={chance.choice(values)}")

    def again(dev):
        sw.vsctl("del-port", dev)
        plug(sw, name=dev)

    def detached(dev):
        # The switch may have opened the port again meanwhile.
        with contextlib.suppress(AssertionError, OSError):
            bpf.detach(program_of(lab, sw, dev))

    def down_and_up(dev):
        lab.net.ip(sw.netns, "link", "set", dev, "down")
        lab.net.ip(sw.netns, "link", "set", dev, "up")

    def queues(dev):
        lab.net.run(sw.netns, "ethtool", "-L", dev, "rx", str(chance.randint(1, 4)), check=False)

    changes = (
        lambda dev: option(dev, "n_rxq", 1, 2, 3, 4),
        lambda dev: option(dev, "xdp-mode", "native", "generic", "best-effort"),
        lambda dev: option(dev, "use-need-wakeup", "true", "false"),
        lambda dev: option(dev, "n_rxq_desc", 64, 512, 2048),
        lambda dev: option(dev, "n_txq_desc", 64, 512, 2048),
        lambda dev: option(dev, "start-qid", 0, 1),
        lambda dev: sw.vsctl("set", "interface", dev, f"other_config:tx-steering={chance.choice(('hash', 'thread'))}"),
        lambda dev: sw.vsctl("set", "interface", dev, f"other_config:heddle-xdp-pass={chance.choice(('proto=112', 'ether=0x88cc'))}"),
        lambda dev: sw.vsctl("set", "interface", dev, f"mtu_request={chance.choice((1500, 2000))}"),
        lambda dev: sw.vsctl("set", "open_vswitch", ".", f"other_config:pmd-cpu-mask={chance.choice((1, 2, 3))}"),
        again, detached, down_and_up, queues)
    n, end = 0, time.monotonic() + (600 if SLOW else 30)
    with packets(wire, "10.1.0.3", 1400), packets(far, "10.1.0.2", 60):
        while time.monotonic() < end:
            chance.choice(changes)(chance.choice((CARD, OTHER)))
            n += 1
    lab.trace.note(f"{n} changes")
    lab.net.run(sw.netns, "ethtool", "-L", CARD, "rx", "4", check=False)
    for dev in (CARD, OTHER):
        sw.vsctl("remove", "interface", dev, "options", "start-qid", "--", "set", "interface", dev, "options:n_rxq=1", "mtu_request=1500")
        wait_for("no error", lambda d=dev: error(sw, d) == "[]", 30)
    # Packets of other queues of the first card are the host's.
    sw.vsctl("set", "interface", CARD, "options:n_rxq=4")
    until_reply(lab, far)
    lab.net.ping(far, "10.1.0.2", size=1400)
    assert sockets(lab, sw) == 5, sockets(lab, sw)
    sw.vsctl("del-port", CARD, "--", "del-port", OTHER)
    nothing_left(lab, sw, CARD, OTHER)


if __name__ == "__main__":
    main()
