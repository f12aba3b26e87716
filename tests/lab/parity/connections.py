#!/usr/bin/env python3
"""Connections of the switch in the kernel's table, where ovnkube, conntrack and exporters read and delete them."""

import contextlib
import os
import re
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.ctnetlink import Table
from lab.parity.node import Node
from lab.runner import main
from lab.shell import wait_for

CLIENT, SERVICE, FIRST, SECOND = "10.6.0.10", "10.6.0.100", "10.6.0.1", "10.6.0.2"
PORTS = {"client": CLIENT, "first": FIRST, "second": SECOND}
TCP, UDP, ICMP = 6, 17, 1
SOURCE = 4000
LABEL = 0x0203_0405_0607_0000_0001


class Service:
    """A client, two backends, and a UDP service whose address flows translate to one of them, in zone 7."""

    def __init__(self, lab, commit=""):
        self.lab, self.node = lab, Node(lab)
        n = self.node
        self.pods = {name: n.pod(name, f"{address}/24") for name, address in PORTS.items()}
        self.commit = commit
        n.neighbour(self.pods["client"], "eth0", SERVICE, "02:00:00:00:01:00")
        self.backend(FIRST)
        for name, address in (("first", FIRST), ("second", SECOND)):
            self.reply(name, address)
        self.client = n.net.socket(self.pods["client"], self.bound)
        lab.cleanups.append(self.client.close)

    def bound(self, address="", port=SOURCE):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((address, port))
        sock.settimeout(5)
        return sock

    def reply(self, name, address):
        """A server that replies to each datagram with its name, until it gets an empty one."""
        sock = self.node.net.socket(self.pods[name], lambda: self.bound(address, 5353))
        sock.settimeout(None)

        def body():
            with sock:
                while received := sock.recvfrom(100):
                    if not received[0]:
                        return
                    sock.sendto(name.encode(), received[1])
        thread = threading.Thread(target=body, daemon=True)
        thread.start()

    def backend(self, address, new=None):
        """Flows that send the service's new connections to this backend. new: other actions for any new one."""
        mac = {port: self.node.mac(self.pods[port], "eth0") for port in PORTS}
        self.node.flows(
            "priority=0,actions=drop", "priority=10,arp,actions=NORMAL", "priority=10,ip,actions=ct(table=1,zone=7,nat)",
            f"table=1,priority=20,ct_state=+new,udp,nw_dst={SERVICE},tp_dst=53,"
            f"actions=ct(commit,table=2,zone=7,nat(dst={address}:5353))",
            *([f"cookie=9,table=1,priority=30,ct_state=-est,ip,actions={new}"] if new else []),
            f"table=1,priority=10,ct_state=+new,ip,actions=ct(commit,table=2,zone=7{self.commit})",
            "table=1,priority=5,ip,actions=resubmit(,2)",
            *(f"table=2,ip,nw_dst={where},actions=set_field:{mac[port]}->eth_dst,{port}" for port, where in PORTS.items()))

    def request(self):
        """The name of the backend that replies to the client's one source port."""
        for _ in range(3):
            self.client.sendto(b"who", (SERVICE, 53))
            try:
                return self.client.recv(100).decode()
            except TimeoutError:
                continue
        raise AssertionError("the service does not reply")

    def table(self):
        with contextlib.closing(Table(self.node.net, self.node.host)) as table:
            return table.list()

    def delete(self, wanted):
        """Deletes as ovnkube's library does, and returns the number."""
        with contextlib.closing(Table(self.node.net, self.node.host)) as table:
            return table.delete_matching(wanted)

    def listed(self, what, wanted, number=1):
        """Waits until this number of entries of the kernel's table are wanted, and returns them."""
        found = []

        def probe():
            found[:] = [entry for entry in self.table() if wanted(entry)]
            return len(found) == number
        try:
            wait_for("", probe, 8, 0.3)
        except AssertionError:
            raise AssertionError(f"{what}: {len(found)} entries instead of {number}; the table: {self.table()}") from None
        return found

    def tcp(self):
        """A connection from the client to the first backend: both sockets."""
        def connect():
            sock = socket.socket()
            sock.settimeout(10)
            sock.connect((FIRST, 8080))
            return sock
        listener = self.node.net.socket(self.pods["first"], lambda: socket.create_server((FIRST, 8080)))
        with listener:
            client = self.node.net.socket(self.pods["client"], connect)
            server, _ = listener.accept()
        server.settimeout(10)
        self.lab.cleanups.extend((client.close, server.close))
        client.sendall(b"hello")
        assert server.recv(100) == b"hello"
        server.sendall(b"hello")
        assert client.recv(100) == b"hello"
        return client, server


