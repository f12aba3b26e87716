#!/usr/bin/env python3
"""Only the switch gets packets that a `system` port receives, and never the host's own stack."""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.runner import Skip, main
from lab.shell import wait_for

HOST, POD = "10.90.0.1", "10.90.0.2"
# The filter's place among the classifiers of a device.
PRIORITY = "18501"


def port_of_a_pod(lab, *config, **kw):
    """q0 is a port of brq with the bridge's address; its peer q1 is in a pod with a fixed neighbour entry."""
    sw = lab.switch(**kw)
    if config:
        sw.vsctl("set", "open_vswitch", ".", *config)
        sw.stop_daemon()
        sw.start_daemon()
    ns = lab.net.namespace("q")
    lab.net.veth(sw.netns, "q0", ns, "q1")
    mac = lab.net.run(sw.netns, "cat", "/sys/class/net/q0/address").strip()
    lab.bridge(sw, "brq", f"other_config:hwaddr={mac}", "fail_mode=secure")
    sw.vsctl("add-port", "brq", "q0")
    sw.wait_column("interface", "q0", "ofport", lambda text: text.isdigit())
    lab.net.address(sw.netns, "brq", f"{HOST}/24")
    lab.net.address(ns, "q1", f"{POD}/24")
    pod = lab.net.run(ns, "cat", "/sys/class/net/q1/address").strip()
    lab.net.ip(sw.netns, "neigh", "replace", POD, "lladdr", pod, "dev", "brq")
    lab.net.ip(ns, "neigh", "replace", HOST, "lladdr", mac, "dev", "q1")
    return sw, ns, mac


def forbid(sw):
    """The switch itself drops all packets from q0."""
    sw.ofctl("del-flows", "brq")
    sw.ofctl("add-flow", "brq", "in_port=LOCAL,actions=q0")
    sw.ofctl("add-flow", "brq", "in_port=q0,actions=drop")


def hears(lab, sw, ns):
    """The services of the host that reply to the pod."""
    heard = []
    out = lab.net.run(ns, "ping", "-n", "-c", "3", "-i", "0.1", "-W", "1", HOST, check=False)
    if " 0 received" not in out:
        heard.append("ping")
    out = lab.net.run(ns, "python3", "-c", f"""
import socket
try:
    socket.create_connection(("{HOST}", 9), timeout=1)
except ConnectionRefusedError:
    print("refused")
except OSError:
    print("silent")
""")
    if "silent" not in out:
        heard.append("tcp")
    raw = lab.net.raw(ns, "q1")
    raw.send(arp_request(lab.net.run(ns, "cat", "/sys/class/net/q1/address").strip()))
    if receive(raw, lambda got: got[12:14] == b"\x08\x06" and got[20:22] == b"\0\2", 1):
        heard.append("arp")
    return heard


def arp_request(ns_mac):
    return frames.ethernet("ff:ff:ff:ff:ff:ff", ns_mac, 0x0806, frames.arp(1, ns_mac, POD, "00:00:00:00:00:00", HOST))


def filters(lab, sw, dev="q0"):
    return lab.net.run(sw.netns, "tc", "filter", "show", "dev", dev, "ingress").count("handle")


