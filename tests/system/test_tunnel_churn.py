#!/usr/bin/env python3
"""Tunnels between two nodes while everything around them changes: ports, options, bridges, routes, addresses, the daemon, the database.

Pods send requests all the time. Afterwards the configuration is restored, and then they have to reach each
other soon. HEDDLE_SEED=N repeats a run.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import limit, main
from lab.shell import CommandError, wait_for
from test_tunnels import address, attach, nodes, tunnel

SECONDS = 25


def state(lab, sw):
    """Diagnosis of a switch whose packets do not arrive."""
    text = [f"== {sw.netns}"]
    for command in (("tnl/neigh/show",), ("ovs/route/show",), ("tnl/ports/show", "-v"), ("dpctl/dump-flows",), ("fdb/show", "br-ex"), ("dpctl/show", "-s"), ("coverage/show",)):
        lines = sw.appctl(*command, check=False, quiet=True).splitlines()
        text += [f"-- {' '.join(command)}", *(line for line in lines if command[0] != "coverage/show" or "drop" in line)]
    for command in ("ip addr", "ip neigh", "ip route show table all"):
        text += [f"-- {command}", lab.net.run(sw.netns, *command.split(), check=False, quiet=True)]
    return "\n".join(text)


def reached(lab, switches, pod, to="10.5.0.2", timeout=20):
    """The pods reach each other, or the switches' state is printed."""
    try:
        wait_for("traffic", lambda: lab.net.ping(pod, to, count=1, lossless=False), timeout)
        lab.net.ping(pod, to, size=1000)
    except Exception:
        for sw in switches:
            print(state(lab, sw))
        raise


