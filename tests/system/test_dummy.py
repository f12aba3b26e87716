#!/usr/bin/env python3
"""Dummy ports, which Open vSwitch's own tests are built on: receive, admin state, captures, streams, trace."""

import os
import re
import socket
import sys
import time

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
    # A flow in text in place of bytes.
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


def scenario_the_first_packet_of_a_connection_in_dumps(lab):
    """A cached flow does not count the packet that made it, a rule does, as in Open vSwitch."""
    sw = dummy_switch(lab)
    add(sw, "p1", 1)
    add(sw, "p2", 2)
    for flow in ("udp,ct_state=-trk,actions=ct(table=1,zone=1)",
                 "table=1,in_port=1,udp,ct_state=+trk+new,actions=ct(commit,zone=1),2",
                 "table=1,in_port=1,udp,ct_state=+trk+est,actions=2",
                 "table=1,in_port=2,udp,ct_state=+trk+est,actions=1"):
        sw.ofctl("add-flow", "br0", flow)
    sw.appctl("time/stop")

    def packet(port, sport, dport):
        a, b = (1, 2) if port == 1 else (2, 1)
        sw.appctl("netdev-dummy/receive", f"p{port}", f"in_port({port}),eth(src=02:00:00:00:00:0{a},dst=02:00:00:00:00:0{b}),"
                  f"eth_type(0x0800),ipv4(src=10.0.0.{a},dst=10.0.0.{b},proto=17,tos=0,ttl=64,frag=no),"
                  f"udp(src={sport},dst={dport})")
        sw.appctl("time/warp", "10")

    def cached():
        found = re.findall(r"ct_state\(([^)]*)\).*in_port\((\w+)\).* packets:(\d+), bytes:(\d+), used:(\S+),",
                           sw.appctl("dpctl/dump-flows", "--names"))
        return sorted((port, state, int(n), int(size), used) for state, port, n, size, used in found)

    def rules():
        return [int(re.search(r"n_packets=(\d+)", flow)[1]) for flow in sw.flows("br0")]
    never = (0, 0, "never")
    packet(1, 1000, 80)
    assert cached() == [("p1", "+new+trk", *never), ("p1", "-trk", *never)], cached()
    assert rules() == [1, 1, 0, 0]
    packet(1, 1000, 80)
    once = (1, 106, "0.010s")
    assert cached() == [("p1", "+new+trk", *once), ("p1", "-trk", *once)], cached()
    assert rules() == [2, 2, 0, 0]
    packet(2, 80, 1000)
    packet(1, 1000, 80)
    answered = [("p2", "-new+est+trk", *never), ("p2", "-trk", *never)]
    assert cached() == [("p1", "+new+trk", 1, 106, "0.030s"), ("p1", "-new+est+trk", *never),
                        ("p1", "-trk", 2, 212, "0.010s"), *answered], cached()
    assert rules() == [4, 2, 1, 1]
    # The first packet of another connection is the second of its flow.
    packet(1, 1001, 80)
    assert cached() == [("p1", "+new+trk", 2, 212, "0.010s"), ("p1", "-new+est+trk", *never),
                        ("p1", "-trk", 3, 318, "0.010s"), *answered], cached()
    assert rules() == [5, 3, 1, 1]


def scenario_captures_begin_anew_when_something_is_configured(lab):
    """Tests remove capture files between two steps: the next change of the configuration makes them again."""
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
    """`dpctl/dump-flows filter=`: entries that such packets may meet, also those that do not match on the
    filter's fields."""
    sw = dummy_switch(lab)
    # The entries have to stay until they are dumped.
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
    # Traces are not counted.
    assert all("n_packets=0," in flow for flow in sw.flows("br0"))


