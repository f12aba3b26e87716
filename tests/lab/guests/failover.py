#!/usr/bin/env python3
"""A guest with a fast card and a virtio standby moves to another node.

TCP, UDP and pings of the guest pass through a stateful ACL and SNAT on the node.

Two nodes, each with a switch in a namespace, and a server on their network. The fast card is an emulated e1000e (QEMU
refuses an igb there); its tap is the port that stands for it, as a representor. QEMU unplugs the card for the
migration, and plugs one in at the target. `beside_open_vswitch` does the same with Open vSwitch's userspace switch."""

import os
import re
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import REFERENCE
from lab.echoes import Echoes
from lab.guest import FailoverPair, Guest, obtain
from lab.guestlab import main
from lab.runner import Skip, limit
from lab.shares import Shares
from lab.shell import wait_for
from lab.vhost import heddle_path

SERVER, GUEST, SEEN = "10.9.0.1", "10.9.0.5", "10.9.0.100"
MAC, PORT = "52:54:00:00:00:05", "web-1"
# Numbers of zones differ between the nodes; their names do not.
ZONES = ({PORT: 10, "gw_snat": 20}, {PORT: 30, "gw_snat": 40})
REPRESENTOR, STANDBY = "rep0", "stand0"
# Output of a mirror of the guest's port, and its other end: a vhost-user port has no device of this machine.
MIRROR, MIRRORED = "mirror0", "mirrored0"
FAST_PORT, STANDBY_PORT = 5, 6
STREAMS = 10
# Share of the switches in a silence, with export and import while QEMU waits for them.
MAX_SILENCE_S = 0.15


def rules(sw, zones):
    """A stateful ACL in the guest's zone, SNAT in the node's. Only a SYN, or a first datagram, begins a connection."""
    own, snat = zones[PORT], zones["gw_snat"]
    # Open vSwitch has two ports for the guest, and finds the one in use by its learned address.
    ports, uplink, guest = ((FAST_PORT, STANDBY_PORT), "NORMAL", "NORMAL") if sw.is_reference else ((FAST_PORT,), "1", str(FAST_PORT))
    table = ["priority=10,arp,actions=NORMAL", "priority=10,dl_type=0x8035,actions=NORMAL",
             f"priority=30,in_port=1,ip,nw_dst={SEEN},actions=ct(table=2,zone={snat},nat)",
             f"table=2,priority=20,ip,nw_dst={GUEST},actions=ct(table=3,zone={own})",
             f"table=3,priority=20,ip,nw_dst={GUEST},ct_state=+est-inv+rpl+trk,actions=mod_dl_dst:{MAC},{guest}"]
    for port in ports:
        table.append(f"priority=30,in_port={port},ip,actions=ct(table=1,zone={own})")
        for first in ("tcp,tcp_flags=+syn-ack", "udp", "icmp"):
            table.append(f"table=1,priority=20,in_port={port},{first},ct_state=+new+trk,actions=ct(commit,zone={own}),"
                         f"ct(commit,zone={snat},nat(src={SEEN}:30000-60000,random)),{uplink}")
        table += [f"table=1,priority=20,in_port={port},ip,ct_state=+est-inv+trk,actions=ct(table=4,zone={snat},nat)",
                  f"table=4,priority=20,in_port={port},ip,ct_state=+est-inv+trk,actions={uplink}"]
    sw.ofctl("del-flows", "br0")
    for rule in table:
        sw.ofctl("add-flow", "br0", rule)


