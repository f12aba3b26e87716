#!/usr/bin/env python3
"""`heddle node`: a machine is set up from one file, stays reachable meanwhile, and is as it was afterwards."""

import json
import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import daemon_path
from lab.runner import main
from lab.shell import wait_for


def tool():
    """The command `heddle`: $HEDDLE, or the one beside the daemon."""
    path = os.environ.get("HEDDLE") or os.path.join(os.path.dirname(daemon_path()), "heddle")
    assert os.access(path, os.X_OK), f"no tool at {path}: build it (cargo build --release --bin heddle) or set HEDDLE"
    return os.path.abspath(path)


class Machine:
    """A machine with a switch and a NIC (nic0), and one across the wire."""

    def __init__(self, lab):
        self.lab, self.sw = lab, lab.switch()
        self.ns, self.peer = self.sw.netns, lab.net.namespace("peer", ipv6=True)
        lab.net.run(self.ns, "sh", "-c", "for f in /proc/sys/net/ipv6/conf/*/disable_ipv6; do echo 0 > $f; done")
        lab.net.veth(self.ns, "nic0", self.peer, "p0")
        for ns, dev, number in ((self.ns, "nic0", 1), (self.peer, "p0", 2)):
            lab.net.ip(ns, "addr", "add", f"10.1.0.{number}/24", "dev", dev)
            lab.net.ip(ns, "addr", "add", f"fd01::{number}/64", "dev", dev, "nodad")
        lab.net.ip(self.ns, "addr", "add", "10.1.0.9/24", "dev", "nic0")
        lab.net.ip(self.ns, "route", "add", "default", "via", "10.1.0.2", "mtu", "1400")
        lab.net.ip(self.ns, "-6", "route", "add", "fd99::/16", "via", "fd01::2")
        self.file, self.state = f"{self.sw.dir}/node.toml", f"{self.sw.dir}/state/node.json"

    def describe(self, text, check="10.1.0.2"):
        with open(self.file, "w") as file:
            file.write((f"check = '{check}'\ncheck_seconds = 3\n" if check else "") + f"database = '{self.sw.db}'\n" + text)

    def node(self, command, check=True):
        return self.lab.net.run(self.ns, tool(), "node", command, self.file, "--state", self.state, check=check)

    def seen(self, dev):
        """Addresses and routes of a device, in order."""
        text = self.lab.net.ip(self.ns, "-o", "addr", "show", "dev", dev, check=False)
        found = {a for a in re.findall(r"inet6? (\S+)", text) if not a.startswith("fe80")}
        routes = self.lab.net.ip(self.ns, "route", "show", "dev", dev, check=False) + self.lab.net.ip(
            self.ns, "-6", "route", "show", "dev", dev, check=False)
        kept = sorted(line.strip() for line in routes.splitlines() if "fe80" not in line and "multicast" not in line)
        return found, [re.sub(r" (linkdown|proto (kernel|boot|static)|pref medium)", "", line) for line in kept]

    def database(self):
        return "".join(self.sw.vsctl(f"--columns={names}", "list", table) for names, table in (
            ("name,ports,other_config,fail_mode", "bridge"), ("name", "port"), ("other_config,bridges", "open_vswitch")))

    def files(self):
        paths = [f"/proc/sys/net/ipv4/conf/nic0/{key}" for key in ("rp_filter", "arp_ignore")]
        paths += ["/proc/sys/net/ipv6/conf/nic0/disable_ipv6", "/sys/class/net/nic0/queues/rx-0/rps_cpus",
                  "/sys/class/net/nic0/queues/rx-0/rps_flow_cnt"]
        return self.lab.net.run(self.ns, "cat", *paths)


BRIDGE = "[[bridge]]\nname = 'br-ex'\nnic = 'nic0'\ndatapath_type = 'netdev'\n"


