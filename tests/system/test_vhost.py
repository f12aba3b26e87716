#!/usr/bin/env python3
"""vhost-user ports: guests (pretended ones, whose cards are tap devices), their columns in the database,
restarts, hostile front ends."""

import os
import re
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.frontend import GUEST, Front
from lab.runner import Skip, main
from lab.shell import PATIENCE, wait_for
from lab.vhost import Guest, Transfer, heddle_path, transfer


def switch(lab, *args):
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    sw = lab.switch(*args)
    if sw.is_reference:
        raise Skip("the reference has no DPDK")
    lab.bridge(sw)
    return sw


def client_port(lab, sw, name, address, args=(), add=True):
    """A guest that listens, and the port that connects to it."""
    path = f"{sw.dir}/{name}.sock"
    guest = Guest(lab, name, path, address, args=args)
    if add:
        add_client(sw, name, path)
        guest.connected()
    return guest


def add_client(sw, name, path, *settings):
    sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dpdkvhostuserclient",
             f"options:vhost-server-path={path}", *settings)


def status(sw, name, column="status"):
    text = sw.get("interface", name, column).strip("{}")
    return {k: v.strip('"') for k, v in re.findall(r'([\w-]+)=("[^"]*"|[^,]*)', text)}


def counters(sw, name):
    """The current counters: a new interval begins at once, and writes them."""
    sw.interval = getattr(sw, "interval", 5000) + 1
    sw.vsctl("set", "open_vswitch", ".", f"other_config:stats-update-interval={sw.interval}")
    time.sleep(0.1)
    return {key: int(value) for key, value in status(sw, name, "statistics").items()}


def wait_status(sw, name, key, want, timeout=PATIENCE):
    ok = want if callable(want) else lambda value: value == want
    return wait_for(f"{name}: status:{key} is {want}", lambda: ok(status(sw, name).get(key)) or None, timeout, 0.1)


def scenario_both_modes_and_what_the_database_says(lab):
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    sw.vsctl("add-port", "br0", "vm2", "--", "set", "interface", "vm2", "type=dpdkvhostuser")
    b = Guest(lab, "vm2", f"{sw.dir}/vm2", "10.1.0.2/24", listen=False).connected()
    lab.net.ping(a.ns, "10.1.0.2", count=5)
    transfer(lab, a.ns, b.ns, "10.1.0.2")
    for name, mode, path in (("vm1", "client", a.path), ("vm2", "server", b.path)):
        wait_status(sw, name, "status", "connected")
        wait_status(sw, name, "num_of_vrings", "2")
        got = status(sw, name)
        assert (got["mode"], got["socket"]) == (mode, path), got
        assert got["vring_0_size"] == got["vring_1_size"] == "256", got
        assert re.fullmatch("0x[0-9a-f]{16}", got["features"]), got
        assert got["numa"] == "0", got
        sw.wait_column("interface", name, "link_state", "up")
        assert sw.get("interface", name, "admin_state") == "up"
        assert sw.get("interface", name, "error") == "[]"
        assert sw.get("interface", name, "mtu") == "1500"
        assert len(sw.get("interface", name, "mac_in_use")) == 17
        assert 0 < int(sw.get("interface", name, "ifindex")) < 1 << 24
    types = sw.get("open_vswitch", ".", "iface_types")
    assert "dpdkvhostuser," in types and "dpdkvhostuserclient" in types, types
    queues = sw.appctl("dpif-netdev/pmd-rxq-show")
    for name in ("vm1", "vm2"):
        assert re.search(rf"  port: {name} +queue-id:  0 \(enabled\)   pmd usage: ", queues), queues
    assert sw.get("open_vswitch", ".", "dpdk_initialized") == "false"
    sw.vsctl("set", "open_vswitch", ".", "other_config:dpdk-init=true", "other_config:dpdk-socket-mem=1024")
    sw.wait_column("open_vswitch", ".", "dpdk_initialized", "true")
    wait_for("counters", lambda: counters(sw, "vm2").get("tx_q0_good_packets", 0) > 100)
    got = counters(sw, "vm2")
    for key in ("rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "tx_dropped", "ovs_tx_retries", "ovs_tx_failure_drops",
                "ovs_tx_mtu_exceeded_drops", "ovs_rx_qos_drops", "ovs_tx_invalid_hwol_drops", "rx_q0_good_packets",
                "rx_q0_guest_notifications"):
        assert key in got, (key, got)
    # The guest dies like a killed hypervisor, and comes back.
    a.stop()
    wait_status(sw, "vm1", "status", "disconnected")
    sw.wait_column("interface", "vm1", "link_state", "down")
    assert "closed" in status(sw, "vm1")["disconnect_reason"]
    a.start()
    wait_status(sw, "vm1", "status", "connected")
    lab.net.ping(b.ns, "10.1.0.1")
    sw.wait_column("interface", "vm1", "link_resets", lambda text: int(text) >= 3)


