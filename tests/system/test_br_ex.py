#!/usr/bin/env python3
"""The bridge of a node's uplink as NetworkManager and nmstate make it: its address is leased, and outlives the switch."""

import json
import os
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.runner import limit, main
from lab.shell import wait_for

SERVER, LEASED, OTHER = "192.0.2.1", "192.0.2.50", "198.51.100.1"
MAC, OTHER_MAC = "3c:ec:ef:00:0e:01", "3c:ec:ef:00:0e:02"
# RFC 4361: type 255, an identifier of the interface, and a DUID. It names the lease, whatever the MAC address is.
CLIENT_ID = bytes.fromhex("ff00000001000300013cecef000e01")
DISCOVER, OFFER, REQUEST, ACK = 1, 2, 3, 5
COOKIE = bytes.fromhex("63825363")


class Database:
    """Transactions as JSON-RPC, as a program without Open vSwitch's clients makes them."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.settimeout(10)
        self.text, self.number = "", 0

    def call(self, method, params):
        self.number += 1
        self.sock.sendall(json.dumps({"method": method, "params": params, "id": self.number}).encode())
        while True:
            try:
                answer, end = json.JSONDecoder().raw_decode(self.text)
                self.text = self.text[end:].lstrip()
            except ValueError:
                self.text += self.sock.recv(65536).decode()
                continue
            if answer.get("id") == self.number:
                assert not answer["error"], answer
                return answer["result"]

    def transact(self, *operations):
        results = self.call("transact", ["Open_vSwitch", *operations])
        assert len(results) == len(operations) and not any("error" in r for r in results), results
        return results

    def select(self, table, name=None):
        where = [["name", "==", name]] if name else []
        return self.transact({"op": "select", "table": table, "where": where})[0]["rows"]


def uuids(column):
    """A column with references as a list: one element stands alone in JSON."""
    return column[1] if column[0] == "set" else [column]


def at(row):
    return [["_uuid", "==", row["_uuid"]]]


def managed(uuid):
    return ["map", [["NM.connection.uuid", uuid]]]


def add(db, bridge, port, interface):
    """A port with one interface, and its bridge if that is not there, under the condition that nothing has changed meanwhile."""
    root, = db.select("Open_vSwitch")
    there = db.select("Bridge", bridge["name"])
    before = uuids(there[0]["ports"]) if there else []
    operations = [{"op": "wait", "timeout": 0, "table": "Open_vSwitch", "where": at(root), "columns": ["bridges"],
                   "until": "==", "rows": [{"bridges": root["bridges"]}]}]
    if there:
        operations += [
            {"op": "wait", "timeout": 0, "table": "Bridge", "where": at(there[0]), "columns": ["ports"], "until": "==",
             "rows": [{"ports": there[0]["ports"]}]},
            {"op": "update", "table": "Bridge", "where": at(there[0]), "row": {"ports": ["set", [*before, ["named-uuid", "rowPort"]]]}}]
    else:
        operations += [
            {"op": "update", "table": "Open_vSwitch", "where": at(root),
             "row": {"bridges": ["set", [*uuids(root["bridges"]), ["named-uuid", "rowBridge"]]]}},
            {"op": "insert", "table": "Bridge", "uuid-name": "rowBridge", "row": {**bridge, "ports": ["set", [["named-uuid", "rowPort"]]]}}]
    if interface["type"] == "internal":
        # The address of the bridge's own device is a setting of the bridge.
        operations.append({"op": "mutate", "table": "Bridge", "where": at(there[0]),
                           "mutations": [["other_config", "insert", ["map", [["hwaddr", MAC]]]]]})
    operations += [
        {"op": "insert", "table": "Port", "uuid-name": "rowPort", "row": {**port, "interfaces": ["set", [["named-uuid", "rowInterface"]]]}},
        {"op": "insert", "table": "Interface", "uuid-name": "rowInterface", "row": interface},
        {"op": "mutate", "table": "Open_vSwitch", "where": at(root), "mutations": [["next_cfg", "+=", 1]]}]
    db.transact(*operations)


def message(kind, xid, client, address="0.0.0.0", yours="0.0.0.0", reply=False, options=b""):
    """A message of DHCP (RFC 2131)."""
    head = struct.pack("!BBBBIHH", 2 if reply else 1, 1, 6, 0, xid, 0, 0 if address != "0.0.0.0" else 0x8000)
    head += socket.inet_aton(address) + socket.inet_aton(yours) + bytes(8) + frames.mac(MAC) + bytes(10 + 64 + 128)
    return head + COOKIE + bytes([53, 1, kind, 61, len(client)]) + client + options + b"\xff"


def options_of(data):
    found, rest = {}, data[240:]
    while rest and rest[0] != 255:
        if rest[0] == 0:
            rest = rest[1:]
            continue
        found[rest[0]], rest = rest[2:2 + rest[1]], rest[2 + rest[1]:]
    return found


class DhcpServer:
    """Leases one address to one client, and notes the requests."""

    def __init__(self, lab, ns, dev):
        def make():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, dev.encode())
            sock.bind(("", 67))
            sock.settimeout(0.2)
            return sock
        self.sock = lab.net.socket(ns, make)
        self.seen, self.ending = [], False
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while not self.ending:
            try:
                data, _ = self.sock.recvfrom(2048)
            except TimeoutError:
                continue
            options = options_of(data)
            kind, client, address = options[53][0], options.get(61), socket.inet_ntoa(data[12:16])
            self.seen.append((kind, client, address))
            answer = {DISCOVER: OFFER, REQUEST: ACK}[kind]
            xid, = struct.unpack("!I", data[4:8])
            more = bytes([51, 4, 0, 0, 0, 4, 54, 4]) + socket.inet_aton(SERVER) + bytes([1, 4, 255, 255, 255, 0])
            to = address if address != "0.0.0.0" else "255.255.255.255"
            self.sock.sendto(message(answer, xid, client, address, LEASED, reply=True, options=more), (to, 68))

    def close(self):
        self.ending = True
        self.thread.join()
        self.sock.close()


def lease(lab, ns, dev):
    """Requests an address on a device that has none."""
    with lab.net.raw(ns, dev) as sock:
        for kind, want in ((DISCOVER, OFFER), (REQUEST, ACK)):
            asked = bytes([50, 4]) + socket.inet_aton(LEASED) if kind == REQUEST else b""
            packet = message(kind, 0x1234, CLIENT_ID, options=asked)
            packet = frames.udp("0.0.0.0", "255.255.255.255", 68, 67, packet)
            packet = frames.ipv4("0.0.0.0", "255.255.255.255", 17, packet)
            sock.send(frames.ethernet("ff:ff:ff:ff:ff:ff", MAC, 0x0800, packet))
            while True:
                frame = sock.recv(65535)
                if frame[12:14] == b"\x08\0" and frame[23] == 17 and frame[36:38] == b"\0\x44" and options_of(frame[42:])[53][0] == want:
                    break
    return socket.inet_ntoa(frame[58:62])


class Renewing:
    """Renews a lease from its own address, a few times a second, whatever happens to the switch meanwhile."""

    def __init__(self, lab, ns):
        def make():
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sock.bind((LEASED, 68))
            sock.settimeout(0.3)
            return sock
        self.sock = lab.net.socket(ns, make)
        self.acks, self.errors, self.ending = 0, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending:
            try:
                self.sock.sendto(message(REQUEST, 0x4321, CLIENT_ID, LEASED), (SERVER, 67))
                data, _ = self.sock.recvfrom(2048)
                self.acks += options_of(data)[53][0] == ACK and socket.inet_ntoa(data[16:20]) == LEASED
                time.sleep(0.1)
            except TimeoutError:
                continue
            except OSError as error:
                self.errors.append(error)
                time.sleep(0.1)

    def more(self, n=3):
        before = self.acks
        wait_for("renewals", lambda: self.acks >= before + n, 20)

    def close(self):
        self.ending = True
        self.thread.join()
        self.sock.close()


def network(lab, ns):
    """The device's index, MTU and addresses, and its routes. While no switch runs the device has no carrier (`linkdown`)."""
    link, = json.loads(lab.net.ip(ns, "-j", "link", "show", "br-ex"))
    addresses, = json.loads(lab.net.ip(ns, "-j", "addr", "show", "br-ex"))
    return (link["ifindex"], link["mtu"], link["address"], [a["local"] for a in addresses["addr_info"] if a["family"] == "inet"],
            [r.replace("linkdown", "").strip() for r in lab.net.ip(ns, "route", "show", "dev", "br-ex").splitlines()])