def scenario_traces_with_packets_learn(lab):
    """Only a trace with a packet, given or generated, learns addresses and flows, also behind `ct`."""
    sw = dummy_switch(lab)
    for number in (1, 2):
        add(sw, f"p{number}", number)
    learn = "learn(table={},NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[])"
    sw.ofctl("add-flows", "br0", "-", stdin=f"""
        in_port=1,actions=NORMAL
        in_port=2,udp,actions={learn.format(5)},1
        in_port=2,tcp,actions=ct(table=1)
        table=1,actions={learn.format(6)},NORMAL
        """)
    source = lambda n: f"dl_src=50:00:00:00:00:{n:02x},dl_dst=50:00:00:00:00:99"
    trace = lambda *args: sw.appctl("ofproto/trace", *args)
    trace("br0", f"in_port=1,{source(1)}", "-generate")
    trace("ovs-dummy", "in_port(1),eth(src=50:00:00:00:00:02,dst=50:00:00:00:00:99),eth_type(0x1234)", "--generate")
    trace("br0", f"in_port=1,{source(3)}")
    trace("br0", "in_port=1", FRAME.hex())
    assert "suppressing side effects, so learn action ignored" in trace("br0", f"in_port=2,udp,{source(4)}")
    assert not sw.ofctl("dump-flows", "br0", "table=5").count("dl_dst")
    trace("br0", f"in_port=2,udp,{source(5)}", "-generate")
    trace("br0", f"in_port=2,tcp,{source(6)}", "-generate", "--ct-next", "trk,new")
    sw.appctl("ofproto/trace-packet-out", "br0", f"in_port=1,{source(7)}", "-generate", "normal")
    known = {tuple(line.split()[::2][:2]) for line in sw.appctl("fdb/show", "br0").splitlines()[1:]}
    assert known == {("1", "50:00:00:00:00:01"), ("1", "50:00:00:00:00:02"), ("1", A), ("2", "50:00:00:00:00:06"),
                     ("1", "50:00:00:00:00:07")}, known
    for table, address in ((5, "50:00:00:00:00:05"), (6, "50:00:00:00:00:06")):
        wait_for("the flow", lambda: f"dl_dst={address} actions=output:2" in sw.ofctl("dump-flows", "br0", f"table={table}"))


def scenario_time_stops(lab):
    """time/stop and time/warp drive timeouts without waiting."""
    sw = dummy_switch(lab)
    sw.appctl("time/stop")
    sw.ofctl("add-flow", "br0", "hard_timeout=60,actions=drop")
    sw.appctl("time/warp", "30000", "1000", timeout=120)
    assert len(sw.flows("br0")) == 1
    sw.appctl("time/warp", "40000", "1000", timeout=120)
    wait_for("the timeout", lambda: not sw.flows("br0"))


def ports(sw, bridge, *numbers):
    """Dummy ports that capture sent packets. Returns a function: a port's packets since its last call."""
    for number in numbers:
        add(sw, f"p{number}", number, f"options:tx_pcap={sw.dir}/p{number}.pcap", bridge=bridge)
    taken = dict.fromkeys(numbers, 0)

    def take(number):
        sent = frames.read_pcap(f"{sw.dir}/p{number}.pcap")[taken[number]:]
        taken[number] += len(sent)
        return sent
    return take


def patch(sw, ours, theirs):
    for (bridge, name), (_, peer) in ((ours, theirs), (theirs, ours)):
        sw.vsctl("add-port", bridge, name, "--", "set", "interface", name, "type=patch", f"options:peer={peer}")


def scenario_clones_keep_to_themselves(lab):
    """A resubmit within a clone, a bucket or a bridge behind a patch port does not change the outer
    packet."""
    sw = dummy_switch(lab)
    take = ports(sw, "br0", 1, 2, 3)
    sw.appctl("time/stop")
    sw.ofctl("-O", "OpenFlow13", "add-meter", "br0", "meter=1,pktps,burst,band=type=drop,rate=1,burst_size=1")
    sw.ofctl("-O", "OpenFlow13", "add-flows", "br0", "-", stdin="""
        in_port=1,udp,actions=clone(resubmit(,1)),output:3
        table=1,udp,actions=meter:1,output:2
        """)

    def send(n=20):
        for _ in range(n):
            sw.appctl("netdev-dummy/receive", "p1", FRAME.hex())
        wait_for(f"{n} packets", lambda: len(frames.read_pcap(f"{sw.dir}/p3.pcap")) >= n)
        return len(take(2)), len(take(3))
    assert send() == (1, 20)

    sw.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "fail_mode=secure")
    patch(sw, ("br0", "to1"), ("br1", "to0"))
    add(sw, "q1", 7, f"options:tx_pcap={sw.dir}/q1.pcap", bridge="br1")
    sw.ofctl("add-flow", "br0", "in_port=1,udp,actions=output:to1,output:3")
    sw.ofctl("add-flow", "br1", "udp,actions=resubmit(,1)")
    sw.ofctl("add-flow", "br1", "table=1,udp,actions=ct(commit,nat(src=10.9.9.9)),output:7")
    last = sw.appctl("ofproto/trace", "br0", "in_port=1,udp").strip().splitlines()[-1]
    assert re.fullmatch(r"Datapath actions: clone\(ct\(commit,nat\(src=10.9.9.9\)\),\d+\),\d+", last), last
    before = len(frames.read_pcap(f"{sw.dir}/p3.pcap"))
    sw.appctl("netdev-dummy/receive", "p1", FRAME.hex())
    wait_for("both", lambda: frames.read_pcap(f"{sw.dir}/q1.pcap") and
             len(frames.read_pcap(f"{sw.dir}/p3.pcap")) > before)
    assert frames.read_pcap(f"{sw.dir}/q1.pcap")[0][26:30] == socket.inet_aton("10.9.9.9")
    assert take(3)[-1] == FRAME, "translated for the other bridge only"

    # A pause ends the translation, wherever it is.
    sw.ofctl("add-flow", "br0", "in_port=1,udp,actions=clone(resubmit(,5)),output:2")
    sw.ofctl("add-flow", "br0", "table=5,actions=controller(pause)")
    last = sw.appctl("ofproto/trace", "br0", "in_port=1", FRAME.hex()).strip().splitlines()[-1]
    assert "userspace(" in last and not last.endswith(",2"), last