def scenario_offloads_between_guests_taps_and_devices(lab):
    """A guest that lacks an offload gets finished packets: it checks that it gets no offload that it has not
    negotiated."""
    sw = switch(lab)
    kinds = {
        "all": client_port(lab, sw, "all", "10.1.0.1/24").ns,
        "notso": client_port(lab, sw, "notso", "10.1.0.2/24", ["--tso", "off", "--mergeable", "off"]).ns,
        "none": client_port(lab, sw, "none", "10.1.0.3/24", ["--csum", "off", "--packed"]).ns,
        "big": client_port(lab, sw, "big", "10.1.0.4/24", ["--mergeable", "off", "--event-idx", "off"]).ns,
        "tap": lab.internal_pod(sw, "tap", "10.1.0.5/24"),
        "veth": lab.veth_pod(sw, "veth", "10.1.0.6/24"),
    }
    names = list(kinds)
    for i, source in enumerate(names):
        for target in names:
            if target != source and not {source, target} == {"tap", "veth"}:
                transfer(lab, kinds[source], kinds[target], f"10.1.0.{names.index(target) + 1}", 3)
    finished = {name: (lambda name=name: counters(sw, name).get("tx_software_offloads", 0)) for name in names[:4]}
    wait_for("segmentation in software", lambda: finished["none"]() > 100 and finished["notso"]() > 100)
    assert finished["all"]() == 0 and finished["big"]() == 0


def restart_scenario(lab, args):
    """The daemon is killed while two guests talk, in both directions of connecting: they continue with the
    next one."""
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24", args)
    sw.vsctl("add-port", "br0", "vm2", "--", "set", "interface", "vm2", "type=dpdkvhostuser")
    b = Guest(lab, "vm2", f"{sw.dir}/vm2", "10.1.0.2/24", listen=False, args=args).connected()
    lab.net.ping(a.ns, "10.1.0.2")
    for life in (2, 3):
        # They last until the daemon is killed, and beyond.
        run = Transfer(lab, a.ns, b.ns, "10.1.0.2")
        back = Transfer(lab, b.ns, a.ns, "10.1.0.1")
        time.sleep(0.15)
        sw.stop_daemon(signal.SIGKILL)
        assert os.path.exists(f"{sw.dir}/vm2"), "the stale socket is what this is about"
        sw.start_daemon()
        began = time.monotonic()
        a.connected(life)
        b.connected(life)
        lab.trace.note(f"connected again after {time.monotonic() - began:.2f} s")
        assert run.running() and back.running(), "a connection broke"
        run.finish()
        back.finish()
        lab.net.ping(b.ns, "10.1.0.1")
        assert a.alive() and b.alive(), (a.text(), b.text())


class Trains(Front):
    """A guest that sends GSO packets, of any length."""
    CSUM, TSO4, BUFFER, HEADER = 1, 1 << 11, 0x40000, 12

    def run(self):
        self.connect().negotiate(more=self.CSUM | self.TSO4).memory()
        self.ring(0)
        self.kick, self.sent = self.ring(1), 0
        return self

    def send(self, frame, mss=1400):
        packet = struct.pack("<BBHHHHH", 1, 1, 54, mss, 34, 16, 0) + frame
        self.mem[self.BUFFER:self.BUFFER + len(packet)] = packet
        self.mem[0x10000:0x10010] = struct.pack("<QIHH", GUEST + self.BUFFER, len(packet), 0, 0)
        at = 0x11004 + 2 * (self.sent % 256)
        self.mem[at:at + 2] = bytes(2)
        self.sent += 1
        self.available(1, self.sent)
        os.eventfd_write(self.kick, 1)
        wait_for("the switch to take it", lambda: self.used(1) == self.sent)