def node(lab):
    """A node with an uplink, and a router behind it that leases addresses."""
    # A bridge of NetworkManager has no type: Open vSwitch takes the kernel's datapath then.
    sw = lab.switch(start=False)
    sw.args.remove("--disable-system")
    sw.start()
    router = lab.net.namespace("router")
    lab.net.veth(sw.netns, "enp1s0", router, "lan0")
    lab.net.ip(sw.netns, "link", "set", "enp1s0", "address", MAC)
    lab.net.address(router, "lan0", f"{SERVER}/24")
    lab.net.ip(router, "addr", "add", f"{OTHER}/32", "dev", "lo")
    return sw, router


@limit(240)
def scenario_a_leased_address_outlives_the_switch(lab):
    """The transactions of NetworkManager for OpenShift's `br-ex`. A client of DHCP renews its lease while the switch restarts and is killed."""
    outlives(lab, "enp1s0", {"type": "system"})


@limit(240)
def scenario_a_leased_address_with_a_dpdk_uplink(lab):
    """The same with a profile whose uplink has `ovs-dpdk` settings, as nmstate's `dpdk` section makes it."""
    options = [["dpdk-devargs", "net_af_xdp0,iface=enp1s0"], ["n_rxq", "1"], ["n_rxq_desc", "1024"], ["n_txq_desc", "2048"]]
    outlives(lab, "ovs-dpdk0", {"type": "dpdk", "options": ["map", options]})