def scenario_addresses_move_and_come_back(lab):
    """With pings from outside all the while: none is lost, and none gets two replies except at the move
    itself."""
    machine = Machine(lab)
    before, database, files = machine.seen("nic0"), machine.database(), machine.files()
    machine.describe(BRIDGE)
    plan = machine.node("plan")
    assert "addresses and routes of nic0 at bridge br-ex: no -> yes" in plan, plan
    assert machine.seen("nic0") == before and machine.database() == database and not os.path.exists(machine.state)
    assert "differs" in machine.node("status", check=1)
    ping = subprocess.Popen(["ip", "netns", "exec", machine.peer, "ping", "-n", "-i", "0.05", "10.1.0.1"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(0.3)
        machine.node("apply")
        time.sleep(0.5)
        assert machine.seen("br-ex") == before and machine.seen("nic0") == (set(), []), (machine.seen("br-ex"), before)
        lab.net.ping(machine.ns, "10.1.0.2")
        quiet = lab.net.run(machine.peer, "ping", "-n", "-c", "20", "-i", "0.05", "10.1.0.9")
        assert "DUP" not in quiet and " 0% packet loss" in quiet, quiet
        lab.net.ping(machine.peer, "fd01::1")
        assert "differs" not in machine.node("status")
        assert machine.node("plan") == machine.node("apply") == "nothing to do\n"
        machine.node("undo")
        time.sleep(0.3)
    finally:
        ping.send_signal(2)
        out = ping.communicate(timeout=20)[0]
    lab.trace.note(out)
    sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", out).groups())
    assert received >= sent - 1 and sent > 10 and out.count("DUP") <= 4, out
    assert machine.seen("nic0") == before and machine.files() == files
    wait_for("br-ex to go", lambda: "br-ex" not in lab.net.ip(machine.ns, "-br", "link"))
    assert machine.database() == database and not os.path.exists(machine.state)
    assert machine.node("undo") == "nothing to undo\n"


def scenario_takes_itself_back(lab):
    """A bridge that forwards nothing: the check address does not reply, and everything is restored."""
    machine = Machine(lab)
    machine.sw.vsctl("add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev", "fail_mode=secure")
    before, database, files = machine.seen("nic0"), machine.database(), machine.files()
    machine.describe("[datapath]\nsleep_us = 100\n" + BRIDGE)
    out = machine.node("apply", check=1)
    assert "all is as it was" in out and "10.1.0.2 no longer replies" in out, out
    assert (machine.seen("nic0"), machine.database(), machine.files()) == (before, database, files)
    assert not os.path.exists(machine.state)
    lab.net.ping(machine.peer, "10.1.0.1")
    # No change begins if the address does not reply beforehand, or if another check fails.
    machine.describe(BRIDGE, check="10.1.0.77")
    assert "nothing was changed" in machine.node("apply", check=1)
    machine.describe(BRIDGE.replace("nic0", "nic9"))
    assert "there is no device nic9" in machine.node("apply", check=1)
    machine.sw.vsctl("add-br", "br1", "--", "add-port", "br1", "nic0")
    database = machine.database()
    machine.describe(BRIDGE)
    assert "nic0 is a port of bridge br1" in machine.node("apply", check=1)
    assert (machine.seen("nic0"), machine.database(), machine.files()) == (before, database, files)


def cut_short(machine, command, after):
    """Kills a command after `after` seconds: whether it had not ended by then."""
    process = subprocess.Popen(["ip", "netns", "exec", machine.ns, tool(), "node", command, machine.file, "--state", machine.state],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -9


def scenario_killed_half_way(lab):
    """kill -9 of apply and of undo at many times: undo restores everything, apply finishes the work."""
    machine = Machine(lab)
    before, database, files = machine.seen("nic0"), machine.database(), machine.files()
    machine.describe("[datapath]\nsleep_us = 100\nother_config = { max-idle = '20000' }\n" + BRIDGE + "[[nic]]\nname = 'nic0'\nrps_cores = '0'\n")
    took = {}
    for command in ("apply", "undo"):
        began = time.monotonic()
        machine.node(command)
        took[command] = time.monotonic() - began
    moments, cut = 10, 0

    def as_before():
        assert machine.seen("nic0") == before and machine.files() == files, (machine.seen("nic0"), before, machine.files(), files)
        assert machine.database() == database and not os.path.exists(machine.state)
        wait_for("br-ex to go", lambda: "br-ex" not in lab.net.ip(machine.ns, "-br", "link"))
        wait_for("an answer", lambda: lab.net.ping(machine.peer, "10.1.0.1", count=1, lossless=False))
    for moment in range(moments):
        part = (moment + 0.5) / moments
        cut += cut_short(machine, "apply", part * took["apply"])
        machine.node("undo")
        as_before()
        cut_short(machine, "apply", part * took["apply"])
        machine.node("apply")
        assert machine.seen("br-ex") == before and machine.seen("nic0") == (set(), []), machine.seen("nic0")
        assert machine.node("apply") == "nothing to do\n"
        wait_for("an answer", lambda: lab.net.ping(machine.peer, "10.1.0.1", count=1, lossless=False))
        cut += cut_short(machine, "undo", part * took["undo"])
        machine.node("undo")
        as_before()
    assert cut >= moments // 2, f"only {cut} commands were cut short"


def scenario_settings(lab):
    """Processors, sleep, further keys, queues of a NIC: set once, shown, set back, also from notes before a
    crash."""
    machine = Machine(lab)
    machine.sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-sleep-max=7", "other_config:mine=1")
    database, files = machine.database(), machine.files()
    machine.describe("[datapath]\ncores = '0-1'\nsleep_us = 250\nother_config = { max-idle = '20000' }\n"
                     "[[nic]]\nname = 'nic0'\nrps_cores = '0'\n", check=None)
    machine.node("apply")
    config = machine.sw.vsctl("get", "open_vswitch", ".", "other_config")
    assert config == '{max-idle="20000", mine="1", pmd-cpu-mask="3", pmd-sleep-max="250"}', config
    assert int(machine.files().split()[-2], 16) == 1, machine.files()
    assert machine.node("apply") == "nothing to do\n" and "differs" not in machine.node("status")
    machine.sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-sleep-max=9")
    assert "other_config:pmd-sleep-max: 9 -> 250" in machine.node("apply")
    machine.node("undo")
    assert (machine.database(), machine.files()) == (database, files)
    # Noted, but not done.
    os.makedirs(os.path.dirname(machine.state), exist_ok=True)
    with open(machine.state, "w") as file:
        json.dump([{"target": {"other_config": "never-set"}, "before": None},
                   {"target": {"bridge": {"name": "br-ex", "nic": "nic0"}}, "before": "no"}], file)
    before = machine.seen("nic0")
    machine.node("undo")
    assert machine.seen("nic0") == before and machine.database() == database and not os.path.exists(machine.state)


def scenario_cards(lab):
    """Queues of a card, and its port by AF_XDP: set, shown, set back; a PCI device that is not there is an error."""
    machine = Machine(lab)
    many = ("numrxqueues", "4", "numtxqueues", "4")
    lab.net.ip(machine.ns, "link", "add", "card0", *many, "type", "veth", "peer", "name", "card1", *many)
    queues = lambda: lab.net.run(machine.ns, "ethtool", "-l", "card0").split("Current")[1]  # noqa: E731
    before, database, first = machine.seen("nic0"), machine.database(), queues()
    machine.describe(BRIDGE + "[[nic]]\nname = 'card0'\nqueues = 2\n[[nic]]\nname = 'nic0'\nport_type = 'afxdp'\nxdp_mode = 'generic'\n")
    plan = machine.node("plan")
    for line in ("queues of card0: 4 -> 2", "type of port nic0", "xdp-mode of port nic0"):
        assert line in plan, plan
    machine.node("apply")
    assert machine.sw.vsctl("get", "interface", "nic0", "type", "status:xdp-mode") == "afxdp\ngeneric", machine.sw.log()[-2000:]
    assert re.search(r"RX:\s+2\n", queues()), queues()
    assert machine.node("apply") == "nothing to do\n" and "differs" not in machine.node("status")
    wait_for("an answer", lambda: lab.net.ping(machine.peer, "10.1.0.1", count=1, lossless=False))
    # An apply that fails goes back to the one before, and undo still to what was before both.
    machine.describe("[[nic]]\nname = 'card0'\nqueues = 3\nxdp_mode = 'generic'\n", check=None)
    out = machine.node("apply", check=1)
    assert "all is as it was" in out and re.search(r"RX:\s+2\n", queues()), (out, queues())
    machine.node("undo")
    assert (machine.seen("nic0"), machine.database(), queues()) == (before, database, first)
    for text, words in (("[[nic]]\nname = 'card0'\nqueues = 99\n", "queues of card0"), ("[[pci]]\naddress = '5:0'\ndriver = 'x'\n", "not an address"),
                        ("[[pci]]\naddress = '0000:ff:1f.7'\ndriver = 'ixgbe'\n", "there is no PCI device 0000:ff:1f.7"),
                        ("[[nic]]\nname = 'nic0'\nport_type = 'afxdp'\n", "nic0 is no port of the switch"),
                        ("[[nic]]\nname = 'card7'\nqueues = 2\n", "queues of card7: there is no such device"),
                        ("[[nic]]\nname = 'card0'\nqueues = 2\nirq_cores = '0'\n", "the device has no interrupts of its own"),
                        ("[[nic]]\nname = 'card0'\nqueues = 0\n", "queues of nic card0: 0 is not possible"),
                        ("[[nic]]\nname = 'card0'\nport_type = 'afxdp'\nqueues = 2\n", "options:n_rxq"),
                        ("[[nic]]\nname = 'card0'\nxdp_mode = 'skb'\n", "expected best-effort"),
                        ("[[nic]]\nname = 'card0'\n[[nic]]\nname = 'card0'\n", "two [[nic]] for card0")):
        machine.describe(text, check=None)
        out = machine.node("apply", check=1)
        assert words in out and "panicked" not in out, (text, out)
        assert (machine.seen("nic0"), machine.database(), queues()) == (before, database, first)


def scenario_bad_input(lab):
    """Each mistake is named, and nothing changes."""
    machine = Machine(lab)
    before, database = machine.seen("nic0"), machine.database()
    for text, words in [("nonsense", "node.toml"), ("[[bridge]]\nname = 'b'\n", "missing field"), ("[datapath]\ncores = 'x'\n", "list of processors"),
                        ("[datapath]\nspeed = 1\n", "unknown field"), ("[[nic]]\nname = 'a/b'\n", "not a name of a device"),
                        ("modules = ['no-such-module-x']\n", "odul"), ("[[nic]]\nname = 'nic0'\nrx_ring = 512\n", "nic0"),
                        ("[hugepages]\nsize_kib = 3\ncount = 1\n", "hugepages-3kB")]:
        machine.describe(text)
        out = machine.node("apply", check=1)
        assert words in out and "panicked" not in out, (text, out)
        assert machine.seen("nic0") == before and machine.database() == database, text
    machine.describe(BRIDGE, check=None)
    assert "check is missing" in machine.node("plan", check=1)
    machine.describe(BRIDGE)
    machine.sw.stop_ovsdb()
    for command in ("plan", "apply", "status"):
        assert "does not reply" in machine.node(command, check=1)
    assert machine.seen("nic0") == before
    machine.sw.start_ovsdb()
    os.unlink(machine.file)
    assert "node.toml" in machine.node("plan", check=1)


if __name__ == "__main__":
    main()