def scenario_longest_packets(lab):
    """GSO packets longer than any valid one: the stand-in for a guest drops them and continues."""
    sw = switch(lab)
    a, b = client_port(lab, sw, "a", "10.1.0.1/24"), client_port(lab, sw, "b", "10.1.0.2/24")
    plain = client_port(lab, sw, "c", "10.1.0.3/24", args=("--mergeable", "off"))
    long = Trains(f"{sw.dir}/long.sock")
    add_client(sw, "long", f"{sw.dir}/long.sock")
    long.run()
    sw.wait_column("interface", "long", "link_state", "up")
    for length in (65_535, 65_549, 65_550, 65_551, 65_552, 65_562, 65_563, 65_600, 66_000, 68_000, 100_000):
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, min(length - 14, 65_535), 1, 0, 64, 6, 0, bytes([10, 1, 0, 9]), bytes([10, 1, 0, 2]))
        tcp = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, 0x50, 0x10, 1000, 0, 0)
        head = bytes.fromhex("ffffffffffff0200000000990800") + ip + tcp
        long.send(head + bytes(length - len(head)))
        lab.trace.note(f"{length}: {counters(sw, 'b')}")
    lab.net.ping(a.ns, "10.1.0.2")
    lab.net.ping(a.ns, "10.1.0.3")
    assert a.alive() and b.alive() and plain.alive(), (a.text(), b.text(), plain.text())


def scenario_restart_split(lab):
    restart_scenario(lab, ())


def scenario_restart_packed(lab):
    restart_scenario(lab, ("--packed",))


def scenario_a_live_socket_is_not_stolen(lab):
    sw = switch(lab)
    other = socket.socket(socket.AF_UNIX)
    other.bind(f"{sw.dir}/vm1")
    other.listen(1)
    sw.vsctl("--no-wait", "add-port", "br0", "vm1", "--", "set", "interface", "vm1", "type=dpdkvhostuser")
    sw.wait_column("interface", "vm1", "error", lambda text: "cannot listen" in text)
    other.close()
    # A stale one is replaced.
    sw.wait_column("interface", "vm1", "error", "[]")
    guest = Guest(lab, "vm1", f"{sw.dir}/vm1", "10.1.0.1/24", listen=False).connected()
    # A second front end is refused, the first stays connected.
    second = socket.socket(socket.AF_UNIX)
    second.settimeout(60)
    second.connect(f"{sw.dir}/vm1")
    assert second.recv(1) == b""
    pod = lab.internal_pod(sw, "p", "10.1.0.9/24")
    lab.net.ping(pod, "10.1.0.1")
    # Gone with its port, under traffic.
    run = Transfer(lab, guest.ns, pod, "10.1.0.9")
    time.sleep(0.2)
    sw.vsctl("del-port", "vm1")
    wait_for("the guest noticed", lambda: "disconnected" in guest.text())
    assert not os.path.exists(f"{sw.dir}/vm1")
    run.end()
    assert not os.path.exists(f"{sw.dir}/.vrings/vm1")
    sw.vsctl("add-port", "br0", "vm1", "--", "set", "interface", "vm1", "type=dpdkvhostuser")
    guest.connected(2)
    lab.net.ping(pod, "10.1.0.1")