class Traffic:
    """Floods of small pings both ways, and streams that restart when they break off."""

    def __init__(self, pods):
        a, b = pods
        loop = "while :; do timeout 20 iperf3 -c 10.5.0.2 -p 5203 -t 3 -P 2 --connect-timeout 1000; sleep 0.1; done"
        self.all = [self.start(a, "ping", "-q", "-i", "0.002", "10.5.0.2"), self.start(b, "ping", "-q", "-i", "0.002", "10.5.0.1"),
                    self.start(b, "sh", "-c", "while :; do timeout 20 iperf3 -s -1 -p 5203; done"), self.start(a, "sh", "-c", loop)]

    @staticmethod
    def start(ns, *argv):
        return subprocess.Popen(["ip", "netns", "exec", ns, *argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.all:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def calm(switches, pids):
    """No daemon died, and none has logged an emergency or a panic."""
    for sw, pid in zip(switches, pids):
        assert sw.alive() and sw.pid == pid, f"{sw.netns} ended: {sw.log()[-3000:]}"
        bad = [line for line in sw.log().splitlines() if "|EMER|" in line or "panic" in line]
        assert not bad, bad[:5]


def put_right(lab, switches, kind):
    """Restores the configuration of `nodes`, whatever has become of it."""
    for number, sw in zip((1, 2), switches):
        sw.vsctl("--if-exists", "del-port", "br-int", "tun0", "--", "--may-exist", "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev")
        for what in ("addr flush dev br-ex", "route flush dev br-ex", "neigh flush dev br-ex nud all", f"route del blackhole {address(3 - number, False)}"):
            lab.net.ip(sw.netns, *what.split(), check=False)
        attach(lab, sw, number, False)
        lab.net.ip(sw.netns, "link", "set", "up0", "up", "mtu", "1500")
        tunnel(sw, kind, address(3 - number, False))


def changes(lab, rng, sw, number, kind):
    """Commands that change something, each of which may fail."""
    there = address(3 - number, False)
    ip = lambda *args: lab.net.ip(sw.netns, *args, check=False, quiet=True)
    ctl = lambda *args: sw.vsctl(*args, check=False, quiet=True)
    option = lambda name, value: ctl("set", "interface", "tun0", f"options:{name}={value}")
    return [
        lambda: ctl("--if-exists", "del-port", "br-int", "tun0"),
        lambda: ctl("--if-exists", "del-port", "br-int", "tun0", "--", "add-port", "br-int", "tun0", "--", "set", "interface", "tun0", f"type={kind}",
                    f"options:remote_ip={there}", "options:key=77"),
        lambda: option("csum", rng.choice(["true", "false"])),
        lambda: option("key", rng.choice(["77", "78", "flow"])),
        lambda: option("remote_ip", rng.choice([there, there, "172.31.0.99", "10.99.0.1", "flow", "fd00::9"])),
        lambda: option("local_ip", rng.choice([address(number, False), "172.31.0.98", "flow"])),
        lambda: ctl("remove", "interface", "tun0", "options", "local_ip"),
        lambda: option("dst_port", rng.choice(["6081", "4789", "7777"])),
        lambda: option("tos", rng.choice(["inherit", "0x20"])),
        lambda: option("ttl", rng.choice(["inherit", "1", "64"])),
        lambda: option("df_default", rng.choice(["true", "false"])),
        lambda: ctl("set", "interface", "tun0", f"type={rng.choice([kind, 'geneve', 'vxlan', 'gre', 'stt'])}"),
        lambda: ctl("--if-exists", "del-port", "br-ex", "up0"),
        lambda: attach(lab, sw, number, False),
        lambda: ctl("--if-exists", "del-br", "br-ex"),
        lambda: ctl("--may-exist", "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev"),
        lambda: ip("addr", "add", f"{address(number, False)}/24", "dev", "br-ex"),
        lambda: ip("addr", "del", f"{address(number, False)}/24", "dev", "br-ex"),
        lambda: ip("addr", "add", f"172.31.0.{rng.randrange(50, 90)}/24", "dev", "br-ex"),
        lambda: ip("link", "set", "br-ex", rng.choice(["up", "up", "down"])),
        lambda: ip("link", "set", "up0", "mtu", rng.choice(["1500", "1300", "9000"])),
        lambda: ip("route", "add", f"{there}/32", "dev", "br-ex", "mtu", "1300"),
        lambda: ip("route", "add", f"{there}/32", "via", "172.31.0.77", "dev", "br-ex"),
        lambda: ip("route", "del", f"{there}/32"),
        lambda: ip("route", "add", "blackhole", f"{there}/32"),
        lambda: ip("neigh", "replace", there, "lladdr", "02:00:00:00:aa:01", "dev", "br-ex"),
        lambda: ip("neigh", "flush", "dev", "br-ex"),
        lambda: sw.appctl("tnl/neigh/set", "br-ex", there, "02:00:00:00:bb:01", check=False, quiet=True),
        lambda: sw.appctl("tnl/neigh/flush", check=False, quiet=True),
        lambda: sw.appctl("revalidator/purge", check=False, quiet=True),
        lambda: sw.ofctl("add-tlv-map", "br-int", "{class=0xffff,type=1,len=8}->tun_metadata0", check=False, quiet=True),
        lambda: sw.ofctl("del-tlv-map", "br-int", check=False, quiet=True),
        lambda: sw.ofctl("add-flow", "br-int", "priority=7,icmp,actions=set_field:9->tun_metadata0,normal", check=False, quiet=True),
        lambda: sw.ofctl("del-flows", "br-int", "icmp", check=False, quiet=True),
    ]


def churn(lab, kind):
    seed = int(os.environ.get("HEDDLE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HEDDLE_SEED={seed}")
    rng = random.Random(seed)
    switches, pods = nodes(lab, kind)
    reached(lab, switches, pods[0])
    pids = [sw.pid for sw in switches]
    with Traffic(pods):
        end, done = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            side = rng.randrange(2)
            with contextlib.suppress(CommandError):
                rng.choice(changes(lab, rng, switches[side], side + 1, kind))()
            done += 1
        print(f"{done} changes")
        calm(switches, pids)
    for sw in switches:
        sw.ofctl("del-flows", "br-int", "icmp")
        sw.ofctl("del-tlv-map", "br-int", check=False)
        sw.appctl("tnl/neigh/flush")
    put_right(lab, switches, kind)
    reached(lab, switches, pods[0])
    calm(switches, pids)


@limit(240)
def scenario_everything_changes_around_geneve(lab):
    churn(lab, "geneve")


@limit(240)
def scenario_everything_changes_around_vxlan(lab):
    churn(lab, "vxlan")


@limit(240)
def scenario_everything_changes_around_stt(lab):
    churn(lab, "stt")


@limit(240)
def scenario_switches_are_killed(lab):
    """One switch after the other dies, and is there again at once; its devices, addresses and routes never went."""
    switches, pods = nodes(lab, "geneve")
    reached(lab, switches, pods[0])
    with Traffic(pods):
        for number in range(6):
            sw = switches[number % 2]
            sw.stop_daemon(signal.SIGKILL)
            sw.start_daemon()
            reached(lab, switches, pods[0])


@limit(240)
def scenario_databases_go_and_come(lab):
    """Traffic is not disturbed, except by changes that are made meanwhile."""
    switches, pods = nodes(lab, "geneve")
    reached(lab, switches, pods[0])
    pids = [sw.pid for sw in switches]
    with Traffic(pods):
        for number in range(6):
            sw = switches[number % 2]
            sw.stop_ovsdb()
            lab.net.ping(pods[0], "10.5.0.2", count=5)
            sw.start_ovsdb()
            sw.vsctl("set", "interface", "tun0", f"options:csum={'true' if number < 4 else 'false'}")
            reached(lab, switches, pods[0])
        calm(switches, pids)


if __name__ == "__main__":
    main()