def outlives(lab, uplink, interface):
    sw, router = node(lab)
    # A cable carries finished checksums.
    lab.net.run(router, "ethtool", "-K", "lan0", "tx", "off")
    db = Database(f"{sw.dir}/db.sock")
    bridge = {"name": "br-ex", "mcast_snooping_enable": False, "rstp_enable": False, "stp_enable": False,
              "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000001")}
    add(db, bridge, {"name": uplink, "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000002")},
        {"name": uplink, **interface, "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000003")})
    add(db, bridge, {"name": "br-ex", "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000004")},
        {"name": "br-ex", "type": "internal", "mtu_request": 1400, "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000005")})
    # A network manager waits for the device that the switch makes, and looks at its row.
    wait_for("br-ex", lambda: "br-ex" in lab.net.ip(sw.netns, "-br", "link"))
    sw.wait_column("interface", "br-ex", "mtu", 1400)
    sw.wait_column("interface", "br-ex", "mac_in_use", MAC)
    assert sw.get("interface", "br-ex", "error") == "[]" and sw.get("interface", uplink, "error") == "[]", sw.get("interface", uplink, "error")
    lab.net.ip(sw.netns, "link", "set", "br-ex", "up")
    server = DhcpServer(lab, router, "lan0")
    try:
        assert lease(lab, sw.netns, "br-ex") == LEASED
        lab.net.ip(sw.netns, "addr", "add", f"{LEASED}/24", "dev", "br-ex", "valid_lft", "1000", "preferred_lft", "1000")
        lab.net.ip(sw.netns, "route", "add", "default", "via", SERVER, "dev", "br-ex", "metric", "48")
        before = network(lab, sw.netns)
        assert before[1:4] == (1400, MAC, [LEASED]) and any("default" in r for r in before[4]), before
        renewing = Renewing(lab, sw.netns)
        try:
            renewing.more()
            for how in (signal.SIGTERM, signal.SIGKILL):
                sw.stop_daemon(how)
                assert network(lab, sw.netns) == before, (how, network(lab, sw.netns), before)
                sw.start_daemon()
                renewing.more()
                assert network(lab, sw.netns) == before, (how, network(lab, sw.netns), before)
                lab.net.ping(sw.netns, OTHER)
        finally:
            renewing.close()
        assert not renewing.errors, renewing.errors
        assert {client for _, client, _ in server.seen} == {CLIENT_ID}
    finally:
        server.close()