def scenario_errors_are_told_in_the_database(lab):
    sw = switch(lab)
    long = "/tmp/" + "x" * 110
    sw.vsctl("--no-wait", "add-port", "br0", "c1", "--", "set", "interface", "c1", "type=dpdkvhostuserclient",
             "--", "add-port", "br0", "c2", "--", "set", "interface", "c2", "type=dpdkvhostuserclient",
             f"options:vhost-server-path={long}")
    sw.wait_column("interface", "c1", "error", lambda text: "vhost-server-path" in text)
    sw.wait_column("interface", "c2", "error", lambda text: "107" in text)
    assert sw.get("interface", "c1", "ofport") == "-1"
    # A path without a listener is no error; the port waits.
    sw.vsctl("set", "interface", "c1", f"options:vhost-server-path={sw.dir}/c1.sock")
    sw.wait_column("interface", "c1", "error", "[]")
    wait_status(sw, "c1", "socket_error", lambda text: text and "cannot connect" in text)
    # Another path: the port moves there.
    guest = Guest(lab, "c1", f"{sw.dir}/other.sock", "10.1.0.1/24")
    sw.vsctl("set", "interface", "c1", f"options:vhost-server-path={sw.dir}/other.sock", "options:tx-retries-max=0")
    guest.connected()
    wait_status(sw, "c1", "status", "connected")
    # The directory of listening sockets: below the run directory, there, or an error.
    sw.vsctl("set", "open_vswitch", ".", "other_config:vhost-sock-dir=sub")
    sw.vsctl("--no-wait", "add-port", "br0", "s1", "--", "set", "interface", "s1", "type=dpdkvhostuser")
    sw.wait_column("interface", "s1", "error", lambda text: "sub/s1" in text and "No such file" in text)
    os.mkdir(f"{sw.dir}/sub")
    sw.vsctl("set", "interface", "s1", "external_ids:x=y", "other_config:x=y")
    sw.wait_column("interface", "s1", "error", "[]")
    wait_for("the socket", lambda: os.path.exists(f"{sw.dir}/sub/s1"))
    sw.vsctl("set", "interface", "c1", "mtu_request=9000")
    sw.wait_column("interface", "c1", "mtu", 9000)
    sw.vsctl("set", "interface", "c1", "mtu_request=70000", check=False)
    assert sw.get("interface", "c1", "mtu") == "9000"


def scenario_several_queues(lab):
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24", ["--queues", "4"])
    b = client_port(lab, sw, "vm2", "10.1.0.2/24", ["--queues", "2", "--packed"])
    wait_status(sw, "vm1", "num_of_vrings", "8")
    wait_for("all queues are polled", lambda: sw.appctl("dpif-netdev/pmd-rxq-show").count("port: vm1") == 4)
    wait_for("all queues are polled", lambda: sw.appctl("dpif-netdev/pmd-rxq-show").count("port: vm2") == 2)

    def used():
        """The guest's kernel chooses a queue for each connection, by their ports: six may have the same."""
        for run in [Transfer(lab, a.ns, b.ns, "10.1.0.2", 5) for _ in range(6)]:
            run.finish()
        got = counters(sw, "vm1")
        return sum(got.get(f"rx_q{i}_good_packets", 0) > 0 for i in range(4))
    wait_for("several queues carried packets", lambda: used() >= 2, 120)
    a.stop()
    wait_for("one queue is left", lambda: sw.appctl("dpif-netdev/pmd-rxq-show").count("port: vm1") == 1)


def scenario_flows_spread_over_the_guests_rings(lab):
    """tx-steering=hash: one worker, four receive rings in the guest, all of which carry packets."""
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    b = client_port(lab, sw, "vm2", "10.1.0.2/24", ["--queues", "4"])
    wait_status(sw, "vm2", "num_of_vrings", "8")

    def used():
        for run in [Transfer(lab, a.ns, b.ns, "10.1.0.2", 1) for _ in range(12)]:
            run.finish()
        got = counters(sw, "vm2")
        return [i for i in range(4) if got.get(f"tx_q{i}_good_packets", 0) > 20]
    workers = sw.appctl("dpif-netdev/pmd-rxq-show").count("pmd thread")
    assert len(used()) <= workers, "each worker has its ring"
    sw.vsctl("set", "interface", "vm2", "other_config:tx-steering=hash")
    wait_for("the log says so", lambda: "vm2: Tx packet steering mode has been set to 'hash'." in sw.log())
    # The kernel chooses the clients' ports: twelve connections miss a ring in one run of eight, a hundred in none.
    wait_for("all rings are used", lambda: len(used()) == 4, 150)
    sw.vsctl("remove", "interface", "vm2", "other_config", "tx-steering")
    wait_for("the log says so", lambda: "vm2: Tx packet steering mode has been set to 'thread'." in sw.log())
    lab.net.ping(a.ns, "10.1.0.2")


