#!/usr/bin/env python3
"""A guest moves to another node, and its connections with it (`heddle migrate`)."""

import base64
import hashlib
import hmac
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE, frames
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.unixctl import UnixctlError
from lab.vhost import heddle_path

SERVER, PORT, OTHER = "10.9.0.1", "web-1", "web-2"
# For each guest: address, translated address, MAC address, OpenFlow port, device.
GUESTS = {PORT: ("10.9.0.5", "10.9.0.100", "02:00:00:00:00:05", 5, "vg"),
          OTHER: ("10.9.0.6", "10.9.0.101", "02:00:00:00:00:06", 6, "vo")}
GUEST, _, GUEST_MAC, _, _ = GUESTS[PORT]
# Numbers of zones differ between nodes; their names do not.
ZONES = ({"web-1": 10, "web-2": 11, "gw_snat": 20}, {"web-1": 30, "web-2": 31, "gw_snat": 40})


def heddle(sw, *args, check=True, **kw):
    """Runs `heddle migrate`; returns the process and its output as one text."""
    done = subprocess.run([heddle_path(), "migrate", args[0], "--target", sw.ctl, *args[1:]], capture_output=True, timeout=60,
                          check=False, **kw)
    text = (done.stdout if kw.get("text") else done.stdout[:2000]) + done.stderr
    text = text if isinstance(text, str) else text.decode(errors="replace")
    sw.trace.note(f"heddle migrate {args}: {done.returncode}\n{text[:2000]}")
    assert not check or done.returncode == 0, text
    return done, text


def refused(sw, why, *args):
    """Checks that the command fails with one sentence that has these words."""
    done, text = heddle(sw, *args, check=False)
    assert done.returncode == 1 and any(w in text for w in ((why,) if isinstance(why, str) else why)) and len(text.strip().splitlines()) == 1, text


def rules(sw, zones, name):
    """A stateful ACL in the port's zone, and SNAT on the node. Only a SYN begins a connection."""
    own, snat = zones[name], zones["gw_snat"]
    address, seen, mac, no, _ = GUESTS[name]
    for rule in (
        f"priority=30,in_port=1,ip,nw_dst={seen},actions=ct(table=2,zone={snat},nat)",
        f"priority=30,in_port={no},ip,actions=ct(table=1,zone={own})",
        f"table=1,priority=20,in_port={no},tcp,tcp_flags=+syn-ack,ct_state=+new+trk,actions=ct(commit,zone={own}),"
        f"ct(commit,zone={snat},nat(src={seen}:30000-60000,random)),1",
        f"table=1,priority=20,in_port={no},ip,ct_state=+est-inv+trk,actions=ct(table=4,zone={snat},nat)",
        # The reply's destination is translated in the node's zone; then the guest's own ACL.
        f"table=2,priority=20,ip,nw_dst={address},actions=ct(table=3,zone={own})",
        f"table=3,priority=20,ip,nw_dst={address},ct_state=+est-inv+rpl+trk,actions=mod_dl_dst:{mac},{no}",
        f"table=4,priority=20,in_port={no},ip,ct_state=+est-inv+trk,actions=1",
    ):
        sw.ofctl("add-flow", "br0", rule)


def node(lab, net, index):
    """A switch with an uplink, its zones and rules for both guests."""
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("the reference has no such commands")
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    lab.bridge(sw)
    lab.net.veth(net, f"n{index}", sw.netns, "lan0")
    lab.net.ip(net, "link", "set", f"n{index}", "master", "lan")
    names = [word for name, zone in ZONES[index].items() for word in ("--", "set", "bridge", "br0", f"external_ids:ct-zone-{name}={zone}")]
    sw.vsctl("add-port", "br0", "lan0", "--", "set", "interface", "lan0", "ofport_request=1", *names)
    sw.ofctl("del-flows", "br0")
    sw.ofctl("add-flow", "br0", "priority=10,arp,actions=NORMAL")
    for name in GUESTS:
        rules(sw, ZONES[index], name)
    return sw


def plug(sw, name, wait=True):
    """Adds the guest's device as a port."""
    address, _, _, no, dev = GUESTS[name]
    sw.vsctl("--may-exist", "add-port", "br0", dev, "--", "set", "interface", dev, f"ofport_request={no}",
             f"external_ids:iface-id={name}", f"external_ids:ip_addresses={address}/24", check=wait)
    if wait:
        sw.wait_column("interface", dev, "ofport", no)