@limit(120)
def scenario_a_changed_and_a_deleted_profile(lab):
    """A changed MTU and a new address of the device take effect in place; the rows of others stay; without the bridge the device goes."""
    sw, router = node(lab)
    db = Database(f"{sw.dir}/db.sock")
    bridge = {"name": "br-ex", "external_ids": managed("6b7b8c1e-0000-4000-8000-000000000001")}
    add(db, bridge, {"name": "enp1s0"}, {"name": "enp1s0", "type": "system"})
    add(db, bridge, {"name": "br-ex"}, {"name": "br-ex", "type": "internal"})
    wait_for("br-ex", lambda: "br-ex" in lab.net.ip(sw.netns, "-br", "link"))
    lab.net.address(sw.netns, "br-ex", f"{LEASED}/24")
    wait_for("the router", lambda: lab.net.ping(sw.netns, SERVER, count=1, lossless=False))
    before = network(lab, sw.netns)
    # nmstate's own transaction about the switch itself, and OVN's ports beside NetworkManager's.
    root, = db.select("Open_vSwitch")
    db.transact({"op": "mutate", "table": "Open_vSwitch", "where": at(root),
                 "mutations": [["external_ids", "insert", ["map", [["ovn-bridge-mappings", "physnet:br-ex"]]]]]})
    sw.vsctl("add-br", "br-int", "--", "add-port", "br-ex", "patch-ex", "--", "set",
             "interface", "patch-ex", "type=patch", "options:peer=patch-int", "--", "add-port", "br-int", "patch-int", "--", "set", "interface",
             "patch-int", "type=patch", "options:peer=patch-ex")
    row, = db.select("Interface", "br-ex")
    db.transact({"op": "update", "table": "Interface", "where": at(row), "row": {"mtu_request": 1300}},
                {"op": "mutate", "table": "Bridge", "where": [["name", "==", "br-ex"]],
                 "mutations": [["other_config", "delete", ["set", ["hwaddr"]]], ["other_config", "insert", ["map", [["hwaddr", OTHER_MAC]]]]]})
    sw.wait_column("interface", "br-ex", "mac_in_use", OTHER_MAC)
    sw.wait_column("interface", "br-ex", "mtu", 1300)
    wait_for("the device's MTU", lambda: network(lab, sw.netns)[1] == 1300)
    assert network(lab, sw.netns)[0] == before[0] and network(lab, sw.netns)[3:] == before[3:], (network(lab, sw.netns), before)
    lab.net.ip(router, "neigh", "flush", "all")
    wait_for("the router", lambda: lab.net.ping(sw.netns, SERVER, count=1, lossless=False))
    # The profile of the uplink goes first, then the bridge with what is left in it.
    rows, port = db.select("Bridge", "br-ex"), db.select("Port", "enp1s0")[0]
    db.transact({"op": "mutate", "table": "Bridge", "where": at(rows[0]), "mutations": [["ports", "delete", ["set", [port["_uuid"]]]]]})
    wait_for("the uplink to go", lambda: "enp1s0" not in sw.ofctl("show", "br-ex"))
    lab.net.address(sw.netns, "enp1s0", "192.0.2.60/24")
    lab.net.ip(sw.netns, "addr", "del", f"{LEASED}/24", "dev", "br-ex")
    wait_for("the router", lambda: lab.net.ping(sw.netns, SERVER, count=1, lossless=False))
    db.transact({"op": "mutate", "table": "Open_vSwitch", "where": at(root), "mutations": [["bridges", "delete", ["set", [rows[0]["_uuid"]]]]]})
    wait_for("br-ex to go", lambda: "br-ex" not in lab.net.ip(sw.netns, "-br", "link"))
    assert "br-int" in sw.vsctl("list-br") and sw.alive()


if __name__ == "__main__":
    main()
