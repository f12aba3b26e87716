#!/usr/bin/env python3
"""Flows between virtual functions go into the card, which forwards as the switch did."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.offload.node import CardNode, figure
from lab.runner import main
from lab.shell import wait_for


def scenario_ping(lab):
    """Pings go through the card; the dump has `offloaded:yes, dp:tc`, and tc has `in_hw`."""
    n = CardNode(lab)
    n.vfs()
    n.established(0, n.address(1))
    lines = n.offloaded("dp:tc")
    assert len(lines) >= 2, f"offloaded flows in the dump: {lines}"
    shown = n.net.run(n.host, "tc", "-s", "filter", "show", "dev", "rep0", "ingress")
    assert "in_hw" in shown, shown
    before = n.stats()
    n.net.ping(n.pods[0], n.address(1), count=20)
    after = n.stats()
    assert after["hits"] - before["hits"] >= 40, (before, after)
    n.trace.note(n.switch.appctl("dpctl/offload-stats-show", check=False))
    n.trace.note(n.switch.appctl("dpif/show", check=False))


def scenario_first_packet_to_offloaded(lab):
    """The time from a flow's first packet until the card has its filter: the median of nine flows."""
    n = CardNode(lab)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", *(f"udp,tp_dst={7000 + i},actions=rep1" for i in range(10)))
    n.established(0, n.address(1))
    times = []
    for i in range(10):
        before = n.count_of("added")
        began = time.monotonic()
        end = began + 20
        while n.count_of("added") == before and time.monotonic() < end:
            # Open vSwitch offloads at the first packet; a switch that counts packets first gets some.
            n.frames(0, 1, port=7000 + i)
            time.sleep(0.002)
        times.append(time.monotonic() - began)
    assert max(times) < 20, f"no filter for a flow within 20 s: {times}"
    figure("first packet to offloaded", 1000 * sorted(times[1:])[4], "ms")


def scenario_counters(lab):
    """Rules count what the card forwarded: packets, and bytes with Ethernet headers."""
    n = CardNode(lab)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "cookie=0x77,priority=10,udp,tp_dst=9,actions=rep1")
    n.frames(0, 5, size=200)
    wait_for("the flow in the card", lambda: n.filters("rep0 ") and n.offloaded("udp"), 30, 0.2)
    before = n.count_of("hits")
    n.frames(0, 200, size=200)
    assert n.count_of("hits") - before >= 195, "the card did not take the packets"
    n.wait_count("0x77", 205)
    out = n.switch.ofctl("-O", "OpenFlow14", "dump-flows", "br0", "cookie=0x77/-1")
    size = int(out.split("n_bytes=")[1].split(",")[0])
    figure("bytes of 205 frames of 200", size, "B")
    if not n.is_reference:
        assert size == 205 * 200, out


def scenario_late_counters(lab):
    """Counters that the card reports two seconds late are whole in the end."""
    n = CardNode(lab, late_ms=2000)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "cookie=0x77,priority=10,udp,tp_dst=9,actions=rep1")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.offloaded("udp"), 30, 0.2)
    n.frames(0, 100)
    began = time.monotonic()
    wait_for("all packets in the rule's counter", lambda: n.count("0x77") == 105, 60, 0.3)
    figure("late counters whole after", time.monotonic() - began, "s")


def scenario_rewrites(lab):
    """The card changes addresses and ports, with right checksums: a stream passes."""
    n = CardNode(lab)
    a, b = n.vfs()
    n.net.ip(a, "neigh", "replace", "10.6.0.99", "lladdr", "02:00:00:00:06:99", "dev", "vf0")
    n.flows("priority=0,actions=NORMAL",
            f"priority=10,in_port=rep0,tcp,nw_dst=10.6.0.99,tp_dst=80,actions=set_field:{n.mac_of(1)}->eth_dst,"
            f"set_field:{n.address(1)}->ip_dst,set_field:7000->tcp_dst,output:rep1",
            f"priority=10,in_port=rep1,tcp,tp_src=7000,nw_dst={n.address(0)},actions=set_field:02:00:00:00:06:99->eth_src,"
            "set_field:10.6.0.99->ip_src,set_field:80->tcp_src,output:rep0")
    stream_between(n, a, b, "10.6.0.99", 80, n.address(1), 7000)
    # One way has the data, the other one a few dozen acknowledgements.
    taken = [line for line in n.filters("pedit") if int(line.split("packets ")[1].split()[0]) > 10]
    n.note_card()
    figure("filters with pedit that carried a stream", len(taken), "filters")
    assert len(taken) >= 2, n.filters()