class Node:
    """A switch with an uplink, and both devices of the guest."""

    def __init__(self, lab, lan, index, vhost_user, binary):
        self.lab, self.index = lab, index
        self.sw = sw = lab.switch(binary=binary)
        lab.bridge(sw)
        lab.net.veth(lan, f"n{index}", sw.netns, "lan0")
        lab.net.ip(lan, "link", "set", f"n{index}", "master", "lan")
        for ns, device in ((lan, f"n{index}"), (sw.netns, "lan0")):
            lab.net.run(ns, "ethtool", "-K", device, "tx", "off", check=False)
        self.standby = f"{sw.dir}/{STANDBY}.sock" if vhost_user else STANDBY
        for name in (REPRESENTOR, *([] if vhost_user else [STANDBY])):
            lab.net.ip(sw.netns, "tuntap", "add", name, "mode", "tap")
            lab.net.ip(sw.netns, "link", "set", name, "up")
        ids = (f"external_ids:iface-id={PORT}", f"external_ids:ip_addresses={GUEST}/24", f"external_ids:attached-mac={MAC}")
        kind = ["type=dpdkvhostuserclient", f"options:vhost-server-path={self.standby}"] if vhost_user else []
        pair = [] if sw.is_reference else [f"other_config:heddle-standby-for={REPRESENTOR}"]
        sw.vsctl("add-port", "br0", "lan0", "--", "set", "interface", "lan0", "ofport_request=1",
                 "--", "add-port", "br0", REPRESENTOR, "--", "set", "interface", REPRESENTOR, f"ofport_request={FAST_PORT}", *ids,
                 "--", "add-port", "br0", STANDBY, "--", "set", "interface", STANDBY, f"ofport_request={STANDBY_PORT}", *kind, *pair, *ids,
                 *(word for name, zone in ZONES[index].items() for word in ("--", "set", "bridge", "br0", f"external_ids:ct-zone-{name}={zone}")))
        rules(sw, ZONES[index])
        if vhost_user:
            self._mirror()

    def _mirror(self):
        lab, sw = self.lab, self.sw
        lab.net.veth(sw.netns, MIRROR, sw.netns, MIRRORED)
        sw.vsctl("add-port", "br0", MIRROR, "--", "--id=@g", "get", "port", REPRESENTOR, "--", "--id=@o", "get", "port", MIRROR,
                 "--", "--id=@m", "create", "mirror", "name=m", "select-src-port=@g", "select-dst-port=@g", "output-port=@o",
                 "--", "set", "bridge", "br0", "mirrors=@m")

    def watched(self):
        """Devices of this machine that show the guest's frames, each with a name for people."""
        second = MIRRORED if "/" in self.standby else STANDBY
        return {REPRESENTOR: f"card {self.index}", second: f"virtio {self.index}"}

    def guest(self, model, incoming=None):
        guest = Guest(self.lab.trace, f"node{self.index}", [FailoverPair(model, MAC, REPRESENTOR, self.standby)],
                      incoming=incoming, netns=self.sw.netns)
        self.lab.cleanups.append(guest.close)
        return guest

    def fast_packets(self):
        """Packets that the fast card has sent."""
        return int(self.lab.net.run(self.sw.netns, "cat", f"/sys/class/net/{REPRESENTOR}/statistics/rx_packets", quiet=True))

    def wait_fast(self):
        """Waits until the guest sends by its fast card."""
        before = self.fast_packets()
        wait_for("the guest to use its fast card", lambda: self.fast_packets() > before + 20, 60, 0.1)

    def migrate(self, *words):
        """Runs `heddle migrate`; returns its output."""
        done = subprocess.run([heddle_path(), "migrate", words[0], "--target", self.sw.ctl, *words[1:]], capture_output=True, text=True,
                              timeout=60, check=False)
        self.lab.trace.note(f"heddle migrate {words}: {done.returncode}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr


def _at(event):
    """Time of an event of QEMU, by the clock of this program."""
    stamp = event["timestamp"]
    return stamp["seconds"] + stamp["microseconds"] / 1e6 + time.monotonic() - time.time()


class Migration:
    """QEMU's live migration. With `paused`, QEMU waits at the pause until that function has returned."""

    def __init__(self, source, target, paused=None):
        self.began = time.monotonic()
        # From now on QEMU's events are received.
        target.control("query-status")
        if paused:
            source.control("migrate-set-capabilities", capabilities=[{"capability": "pause-before-switchover", "state": True}])
        source.control("migrate-set-parameters", **{"max-bandwidth": 1 << 33, "downtime-limit": 300})
        # QEMU would announce the guest by the card, too. It cannot do so by a VF.
        target.control("migrate-set-parameters", **{"announce-rounds": 0})
        source.control("migrate", uri=target.incoming)
        # Times at which the card was gone, and at which the pause was noticed; seconds of `paused`.
        self.unplugged = self.stopped = None
        self.paused_s = 0.0
        end = time.monotonic() + 90
        while True:
            state = source.control("query-migrate")
            now = time.monotonic()
            if state["status"] not in ("none", "setup", "wait-unplug"):
                self.unplugged = self.unplugged or now
            if state["status"] == "pre-switchover" and not self.stopped:
                self.stopped = now
                paused()
                source.control("migrate-continue", state="pre-switchover")
                self.paused_s = time.monotonic() - now
            elif state["status"] == "completed":
                target.control("announce-self", initial=50, max=550, rounds=5, step=100, interfaces=["virtio0"])
                self.completed = time.monotonic()
                self.stopped = self.stopped or self.unplugged
                self.downtime_s = state["downtime"] / 1000
                for guest in (source, target):
                    guest.control("query-status")
                self.events = sorted((_at(event), side, event["event"]) for side, guest in (("source", source), ("target", target))
                                     for event in guest.qmp.events if event["event"] not in ("MIGRATION", "NIC_RX_FILTER_CHANGED"))
                return
            assert state["status"] not in ("failed", "cancelled") and now < end, f"migration {state}"
            time.sleep(0.01)


def there(lab, model="e1000e", vhost_user=True, binary=None):
    """Moves the guest from the first node to the second. Returns the flows, the migration and the outcome."""
    if reason := obtain(fetch=os.environ.get("LAB_FETCH") != "0"):
        raise Skip(reason)
    lan = lab.net.namespace("lan")
    lab.net.ip(lan, "link", "add", "lan", "type", "bridge")
    lab.net.address(lan, "lan", f"{SERVER}/24")
    lab.net.run(lan, "ethtool", "-K", "lan", "tx", "off", check=False)
    nodes = [Node(lab, lan, index, vhost_user, binary) for index in range(2)]
    # The bridge has its address now, which its first port gives it.
    lab.net.ip(lan, "neigh", "add", SEEN, "lladdr", MAC, "dev", "lan", "nud", "permanent")
    tracked = not nodes[0].sw.is_reference
    if tracked and not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    guest = nodes[0].guest(model).start(timeout=120)
    guest.run("for module in /modules/nic/*.ko; do insmod $module; done")
    guest.address(f"{GUEST}/24")
    mac = lab.net.run(lan, "cat", "/sys/class/net/lan/address").strip()
    guest.run(f"ip neigh add {SERVER} lladdr {mac} dev eth0 nud permanent")
    target = nodes[1].guest(model, incoming=f"unix:{nodes[0].sw.dir}/migration").launch()
    target.wait_ready()
    echoes = Echoes(lab.net, lan, "lan", SERVER, SEEN)
    for node in nodes:
        for device, name in node.watched().items():
            echoes.watch(lab.net, node.sw.netns, device, GUEST, MAC, name)
    try:
        echoes.start(guest, STREAMS)
    finally:
        # For the trace of a failure.
        guest.run("ip -s link; dmesg | tail -20", check=False)
        nodes[0].sw.appctl("dpctl/dump-conntrack", check=False)
        nodes[0].sw.ofctl("dump-flows", "br0", check=False)
    nodes[0].wait_fast()
    guest.run("ip -br link; dmesg | grep -iE 'failover|e1000|igb|pcie' | tail -20", check=False)
    quiet = time.monotonic()
    time.sleep(5)
    file = f"{nodes[0].sw.dir}/moved"

    def final():
        nodes[0].migrate("export", "--file", file, PORT)
        nodes[1].migrate("import", "--file", file, PORT)
    if tracked:
        nodes[1].migrate("prepare", PORT)
        nodes[0].migrate("export", "--live", "--file", f"{file}.early", PORT)
        nodes[1].migrate("import", "--file", f"{file}.early", PORT)
    moved = Migration(guest, target, final if tracked else None)
    target.ident = guest.ident
    guest.kill()
    nodes[1].wait_fast()
    time.sleep(5)
    ended = time.monotonic()
    if tracked:
        for node in nodes:
            node.migrate("finish", PORT)
    streams, whole = echoes.finish(20 if tracked else 5)
    target.run("ip -br link; tail -n 3 /tmp/ping.log; grep -c DUP /tmp/ping.log", check=False)
    phases = {"before": (quiet, moved.began), "card to virtio": (moved.began, moved.stopped),
              "node to node": (moved.stopped, moved.completed + 1), "virtio to card": (moved.completed + 1, ended)}
    name = "Heddle" if tracked else "Open vSwitch"
    print(f"     {lab.name} ({name}): QEMU's downtime {1000 * moved.downtime_s:.0f} ms, of which export and import "
          f"{1000 * moved.paused_s:.0f} ms; TCP: {whole} of {streams} streams live; UDP: {echoes.strangers} datagrams of another connection")
    for flow in (echoes.pings, echoes.datagrams, next(iter(echoes.streams.values()))):
        flow.sent = max([flow.sent, *(number for _, number in flow.arrivals if flow is echoes.pings)])
        lost, twice = flow.lost()
        shown = ", ".join(f"{phase} {1000 * flow.silence_s(*times):.0f}" for phase, times in phases.items())
        print(f"       {flow.name}: {lost} of {flow.sent} lost, {twice} twice; longest silence, ms: {shown}", flush=True)
    shares = Shares(echoes, [f"virtio {node.index}" for node in nodes] if vhost_user else [])
    for phase, times in phases.items():
        print(f"       {phase}, {1000 * (times[1] - times[0]):.0f} ms: {shares.phase(*times)}", flush=True)
    for change in shares.changes:
        print(f"       {change.text(moved.began)}", flush=True)
    told = [(at, f"{side}: {event}") for at, side, event in moved.events] + driver(target)
    print("       " + "; ".join(f"{1000 * (at - moved.began):.0f} ms {text}" for at, text in sorted(told)), flush=True)
    duplicates = int(target.run("grep -c DUP /tmp/ping.log", check=False).strip() or 0)
    return echoes, moved, shares, (streams, whole, duplicates)


def driver(guest):
    """Messages of the guest's driver about its devices, each with its time by the clock of this program."""
    before = time.monotonic()
    up, *lines = guest.run("cut -d ' ' -f 1 /proc/uptime; dmesg | grep -E 'failover|Link is' | tail -8", check=False).splitlines()
    offset = (before + time.monotonic()) / 2 - float(up)
    found = [re.match(r"\[ *([\d.]+)\] (.*)", line) for line in lines]
    return [(float(match[1]) + offset, f"guest: {match[2]}") for match in found if match]


def judge(echoes, moved, shares, outcome):
    """All connections live, no packet came twice, and the switches added no silence that is longer than allowed.

    The guest's own silence does not count: it is emulated. Also, its driver drops packets by the standby until the
    fast card has a link."""
    streams, whole, duplicates = outcome
    assert streams == whole == STREAMS, outcome
    assert echoes.strangers == 0 and duplicates == 0
    assert all(flow.lost()[1] == 0 for flow in (echoes.pings, echoes.datagrams))
    assert len({f.number for f in shares.delivered}) == len(shares.delivered), "a datagram came twice"
    # At least from the card, to the other node, and to its card.
    assert len(shares.changes) >= 3, shares.changes
    assert moved.paused_s + shares.worst_s() <= MAX_SILENCE_S, (moved.paused_s, shares.worst_s())
    for lost, longest in shares.ways(shares.frames[0].at, float("inf")):
        assert lost == 0 and longest <= MAX_SILENCE_S, (lost, longest)


@limit(400)
def scenario_standby_is_vhost_user(lab):
    judge(*there(lab))


@limit(400)
def scenario_standby_is_a_tap(lab):
    judge(*there(lab, vhost_user=False))


@limit(400)
def scenario_beside_open_vswitch(lab):
    """The connections end, since Open vSwitch at the other node does not know them."""
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("Open vSwitch is not installed")
    _, _, _, (streams, whole, _) = there(lab, vhost_user=False, binary=REFERENCE)
    assert streams == STREAMS and whole == 0, (streams, whole)


if __name__ == "__main__":
    main()
