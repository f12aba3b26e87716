#!/usr/bin/env python3
"""Restarts: of the database server, of the daemon, and its violent end."""

import signal
import socket
import time

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for


def two_pods(lab, sw):
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24")
    lab.veth_pod(sw, "b", "10.1.0.2/24")
    sw.vsctl("add-port", "br0", "i0", "--", "set", "interface", "i0", "type=internal", "ofport_request=42",
             'mac="aa:bb:cc:00:00:09"')
    sw.wait_column("interface", "i0", "ofport", 42)
    lab.net.ping(a, "10.1.0.2")
    return a


def still_forwards(lab, sw, a):
    """Pings while no database replies. The reference's main thread, which serves such ports, pauses then."""
    if not sw.is_reference:
        lab.net.ping(a, "10.1.0.2")


def scenario_database_server_restarts(lab):
    """Traffic, flows and port numbers stay; changes made while it was away are taken up."""
    sw = lab.switch()
    a = two_pods(lab, sw)
    sw.ofctl("add-flow", "br0", "cookie=0x99,priority=7,dl_type=0x1234,actions=drop")
    numbers = [sw.get("interface", name, "ofport") for name in ("va", "vb", "i0")]
    sw.stop_ovsdb()
    still_forwards(lab, sw, a)
    time.sleep(1)
    sw.start_ovsdb()
    sw.vsctl("add-port", "br0", "i1", "--", "set", "interface", "i1", "type=internal")
    sw.wait_column("interface", "i1", "ofport", lambda text: text.isdigit())
    assert [sw.get("interface", name, "ofport") for name in ("va", "vb", "i0")] == numbers
    assert any("cookie=0x99" in flow for flow in sw.flows("br0"))
    lab.net.ping(a, "10.1.0.2")


def scenario_database_server_away_for_long(lab):
    sw = lab.switch()
    a = two_pods(lab, sw)
    for _ in range(3):
        sw.stop_ovsdb()
        time.sleep(2)
        still_forwards(lab, sw, a)
        sw.start_ovsdb()
        wait_for("the switch to follow again", lambda: "completed" not in sw.vsctl(
            "set", "bridge", "br0", f"external_ids:round={time.time()}"))
    assert sw.alive()


def restored(lab, sw, a):
    sw.wait_column("interface", "i0", "ofport", 42)
    sw.wait_column("interface", "i0", "mac_in_use", "aa:bb:cc:00:00:09")
    assert sw.get("interface", "va", "error") == "[]"
    wait_for("answers", lambda: lab.net.ping(a, "10.1.0.2", count=1, lossless=False))
    lab.net.ping(a, "10.1.0.2")


def scenario_daemon_restarts(lab):
    sw = lab.switch()
    a = two_pods(lab, sw)
    numbers = [sw.get("interface", name, "ofport") for name in ("va", "vb")]
    sw.stop_daemon()
    sw.start_daemon()
    restored(lab, sw, a)
    assert [sw.get("interface", name, "ofport") for name in ("va", "vb")] == numbers


def scenario_daemon_is_killed(lab):
    """kill -9 leaves sockets and the pid file behind; the next start copes and restores everything."""
    sw = lab.switch()
    a = two_pods(lab, sw)
    sw.stop_daemon(signal.SIGKILL)
    sw.start_daemon()
    restored(lab, sw, a)
    assert "br0" in sw.appctl("ofproto/list")
    assert sw.ofctl("show", "br0")


def scenario_changes_while_it_was_down(lab):
    sw = lab.switch()
    a = two_pods(lab, sw)
    sw.stop_daemon()
    sw.vsctl("--no-wait", "del-port", "i0", "--", "set", "port", "vb", "tag=5", "--", "add-br", "br9", "--", "set",
             "bridge", "br9", "datapath_type=netdev")
    sw.start_daemon()
    sw.wait_column("interface", "br9", "ofport", 65534)
    lab.net.no_ping(a, "10.1.0.2")
    sw.vsctl("set", "port", "va", "tag=5")
    lab.net.ping(a, "10.1.0.2")
    assert "i0" not in sw.ofctl("show", "br0")


def scenario_reconfiguration_keeps_traffic(lab):
    """Adding and removing other ports and bridges loses nothing between two that stay."""
    sw = lab.switch()
    a = two_pods(lab, sw)
    for index in range(10):
        sw.vsctl("add-br", f"x{index}", "--", "set", "bridge", f"x{index}", "datapath_type=netdev")
        sw.vsctl("add-port", "br0", f"y{index}", "--", "set", "interface", f"y{index}", "type=internal")
        lab.net.ping(a, "10.1.0.2", count=2)
        sw.vsctl("del-br", f"x{index}", "--", "del-port", f"y{index}")
        lab.net.ping(a, "10.1.0.2", count=2)


def kernel_pause(lab, ns):
    """Seconds that the kernel takes to close a packet socket: it waits for all processors."""
    def measure():
        times = []
        for _ in range(9):
            began = time.monotonic()
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
            times.append(time.monotonic() - began)
        return sorted(times)[4]
    return lab.net.socket(ns, measure)


def scenario_many_devices_open_and_close_at_the_same_time(lab):
    """Each has sockets with a ring, and the kernel has several pauses for each. One after the other, a node with a hundred pods would be away for seconds."""
    sw = lab.switch()
    a = two_pods(lab, sw)
    devices = 60
    more = []
    for index in range(devices):
        lab.net.veth(sw.netns, f"x{index}", sw.netns, f"y{index}")
        more += ["--", "add-port", "br0", f"x{index}"]
    sw.vsctl(*more[1:])
    pause = kernel_pause(lab, sw.netns)
    if pause < 0.003:
        raise Skip("this kernel closes sockets at once")
    began = time.monotonic()
    sw.stop_daemon()
    away = time.monotonic()
    sw.start_daemon()
    times = [away - began, time.monotonic() - away]
    restored(lab, sw, a)
    assert len(sw.ofctl("-O", "OpenFlow14", "show", "br0").split("addr:")) > devices
    # Earlier it took four pauses for each to end, and two for each to start.
    assert times[0] < devices * pause and times[1] < devices * pause, f"{times[0]:.2f} s to end, {times[1]:.2f} s to start, {1e3 * pause:.1f} ms a pause"
    # They also go at once while the switch runs, and others are not kept waiting.
    began = time.monotonic()
    sw.vsctl(*[word for index in range(devices) for word in ("--", "del-port", f"x{index}")][1:])
    gone = time.monotonic() - began
    assert gone < devices * pause, f"{gone:.2f} s for {devices} to go, {1e3 * pause:.1f} ms a pause"
    lab.net.ping(a, "10.1.0.2")


if __name__ == "__main__":
    main()