def is_service(entry):
    return (entry.zone, entry.proto, entry.src, entry.sport, entry.dst, entry.dport) == (7, UDP, CLIENT, SOURCE, SERVICE, 53)


def scenario_translated_udp_is_listed(lab):
    """`conntrack -L -w ZONE` prints a translated UDP connection with both tuples, and prints it for no other zone."""
    s = Service(lab)
    assert s.request() == "first"
    want = re.compile(rf"^udp .*src={CLIENT} dst={SERVICE} sport={SOURCE} dport=53 "
                      rf".*src={FIRST} dst={CLIENT} sport=5353 dport={SOURCE} .*zone=7\b", re.M)
    listed = lambda zone: s.node.net.run(s.node.host, "conntrack", "-L", "-p", "udp", "-w", zone)  # noqa: E731
    wait_for("the entry", lambda: want.search(listed("7")), 8, 0.3)
    assert SERVICE not in listed("8")
    assert not [entry for entry in s.table() if entry.zone == 0], f"the host's own zone: {s.table()}"


def deleted(s, delete):
    """The connection keeps its backend when flows change; after its deletion the next packet takes the new one."""
    assert s.request() == "first"
    s.listed("the service's connection", is_service)
    s.backend(SECOND)
    assert s.request() == "first", "a change of flows alone moved the connection"
    delete()
    wait_for("the new backend", lambda: s.request() == "second", 10, 0.2)
    found = s.listed("the new connection", is_service)
    assert (found[0].reply[0], found[0].reply[3]) == (SECOND, 5353), found


def scenario_conntrack_deletes_a_connection(lab):
    """After `conntrack -D` of a UDP connection its next packet takes the service's new backend."""
    s = Service(lab)
    words = ("conntrack", "-D", "-p", "udp", "-w", "7", "-d", SERVICE, "--dport", "53")
    deleted(s, lambda: s.node.net.run(s.node.host, *words))


def scenario_ovnkube_deletes_a_connection(lab):
    """The same by what ovnkube calls when an endpoint goes: a dump by netlink, and deletions of entries to it."""
    s = Service(lab)

    def delete():
        to_first = lambda entry: entry.proto == UDP and entry.reply[0] == FIRST  # noqa: E731
        assert s.delete(to_first) == 1
    deleted(s, delete)


def scenario_connection_with_a_label(lab):
    """A connection is found by its label, and once it is deleted, its packets belong to no connection."""
    s = Service(lab, commit=f",exec(set_field:{LABEL:#x}->ct_label,set_field:0x5->ct_mark)")
    client, _ = s.tcp()
    found = s.listed("the label", lambda entry: entry.label_bytes == LABEL.to_bytes(16, "little"))
    assert (found[0].zone, found[0].proto, found[0].dst, found[0].dport, found[0].mark) == (7, TCP, FIRST, 8080, 5), found
    s.backend(FIRST, new="drop")
    assert s.delete(lambda entry: LABEL.to_bytes(10, "little") in entry.label_bytes) == 1

    def gone():
        client.send(b"more")
        return s.node.count(9) > 0
    wait_for("a segment without its connection", gone, 8, 0.5)
    assert s.node.count(9) > 0


def scenario_connections_of_an_address(lab):
    """All connections of a pod's address, of every protocol, are listed and can be deleted, as of a removed pod."""
    s = Service(lab)
    s.tcp()
    s.node.net.ping(s.pods["client"], FIRST)
    s.client.sendto(b"who", (FIRST, 5353))
    assert s.client.recv(100) == b"first"
    its = lambda entry: entry.zone == 7 and entry.dst == FIRST  # noqa: E731
    found = s.listed("connections to the pod", its, 3)
    assert {entry.proto for entry in found} == {TCP, UDP, ICMP}, found
    assert s.delete(its) == 3
    s.listed("connections that were deleted", its, 0)
    s.backend(FIRST, new="drop")
    s.client.sendto(b"who", (FIRST, 5353))
    s.node.wait_count(9, 1)


def scenario_flushed_by_the_switch(lab):
    """`dpctl/flush-conntrack zone=7` empties the zone in the kernel's table too."""
    s = Service(lab)
    assert s.request() == "first"
    s.listed("the service's connection", is_service)
    s.node.switch.appctl("dpctl/flush-conntrack", "zone=7")
    s.listed("entries of the zone", lambda entry: entry.zone == 7, 0)


if __name__ == "__main__":
    main()
