"""Parts of OVN and the switch restart while pods talk. Lost pings are counted, and printed for both
switches."""

import os
import re
import signal
import subprocess
import threading
import time

from checks import Absent, check
from cluster import server
from lab.switch import end_process, read_pid
from probes import lines, talk

# Pings a second.
RATE = 100
# Pings that a restart may cost more than it costs Open vSwitch: half a second, for a machine that has other things to do.
MAX_MORE_LOST = RATE // 2
PKGDATADIR = os.environ.get("OVS_PKGDATADIR", "/usr/share/openvswitch")


def lost(c, act, source="a1", target="10.0.1.12", rest=3):
    """Number of pings without a reply while `act` runs."""
    ping = subprocess.Popen(["ip", "netns", "exec", c.pods[source], "ping", "-n", "-i", str(1 / RATE), target], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    said = []
    reader = threading.Thread(target=lambda: said.extend(ping.stdout))
    reader.start()
    try:
        time.sleep(1)
        act()
        time.sleep(rest)
    finally:
        ping.send_signal(signal.SIGINT)
        ping.wait(timeout=20)
        reader.join()
    out = "".join(said)
    sent = int(re.search(r"(\d+) packets transmitted", out)[1])
    answered = {int(n) for n in re.findall(r"icmp_seq=(\d+) ttl=", out)}
    # The last ones may be on their way, if that takes no longer than on a busy machine.
    last = max(answered, default=0)
    return (last if sent - last < RATE / 4 else sent) - len(answered)


def within(c, name, n, limit):
    c.notes[name] = f"{n} pings lost, of {RATE} a second"
    c.lost[name] = n
    return None if n <= limit else f"{n} pings lost"


@check
def controller_restarts(c):
    node = c.chassis[0]

    def act():
        pid = read_pid(node.pidfile)
        node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "exit", "--restart")
        time.sleep(1)
        node.start_controller()
        c.sync()
    return within(c, "controller_restarts", lost(c, act), 3)


@check
def controller_is_killed(c):
    node = c.chassis[0]

    def act():
        end_process(read_pid(node.pidfile), signal.SIGKILL)
        time.sleep(1)
        node.start_controller()
        c.sync()
    return within(c, "controller_is_killed", lost(c, act), 3)


@check
def controller_is_killed_while_it_says_things(c):
    """Killed in the midst of bundles, if possible. The switch applies no part of half a bundle; in the end it
    has the databases' configuration."""
    node = c.chassis[0]
    rules = lambda net: [word for n in range(300) for word in ("--", "acl-add", "ls0", "to-lport", "1000", f'outport == "a2" && ip4.src == 10.{net}.{n >> 8}.{n & 255}', "drop")][1:]

    def act():
        for net, delay in enumerate((0.02, 0.1, 0.2, 0.3, 0.5), 20):
            c.nbctl("--wait=sb", *rules(net))
            time.sleep(delay)
            end_process(read_pid(node.pidfile), signal.SIGKILL)
            node.start_controller()
            time.sleep(delay)
        c.sync()
    try:
        n = lost(c, act)
        there = len(re.findall(r"nw_src=10\.2[0-4]\.", node.sw.ofctl("-O", "OpenFlow15", "dump-flows", "br-int")))
        return f"{there} of 1500 rules" if there < 1500 else within(c, "controller_is_killed_while_it_says_things", n, 3)
    finally:
        c.nbctl("acl-del", "ls0")
        # OVN 26.03 sets this while it waits for its rules, and leaves it behind if it is killed at the wrong
        # time. No switch would forward after its next start.
        node.sw.vsctl("remove", "open_vswitch", ".", "other_config", "flow-restore-wait")
        c.sync()


@check
def controller_says_everything_again(c):
    """No established flow is replaced: cookies and counters stay."""
    node = c.chassis[0]
    if not c.reaches("a1", "10.0.1.12", count=5):
        return "no answer"

    def flows():
        out = node.sw.ofctl("-O", "OpenFlow15", "dump-flows", "br-int")
        found = re.findall(r"cookie=(0x[0-9a-f]+),.* (table=\d+), n_packets=(\d+),.* (priority=\S+)", out)
        return {f"{table} {match}": (cookie, int(n)) for cookie, table, n, match in found}

    def act():
        pid = read_pid(node.pidfile)
        node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "inc-engine/recompute")
        c.sync()
    before = flows()
    if not before:
        return "no flows"
    n = lost(c, act)
    after = flows()
    wrong = [m for m, (cookie, packets) in before.items() if m not in after or after[m][0] != cookie or after[m][1] < packets]
    return f"{len(wrong)} flows begin anew: {wrong[0]}" if wrong else within(c, "controller_says_everything_again", n, 0)