class Move:
    """Two nodes on one network, a server there, and two guests at the first node."""

    def __init__(self, lab):
        self.lab, self.net = lab, lab.net
        self.lan = lab.net.namespace("lan")
        lab.net.ip(self.lan, "link", "add", "lan", "type", "bridge")
        lab.net.address(self.lan, "lan", f"{SERVER}/24")
        self.nodes = [node(lab, self.lan, index) for index in range(2)]
        self.guests = {}
        for name, (address, seen, mac, _, dev) in GUESTS.items():
            ns = lab.net.namespace(name)
            lab.net.veth(self.nodes[0].netns, dev, ns, "eth0")
            lab.net.address(ns, "eth0", f"{address}/24", mac)
            lab.net.ip(ns, "neigh", "add", SERVER, "lladdr", self.mac(self.lan, "lan"), "dev", "eth0")
            plug(self.nodes[0], name)
            lab.net.ip(self.lan, "neigh", "add", seen, "lladdr", mac, "dev", "lan", "nud", "permanent")
            self.guests[name] = ns

    def mac(self, ns, dev):
        return self.net.run(ns, "cat", f"/sys/class/net/{dev}/address").strip()

    def connect(self, port, guest=PORT):
        """A connection of the guest to the server: both sockets."""
        def make_server():
            sock = socket.socket()
            sock.bind((SERVER, port))
            sock.listen()
            return sock
        listener = self.net.socket(self.lan, make_server)
        listener.settimeout(20)
        def make_client():
            sock = socket.socket()
            sock.settimeout(20)
            sock.connect((SERVER, port))
            return sock
        client = self.net.socket(self.guests[guest], make_client)
        server, (address, _) = listener.accept()
        listener.close()
        assert address == GUESTS[guest][1], address
        for sock in (client, server):
            sock.settimeout(20)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client, server

    def plug_in(self, source, target):
        """Moves the guest's device from one node to the other."""
        self.nodes[source].vsctl("del-port", "vg")
        self.net.move("vg", self.nodes[source].netns, self.nodes[target].netns)
        self.net.ip(self.nodes[target].netns, "link", "set", "vg", "up")
        plug(self.nodes[target], PORT)
        # The network learns the guest's new place from a broadcast, as from the RARP of QEMU.
        raw = self.net.raw(self.guests[PORT], "eth0")
        raw.send(frames.ethernet("ff:ff:ff:ff:ff:ff", GUEST_MAC, 0x0806, frames.arp(1, GUEST_MAC, GUEST, "00:00:00:00:00:00", GUEST)))
        raw.close()

    def unplugged(self, target):
        """Adds the row of the port at the target before the device exists, as libvirt does."""
        plug(self.nodes[target], PORT, wait=False)

    def file(self, name="moved"):
        return f"{self.nodes[0].dir}/{name}"


def talk(client, server, n=20, size=3000):
    """Checks that bytes pass in both directions."""
    for step in range(n):
        sent = bytes([step % 251]) * size
        for a, b in ((client, server), (server, client)):
            a.sendall(sent)
            got = b""
            while len(got) < size:
                part = b.recv(size - len(got))
                assert part, "the connection has ended"
                got += part
            assert got == sent


def is_dead(client, server):
    """Checks that no byte arrives any more."""
    for sock in (client, server):
        sock.settimeout(3)
    try:
        talk(client, server, 1, 10)
    except (TimeoutError, ConnectionError):
        return True
    return False


def tracked(sw, zone):
    return sw.appctl("dpctl/dump-conntrack", "-m", f"zone={zone}").splitlines()


def tcp_ports(lines):
    """The sequence of source ports of TCP, sorted."""
    return sorted(re.search(r"sport=(\d+)", line).group(1) for line in lines if line.startswith("tcp"))


