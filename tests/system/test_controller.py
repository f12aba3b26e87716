#!/usr/bin/env python3
"""A controller over TCP: handshake, echo, its columns in the database, and its loss."""

import re
import socket

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import openflow
from lab.runner import main
from lab.shell import wait_for


def listen(lab, sw, version=openflow.V13):
    def make():
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen(4)
        return sock
    controller = openflow.Controller(lab.net.socket(sw.netns, make), version)
    lab.cleanups.append(controller.close)
    return controller


def column(sw, name):
    row = sw.vsctl("--bare", "--columns=" + name, "list", "controller")
    return row.strip()


def scenario_handshake_on_every_version(lab):
    sw = lab.switch()
    for name, version in (("OpenFlow10", 1), ("OpenFlow13", 4), ("OpenFlow14", 5), ("OpenFlow15", 6)):
        bridge = "c" + name[-2:]
        lab.bridge(sw, bridge, f"protocols={name}")
        controller = listen(lab, sw, version)
        sw.vsctl("set-controller", bridge, f"tcp:127.0.0.1:{controller.port}")
        wait_for(f"a connection by {name}", controller.connected.is_set)
        reply = controller.messages(openflow.FEATURES_REPLY)[0]
        assert reply[0] == version, reply
        datapath_id = reply[3][:8].hex()
        assert datapath_id == sw.get("bridge", bridge, "datapath_id"), datapath_id
        sw.vsctl("del-controller", bridge)


def scenario_state_in_the_database(lab):
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    controller = listen(lab, sw)
    sw.vsctl("set-controller", "br0", f"tcp:127.0.0.1:{controller.port}", "--", "set", "controller", "br0",
             "inactivity_probe=5000", "max_backoff=1000")
    wait_for("a connection", controller.connected.is_set)
    wait_for("is_connected", lambda: column(sw, "is_connected") == "true")
    wait_for("state", lambda: "state=ACTIVE" in column(sw, "status"))
    wait_for("a role", lambda: column(sw, "role") == "other")
    # The role that the controller requests (OFPT_ROLE_REQUEST, master).
    controller.connection.send(24, 77, (2).to_bytes(4, "big") + bytes(4) + (1).to_bytes(8, "big"))
    wait_for("the role", lambda: column(sw, "role") == "master")
    # No traffic: the switch probes with echo requests, which keeps the connection.
    wait_for("an echo request", lambda: controller.messages(openflow.ECHO_REQUEST))
    assert column(sw, "is_connected") == "true"
    controller.drop()
    wait_for("it comes again", lambda: len(controller.messages(openflow.FEATURES_REPLY)) >= 2)
    controller.close()
    wait_for("is_connected to be false", lambda: column(sw, "is_connected") == "false")


def scenario_controller_programs_the_switch(lab):
    """Flow mod, barrier and packet-in over the controller's own connection."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    controller = listen(lab, sw)
    sw.vsctl("set-controller", "br0", f"tcp:127.0.0.1:{controller.port}")
    wait_for("a connection", controller.connected.is_set)
    # OpenFlow 1.3 section 7.3.4.1: add, table 0, priority 5, empty match, apply output to CONTROLLER.
    match = bytes.fromhex("0001000400000000")
    output = bytes.fromhex("00000010fffffffdffff000000000000")
    instruction = bytes.fromhex("0004001800000000") + output
    body = bytes(8) + bytes(8) + bytes([0, 0]) + bytes(4) + (5).to_bytes(2, "big") + b"\xff" * 4 + b"\xff" * 4 +         b"\xff" * 4 + bytes(4) + match + instruction
    controller.connection.send(openflow.FLOW_MOD, 100, body)
    controller.connection.send(20, 101)
    wait_for("the barrier's reply", lambda: controller.messages(21))
    assert not controller.messages(openflow.ERROR), controller.messages(openflow.ERROR)
    assert len(sw.flows("br0")) == 1
    lab.net.namespace("x")
    ns = lab.veth_pod(sw, "a")
    sock = lab.net.raw(ns, "eth0")
    sock.send(b"\xff" * 6 + bytes.fromhex("50540000000a9000") + b"to the controller".ljust(60))
    wait_for("a packet-in", lambda: any(b"to the controller" in entry[3]
                                        for entry in controller.messages(openflow.PACKET_IN)))


def scenario_another_datapath_id(lab):
    """Connections close when the datapath's id changes, and report the new one when they are made again."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "protocols=OpenFlow13")
    controller = listen(lab, sw)
    sw.vsctl("set-controller", "br0", f"tcp:127.0.0.1:{controller.port}")
    wait_for("a connection", controller.connected.is_set)
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(f"{sw.dir}/br0.mgmt")
        plain.settimeout(20)
        plain.send(bytes([4, openflow.HELLO, 0, 8, 0, 0, 0, 1]))
        assert plain.recv(8)[1] == openflow.HELLO
        first = controller.connection
        sw.vsctl("set", "bridge", "br0", "other_config:datapath-id=00000000000000ab")
        wait_for("another connection", lambda: controller.connection is not first and controller.connected.is_set(), 30)
        while plain.recv(4096):
            pass
    shown = sw.ofctl("-O", "OpenFlow13", "show", "br0")
    assert "dpid:00000000000000ab" in shown, shown
    # The same id again closes nothing.
    second = controller.connection
    sw.vsctl("set", "bridge", "br0", "other_config:datapath-id=0x00000000000000ab")
    sw.ofctl("-O", "OpenFlow13", "show", "br0")
    assert controller.connection is second


def scenario_standalone_without_its_controller(lab):
    """Fail mode standalone becomes a learning switch when no controller replies."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=standalone")
    sw.vsctl("set-controller", "br0", "tcp:127.0.0.1:1", "--", "set", "controller", "br0", "inactivity_probe=1000",
             "max_backoff=1000")
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.internal_pod(sw, "b", "10.1.0.2/24")
    wait_for("an answer", lambda: lab.net.ping(a, "10.1.0.2", count=1, lossless=False))
    assert column(sw, "is_connected") == "false"
    wait_for("the connection's state", lambda: re.search(r"state=(BACKOFF|CONNECTING)", column(sw, "status")))
    # The log has one line about it, and no more while no controller replies.
    assert re.search(r"\|WARN\|br0: no controller for \d+ seconds, failing open", sw.log())
    assert "|rconn|WARN|br0<->tcp:127.0.0.1:1: connection failed (Connection refused)" in sw.log()
    assert sw.log().count("connection failed") == 1
    sw.vsctl("del-controller", "br0")
    wait_for("the end of it", lambda: "no longer in fail-open mode" in sw.log())


if __name__ == "__main__":
    main()
