#!/usr/bin/env python3
"""Dummy ports, which Open vSwitch's own tests are built on: receive, admin state, captures, streams, trace."""

import os
import re
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.runner import main
from lab.shell import wait_for

A, B = "50:54:00:00:00:0a", "50:54:00:00:00:0b"
FRAME = frames.ethernet(B, A, 0x0800, frames.ipv4("10.0.0.1", "10.0.0.2", 17, frames.udp(
    "10.0.0.1", "10.0.0.2", 1, 2, b"dummy payload of some length")))


def dummy_switch(lab, **kw):
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", netns=False, **kw)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure",
             "other_config:hwaddr=aa:55:aa:55:00:00")
    return sw


def add(sw, name, number, *options, bridge="br0"):
    sw.vsctl("add-port", bridge, name, "--", "set", "interface", name, "type=dummy", f"ofport_request={number}", *options)


def scenario_receive_and_captures(lab):
    sw = dummy_switch(lab)
    add(sw, "p1", 1, f"options:rxq_pcap={sw.dir}/rx.pcap", f"options:tx_pcap={sw.dir}/tx1.pcap")
    add(sw, "p2", 2, f"options:tx_pcap={sw.dir}/tx.pcap")
    add(sw, "p3", 3, f"options:pcap={sw.dir}/both.pcap")
    sw.ofctl("add-flow", "br0", "in_port=1,actions=2,3,in_port")
    sw.appctl("netdev-dummy/receive", "p1", FRAME.hex())
    wait_for("the frame", lambda: frames.read_pcap(f"{sw.dir}/tx.pcap"))
    for name in ("tx", "rx", "tx1", "both"):
        wait_for(name, lambda: frames.read_pcap(f"{sw.dir}/{name}.pcap") == [FRAME])
    # As a flow in text instead of bytes.
    sw.appctl("netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),"
              "ipv4(src=192.168.0.1,dst=192.168.0.2,proto=6,tos=0,ttl=64,frag=no),tcp(src=8,dst=10)")
    second = wait_for("the second", lambda: frames.read_pcap(f"{sw.dir}/tx.pcap")[1:2])[0]
    assert second[6:14] == frames.mac("50:54:00:00:00:05") + b"\x08\0" and second[26:34] == socket.inet_aton(
        "192.168.0.1") + socket.inet_aton("192.168.0.2"), second.hex()
    wait_for("the counters", lambda: "n_packets=2," in sw.flows("br0")[0])

    def both():
        stats = sw.ofctl("dump-ports", "br0", "1")
        return "rx pkts=2," in stats and "tx pkts=2," in stats
    wait_for("the port's counters", both)


def scenario_captures_begin_anew_when_something_is_configured(lab):
    """Tests take capture files away between two steps: whatever is configured next, the files are there again."""
    sw = dummy_switch(lab)
    path = f"{sw.dir}/tx.pcap"
    add(sw, "p1", 1)
    add(sw, "p2", 2, f"options:tx_pcap={path}")
    sw.ofctl("add-flow", "br0", "in_port=1,actions=2")

    def send(n):
        sw.appctl("netdev-dummy/receive", "p1", FRAME.hex())
        wait_for(f"{n} frames", lambda: frames.read_pcap(path) == [FRAME] * n)
    send(1)
    sw.vsctl("set", "interface", "p2", "options:n_rxq=1")
    send(2)
    os.unlink(path)
    sw.vsctl("set", "bridge", "br0", "other_config:anything=1")
    send(1)
    os.unlink(path)
    sw.vsctl("set", "interface", "p2", f"options:tx_pcap={path}", "options:n_rxq=2")
    send(1)


def scenario_flows_by_filter(lab):
    """`dpctl/dump-flows filter=`: entries that such packets may meet, also those that do not look at what is asked for."""
    sw = dummy_switch(lab)
    # They are to stay for as long as it takes to ask for them.
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=3600000")
    for number in (1, 2):
        add(sw, f"p{number}", number)
    sw.ofctl("add-flow", "br0", "table=0,in_port=1,ip,actions=2")
    sw.ofctl("add-flow", "br0", "table=0,in_port=2,udp,actions=1")
    for port in ("p1", "p2"):
        sw.appctl("netdev-dummy/receive", port, FRAME.hex())
    wait_for("two entries", lambda: sw.appctl("dpctl/dump-flows").count("recirc_id(0)") == 2)
    found = {wanted: sorted(re.findall(r"in_port\((\d)\)", sw.appctl("dpctl/dump-flows", f"filter={wanted}")))
             for wanted in ("icmp", "udp", "ip", "arp", "in_port=p2,udp", "in_port=p2,tcp")}
    assert found == {"icmp": ["1"], "udp": ["1", "2"], "ip": ["1", "2"], "arp": [], "in_port=p2,udp": ["2"],
                     "in_port=p2,tcp": []}, found