@limit(150)
def scenario_streams_move_with_their_guest(lab):
    """Streams through an ACL and SNAT survive the way there and back; another guest's connections stay."""
    move = Move(lab)
    first, second = move.nodes
    stream = move.connect(7001)
    other = move.connect(7002, OTHER)
    talk(*stream)
    talk(*other)
    before = [line for line in tracked(first, ZONES[0]["gw_snat"]) if GUEST in line]
    for source, target in ((0, 1), (1, 0)):
        a, b = move.nodes[source], move.nodes[target]
        here, there = ZONES[source], ZONES[target]
        move.unplugged(target)
        _, text = heddle(b, "prepare", PORT)
        assert f"zone web-1 is {there['web-1']}: all" in text and f"zone gw_snat is {there['gw_snat']}: connections with" in text, text
        _, text = heddle(a, "export", "--live", "--file", move.file("early"), PORT)
        assert "2 connections of 2 zones" in text, text
        _, text = heddle(b, "import", "--file", move.file("early"), PORT)
        assert "2 of 2 connections are here now (2 new)" in text, text
        talk(*stream)
        # The guest pauses: the last segments have passed.
        _, text = heddle(a, "export", "--file", move.file(), PORT)
        _, text = heddle(b, "import", "--file", move.file(), PORT)
        assert "2 of 2 connections are here now (2 renewed)" in text, text
        assert tcp_ports(tracked(b, there[PORT])) == tcp_ports(tracked(a, here[PORT]))
        assert "target" in heddle(b, "status")[1] and "source" in heddle(a, "status")[1]
        move.plug_in(source, target)
        talk(*stream)
        # An older file does not set it back.
        _, text = heddle(b, "import", "--file", move.file("early"), PORT)
        assert "2 in use" in text, text
        talk(*stream)
        _, text = heddle(a, "finish", PORT)
        assert "2 connections have ended here" in text, text
        assert tracked(a, here[PORT]) == [] and not any(GUEST in line for line in tracked(a, here["gw_snat"]))
        _, text = heddle(b, "finish", PORT)
        assert "2 imported connections" in text, text
        assert "nothing is done" in heddle(b, "finish", PORT)[1]
        talk(*stream)
        outside_of_windows(move, b, stream[0])
        talk(*stream)
        # The other guest stays where it is.
        talk(*other)
        assert len(tracked(first, ZONES[0][OTHER])) == 1 and tracked(second, ZONES[1][OTHER]) == []
        assert len([line for line in tracked(first, ZONES[0]["gw_snat"]) if GUESTS[OTHER][0] in line]) == 1
    after = [line for line in tracked(first, ZONES[0]["gw_snat"]) if GUEST in line]
    seen = re.compile(r"reply=\([^)]*dport=(\d+)")
    assert seen.search(before[0]).group(1) == seen.search(after[0]).group(1), (before, after)


def outside_of_windows(move, sw, client):
    """A segment outside of the windows is invalid."""
    sport = client.getsockname()[1]

    def invalid():
        return int(sw.appctl("coverage/read-counter", "conntrack_tcp_seq_chk_failed"))
    before = invalid()
    raw = move.net.raw(move.guests[PORT], "eth0")
    # At least one of these sequence numbers is far outside of the windows.
    for seq in (1, 1 << 31):
        segment = frames.tcp(GUEST, SERVER, sport, 7001, flags=0x10, data=b"x", seq=seq, ack=1)
        raw.send(frames.ethernet(move.mac(move.lan, "lan"), GUEST_MAC, 0x0800, frames.ipv4(GUEST, SERVER, 6, segment)))
    raw.close()
    wait_for("an invalid segment", lambda: invalid() > before)


@limit(100)
def scenario_without_their_import_streams_end(lab):
    """A stream whose connections stay behind ends at the move."""
    move = Move(lab)
    stream = move.connect(7001)
    talk(*stream)
    heddle(move.nodes[0], "export", "--file", move.file(), PORT)
    move.plug_in(0, 1)
    assert is_dead(*stream)


def text(words):
    return struct.pack("!H", len(words)) + words.encode()


def section(kind, content):
    return struct.pack("!BI", kind, len(content)) + content