@check
def conditions_of_monitors_change(c):
    """ovn-controller monitors its own part of the southbound database only, and all of it again."""
    node = c.chassis[0]

    def act():
        for value in ("false", "true", "false", "true"):
            node.sw.vsctl("set", "open_vswitch", ".", f"external_ids:ovn-monitor-all={value}")
            c.sync()
            time.sleep(0.5)
    return within(c, "conditions_of_monitors_change", lost(c, act), 0)


@check
def southbound_database_restarts(c):
    def act():
        end_process(read_pid(f"{c.dir}/sb.pid"), signal.SIGTERM)
        time.sleep(1)
        c.start_database("sb")
        c.sync()
    return within(c, "southbound_database_restarts", lost(c, act), 3)


@check
def southbound_database_flaps(c):
    """The database is killed again and again, also before all clients are connected."""
    def act():
        for rest in (0.2, 1, 0.1, 2, 0.3):
            end_process(read_pid(f"{c.dir}/sb.pid"), signal.SIGKILL)
            time.sleep(rest)
            c.start_database("sb")
            time.sleep(rest)
        c.sync()
    return within(c, "southbound_database_flaps", lost(c, act), 3)


@check
def northd_and_northbound_database_restart(c):
    def act():
        for name in ("northd", "nb"):
            end_process(read_pid(f"{c.dir}/{name}.pid"), signal.SIGKILL)
        time.sleep(1)
        c.start_database("nb")
        c.start_northd()
        c.sync()
    return within(c, "northd_and_northbound_database_restart", lost(c, act), 0)


@check
def database_of_the_switch_restarts(c):
    node = c.chassis[0]

    def act():
        node.sw.stop_ovsdb()
        time.sleep(1)
        node.sw.start_ovsdb()
        time.sleep(2)
        c.sync()
    return within(c, "database_of_the_switch_restarts", lost(c, act), 3)


@check
def database_of_the_switch_hangs(c):
    """ovsdb-server replies to no client for some seconds. The switch forwards, replies to commands, and obeys
    its controller."""
    node = c.chassis[0]
    pid = read_pid(f"{node.sw.dir}/ovsdb-server.pid")

    def act():
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(8)
            node.sw.appctl("version", timeout=5)
            node.sw.ofctl("-O", "OpenFlow15", "dump-aggregate", "br-int", timeout=5)
        finally:
            os.kill(pid, signal.SIGCONT)
        c.sync()
    return within(c, "database_of_the_switch_hangs", lost(c, act), 3)


