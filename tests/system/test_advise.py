#!/usr/bin/env python3
"""`heddle advise --live`: faults are planted in a running switch one by one, and each is found, with its evidence."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.vhost import heddle_path


def look(lab, sw, seconds=0.3):
    """Findings by rule."""
    text = lab.trace.run(heddle_path(), "advise", "--live", "--json", "--seconds", str(seconds), "--rundir", sw.dir, quiet=True, check=False)
    found = {}
    for line in text.splitlines():
        finding = json.loads(line)
        assert all(finding[key] for key in ("rule", "evidence", "mend", "source")), finding
        found.setdefault(finding["rule"], finding)
    return found


def setup(lab):
    """A switch, a pod with an internal port, one with a veth."""
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("made for Heddle")
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    b = lab.veth_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    return sw, a, b


def planted(lab, sw, rule, words, plant, mend, seconds=0.3, gone=True):
    """No advice before, the right one after, and none again once the fault is mended."""
    if gone:
        before = look(lab, sw)
        assert rule not in before, before[rule]
    plant()
    found = {}

    def is_found():
        found.clear()
        found.update(look(lab, sw, seconds))
        return rule in found

    wait_for(f"the finding: {rule}", is_found, 40, 0.05)
    lab.trace.note(json.dumps(found[rule]))
    assert all(word in found[rule]["evidence"] + found[rule]["mend"] for word in words), found[rule]
    mend()
    if gone:
        wait_for(f"no finding: {rule}", lambda: rule not in look(lab, sw), 40, 0.05)


@limit(400)
def scenario_faults_of_settings(lab):
    sw, a, b = setup(lab)
    v = sw.vsctl
    planted(lab, sw, "interface error", ("nosuch",), lambda: v("--no-wait", "add-port", "br0", "nosuch"), lambda: v("del-port", "nosuch"))
    planted(lab, sw, "controller unreachable", ("tcp:127.0.0.1:1", "br0"), lambda: v("set-controller", "br0", "tcp:127.0.0.1:1"),
            lambda: v("del-controller", "br0"))
    planted(lab, sw, "MTU mismatch", ("9000", "1500", b), lambda: lab.net.ip(b, "link", "set", "eth0", "mtu", "9000"),
            lambda: lab.net.ip(b, "link", "set", "eth0", "mtu", "1500"))
    planted(lab, sw, "offload off", ("tso", f"nsenter --net=/run/netns/{b}", "ethtool -K eth0"),
            lambda: lab.net.run(b, "ethtool", "-K", "eth0", "tso", "off"), lambda: lab.net.run(b, "ethtool", "-K", "eth0", "tso", "on"))
    planted(lab, sw, "queue without its core", ("vb", "core 5"), lambda: v("set", "interface", "vb", "other_config:pmd-rxq-affinity=0:5"),
            lambda: v("remove", "interface", "vb", "other_config", "pmd-rxq-affinity"))

    def track():
        sw.ofctl("add-flow", "br0", "table=0,priority=5,ip,actions=ct(table=1)")
        sw.ofctl("add-flow", "br0", "table=1,actions=NORMAL")

    planted(lab, sw, "ct that no rule needs", ("br0", "ct(table=1)"), track,
            lambda: sw.ofctl("add-flow", "br0", "table=1,priority=9,ct_state=+inv+trk,ip,actions=drop"))
    sw.ofctl("del-flows", "br0", "ip")
    sw.ofctl("del-flows", "br0", "table=1")

    def addresses():
        v("set", "bridge", "br0", "other_config:mac-table-size=10")
        with lab.net.raw(b, "eth0") as sock:
            for i in range(14):
                sock.send(bytes.fromhex(f"ffffffffffff0200000000{i:02x}0806") + bytes(46))

    planted(lab, sw, "MAC table full", ("br0", "10"), addresses, lambda: v("remove", "bridge", "br0", "other_config", "mac-table-size"))

    enough = threading.Event()

    def send():
        sock = lab.net.socket(a, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        while not enough.is_set():
            for port in range(1000, 4000):
                sock.sendto(b"x", ("10.1.0.2", port))
        sock.close()

    sender = threading.Thread(target=send)

    def many():
        # A flow for each pair of ports.
        sw.ofctl("add-flow", "br0", "udp,actions=multipath(symmetric_l3l4+udp,0,modulo_n,1,0,NXM_NX_REG0[]),NORMAL")
        sw.appctl("upcall/set-flow-limit", "1000")
        sender.start()

    def fewer():
        enough.set()
        sender.join(30)
        sw.appctl("upcall/set-flow-limit", "200000")

    lab.cleanups.append(enough.set)
    planted(lab, sw, "flow limit reached", ("1000", "flow-limit"), many, fewer)


@limit(400)
def scenario_faults_under_load(lab):
    sw, a, b = setup(lab)
    # Four pods, so that a second worker could have something to do, and all of them on the first.
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x3", "--", "set", "interface", "a0",
             "other_config:pmd-rxq-affinity=0:0", "--", "set", "interface", "vb", "other_config:pmd-rxq-affinity=0:0")
    quiet = look(lab, sw)
    for rule in ("worker full", "queues on one worker", "RFS off"):
        assert rule not in quiet, quiet[rule]
    where = tempfile.TemporaryDirectory(prefix="heddle-advise-")
    lab.cleanups.append(where.cleanup)
    running = []

    def start(client, server):
        """Datagrams from b to a, each end on one processor, whatever ran before ended."""
        end()
        running.append(subprocess.Popen(
            [heddle_path(), "measure", "--between", f"{b},{a}", "--pattern", "write", "--transport", "udp", "--stream-sizes", "200",
             "--connections", "2", "--client-processors", client, "--server-processors", server, "--seconds", "300", "--out",
             f"{where.name}/r{client}.jsonl"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(0.5)

    def end():
        for proc in running:
            proc.kill()
            proc.wait()
        running.clear()

    lab.cleanups.append(end)
    nothing = lambda: None  # noqa: E731
    # Each datagram costs eight writes to the tap: the worker is full however fast it is.
    port = {name: sw.get("interface", name, "ofport") for name in ("a0", "vb")}
    sw.ofctl("add-flow", "br0", f"priority=9,in_port={port['vb']},udp,actions=" + ",".join([f"output:{port['a0']}"] * 8))
    planted(lab, sw, "worker full", ("core 0",), lambda: start("1", "1"), nothing, 1, gone=False)
    planted(lab, sw, "queues on one worker", ("core 0", "core 1", "pmd-rxq-affinity"), nothing, nothing, 1, gone=False)
    # The server is kept on processor 1, and its data is received where the worker and the sender are, on 0.
    planted(lab, sw, "RFS off", ("processor 1", "rps_sock_flow_entries"), lambda: start("0", "1"), nothing, 1, gone=False)

    def crowd():
        for _ in range(2):
            running.append(subprocess.Popen(["taskset", "-c", "0", sys.executable, "-c", "while True: pass"]))

    # With its priority, the worker does not wait for them.
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:heddle-priority=false")
    planted(lab, sw, "over-commitment", ("core 0",), crowd, nothing, 1, gone=False)


@limit(300)
def scenario_settings_without_effect(lab):
    """Each setting without effect is one line in the log, once, and a finding with exit status 1."""
    sw, _, b = setup(lab)
    v = sw.vsctl
    v("set-controller", "br0", "ptcp:16653:127.0.0.1", "--", "set", "controller", "br0", "connection_mode=in-band")
    settings = {
        "bridge br0: stp_enable": ("set", "bridge", "br0", "stp_enable=true"),
        "bridge br0: rstp_enable": ("set", "bridge", "br0", "rstp_enable=true"),
        "bridge br0: sflow": ("--", "--id=@s", "create", "sflow", 'targets="127.0.0.1:6343"', "--", "set", "bridge", "br0", "sflow=@s"),
        "bridge br0: netflow": ("--", "--id=@n", "create", "netflow", 'targets="127.0.0.1:2055"', "--", "set", "bridge", "br0", "netflow=@n"),
        "bridge br0: auto_attach": ("--", "--id=@a", "create", "AutoAttach", "system_name=x", "--", "set", "bridge", "br0", "auto_attach=@a"),
        "interface vb: cfm_mpid": ("set", "interface", "vb", "cfm_mpid=1"),
        "interface vb: options:n_rxq_desc": ("set", "interface", "vb", "options:n_rxq_desc=512"),
        "Open_vSwitch: other_config:smc-enable": ("set", "Open_vSwitch", ".", "other_config:smc-enable=true"),
        "Open_vSwitch: other_config:dpdk-extra": ("set", "Open_vSwitch", ".", "other_config:dpdk-extra=--no-pci"),
        "controller ptcp:16653:127.0.0.1: connection_mode": ("set", "controller", "br0", "controller_rate_limit=100"),
    }
    for change in settings.values():
        v(*change)
    for words in settings:
        assert sw.log().count(f"{words} is not supported yet and changes nothing: ") == 1, words
    argv = (heddle_path(), "advise", "--live", "--json", "--seconds", "0.3", "--rundir", sw.dir)
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    for words in [*settings, "controller ptcp:16653:127.0.0.1: controller_rate_limit"]:
        assert any(f["rule"] == "setting without effect" and words in f["evidence"] for f in found), (words, found)
    assert run.returncode == 1, run
    # Settings that request nothing are not reported.
    v("set", "bridge", "br0", "stp_enable=false", "--", "set", "Open_vSwitch", ".", "other_config:smc-enable=false")
    text = sw.appctl("heddle/without-effect")
    assert not any(word in text for word in ('"stp_enable"', "smc-enable")), text
    # An internal port of an earlier switch, dead in a pod, beside the one of this switch.
    v("add-port", "br0", "old", "--", "set", "interface", "old", "type=internal")
    planted(lab, sw, "device of an earlier switch", ("old", f"/run/netns/{b}"), lambda: lab.net.run(b, "ip", "tuntap", "add", "old", "mode", "tap"),
            lambda: lab.net.ip(b, "link", "del", "old"))
    # A switch that is started beside such a device logs it.
    lab.net.run(b, "ip", "tuntap", "add", "old", "mode", "tap")
    sw.stop_daemon()
    sw.start_daemon()
    wait_for("a line of the log", lambda: "interface old: an earlier switch left a device of this name" in sw.log())
    # A switch that waits for its flows, and drops everything meanwhile.
    v("set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true")
    sw.stop_daemon(9)
    sw.start_daemon()
    planted(lab, sw, "flows are restored", ("flow-restore-wait",), lambda: None,
            lambda: v("remove", "Open_vSwitch", ".", "other_config", "flow-restore-wait"), gone=False)


def scenario_words(lab):
    """Without measurements there is no advice; mistakes get an error of one line."""
    sw, _, _ = setup(lab)
    run = subprocess.run([heddle_path(), "advise", "--live", "--rundir", sw.dir, "--seconds", "0.3"], capture_output=True, text=True, timeout=60)
    assert ("rule from:" in run.stdout, run.returncode) == (True, 1) or ("Nothing is wrong" in run.stdout, run.returncode) == (True, 0), run
    text = lab.trace.run(heddle_path(), "advise", "--pattern", "rr", "--connections", "50", "--sizes", "200x1000", "--policy")
    assert "nothing is advised" in text and "heddle measure --between new --attachments veth" in text, text
    assert "macvlan" not in text, text
    for args, want in ((("--live", "--rundir", "/nowhere"), "no switch runs in /nowhere"), (("--pattern", "x"), "patterns are"),
                       (("--results", "/nowhere"), "No such file"), (("--sizes", "0x1"), "a message has 1 to"),
                       (("--metric", "beauty"), "speed, p50, p99 or efficiency")):
        run = subprocess.run([heddle_path(), "advise", *args], capture_output=True, text=True, timeout=30)
        assert run.returncode != 0 and want in run.stderr and not run.stdout, run


if __name__ == "__main__":
    main()