def scenario_many_ports(lab):
    n = 50
    sw = switch(lab)
    sw.vsctl("del-br", "br0")
    # Pairs of ports, a bridge for each, so that the senders are told apart.
    argv = []
    for i in range(0, n, 2):
        argv += ["--", "add-br", f"b{i}", "--", "set", "bridge", f"b{i}", "datapath_type=netdev"]
        for j in (i, i + 1):
            argv += ["--", "add-port", f"b{i}", f"v{j}", "--", "set", "interface", f"v{j}", "type=dpdkvhostuserclient",
                     f"options:vhost-server-path={sw.dir}/v{j}.sock"]
    sw.vsctl(*argv[1:])
    ports = [arg for i in range(n) for arg in ("--port", f"listen:{sw.dir}/v{i}.sock")]
    out = lab.trace.run(heddle_path(), "bench", "vhost", *ports, "--size", "128", "--seconds", "1", "--rate", "20000",
                        "--check", "content", "--huge", "no", "--both", timeout=150)
    assert out, "no result"
    lab.trace.note(out)
    wait_for("all are gone", lambda: all(
        status(sw, f"v{i}").get("status") == "disconnected" for i in (0, n - 1)))
    sw.vsctl(*[arg for i in range(0, n, 2) for arg in ("--", "del-br", f"b{i}")][1:], timeout=60)


class Hostile(Front):
    """A front end with false ring contents."""

    def run(self):
        return self.connect().negotiate().memory().rings()

    def lie(self, index, kick):
        """The available index of ring 1 (from the guest) jumps."""
        self.available(1, index)
        os.eventfd_write(kick, 1)


def scenario_a_hostile_ring_disturbs_nobody(lab):
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    b = client_port(lab, sw, "vm2", "10.1.0.2/24")
    bad = Hostile(f"{sw.dir}/bad.sock")
    add_client(sw, "bad", f"{sw.dir}/bad.sock")
    kick = bad.run()
    sw.wait_column("interface", "bad", "link_state", "up")
    run = Transfer(lab, a.ns, b.ns, "10.1.0.2", 100)
    bad.lie(5000, kick)
    wait_status(sw, "bad", "vring_1_error", lambda text: text and "5000" in text)
    run.finish()
    lab.net.ping(a.ns, "10.1.0.2")
    wait_for("it is counted", lambda: counters(sw, "bad").get("rings_broken") == 1)
    lines = [line for line in sw.log().splitlines() if re.search(r"\b5000\b", line)]
    assert len(lines) == 1 and "|WARN|" in lines[0], lines
    # The guest is reset: the next session begins anew.
    bad.close()
    wait_status(sw, "bad", "status", "disconnected")
    bad.run()
    sw.wait_column("interface", "bad", "link_state", "up")
    assert "vring_1_error" not in status(sw, "bad")


def scenario_workers_on_the_memorys_node(lab):
    sw = switch(lab, "--dummy-numa=0,0,1,1")
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-cpu-mask=0xc")
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    client_port(lab, sw, "vm2", "10.1.0.2/24")
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-cpu-mask=0x5")

    def place():
        """Port to node."""
        found, node = {}, None
        for line in sw.appctl("dpif-netdev/pmd-rxq-show").splitlines():
            head = re.match(r"pmd thread numa_id (\d+) core_id (\d+):", line)
            node = head[1] if head else node
            port = re.match(r"  port: (\w+)", line)
            if port:
                found[port[1]] = node
        return found
    wait_for("memory is on node 0", lambda: place().get("vm1") == "0" and place().get("vm2") == "0")
    # Pretends that the guest has come up on the other node.
    sw.vsctl("set", "interface", "vm1", "options:numa_id=1")
    wait_for("the queue moved", lambda: place().get("vm1") == "1" and place().get("vm2") == "0")
    wait_status(sw, "vm1", "numa", "1")
    lab.net.ping(a.ns, "10.1.0.2")