def back_again(c):
    """Until pods talk again."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if c.reaches("a1", "10.0.1.12", tries=1, count=1):
            return c.sync()
    raise AssertionError("no answer after a minute")


@check
def switch_is_killed(c):
    node = c.chassis[0]

    def act():
        node.sw.stop_daemon(signal.SIGKILL)
        node.sw.start_daemon()
        back_again(c)
    return within(c, "switch_is_killed", lost(c, act), 20 * RATE)


@check
def switch_restarts_and_keeps_flows(c):
    """The steps of `ovs-ctl restart`: flows are saved, and the switch waits for them before it forwards."""
    node = c.chassis[0]
    bridges = node.sw.vsctl("list-br").split()

    def act():
        script = node.sw.run(f"{PKGDATADIR}/scripts/ovs-save", "save-flows", *bridges, merge=False)
        node.sw.vsctl("set", "open_vswitch", ".", "other_config:flow-restore-wait=true")
        node.sw.stop_daemon()
        node.sw.start_daemon()
        node.sw.run("sh", stdin=script)
        node.sw.vsctl("remove", "open_vswitch", ".", "other_config", "flow-restore-wait")
        back_again(c)
    return within(c, "switch_restarts_and_keeps_flows", lost(c, act), 20 * RATE)


@check
def connections_outlive_the_switch(c):
    """A connection over router and tunnel continues after the switch was killed, and after its controller
    was."""
    node = c.chassis[0]
    s = lines(c, "b2", 7050)

    def act():
        node.sw.stop_daemon(signal.SIGKILL)
        node.sw.start_daemon()
        back_again(c)

    def controller():
        end_process(read_pid(node.pidfile), signal.SIGKILL)
        node.start_controller()
        c.sync()
    try:
        if why := talk(c, "a1", "10.0.1.12", 7050, act):
            return f"the switch: {why}"
        why = talk(c, "a1", "10.0.1.12", 7050, controller)
        return why and f"the controller: {why}"
    finally:
        s.kill()


@check
def another_switch_takes_over(c):
    """The node's other switch (Open vSwitch for Heddle, Heddle for Open vSwitch) is started in its place,
    following docs/ovn.md, and then the first one again."""
    if not c.other or c.datapath != "netdev":
        raise Absent
    node = c.chassis[0]
    said = []
    # The stack gives whole checksums to both.
    for pod in ("a1", "b2"):
        c.net.run(c.pods[pod], "ethtool", "-K", "eth0", "tx", "off", check=False)
    c.net.run(node.ns, "ethtool", "-K", "up0", "tx", "off", check=False)
    s = server(c, "b2", 7051)
    own = node.sw.binary
    try:
        for binary in (c.other, own):
            def act(binary=binary):
                node.sw.stop_daemon()
                node.sw.binary = binary
                node.sw.start_daemon()
                back_again(c)
            n = lost(c, act)
            said.append(f"{n} pings lost to {os.path.basename(binary)}")
            if n > 20 * RATE:
                return said[-1]
            if (got := c.tcp("a1", "10.0.1.12", 7051)) != "b2 10.0.0.11":
                return f"on {os.path.basename(binary)}, a connection: {got}"
            if not c.reaches("b2", "10.0.0.13") or not c.reaches("a1", "fd00:1::12"):
                return f"on {os.path.basename(binary)}: no answer"
        c.notes["another_switch_takes_over"] = ", ".join(said)
        return None
    finally:
        s.kill()
        if not node.sw.is_reference:
            for ns, dev in ((c.pods["a1"], "eth0"), (c.pods["b2"], "eth0"), (node.ns, "up0")):
                c.net.run(ns, "ethtool", "-K", dev, "tx", "on", check=False)
        if node.sw.binary != own:
            node.sw.stop_daemon()
            node.sw.binary = own
            node.sw.start_daemon()
            back_again(c)


def lost_by_others(c, act):
    """Lost pings between the first two chassis, which know each other. These checks follow restarts of the
    switch, and Open vSwitch drops the first packet into a tunnel, which causes the neighbour request."""
    if not c.reaches("a1", "10.0.0.13"):
        raise AssertionError("no answer before anything happens")
    return lost(c, act, target="10.0.0.13")


@check
def chassis_comes_and_goes(c):
    """Others do not notice."""
    def act():
        node = c.chassis[2]
        pid = read_pid(node.pidfile)
        node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "exit")
        c.nbctl("--timeout=20", "--wait=sb", "sync")
        time.sleep(1)
        node.start_controller()
        c.sync()
    n = lost_by_others(c, act)
    if n > 0:
        return f"{n} pings between the others are lost"
    return None if c.reaches("a1", "10.0.1.12", tries=10) else "its pods are not reached again"


@check
def chassis_vanishes(c):
    """The chassis is killed, and removed from the database; it comes back. Others do not notice."""
    node = c.chassis[2]

    def act():
        end_process(read_pid(node.pidfile), signal.SIGKILL)
        node.sw.stop_daemon(signal.SIGKILL)
        c.sbctl("chassis-del", "ch3")
        c.nbctl("--timeout=20", "--wait=sb", "sync")
        time.sleep(1)
        node.sw.start_daemon()
        node.start_controller()
        c.sync()
    n = lost_by_others(c, act)
    if n > 0:
        return f"{n} pings between the others are lost"
    return None if c.reaches("a1", "10.0.1.12", tries=20) else "its pods are not reached again"