def scenario_admin_state(lab):
    sw = dummy_switch(lab)
    add(sw, "p1", 1)
    assert sw.get("interface", "p1", "admin_state") == "up"
    sw.appctl("netdev-dummy/set-admin-state", "p1", "down")
    sw.wait_column("interface", "p1", "admin_state", "down")
    assert "LINK_DOWN" in sw.ofctl("show", "br0") or "PORT_DOWN" in sw.ofctl("show", "br0")
    sw.appctl("netdev-dummy/set-admin-state", "up")
    sw.wait_column("interface", "p1", "admin_state", "up")


def scenario_streams(lab):
    """Two bridges joined by a stream and a passive stream on one socket."""
    sw = dummy_switch(lab)
    sw.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "fail_mode=secure")
    add(sw, "p1", 1, f"options:pstream=punix:{sw.dir}/wire.sock")
    add(sw, "p2", 2, f"options:tx_pcap={sw.dir}/p2.pcap")
    add(sw, "q1", 1, f"options:stream=unix:{sw.dir}/wire.sock", bridge="br1")
    add(sw, "q2", 2, f"options:tx_pcap={sw.dir}/q2.pcap", bridge="br1")
    for bridge in ("br0", "br1"):
        sw.ofctl("add-flow", bridge, "in_port=1,actions=2")
        sw.ofctl("add-flow", bridge, "in_port=2,actions=1")

    def crosses(into, capture):
        before = len(frames.read_pcap(capture))

        def once():
            sw.appctl("netdev-dummy/receive", into, FRAME.hex())
            return len(frames.read_pcap(capture)) > before
        wait_for(f"a frame from {into}", once, interval=0.2)
    crosses("p2", f"{sw.dir}/q2.pcap")
    crosses("q2", f"{sw.dir}/p2.pcap")
    assert frames.read_pcap(f"{sw.dir}/q2.pcap")[0] == FRAME


def scenario_trace_layout(lab):
    """ofproto/trace as scripts read it."""
    sw = dummy_switch(lab)
    add(sw, "p1", 1)
    add(sw, "p2", 2)
    sw.ofctl("-O", "OpenFlow13", "add-flows", "br0", "-", stdin="""
        table=0,in_port=1,ip,cookie=0x5,priority=7 actions=load:2->NXM_NX_REG0[],resubmit(,3)
        table=3,ip actions=dec_ttl,mod_nw_dst:10.0.0.9,output:2
        """)
    out = sw.appctl("ofproto/trace", "br0", "in_port=1,udp,nw_src=10.0.0.1,nw_dst=10.0.0.2,nw_ttl=64")
    assert re.match(r"Flow: udp,in_port=1,.*\n\nbridge\(\"br0\"\)\n-+\n *0\. ip,in_port=1, priority 7, cookie 0x5\n", out), out
    assert "\n    load:0x2->NXM_NX_REG0[]\n    resubmit(,3)\n" in out, out
    assert re.search(r"\n *3\. ip, priority 32768\n    +dec_ttl\n", out), out
    assert re.search(r"\nFinal flow: udp,reg0=0x2,in_port=1,.*nw_dst=10\.0\.0\.9,.*nw_ttl=63", out), out
    assert re.search(r"\nMegaflow: recirc_id=0,eth,udp,in_port=1,", out), out
    assert re.search(r"\nDatapath actions: set\(ipv4\(dst=10\.0\.0\.9,ttl=63\)\),\d+\n?$", out), out
    last = sw.appctl("ofproto/trace", "br0", "in_port=2,arp").strip().splitlines()[-1]
    assert last == "Datapath actions: drop", last
    # Nothing that was traced is counted.
    assert all("n_packets=0," in flow for flow in sw.flows("br0"))


def scenario_time_stops(lab):
    """time/stop and time/warp drive timeouts without waiting."""
    sw = dummy_switch(lab)
    sw.appctl("time/stop")
    sw.ofctl("add-flow", "br0", "hard_timeout=60,actions=drop")
    sw.appctl("time/warp", "30000", "1000", timeout=120)
    assert len(sw.flows("br0")) == 1
    sw.appctl("time/warp", "40000", "1000", timeout=120)
    wait_for("the timeout", lambda: not sw.flows("br0"))


if __name__ == "__main__":
    main()