def scenario_vlans(lab):
    """A tag is put on and taken off by the card: an access port and a pod with a VLAN device."""
    n = CardNode(lab)
    a, b = n.vfs()
    n.switch.vsctl("set", "port", "rep0", "tag=5")
    n.net.ip(b, "addr", "flush", "dev", "vf1")
    n.net.ip(b, "link", "add", "link", "vf1", "name", "v5", "type", "vlan", "id", "5")
    n.up(b, "v5", f"{n.address(1)}/24")
    n.neighbour(b, "v5", n.address(0), n.mac_of(0))
    n.established(0, n.address(1))
    assert n.filters("vlan_push") and n.filters("vlan_pop"), n.filters()
    n.stream(a, b, n.address(1), 7000)
    n.stream(b, a, n.address(0), 7001)


def scenario_two_outputs(lab):
    """A packet to two ports arrives once at each."""
    n = CardNode(lab)
    n.vfs(3)
    n.flows("priority=0,actions=NORMAL", "priority=10,in_port=rep0,udp,tp_dst=9,actions=rep1,rep2")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.filters("mirror"), 30, 0.2)
    for number in (1, 2):
        got = n.received(number, lambda: n.frames(0, 100))
        assert got == 100, f"vf{number} got {got} of 100"


def scenario_drop(lab):
    """A flow that drops is in the card, and counted by its rule."""
    n = CardNode(lab)
    n.vfs()
    n.flows("priority=0,actions=NORMAL", "cookie=0x78,priority=10,in_port=rep0,udp,tp_dst=9,actions=drop")
    n.frames(0, 5)
    wait_for("the flow in the card", lambda: n.filters("drop"), 30, 0.2)
    assert n.received(1, lambda: n.frames(0, 100)) == 0
    n.wait_count("0x78", 105)


def scenario_connections(lab):
    """Filters with connection state are in the card's table; the host's software executes them: a stream passes."""
    n = CardNode(lab)
    a, b = n.vfs()
    n.flows("priority=0,actions=NORMAL", "table=0,priority=10,ip,ct_state=-trk,actions=ct(table=1)",
            "table=1,priority=10,ip,in_port=rep0,ct_state=+trk+new,actions=ct(commit),rep1",
            "table=1,priority=10,ip,in_port=rep0,ct_state=+trk+est,actions=rep1",
            "table=1,priority=10,ip,in_port=rep1,ct_state=+trk+est,actions=rep0")
    n.stream(a, b, n.address(1), 7000)
    n.stream(a, b, n.address(1), 7001)
    figure("filters with ct_state after two streams", len(n.filters("ct_state")), "filters")


def scenario_bond(lab):
    """A bond of two representors is a port: pings pass, by filters of the card with Open vSwitch, of the kernel with Heddle."""
    n = CardNode(lab)
    n.vf(0)
    n.net.ip(n.host, "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "100")
    n.switch.vsctl("add-port", "br0", "bond0")
    for number in (1, 2):
        n.pods[number] = n.namespace(f"pod{number}")
        n.plug(number, n.pods[number])
        n.net.ip(n.host, "-batch", "-", stdin=f"link set rep{number} down\nlink set rep{number} master bond0\n")
    n.net.ip(n.host, "-batch", "-", stdin="link set bond0 up\nlink set rep1 up\nlink set rep2 up\n")
    for here, there in ((0, 1), (1, 0)):
        n.neighbour(n.pods[here], f"vf{here}", n.address(there), n.mac_of(there))
    wait_for("pings", lambda: n.net.ping(n.pods[0], n.address(1), count=5, lossless=False) == 5, 60, 0.5)
    n.note_card()
    figure("bond: devices with a shared block", len(n.events("shared")), "devices")
    figure("bond: filters on its devices", len(n.filters("rep1 ")) + len(n.filters("rep2 ")), "filters")


def stream_between(n, client, server, seen, seen_port, real, real_port):
    """A stream whose client addresses the server by another address and port."""
    import contextlib
    import socket
    import threading

    def connect():
        sock = socket.socket()
        sock.settimeout(60)
        sock.connect((seen, seen_port))
        return sock
    data, got = bytes(range(251)) * 4096, bytearray()
    listener = n.net.socket(server, lambda: socket.create_server((real, real_port)))
    with listener, n.net.socket(client, connect) as sender:
        receiver, _ = listener.accept()
        receiver.settimeout(60)

        def send():
            with contextlib.suppress(OSError):
                sender.sendall(data)
                sender.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=send)
        thread.start()
        with receiver:
            while piece := receiver.recv(1 << 16):
                got += piece
        thread.join()
    assert got == data, f"{len(got)} of {len(data)} bytes arrived, or they were others"


if __name__ == "__main__":
    main()