def scenario_an_output_to_a_tunnel_is_cut(lab):
    """`output(port=TUNNEL,max_len=N)` cuts the packet in the tunnel, and no other copy."""
    # Without `override`, which would make the tunnel's port a dummy.
    sw = lab.switch("--enable-dummy", "--disable-system-route", netns=False)
    for bridge in ("br0", "br1"):
        sw.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=dummy", "fail_mode=secure")
    take = ports(sw, "br1", 1, 3)
    add(sw, "u1", 1, f"options:tx_pcap={sw.dir}/u1.pcap")
    sw.vsctl("add-port", "br1", "vx", "--", "set", "interface", "vx", "type=vxlan", "options:remote_ip=1.1.2.92",
             "options:key=5", "ofport_request=20")
    sw.ofctl("add-flow", "br0", "actions=normal")
    sw.appctl("netdev-dummy/ip4addr", "br0", "1.1.2.88/24")
    sw.appctl("ovs/route/add", "1.1.2.92/24", "br0")
    sw.appctl("tnl/arp/set", "br0", "1.1.2.92", "f8:bc:12:44:34:b6")
    long = FRAME + bytes(400 - len(FRAME))
    outer = 14 + 20 + 8 + 8
    for n, actions in enumerate(("output(port=20,max_len=100),3", "clone(output(port=20,max_len=100)),3",
                                 "3,output(port=20,max_len=100)", "output(port=20,max_len=1000),3")):
        sw.ofctl("add-flow", "br1", f"in_port=1,actions={actions}")
        sw.appctl("netdev-dummy/receive", "p1", long.hex())
        sent = wait_for("the outer packet", lambda: frames.read_pcap(f"{sw.dir}/u1.pcap")[n:])[-1]
        cut = 400 if "1000" in actions else 100
        assert len(sent) == outer + cut and sent[outer:] == long[:cut], (actions, sent.hex())
        assert wait_for("the other", lambda: take(3)) == [long], actions


def scenario_packet_outs(lab):
    """A packet-out goes through patch ports and `ct`; if its translation fails it gets an error."""
    sw = dummy_switch(lab)
    take = ports(sw, "br0", 1)
    sw.vsctl("add-br", "br1", "--", "set", "bridge", "br1", "datapath_type=dummy", "fail_mode=secure")
    patch(sw, ("br1", "to0"), ("br0", "to1"))
    sw.ofctl("add-flow", "br1", "udp,actions=output:to0")
    sw.ofctl("add-flows", "br0", "-", stdin="""
        udp,actions=ct(table=1,zone=1)
        table=1,ct_state=+trk,udp,actions=1
        """)
    for in_port in ("controller", "none"):
        sw.ofctl("packet-out", "br1", f"in_port={in_port},packet={FRAME.hex()},actions=table")
        assert wait_for("the packet", lambda: take(1)) == [FRAME]
    sw.ofctl("add-flow", "br0", "table=3,actions=resubmit(,3)")
    out = sw.ofctl("packet-out", "br0", f"in_port=controller,packet={FRAME.hex()},actions=resubmit(,3)", check=False)
    # The client does not wait for a reply to a packet-out; in a bundle it does.
    out = sw.ofctl("-O", "OpenFlow14", "bundle", "br0", "-", check=False,
                   stdin=f"packet-out in_port=controller,packet={FRAME.hex()},actions=resubmit(,3)\n")
    assert "OFPFMFC_UNKNOWN" in out, out