def connection(zone, number, guest=GUEST):
    """An established connection of TCP in the format of docs and crates/migration."""
    ends = socket.inet_aton(guest) + (0x0a640000 + number // 50000).to_bytes(4, "big") + struct.pack("!HH", 1024 + number % 50000, 80)
    window = struct.pack("!IIHBB", number, number + 1000, 1000, 0xff, 4)
    return struct.pack("!HHBI", zone, 0, 6, 3_600_000) + ends + window * 2


def moved_file(path, connections, port=PORT, zones=(PORT, "gw_snat"), version=1, key=None, live=0, age=0):
    """Writes a file as `heddle migrate export` does, with any content. age: seconds since its export."""
    header = struct.pack("!BQ", live, int(time.time()) - age) + text(port) + text("a test") + struct.pack("!H", len(zones))
    out = b"HDLMIGR\n" + struct.pack("!HBB", version, 1 if key else 0, 0) + section(1, header + b"".join(map(text, zones)))
    for at in range(0, len(connections), 10_000):
        part = connections[at:at + 10_000]
        out += section(2, struct.pack("!I", len(part)) + b"".join(part))
    out += struct.pack("!BIQ", 3, 40, len(connections))
    out += hmac.new(key, out, hashlib.sha256).digest() if key else hashlib.sha256(out).digest()
    with open(path, "wb") as file:
        file.write(out)
    os.chmod(path, 0o600)


def pipes_of_others(move, sw, key):
    """A FIFO that any user may write to is no file and no key."""
    pipe = move.file("pipe")
    os.mkfifo(pipe)
    os.chmod(pipe, 0o666)
    for options, why in ((("-f", pipe), "others may change this file"), (("-f", move.file(), "--key-file", pipe), "others may read the key")):
        # A writer, so that the command does not wait for one.
        writer = subprocess.Popen(["sh", "-c", f"cat {key} >{pipe}"], stderr=subprocess.DEVNULL)
        try:
            refused(sw, why, "import", *options, PORT)
        finally:
            writer.kill()
            writer.wait()


@limit(100)
def scenario_a_switch_without_moves(lab):
    """At a switch that has no such commands, each step is refused with one sentence."""
    if not os.access(REFERENCE, os.X_OK):
        raise Skip("Open vSwitch is not installed")
    sw = lab.switch(binary=REFERENCE)
    path = f"{sw.dir}/moved"
    moved_file(path, [connection(0, 1)])
    for words in (("prepare", PORT), ("export", "-f", f"{sw.dir}/new", PORT), ("import", "-f", path, PORT), ("finish", PORT), ("abort", PORT), ("status",)):
        refused(sw, "this daemon is not Heddle's, or an older one", *words)


@limit(100)
def scenario_what_is_refused(lab):
    """A hostile or wrong file changes nothing; each refusal is one sentence."""
    move = Move(lab)
    first, second = move.nodes
    path, key, other_key = (move.file(name) for name in ("moved", "key", "other-key"))
    for name, content in ((key, b"0123456789abcdef"), (other_key, b"fedcba9876543210")):
        with open(name, "wb") as file:
            file.write(content)
        os.chmod(name, 0o600)
    moved_file(path, [connection(0, 1)])
    refused(second, "no port 'web-1'", "prepare", PORT)
    refused(second, "no port 'web-1'", "import", "-f", path, PORT)
    refused(first, "no port 'x'", "export", "-f", path, "x")
    plug(second, PORT, wait=False)
    refused(first, "has the connections of port web-1, not of web-2", "import", "-f", path, OTHER)
    with open(path, "r+b") as file:
        file.seek(-60, os.SEEK_END)
        file.write(b"!")
    refused(second, "the file was changed", "import", "-f", path, PORT)
    os.truncate(path, 100)
    refused(second, "not complete", "import", "-f", path, PORT)
    moved_file(path, [connection(0, 1)], version=2)
    refused(second, "the file has format 2", "import", "-f", path, PORT)
    with open(path, "wb") as file:
        file.write(b"tcp,orig=")
    refused(second, "no file of 'heddle migrate export'", "import", "-f", path, PORT)
    moved_file(path, [connection(5, 1)])
    refused(second, "a zone without a name", "import", "-f", path, PORT)
    moved_file(path, [connection(0, 1)])
    os.chmod(path, 0o666)
    refused(second, "others may change this file", "import", "-f", path, PORT)
    moved_file(path, [connection(0, 1)], key=b"0123456789abcdef")
    refused(second, "give --key-file", "import", "-f", path, PORT)
    refused(second, "the key is another one", "import", "-f", path, "--key-file", other_key, PORT)
    os.chmod(other_key, 0o644)
    refused(second, "others may read the key", "import", "-f", path, "--key-file", other_key, PORT)
    for age, why in ((7200, "was written 72"), (-7200, "after this node's time")):
        moved_file(path, [connection(0, 1)], age=age)
        refused(second, why, "import", "-f", path, PORT)
        refused(second, why, "prepare", "-f", path, PORT)
    pipes_of_others(move, second, key)
    moved_file(path, [connection(0, 1)])
    os.truncate(path, 300 << 20)
    refused(second, "exceeds a bound: the length of the file", "import", "-f", path, PORT)
    # Another user's link must not lead an export to a file of root.
    os.symlink(path, move.file("link"))
    refused(second, "is a symbolic link to a file", "export", "-f", move.file("link"), PORT)
    os.remove(path)
    moved_file(path, [connection(0, 1)], key=b"0123456789abcdef")
    assert second.appctl("dpctl/dump-conntrack") == ""
    heddle(second, "import", "-f", path, "--key-file", key, PORT)
    assert len(tracked(second, ZONES[1][PORT])) == 1
    # This node is the target. As the source of a move, `finish` would end the guest's connections.
    refused(second, "this node is the target of a move that is not finished", "export", "-f", move.file("back"), PORT)
    assert "target" in heddle(second, "status")[1] and not os.path.exists(move.file("back"))
    assert "1 imported connections have ended here" in heddle(second, "abort", PORT)[1]
    heddle(second, "export", "-f", move.file("back"), PORT)
    moved_file(path, [connection(0, 1)])
    refused(second, "this node is the source of a move that is not finished", "import", "-f", path, PORT)
    assert "all connections stay" in heddle(second, "abort", PORT)[1]
    # Old files are accepted on request.
    moved_file(path, [connection(0, 1)], age=7200)
    heddle(second, "import", "-f", path, "--max-age", "10000", PORT)
    heddle(second, "abort", PORT)
    # No connection is taken: no success.
    moved_file(path, [connection(0, 1)], zones=("elsewhere",))
    done, out = heddle(second, "import", "-f", path, PORT, check=False)
    assert done.returncode == 1 and "no connection of the file was taken" in out and "zone elsewhere is not known here" in out, out
    heddle(second, "abort", PORT)
    zone = second.get("bridge", "br0", "external_ids:ct-zone-web-1")
    names = second.get("bridge", "br0", "external_ids")
    second.vsctl("clear", "bridge", "br0", "external_ids")
    refused(second, "nothing can move: bridge br0 has no external_ids:ct-zone-web-1", "export", "-f", move.file("none"), PORT)
    assert not os.path.exists(move.file("none"))
    heddle(second, "abort", PORT)
    second.vsctl("set", "bridge", "br0", f"external_ids={names}")
    assert second.get("bridge", "br0", "external_ids:ct-zone-web-1") == zone

    # Another tenant's zone and addresses, an unknown zone, and limits: named, counted, not taken.
    names = (PORT, OTHER, "gw_snat", "elsewhere")
    content = [connection(0, 1), connection(1, 2), connection(2, 3), connection(2, 4, GUESTS[OTHER][0]), connection(3, 5)]
    moved_file(path, content, zones=names)
    _, out = heddle(second, "prepare", "-f", path, PORT)
    assert "1 connections, zone elsewhere is not known here" in out and "zone web-2 is not the port's here" in out, out
    _, out = heddle(second, "import", "-f", path, PORT)
    assert "2 of 5 connections are here now (2 new)" in out, out
    for why in ("zone web-2 is another port's", "zone gw_snat: no address of the port", "zone elsewhere is not known here"):
        assert f"not taken: 1 connections, {why}" in out, out
    assert tracked(second, ZONES[1][OTHER]) == [] and "dst=10.100.0.0,sport=1028" in out, out
    heddle(second, "abort", PORT)
    second.appctl("dpctl/ct-set-limits", f"zone={ZONES[1][PORT]},limit=3")
    moved_file(path, [connection(0, n) for n in range(5)])
    _, out = heddle(second, "import", "-f", path, PORT)
    assert "3 of 5 connections are here now (3 new)" in out and "not taken: 2 connections, zone web-1: limit of the zone" in out, out


@limit(100)
def scenario_zones_that_change_hands(lab):
    """A zone's number goes to another port in the midst of an export or import: none of its connections is touched."""
    move = Move(lab)
    first, second = move.nodes
    other = move.connect(7002, OTHER)
    move.unplugged(1)
    content = base64.b64encode(struct.pack("!I", 1) + connection(0, 1)).decode()
    for sw, zones, begin, step in ((second, ZONES[1], ("heddle/migrate-import", PORT, f'["{PORT}"]'), ("heddle/migrate-import-next", content)),
                                   (first, ZONES[0], ("heddle/migrate-export", PORT), ("heddle/migrate-export-next", "0"))):
        ident = json.loads(sw.appctl(*begin))["id"]
        sw.vsctl("set", "bridge", "br0", f"external_ids:ct-zone-{PORT}={zones[OTHER]}", f"external_ids:ct-zone-{OTHER}={zones[PORT]}")
        control = sw.unixctl()

        def refusal(*command):
            try:
                control.call(*command)
            except UnixctlError as exc:
                return str(exc)
            return None
        why = f"zone {PORT} has changed its number {zones[PORT]} since the move began: begin it again"
        # The switch reads the database a little later.
        out = wait_for("a refusal", lambda: refusal(step[0], ident, step[1]))
        assert why in out and why in refusal("heddle/migrate-finish", PORT), out
        control.close()
        assert "no move has begun here" in heddle(sw, "status")[1]
    assert len(tracked(first, ZONES[0][OTHER])) == 1 and tracked(second, ZONES[1][OTHER]) == []
    talk(*other)


@limit(250)
def scenario_steps_are_killed(lab):
    """Commands and daemons are killed at any point; a repetition does the step, and the stream lives."""
    move = Move(lab)
    first, second = move.nodes
    many = move.file("many")
    moved_file(many, [connection(0, n) for n in range(20_000)])
    heddle(first, "import", "-f", many, PORT)
    heddle(first, "finish", PORT)
    stream = move.connect(7001)
    talk(*stream)
    move.unplugged(1)
    dice = random.Random(7)

    def killed(sw, *args):
        process = subprocess.Popen([heddle_path(), "migrate", args[0], "--target", sw.ctl, *args[1:]], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        time.sleep(dice.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    for _ in range(5):
        killed(first, "export", "--live", "-f", move.file(), PORT)
        _, out = heddle(first, "export", "--live", "-f", move.file(), PORT)
        assert "20002 connections of 2 zones" in out, out
        killed(second, "import", "-f", move.file(), PORT)
        _, out = heddle(second, "import", "-f", move.file(), PORT)
        assert "20002 of 20002 connections are here now" in out, out
        # Given up at the target, and begun again.
        killed(second, "abort", PORT)
        heddle(second, "abort", PORT)
        assert "no move has begun here" in heddle(second, "status")[1] and tracked(second, ZONES[1][PORT]) == []
        _, out = heddle(second, "import", "-f", move.file(), PORT)
        assert "20002 of 20002 connections are here now (20002 new)" in out, out
        killed(first, "abort", PORT)
        assert len(tracked(first, ZONES[0][PORT])) == 20_001
    heddle(first, "export", "--live", "-f", move.file(), PORT)
    # The target's daemon is killed: the import is repeated.
    second.stop_daemon(signal.SIGKILL)
    # The killed daemon may still have its socket.
    refused(second, ("no switch", "no complete reply"), "import", "-f", move.file(), PORT)
    second.start_daemon()
    second.wait_column("bridge", "br0", "datapath_id", lambda text: len(text) == 16)
    for name in GUESTS:
        rules(second, ZONES[1], name)
    second.ofctl("add-flow", "br0", "priority=10,arp,actions=NORMAL")
    assert "no move has begun here" in heddle(second, "finish", PORT)[1]
    _, out = heddle(second, "import", "-f", move.file(), PORT)
    assert "20002 of 20002 connections are here now (20002 new)" in out, out
    talk(*stream)
    move.plug_in(0, 1)
    # The windows have moved since the export, and are learned.
    talk(*stream)
    killed(second, "finish", PORT)
    killed(first, "finish", PORT)
    heddle(first, "finish", PORT)
    heddle(second, "finish", PORT)
    assert tracked(first, ZONES[0][PORT]) == []
    talk(*stream)


@limit(150)
def scenario_the_source_is_killed(lab):
    """The source's daemon loses its connections between two exports: the earlier file is enough for the stream."""
    move = Move(lab)
    first, second = move.nodes
    stream = move.connect(7001)
    talk(*stream)
    move.unplugged(1)
    heddle(first, "export", "--live", "-f", move.file(), PORT)
    heddle(second, "import", "-f", move.file(), PORT)
    talk(*stream)
    first.stop_daemon(signal.SIGKILL)
    first.start_daemon()
    first.wait_column("interface", "vg", "ofport", GUESTS[PORT][3])
    _, out = heddle(first, "export", "-f", move.file("final"), PORT)
    assert "0 connections of 2 zones" in out, out
    _, out = heddle(second, "import", "-f", move.file("final"), PORT)
    assert "0 of 0 connections are here now" in out, out
    move.plug_in(0, 1)
    talk(*stream)
    assert "0 connections have ended here" in heddle(first, "finish", PORT)[1]
    assert "2 imported connections" in heddle(second, "finish", PORT)[1]
    talk(*stream)


@limit(150)
def scenario_files_again_and_at_once(lab):
    """A file that is imported again after the move, and two imports of one port at once, end no stream."""
    move = Move(lab)
    first, second = move.nodes
    stream = move.connect(7001)
    talk(*stream)
    move.unplugged(1)
    heddle(first, "export", "-f", move.file(), PORT)
    heddle(second, "import", "-f", move.file(), PORT)
    move.plug_in(0, 1)
    talk(*stream)
    for sw in move.nodes:
        heddle(sw, "finish", PORT)
    # The windows have moved on since the export: they are learned again.
    talk(*stream)
    _, out = heddle(second, "import", "-f", move.file(), PORT)
    assert "2 of 2 connections are here now (2 replaced)" in out, out
    talk(*stream)
    # They were here before: giving the second import up ends none.
    _, out = heddle(second, "abort", PORT)
    assert " 0 imported connections have ended" in out, out
    talk(*stream)
    heddle(second, "import", "-f", move.file(), PORT)
    heddle(second, "finish", PORT)
    talk(*stream)
    # Two files at once: each command takes its file as a whole, or is refused with one sentence.
    count = 20_000
    for name, at in (("a", 0), ("b", count)):
        moved_file(move.file(name), [connection(0, n) for n in range(at, at + count)])
    for _ in range(5):
        running = [subprocess.Popen([heddle_path(), "migrate", "import", "--target", second.ctl, "-f", move.file(name), PORT],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in "ab"]
        outs = [process.communicate(timeout=60) for process in running]
        for process, (out, err) in zip(running, outs):
            assert (process.returncode == 0 and f"{count} of {count} connections are here now" in out) or (
                process.returncode == 1 and "repeat it" in err and len(err.strip().splitlines()) == 1), (out, err)
        assert any(process.returncode == 0 for process in running), outs
    for name in "ab":
        heddle(second, "import", "-f", move.file(name), PORT)
    assert len(tracked(second, ZONES[1][PORT])) == 2 * count + 1
    # Only one of the sessions is left, and it gives all imported connections up.
    assert f"{2 * count} imported connections have ended here" in heddle(second, "abort", PORT)[1]
    talk(*stream)


def sizes(sw):
    """Memory (KiB), descriptors, threads, ports, flows and connections of a daemon."""
    with open(f"/proc/{sw.pid}/status") as file:
        status = file.read()
    return {"KiB": int(re.search(r"VmRSS:\s+(\d+)", status).group(1)), "threads": int(re.search(r"Threads:\s+(\d+)", status).group(1)),
            "descriptors": len(os.listdir(f"/proc/{sw.pid}/fd")), "ports": len(re.findall(r"^\s+port \d+:", sw.appctl("dpctl/show"), re.M)),
            "flows": len(sw.appctl("dpctl/dump-flows").splitlines()), "connections": int(sw.appctl("dpctl/ct-get-nconns"))}


@limit(500)
def scenario_moves_in_a_row(lab):
    """200 moves of a guest with its stream and 1,000 more connections leave nothing behind at either node."""
    move = Move(lab)
    moved_file(move.file("many"), [connection(0, n) for n in range(1000)])
    heddle(move.nodes[0], "import", "-f", move.file("many"), PORT)
    heddle(move.nodes[0], "finish", PORT)
    stream = move.connect(7001)
    path, total = move.file(), 1002
    early, began = None, time.monotonic()
    for turn in range(200):
        source, target = turn % 2, 1 - turn % 2
        a, b = move.nodes[source], move.nodes[target]
        move.unplugged(target)
        heddle(a, "export", "-f", path, PORT)
        _, out = heddle(b, "import", "-f", path, PORT)
        assert f"{total} of {total} connections are here now ({total} new)" in out, out
        move.plug_in(source, target)
        talk(*stream, n=2)
        assert f"{total} connections have ended here" in heddle(a, "finish", PORT)[1]
        assert f"{total} imported connections" in heddle(b, "finish", PORT)[1]
        if turn == 49:
            early = [sizes(sw) for sw in move.nodes]
    took = time.monotonic() - began
    assert all("no move has begun here" in heddle(sw, "status")[1] for sw in move.nodes)
    late = []

    def is_small():
        """The guest is at the same node as after 50 moves. Idle flows and threads end by themselves."""
        late[:] = [sizes(sw) for sw in move.nodes]
        # A leak would have at least one of these at each of 150 moves.
        room = {"KiB": 4096, "descriptors": 5, "threads": 5}
        return all(now[key] <= then[key] + room.get(key, 0) for then, now in zip(early, late) for key in now)
    try:
        wait_for("daemons that are no larger", is_small, 60, 1)
    finally:
        print(f"  200 moves in {took:.0f} s: after 50 {early}, after all {late}")
    assert [one["connections"] for one in late] == [total, 0], late
    talk(*stream)


@limit(200)
def scenario_a_hundred_thousand_connections(lab):
    """Export and import of 100,000 connections, beside another guest's pings at both nodes."""
    move = Move(lab)
    first, second = move.nodes
    count = 100_000
    many = move.file("many")
    moved_file(many, [connection(0, n) for n in range(count)])
    move.unplugged(1)
    pods = [lab.veth_pod(sw, f"{side}{index}", f"10.8.{index}.{1 + number}/24", column=["--", "set", "interface", f"v{side}{index}",
                                                                                      f"ofport_request={10 + number}"])
            for index, sw in enumerate(move.nodes) for number, side in enumerate("cs")]
    for sw in move.nodes:
        for here, there in ((10, 11), (11, 10)):
            sw.ofctl("add-flow", "br0", f"priority=40,in_port={here},actions={there}")

    def pings(work, indices=(0, 1), after=1.5):
        """Returns the result of `work`, and the 99th percentile of pings (ms) at both nodes during it."""
        running = [subprocess.Popen(["ip", "netns", "exec", pods[2 * index], "ping", "-D", "-i", "0.002", f"10.8.{index}.2"],
                                    stdout=subprocess.PIPE, text=True) for index in indices]
        time.sleep(0.3)
        result = work()
        time.sleep(after)
        shown = []
        for process in running:
            process.send_signal(signal.SIGINT)
            out = process.communicate(timeout=20)[0]
            times = sorted(float(t) for t in re.findall(r"time=([\d.]+)", out))
            lost = re.search(r"([\d.]+)% packet loss", out).group(1)
            assert float(lost) < 1, out[-300:]
            shown.append(times[len(times) * 99 // 100])
        return result, shown

    def beside(index, *words):
        """Medians of five 99th percentiles (ms), in turns: of a quiet time, with another busy program, and with this step
        again and again. The steps need a processor, too."""
        def again():
            end = time.monotonic() + 2
            while time.monotonic() < end:
                heddle(move.nodes[index], *words)

        def busy():
            subprocess.run(["timeout", "2", "sha256sum", "/dev/zero"], check=False)
        states = [[pings(work, [index], 0)[1][0] for work in (lambda: time.sleep(2), busy, again)] for _ in range(5)]
        return [sorted(one)[2] for one in zip(*states)]
    _, quiet = pings(lambda: time.sleep(2))
    out = pings(lambda: heddle(first, "import", "-f", many, PORT)[1])
    assert f"{count} of {count} connections are here now ({count} new)" in out[0], out
    heddle(first, "finish", PORT)
    exported = pings(lambda: heddle(first, "export", "-f", move.file(), PORT)[1])
    assert f"{count} connections of 2 zones" in exported[0], exported
    imported = pings(lambda: heddle(second, "import", "-f", move.file(), PORT)[1])
    assert f"{count} of {count} connections are here now ({count} new)" in imported[0], imported
    again = pings(lambda: heddle(second, "import", "-f", move.file(), PORT)[1])
    assert f"({count} renewed)" in again[0], again
    shares = {"exports": beside(0, "export", "-f", move.file(), PORT), "imports": beside(1, "import", "-f", move.file(), PORT)}
    ended = pings(lambda: heddle(first, "finish", PORT)[1])
    assert f"{count} connections have ended here" in ended[0], ended
    assert len(tracked(second, ZONES[1][PORT])) == count and tracked(first, ZONES[0][PORT]) == []
    for name, (line, late) in {"export": exported, "import": imported, "import again": again, "finish": ended}.items():
        lab.trace.note(f"{name}: {line.splitlines()[0]}; p99 of pings {late} ms")
        print(f"  {name}: {line.splitlines()[0]}; p99 of pings at both nodes {late[0]:.2f} and {late[1]:.2f} ms "
              f"(quiet: {quiet[0]:.2f} and {quiet[1]:.2f} ms)")
    for name, (before, busy, late) in shares.items():
        print(f"  {name} in a row, 2 s: p99 of pings there {late:.2f} ms, quiet {before:.2f} ms, beside another busy program {busy:.2f} ms "
              "(medians of 5)")


if __name__ == "__main__":
    main()