def scenario_rules_alone_decide(lab):
    """With a rule that drops, ARP, ping and TCP get no reply; without it the bridge's port replies to all."""
    sw, ns, _ = port_of_a_pod(lab)
    sw.ofctl("add-flow", "brq", "actions=NORMAL")
    assert sorted(hears(lab, sw, ns)) == ["arp", "ping", "tcp"]
    forbid(sw)
    assert hears(lab, sw, ns) == []
    assert "heddle_host_stack" not in sw.get("interface", "q0", "status")
    # Another program removes the filter: the switch installs it again at once, with a line in the log.
    again = "the filter that keeps packets from the host's stack was gone"
    for n, what in enumerate((("filter", "del", "dev", "q0", "ingress", "pref", PRIORITY),
                              ("qdisc", "del", "dev", "q0", "clsact")), 1):
        lab.net.run(sw.netns, "tc", *what)
        wait_for("the filter to be there again", lambda: filters(lab, sw) == 1, 0.5)
        wait_for("a line in the log", lambda: sw.log().count(again) == n)
        assert hears(lab, sw, ns) == []
        time.sleep(1)  # upon a notice the switch puts a filter back at most once a second
    sw.vsctl("del-port", "q0")
    assert filters(lab, sw) == 0
    lab.net.ip(sw.netns, "addr", "add", "10.90.0.3/24", "dev", "q0")
    lab.net.ip(sw.netns, "addr", "del", f"{HOST}/24", "dev", "brq")
    lab.net.ping(ns, "10.90.0.3")


def scenario_other_programs_in_the_place_of_the_filter(lab):
    """The switch restores its filter, or uses nftables, or Interface.status reports that the host's stack
    gets a copy."""
    sw, ns, _ = port_of_a_pod(lab)
    forbid(sw)

    def batch(*lines):
        lab.net.run(sw.netns, "tc", "-b", "-", stdin="".join(f"{line}\n" for line in lines))

    def is_silent_or_said():
        return "heddle_host_stack" in sw.get("interface", "q0", "status") or hears(lab, sw, ns) == []
    bpf = 'bpf skip_hw da bytecode "1,6 0 0 4294967295,"'
    batch(f"filter replace dev q0 ingress protocol all pref {PRIORITY} handle 0x1 {bpf}")
    wait_for("the place to be taken back", lambda: hears(lab, sw, ns) == [], 30)
    # The second removal comes before the pause after the first one is over.
    for _ in range(2):
        batch(f"filter del dev q0 ingress pref {PRIORITY}")
        time.sleep(0.3)
    wait_for("the filter to be there again", lambda: filters(lab, sw) == 1, 4)
    batch(f"filter del dev q0 ingress pref {PRIORITY}", f"filter add dev q0 ingress protocol ipv6 prio {PRIORITY} {bpf}")
    wait_for("another way", is_silent_or_said, 30)


def scenario_while_the_switch_is_down(lab, *config):
    """The port stays taken when the switch ends or is killed, and at each moment of the next start."""
    sw, ns, mac = port_of_a_pod(lab, *config)
    forbid(sw)
    # The host itself has the address at the port's device now, so its stack would reply at once.
    lab.net.ip(sw.netns, "addr", "del", f"{HOST}/24", "dev", "brq")
    lab.net.ip(sw.netns, "addr", "add", f"{HOST}/24", "dev", "q0")
    assert hears(lab, sw, ns) == []
    raw = lab.net.raw(ns, "q1")
    own = lab.net.run(ns, "cat", "/sys/class/net/q1/address").strip()
    for sig in (signal.SIGTERM, signal.SIGKILL):
        raw.send(arp_request(own))
        sw.stop_daemon(sig)
        assert hears(lab, sw, ns) == [], sig
        pinging = lab.net.socket(ns, lambda: ping_on(HOST))
        sw.start_daemon()
        sw.wait_column("interface", "q0", "ofport", lambda text: text.isdigit())
        assert pinging.end() == "", "a restart opened a gap"
        forbid(sw)
        assert hears(lab, sw, ns) == [], sig
    # The next switch gives back a port that was removed while no switch ran.
    sw.stop_daemon(signal.SIGKILL)
    sw.vsctl("--no-wait", "del-port", "q0")
    sw.start_daemon()
    wait_for("the device to be the host's", lambda: filters(lab, sw) == 0)
    lab.net.ping(ns, HOST)
    # And so does the end with --cleanup.
    sw.vsctl("add-port", "brq", "q0")
    lab.net.no_ping(ns, HOST)
    pid, sw.pid = sw.pid, None
    sw.appctl("exit", "--cleanup")
    wait_for("the switch to end", lambda: not os.path.exists(f"/proc/{pid}"))
    assert filters(lab, sw) == 0
    lab.net.ip(ns, "neigh", "replace", HOST, "lladdr", mac, "dev", "q1")
    lab.net.ping(ns, HOST)