PERF = re.compile(r"""
Time: \d\d:\d\d:\d\d\.\d{3}
Measurement duration: [\d.]+ s

pmd thread numa_id \d+ core_id \d+:

  Iterations: {8,}\d+  \([\d.]+ us/it\)
  - Used TSC cycles: +\d+  \( *[\d.]+ % of total cycles\)
  - idle iterations: +\d+  \( *[\d.]+ % of used cycles\)
  - busy iterations: +\d+  \( *[\d.]+ % of used cycles\)
  - sleep iterations: +\d+  \( *[\d.]+ % of iterations\)
  Sleep time \(us\): +\d+  \( *\d+ us/iteration avg\.\)
  Rx packets: +(?P<packets>\d+)  \(\d+ Kpps, (?P<cycles>\d+) cycles/pkt\)
  Datapath passes: +\d+  \([\d.]+ passes/pkt\)
  - PHWOL hits: +\d+  \( *[\d.]+ %\)
  - MFEX Opt hits: +\d+  \( *[\d.]+ %\)
  - Simple Match hits: *\d+  \( *[\d.]+ %\)
  - EMC hits: +\d+  \( *[\d.]+ %\)
  - SMC hits: +\d+  \( *[\d.]+ %\)
  - Megaflow hits: +\d+  \( *[\d.]+ %, [\d.]+ subtbl lookups/hit\)
  - Upcalls: +\d+  \( *[\d.]+ %, [\d.]+ us/upcall\)
  - Lost upcalls: +\d+  \( *[\d.]+ %\)
  Tx packets: +\d+  \(\d+ Kpps\)
  Tx batches: +\d+  \([\d.]+ pkts/batch\)
""")


def scenario_performance_in_the_layout_of_open_vswitch(lab):
    sw = switch(lab)
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-cpu-mask=0x2")
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    b = client_port(lab, sw, "vm2", "10.1.0.2/24")
    lab.net.ping(a.ns, "10.1.0.2")
    sw.appctl("dpif-netdev/pmd-stats-clear")
    transfer(lab, a.ns, b.ns, "10.1.0.2", 5)
    text = sw.appctl("dpif-netdev/pmd-perf-show", "-nh", "-pmd", "1")
    match = PERF.fullmatch(text)
    assert match, text
    assert int(match["packets"]) > 100 and int(match["cycles"]) > 0, text
    assert sw.appctl("dpif-netdev/pmd-perf-show", "-nh", "-it", "5", "-ms", "5", "-pmd", "0") == ""
    sw.vsctl("set", "open_vswitch", ".", "other_config:pmd-perf-metrics=true")
    wait_for("the log says so", lambda: "PMD performance metrics collection enabled" in sw.log())
    transfer(lab, a.ns, b.ns, "10.1.0.2", 5)
    text = sw.appctl("dpif-netdev/pmd-perf-show", "-pmd", "1")
    assert "Cycles per packet by stage" in text
    lines = text[text.index("\nHistograms\n") + 1:].splitlines()
    assert lines[1].split()[0] == "cycles/it" and lines[33].startswith("   >  "), lines
    assert lines[34].startswith("-----") and float(lines[36].split()[1]) > 0, lines
    # The worker keeps running while its bins are read.
    for column in (1, 3):
        assert sum(int(line.split()[column]) for line in lines[2:34]) > 10, lines
    show = sw.appctl("dpif-netdev/pmd-stats-show", "-pmd", "1")
    assert re.search(r"avg processing cycles per packet: [\d.]+ \(\d+/\d+\)", show), show

    def cleared():
        """The guests' kernels may send packets in between."""
        sw.appctl("dpif-netdev/pmd-stats-clear", "-pmd", "1")
        return "packets received: 0\n" in sw.appctl("dpif-netdev/pmd-stats-show", "-pmd", "1")
    wait_for("counters of nothing", cleared)
    sw.appctl("dpif-netdev/pmd-perf-log-set", "on", "-b", "5", "-us", "100")


if __name__ == "__main__":
    main()