def scenario_neighbour_discovery_is_answered(lab):
    """Flags, option type and address of neighbour discovery are written."""
    sw = dummy_switch(lab)
    take = ports(sw, "br0", 1)
    sw.ofctl("add-flow", "br0", "icmp6,icmp_type=135,actions=set_field:136->icmpv6_type,set_field:0xe0000000->nd_reserved,"
             "set_field:2->nd_options_type,resubmit(,1)")
    sw.ofctl("add-flow", "br0", "table=1,icmp6,icmp_type=136,actions=set_field:02:00:00:00:00:fe->nd_tll,in_port")
    ends = "fe80::1", "ff02::1:ff00:2"

    def message(kind, flags, option, lladdr):
        body = frames.neighbour("fe80::2", option, lladdr)
        body = flags.to_bytes(4, "big") + body[4:]
        return frames.ethernet("33:33:ff:00:00:02", A, 0x86dd, frames.ipv6(*ends, 58, frames.icmp6(*ends, kind, 0, body), hlim=255))
    sw.appctl("netdev-dummy/receive", "p1", message(135, 0, 1, A).hex())
    answer = wait_for("the answer", lambda: take(1))
    assert answer == [message(136, 0xe0000000, 2, "02:00:00:00:00:fe")], answer[0].hex()
    shown = sw.appctl("dpctl/dump-flows")
    assert "set(nd_ext(nd_reserved=0xe0000000" in shown and "nd_options_type=2" in shown, shown
    # Dumps show the field that a flow looks at.
    sw.ofctl("add-flow", "br0", "priority=40000,icmp6,icmp_type=135,nd_target=fe80::2,actions=drop")
    sw.appctl("netdev-dummy/receive", "p1", message(135, 0, 1, A).hex())
    wait_for("the target", lambda: "nd(target=fe80::2)" in sw.appctl("dpctl/dump-flows"))


def scenario_what_was_learned_last_counts(lab):
    """Cached packets are credited later and in any order; the last packet of an address decides its port."""
    sw = dummy_switch(lab)
    take = ports(sw, "br0", 1, 2, 3)
    table = "learn(table=10,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15])"
    sw.ofctl("add-flow", "br0", f"actions={table},NORMAL")
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:max-idle=3600000")

    def send(order):
        for number in order:
            sw.appctl("netdev-dummy/receive", f"p{number}", FRAME.hex())
            # Their times differ.
            time.sleep(0.01)

    def known():
        flow = sw.ofctl("dump-flows", "br0", "table=10")
        return re.search(r"load:0x(\d)", flow).group(1), sw.appctl("fdb/show", "br0").splitlines()[1].split()[0]
    for order in ((3, 2, 1), (1, 2, 3), (2, 1, 3), (1, 3, 2)):
        sw.appctl("revalidator/wait")
        sw.appctl("revalidator/pause")
        send(order)
        sw.appctl("revalidator/resume")
        sw.appctl("revalidator/wait")
        wait_for(f"the last of {order}", lambda: known() == (str(order[-1]),) * 2, interval=0.1)
    take(1)


def scenario_learned_flows_go_with_their_rule(lab):
    """A bundle that replaces a rule by one of equal cookie deletes the flows that the old one has learned."""
    sw = dummy_switch(lab)
    ports(sw, "br0", 1, 2)

    def rule(address):
        return ("cookie=3,udp,in_port=1,nw_dst=10.0.0.2,actions=learn(table=103,delete_learned,cookie=0x3,eth_type=0x800,"
                f"NXM_OF_IP_SRC[],ip_dst={address}),output:2")
    sw.ofctl("add-flow", "br0", rule("8.8.8.88"))
    sw.appctl("netdev-dummy/receive", "p1", FRAME.hex())
    learned = lambda: [flow for flow in sw.flows("br0") if " table=103," in flow]
    wait_for("the flow", learned)
    sw.ofctl("-O", "OpenFlow14", "bundle", "br0", "-", stdin=f"""
        flow delete_strict udp,in_port=1,nw_dst=10.0.0.2
        flow add {rule("8.8.8.85")}
        """)
    assert not learned(), learned()


if __name__ == "__main__":
    main()