def scenario_a_filter_of_a_lost_run_directory(lab):
    """The log names the device and the command that gives it back; a port's device is taken over."""
    sw, ns, _ = port_of_a_pod(lab)
    forbid(sw)
    lab.net.ip(sw.netns, "addr", "del", f"{HOST}/24", "dev", "brq")
    lab.net.ip(sw.netns, "addr", "add", f"{HOST}/24", "dev", "q0")

    def lose(remove_port):
        sw.stop_daemon(signal.SIGKILL)
        os.unlink(f"{sw.dir}/heddled.id")
        if remove_port:
            sw.vsctl("--no-wait", "del-port", "q0")
        before = len(sw.log())
        sw.start_daemon()
        return lambda: sw.log()[before:]
    log = lose(remove_port=True)
    command = f"tc filter del dev q0 ingress pref {PRIORITY}"
    wait_for("a line about q0", lambda: "q0: the host's stack receives nothing from this device" in log())
    assert log().count(command) == 1, log()
    assert hears(lab, sw, ns) == []
    lab.net.run(sw.netns, *command.split())
    lab.net.ping(ns, HOST)
    # A port's device is taken over without a log line, and given back when the port is removed.
    sw.vsctl("add-port", "brq", "q0")
    forbid(sw)
    log = lose(remove_port=False)
    sw.wait_column("interface", "q0", "ofport", lambda text: text.isdigit())
    forbid(sw)
    assert hears(lab, sw, ns) == []
    sw.vsctl("del-port", "q0")
    assert filters(lab, sw) == 0 and command not in log(), log()
    lab.net.ping(ns, HOST)


def scenario_while_the_switch_is_down_with_offload(lab):
    scenario_while_the_switch_is_down(lab, "other_config:hw-offload=true")


class ping_on:
    """Pings an address twenty times a second, in the namespace where it was made."""

    def __init__(self, target):
        import subprocess
        self.child = subprocess.Popen(["ping", "-n", "-i", "0.05", target], stdout=subprocess.PIPE, text=True)

    def end(self):
        """The replies."""
        self.child.send_signal(signal.SIGINT)
        out, _ = self.child.communicate()
        return "".join(line for line in out.splitlines() if "ttl=" in line)


def vlan_device_on_top(lab, *config):
    """A VLAN that has a device on top of the port is that device's, and no other VLAN is the host's."""
    sw, ns, _ = port_of_a_pod(lab, *config)
    if lab.net.ip(ns, "link", "add", "link", "q1", "name", "q1.10", "type", "vlan", "id", "10", check=False).strip():
        raise Skip("the kernel has no VLAN devices")
    lab.net.address(ns, "q1.10", "10.91.0.2/24")
    lab.net.ip(sw.netns, "link", "add", "link", "q0", "name", "q0.10", "type", "vlan", "id", "10")
    lab.net.address(sw.netns, "q0.10", "10.91.0.1/24")
    sw.ofctl("del-flows", "brq")
    for vid in (10, 11):
        sw.ofctl("add-flow", "brq", f"in_port=q0,dl_vlan={vid},actions=LOCAL")
    wait_for("the VLAN's device to have its frames", lambda: lab.net.ping(ns, "10.91.0.1", lossless=False) == 3)
    raw = lab.net.raw(ns, "q1")

    def got(vid):
        text = [flow for flow in sw.flows("brq") if f"dl_vlan={vid} " in flow or f"dl_vlan={vid},a" in flow]
        return int(text[0].split("n_packets=")[1].split(",")[0])
    was = got(10)
    frame = frames.ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", 0x9000, b"x" * 60)
    for vid in (10, 11):
        tagged = frame[:12] + b"\x81\0" + vid.to_bytes(2, "big") + frame[12:]
        for _ in range(5):
            raw.send(tagged)
    wait_for("frames of the other VLAN", lambda: got(11) == 5)
    assert got(10) == was, sw.flows("brq")
    # The device is removed, and its VLAN is the port's.
    lab.net.ip(sw.netns, "link", "del", "q0.10")

    def arrives():
        raw.send(frame[:12] + b"\x81\0\0\x0a" + frame[12:])
        return got(10) > was
    wait_for("frames of the VLAN at the port", arrives)


def scenario_vlan_device_on_top(lab):
    vlan_device_on_top(lab)


def scenario_vlan_device_on_top_with_offload(lab):
    vlan_device_on_top(lab, "other_config:hw-offload=true")


def scenario_nftables_where_the_classifier_has_no_place(lab):
    """Another program's filter occupies the hook: nftables replaces it, through a restart, until the port is
    removed."""
    sw, ns, _ = port_of_a_pod(lab)
    sw.vsctl("del-port", "q0")
    if "refused" in lab.net.run(sw.netns, "sh", "-c", "nft list tables || echo refused", check=False):
        raise Skip("no nftables here")
    lab.net.run(sw.netns, "tc", "filter", "add", "dev", "q0", "ingress", "protocol", "ipv6", "prio", PRIORITY, "bpf", "da",
                "bytecode", "1,6 0 0 4294967295,")
    sw.vsctl("add-port", "brq", "q0")
    forbid(sw)
    tables = lab.net.run(sw.netns, "nft", "list", "ruleset")
    assert "table netdev heddle_" in tables and "drop" in tables, tables
    assert hears(lab, sw, ns) == []
    assert "heddle_host_stack" not in sw.get("interface", "q0", "status")
    sw.stop_daemon(signal.SIGKILL)
    assert hears(lab, sw, ns) == []
    sw.start_daemon()
    sw.vsctl("del-port", "q0")
    assert "heddle_" not in lab.net.run(sw.netns, "nft", "list", "ruleset")
    # One that a killed switch left, of a port that is no more.
    sw.vsctl("add-port", "brq", "q0")
    sw.stop_daemon(signal.SIGKILL)
    sw.vsctl("--no-wait", "del-port", "q0")
    sw.start_daemon()
    wait_for("its table to go", lambda: "heddle_" not in lab.net.run(sw.netns, "nft", "list", "ruleset"))


def scenario_one_loud_line_where_neither_can_be_had(lab):
    """The port works, and the log and the database report that the host's stack gets a copy."""
    sw, ns, _ = port_of_a_pod(lab)
    sw.vsctl("del-port", "q0")
    lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "q0", "clsact", check=False)
    lab.net.run(sw.netns, "tc", "filter", "add", "dev", "q0", "ingress", "protocol", "ipv6", "prio", PRIORITY, "bpf", "da",
                "bytecode", "1,6 0 0 4294967295,")
    sw.stop_daemon()
    path = f"{sw.dir}/bin"
    os.mkdir(path)
    os.symlink("/usr/bin/false", f"{path}/nft")
    sw.env["PATH"] = f"{path}:{os.environ['PATH']}"
    sw.start_daemon()
    sw.vsctl("add-port", "brq", "q0")
    sw.ofctl("add-flow", "brq", "actions=NORMAL")
    lab.net.ping(ns, HOST)
    status = sw.wait_column("interface", "q0", "status", lambda text: "heddle_host_stack" in text)
    assert "gets a copy of what comes in: tc: " in status, status
    assert sw.log().count("gets a copy of every packet that this port receives") == 1
    # The other filter is removed: the switch installs its own again.
    lab.net.run(sw.netns, "tc", "filter", "del", "dev", "q0", "ingress", "prio", PRIORITY)
    sw.wait_column("interface", "q0", "status", lambda text: "heddle_host_stack" not in text)
    forbid(sw)
    assert hears(lab, sw, ns) == []


if __name__ == "__main__":
    main()
