#!/usr/bin/env python3
"""Connections: who may begin one, its translated addresses, and the switch's reports of it."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames
from lab.net import receive
from lab.openflow import Connection, V15
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.switch import SCHEMA

BYTES = 20_000_000


def iperf(lab, server, client, address):
    """Bytes that iperf3 reports as received over one TCP connection; None: it could not be made."""
    daemon = subprocess.Popen(["ip", "netns", "exec", server, "iperf3", "-s", "-1", "-p", "5202"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("iperf3 to listen", lambda: ":5202" in lab.net.run(server, "ss", "-Hltn", quiet=True))
        out = lab.net.run(client, "iperf3", "-J", "-c", address, "-p", "5202", "--connect-timeout", "3000",
                          "-n", str(BYTES), check=False, timeout=120, quiet=True)
    finally:
        daemon.kill()
        daemon.wait()
    end = json.loads(out).get("end", {})
    return end.get("sum_received", {}).get("bytes")


def pods(lab, rules):
    """Two pods on ports 1 and 2, behind rules."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", column=["--", "set", "interface", "va", "ofport_request=1"])
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", column=["--", "set", "interface", "vb", "ofport_request=2"])
    sw.ofctl("del-flows", "br0")
    for rule in rules:
        sw.ofctl("add-flow", "br0", rule)
    return sw, a, b


@limit(200)
def scenario_stateful_firewall(lab):
    """The first pod may begin connections; the second may only reply."""
    sw, a, b = pods(lab, [
        "priority=10,arp,actions=NORMAL",
        "priority=20,ip,ct_state=-trk,actions=ct(table=1,zone=5)",
        "table=1,in_port=1,ct_state=+trk+new,ip,actions=ct(commit,zone=5,exec(set_field:7->ct_mark)),2",
        "table=1,in_port=1,ct_state=+trk+est,ip,actions=2",
        "table=1,in_port=2,ct_state=+trk+est+rpl,ct_mark=7,ip,actions=1",
    ])
    lab.net.ping(a, "10.1.0.2")
    lab.net.no_ping(b, "10.1.0.1")
    assert iperf(lab, b, a, "10.1.0.2") >= BYTES // 10  # the rest may wait in sockets at the end
    assert iperf(lab, a, b, "10.1.0.1") is None
    shown = sw.appctl("dpctl/dump-conntrack")
    tcp = [line for line in shown.splitlines() if line.startswith("tcp") and "dport=5202" in line]
    assert tcp and all("src=10.1.0.1,dst=10.1.0.2" in line and "zone=5" in line and "mark=7" in line for line in tcp), shown
    assert "icmp,orig=(src=10.1.0.1,dst=10.1.0.2" in shown, shown
    for others in (["mark=0x8/0x8"], ["zone=4", "mark=7"], ["mark=7", "labels=0x1"], ["mark=7", "ct_nw_src=10.1.0.9"]):
        sw.appctl("dpctl/flush-conntrack", *others)
    assert "dport=5202" in sw.appctl("dpctl/dump-conntrack")
    assert "failed to parse mark" in sw.appctl("dpctl/flush-conntrack", "mark=x", check=False)
    sw.appctl("dpctl/flush-conntrack", "zone=5", "mark=0x3/0xb", "labels=0x0/0x1", "ct_nw_proto=6")
    shown = sw.appctl("dpctl/dump-conntrack")
    assert "dport=5202" not in shown and "icmp" in shown, shown
    sw.appctl("dpctl/flush-conntrack")
    assert sw.appctl("dpctl/dump-conntrack").strip() == ""


def scenario_equal_identifiers_of_echo_requests(lab):
    """Clients that ping with one identifier share one address, with identifiers of their own, or are dropped."""
    sw, a, b = pods(lab, [
        "in_port=1,ip,actions=ct(commit,zone=3,nat(src=10.1.0.201)),2",
        "in_port=2,ip,actions=ct(zone=3,nat,table=1)",
        "table=1,in_port=2,ip,ct_state=+trk+est,actions=1",
    ])
    here, there = lab.net.raw(a, "eth0"), lab.net.raw(b, "eth0")
    macs = "02:00:00:00:00:02", "02:00:00:00:00:01"

    def send(sock, src, dst, proto, payload):
        sock.send(frames.ethernet(*macs, 0x0800, frames.ipv4(src, dst, proto, payload)))

    def arrived(sock, dst, proto):
        frame = receive(sock, lambda got: got[12:14] == b"\x08\0" and got[23] == proto and got[30:34] == socket.inet_aton(dst), 5)
        assert frame, f"nothing for {dst}"
        assert frames.checksum(frame[34:14 + int.from_bytes(frame[16:18], "big")]) == 0 or proto != 1
        return socket.inet_ntoa(frame[26:30]), frame[38:40]
    ids = set()
    for client in (1, 3, 4):
        send(here, f"10.1.0.{client}", "10.1.0.2", 1, frames.icmp(8, 0, b"\x01\xf4\0\1abcdefgh"))
        source, ident = arrived(there, "10.1.0.2", 1)
        assert source == "10.1.0.201" and ident not in ids, (source, ident, ids)
        ids.add(ident)
        send(there, "10.1.0.2", "10.1.0.201", 1, frames.icmp(0, 0, ident + b"\0\1abcdefgh"))
        assert arrived(here, f"10.1.0.{client}", 1) == ("10.1.0.2", b"\x01\xf4")
    # A protocol without ports has room for one client: the second one's packet must not leave as it came.
    send(here, "10.1.0.1", "10.1.0.2", 99, b"x" * 20)
    assert arrived(there, "10.1.0.2", 99)[0] == "10.1.0.201"
    send(here, "10.1.0.3", "10.1.0.2", 99, b"x" * 20)
    assert receive(there, lambda got: got[23] == 99, 1) is None
    for name in ("datapath_drop_nat_untranslated", "conntrack_nat_exhausted"):
        assert sw.appctl("coverage/read-counter", name).strip() == "1", name


@limit(200)
def scenario_translated_sources(lab):
    """The first pod is seen by another address, which only its connections make known."""
    sw, a, b = pods(lab, [
        "priority=10,arp,actions=NORMAL",
        "priority=20,in_port=1,ip,actions=ct(commit,zone=1,nat(src=10.1.0.240-10.1.0.250)),2",
        "priority=20,in_port=2,ip,ct_state=-trk,actions=ct(table=1,zone=1,nat)",
        "table=1,in_port=2,ct_state=+trk+est,ip,actions=1",
    ])
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    for last in range(240, 251):
        lab.net.ip(b, "neigh", "add", f"10.1.0.{last}", "lladdr", mac, "dev", "eth0", "nud", "permanent")
    lab.net.ping(a, "10.1.0.2")
    assert iperf(lab, b, a, "10.1.0.2") >= BYTES // 10  # the rest may wait in sockets at the end
    lab.net.no_ping(b, "10.1.0.240")
    shown = sw.appctl("dpctl/dump-conntrack")
    tcp = [line for line in shown.splitlines() if line.startswith("tcp") and "dport=5202" in line]
    assert tcp and all("reply=(src=10.1.0.2,dst=10.1.0.2" in line for line in tcp), shown


def translated_fragments(lab, family, pool, prefix):
    """Pings in fragments, whose sources are translated."""
    sw = lab.switch()
    lab.bridge(sw)
    v6 = family == "ipv6"
    ip, icmp, each = ("ipv6", "icmpv6", "64") if v6 else ("ip", "icmp", "24")
    a = lab.veth_pod(sw, "a", f"{prefix}1/{each}", ipv6=v6, column=["--", "set", "interface", "va", "ofport_request=1"])
    b = lab.veth_pod(sw, "b", f"{prefix}2/{each}", ipv6=v6, column=["--", "set", "interface", "vb", "ofport_request=2"])
    sw.ofctl("del-flows", "br0")
    for rule in ["priority=10,arp,actions=NORMAL",
                 "priority=30,icmp6,icmp_type=135,actions=NORMAL", "priority=30,icmp6,icmp_type=136,actions=NORMAL",
                 f"priority=20,in_port=1,{ip},actions=ct(commit,zone=1,nat(src={pool}),table=1)",
                 f"priority=20,in_port=2,{ip},actions=ct(table=2,zone=1,nat)",
                 f"table=1,in_port=1,ct_state=+trk-inv,{ip},actions=2",
                 f"table=2,in_port=2,ct_state=+trk+est-inv,{ip},actions=1"]:
        sw.ofctl("add-flow", "br0", rule)
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(b, "neigh", "add", pool, "lladdr", mac, "dev", "eth0", "nud", "permanent")
    if v6:
        # The kernel does not use an address while it is tentative.
        wait_for("addresses", lambda: "tentative" not in lab.net.run(a, "ip", "-6", "addr") + lab.net.run(b, "ip", "-6", "addr"))
    lab.net.ping(a, f"{prefix}2")
    # Three fragments there and three back, each.
    lab.net.ping(a, f"{prefix}2", count=10, size=3900)
    name = "v6" if v6 else "v4"
    shown = sw.appctl("dpctl/ipf-get-status", "-m")
    assert f"{name} frags accepted: 60" in shown and f"{name} frags completed: 60" in shown, shown
    assert "num frag: 0" in shown, shown
    conns = sw.appctl("dpctl/dump-conntrack")
    assert f"{icmp},orig=(src={prefix}1" in conns and f"dst={pool}" in conns, conns
    # Without reassembly fragments are invalid, and the rules above drop them.
    sw.appctl("dpctl/ipf-set-disabled", name)
    assert lab.net.ping(a, f"{prefix}2", size=3900, lossless=False) == 0
    assert f"{name} enabled: 0" in sw.appctl("dpctl/ipf-get-status")
    assert int(sw.appctl("coverage/read-counter", "conntrack_fragment")) >= 9


@limit(200)
def scenario_fragments(lab):
    """Datagrams of IPv4 in fragments are tracked as a whole, translated, and sent on as fragments."""
    translated_fragments(lab, "ip", "10.1.0.240", "10.1.0.")


@limit(200)
def scenario_fragments_ipv6(lab):
    """The same with IPv6."""
    translated_fragments(lab, "ipv6", "fd00::240", "fd00::")


def reassembled_once(lab, family, prefix):
    """Fragments from a gateway's outside go to `ct` by a rule that matches nothing else."""
    v6 = family == "ipv6"
    each, ethertype, name = ("64", 0x86DD, "v6") if v6 else ("24", 0x0800, "v4")
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", f"{prefix}1/{each}", ipv6=v6, column=["--", "set", "interface", "va", "ofport_request=1"])
    b = lab.veth_pod(sw, "b", f"{prefix}2/{each}", ipv6=v6, column=["--", "set", "interface", "vb", "ofport_request=2"])
    sw.ofctl("add-flow", "br0", f"priority=110,in_port=1,{family},nw_frag=yes,actions=ct(table=0,zone=64004)")
    if v6:
        wait_for("addresses", lambda: "tentative" not in lab.net.run(a, "ip", "-6", "addr") + lab.net.run(b, "ip", "-6", "addr"))
    # The fragments that arrive are as long as those that were sent, not as the output's MTU allows.
    lab.net.ip(a, "route", "replace", f"{prefix}2", "dev", "eth0", "mtu", "1300")
    lab.net.ping(a, f"{prefix}2")
    with lab.net.raw(b, "eth0") as sock:
        lab.net.ping(a, f"{prefix}2", count=5, size=4000)
        sock.settimeout(0.5)
        mine = lab.net.run(b, "cat", "/sys/class/net/eth0/address").strip()
        sizes = []
        try:
            while True:
                frame = sock.recv(65535)
                if frame[:6] == bytes.fromhex(mine.replace(":", "")) and frame[12:14] == ethertype.to_bytes(2, "big"):
                    sizes.append(len(frame))
        except TimeoutError:
            pass
    big = [n for n in sizes if n > 1000]
    # 4,008 bytes of ICMP; 1,280 of them behind an IPv4 header, 1,248 behind IPv6's with a fragment header.
    assert len(big) == 15 and max(big) == (14 + 40 + 8 + 1248 if v6 else 14 + 20 + 1280), sizes
    shown = sw.appctl("dpctl/ipf-get-status", "-m")
    assert f"{name} frags completed: 20" in shown and "num frag: 0" in shown, shown
    # After `ct` no flow sees a fragment.
    flows = [f for f in sw.appctl("dpctl/dump-flows").splitlines() if "recirc_id(0x" in f]
    assert flows and all("frag=no" in f for f in flows), flows
    # Longer than what the output takes: dropped by name.
    lab.net.ip(a, "route", "del", f"{prefix}2")
    sw.vsctl("set", "interface", "vb", "mtu_request=1400")
    wait_for("the MTU", lambda: sw.vsctl("get", "interface", "vb", "mtu").strip() == "1400")
    assert lab.net.ping(a, f"{prefix}2", size=4000, lossless=False) == 0
    assert int(sw.appctl("coverage/read-counter", "datapath_drop_tx_too_long")) > 0


@limit(200)
def scenario_fragments_are_whole_after_ct(lab):
    """Packets that are looked up again after `ct` are no fragments, and leave as fragments of the lengths that came."""
    reassembled_once(lab, "ip", "10.1.0.")


@limit(200)
def scenario_fragments_are_whole_after_ct_ipv6(lab):
    """The same with IPv6."""
    reassembled_once(lab, "ipv6", "fd00::")


FTP_SERVER = """
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
authorizer = DummyAuthorizer()
authorizer.add_anonymous(sys.argv[2])
FTPHandler.authorizer = authorizer
FTPServer((sys.argv[1], 21), FTPHandler).serve_forever()
"""
# Debian's packages of Python programs are this one's.
SYSTEM_PYTHON = "/usr/bin/python3"


def ftp_session(lab, server, client, address, passive):
    """Fetches a file four times, each over a connection of its own; returns the number of complete ones."""
    directory = tempfile.mkdtemp(prefix="heddle-ftp-")
    lab.cleanups.append(lambda: shutil.rmtree(directory))
    with open(os.path.join(directory, "file"), "wb") as file:
        file.write(os.urandom(300_000))
    with open(os.path.join(directory, "file"), "rb") as file:
        content = file.read()
    daemon = subprocess.Popen(["ip", "netns", "exec", server, SYSTEM_PYTHON, "-c", FTP_SERVER, address, directory],
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("the FTP server to listen", lambda: ":21 " in lab.net.run(server, "ss", "-Hltn", quiet=True))
        host = f"[{address}]" if ":" in address else address
        commands = [f"set ftp:passive-mode {'on' if passive else 'off'}", "set net:max-retries 1", "set net:timeout 3",
                    "set ftp:sync-mode on", "cache off", f"connect ftp://anonymous:@{host}",
                    *(f"get file -o {directory}/got{n}" for n in range(4))]
        lab.net.run(client, "lftp", "-c", "; ".join(commands), check=False, timeout=60, quiet=True)
    finally:
        daemon.kill()
        daemon.wait()
    whole = 0
    for n in range(4):
        name = os.path.join(directory, f"got{n}")
        if os.path.exists(name):
            with open(name, "rb") as file:
                whole += file.read() == content
    return whole


def ftp(lab, family, pool, prefix):
    """The client's address is translated; data connections are let through if the session announced them."""
    if not shutil.which("lftp") or subprocess.run([SYSTEM_PYTHON, "-c", "import pyftpdlib"], capture_output=True).returncode:
        raise Skip("needs lftp and python3-pyftpdlib")
    v6 = family == "ipv6"
    ip, tcp, each = ("ipv6", "tcp6", "64") if v6 else ("ip", "tcp", "24")
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", f"{prefix}1/{each}", ipv6=v6, column=["--", "set", "interface", "va", "ofport_request=1"])
    b = lab.veth_pod(sw, "b", f"{prefix}2/{each}", ipv6=v6, column=["--", "set", "interface", "vb", "ofport_request=2"])
    sw.ofctl("del-flows", "br0")

    def rules(alg):
        for rule in ["priority=10,arp,actions=NORMAL", "priority=30,icmp6,actions=NORMAL",
                     f"priority=20,{ip},actions=ct(table=1,zone=3,nat)",
                     f"table=1,in_port=1,ct_state=+new-rel,{tcp},tp_dst=21,actions=ct(commit,zone=3,{alg}nat(src={pool})),2",
                     f"table=1,in_port=1,ct_state=+new+rel,{tcp},actions=ct(commit,zone=3,nat),2",
                     f"table=1,in_port=2,ct_state=+new+rel,{tcp},actions=ct(commit,zone=3,nat),1",
                     f"table=1,in_port=1,ct_state=+est-inv,{tcp},actions=2",
                     f"table=1,in_port=2,ct_state=+est-inv,{tcp},actions=1"]:
            sw.ofctl("add-flow", "br0", rule)

    rules("alg=ftp,")
    mac = lab.net.run(a, "cat", "/sys/class/net/eth0/address").strip()
    lab.net.ip(b, "neigh", "add", pool, "lladdr", mac, "dev", "eth0", "nud", "permanent")
    if v6:
        wait_for("addresses", lambda: "tentative" not in lab.net.run(a, "ip", "-6", "addr") + lab.net.run(b, "ip", "-6", "addr"))
    for passive in (False, True):
        assert ftp_session(lab, b, a, f"{prefix}2", passive) == 4, f"passive {passive}"
        shown = sw.appctl("dpctl/dump-conntrack", "-m")
        lines = [line for line in shown.splitlines() if "zone=3" in line]
        assert sum("helper=ftp" in line and f"dst={pool}" in line for line in lines) >= 1, shown
        assert sum(f"parent=(src={prefix}1,dst={prefix}2" in line for line in lines) >= 4, shown
        sw.appctl("dpctl/flush-conntrack")
    assert int(sw.appctl("coverage/read-counter", "conntrack_l4csum_err")) == 0
    # Without the helper no connection is expected.
    rules("")
    assert ftp_session(lab, b, a, f"{prefix}2", False) == 0


@limit(200)
def scenario_ftp(lab):
    """FTP over IPv4, active and passive, behind translation."""
    ftp(lab, "ip", "10.1.0.240", "10.1.0.")


@limit(200)
def scenario_ftp_ipv6(lab):
    """The same with IPv6."""
    ftp(lab, "ipv6", "fd00::1:240", "fd00::")


def limits(sw):
    """The limits in force, in one line."""
    return " ".join(sw.appctl("dpctl/ct-get-limits").split())


@limit(100)
def scenario_limits_of_the_database(lab):
    """Schemas of 3.3 and later have limits of zones: they are followed, and set nowhere else as long as there are any."""
    sw = lab.switch(start=False)
    number = {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 4294967295}, "min": 0, "max": 1}}
    with open(SCHEMA, encoding="utf-8") as file:
        schema = json.load(file)
    schema["tables"]["CT_Zone"]["columns"].setdefault("limit", number)
    schema["tables"]["Datapath"]["columns"].setdefault("ct_zone_default_limit", number)
    schema.pop("cksum", None)
    with open(f"{sw.dir}/newer.ovsschema", "w", encoding="utf-8") as file:
        json.dump(schema, file)
    sw.run("ovsdb-tool", "create", f"{sw.dir}/conf.db", f"{sw.dir}/newer.ovsschema")
    sw.start_ovsdb()
    sw.vsctl("--no-wait", "init")
    sw.start_daemon()
    lab.bridge(sw)

    def say(*operations):
        sw.run("ovsdb-client", "transact", sw.db, json.dumps(["Open_vSwitch", *operations]))
    zone = {"op": "insert", "table": "CT_Zone", "row": {"limit": 7}, "uuid-name": "z"}
    row = {"datapath_version": "0", "ct_zone_default_limit": 3, "ct_zones": ["map", [[5, ["named-uuid", "z"]]]]}
    say(zone, {"op": "insert", "table": "Datapath", "row": row, "uuid-name": "d"},
        {"op": "mutate", "table": "Open_vSwitch", "where": [],
         "mutations": [["datapaths", "insert", ["map", [["netdev", ["named-uuid", "d"]]]]]]})
    wait_for("limits", lambda: limits(sw) == "default limit=3 zone=5,limit=7,count=0")
    for command in (["ct-set-limits", "zone=1,limit=3"], ["ct-del-limits", "zone=5"]):
        assert "are set via database" in sw.appctl(f"dpctl/{command[0]}", command[1], check=False)
    say({"op": "update", "table": "CT_Zone", "where": [], "row": {"limit": 9}})
    wait_for("another limit", lambda: limits(sw) == "default limit=3 zone=5,limit=9,count=0")
    none = ["set", []]
    say({"op": "update", "table": "CT_Zone", "where": [], "row": {"limit": none}},
        {"op": "update", "table": "Datapath", "where": [], "row": {"ct_zone_default_limit": none}})
    wait_for("no limits", lambda: limits(sw) == "default limit=0")
    sw.appctl("dpctl/ct-set-limits", "zone=1,limit=3")
    assert limits(sw) == "default limit=0 zone=1,limit=3,count=0"


def flush_message(proto, *properties):
    """The body of an NXT_CT_FLUSH, from numbers and values of properties."""
    out = struct.pack("!IIB7x", 0x2320, 32, proto)
    for kind, body in properties:
        out += struct.pack("!HH", kind, 4 + len(body)) + body + b"\0" * (-(4 + len(body)) % 8)
    return out


@limit(100)
def scenario_what_is_shown_and_forgotten(lab):
    """Counts by protocol and bucket; controllers have connections forgotten by zone, label, mark, and parts of tuples of ICMPv6."""
    sw = lab.switch("--enable-dummy=override", netns=False)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure",
             "--", "add-port", "br0", "p1", "--", "set", "interface", "p1", "type=dummy", "ofport_request=1")
    sw.ofctl("add-flow", "br0", "in_port=1,ipv6,actions=move:NXM_NX_IPV6_SRC[0..7]->NXM_NX_REG1[0..7],"
                                "ct(commit,zone=2,exec(move:NXM_NX_REG1[0..7]->NXM_NX_CT_LABEL[64..71],set_field:0x9->ct_mark))")
    ends = ("50:54:00:00:00:01", "50:54:00:00:00:02")
    for n in (0x11, 0x12, 0x21):
        src = f"fd00::{n:x}"
        ping = frames.icmp6(src, "fd00::1", 128, 0, n.to_bytes(2, "big") + b"\0\1abcdefgh")
        for proto, body in ((58, ping), (17, frames.udp(src, "fd00::1", 1000, 53))):
            sw.appctl("netdev-dummy/receive", "p1", frames.ethernet(*ends, 0x86dd, frames.ipv6(src, "fd00::1", proto, body)).hex())

    def there():
        """Protocol and label of each."""
        lines = sw.appctl("dpctl/dump-conntrack", "zone=2").splitlines()
        return sorted((line.split(",")[0], int(line.split("labels=")[1].split(",")[0], 16) >> 64) for line in lines)
    every = sorted((proto, n) for proto in ("icmpv6", "udp") for n in (0x11, 0x12, 0x21))
    wait_for("connections", lambda: there() == every)
    stats = sw.appctl("dpctl/ct-stats-show", "zone=2").split()
    assert stats[2:4] == ["Total:", "6"] and "UDP: 3" in " ".join(stats), stats
    assert "Total: 0" in sw.appctl("dpctl/ct-stats-show", "zone=3")
    buckets = sw.appctl("dpctl/ct-bkts")
    assert "Current Connections: 6" in buckets, buckets
    rows = [line.split("|")[1].split() for line in buckets.splitlines() if ".." in line]
    assert sum(int(n) for row in rows for n in row if n != ".") == 6, buckets
    assert all(n == "." for line in sw.appctl("dpctl/ct-bkts", "gt=6").splitlines() if ".." in line
               for n in line.split("|")[1].split())

    controller = Connection.to_bridge(sw, "br0", V15)

    def forget(proto, *properties):
        controller.send(4, 7, flush_message(proto, *properties))
        controller.echo()
        return there()
    zone, labels, mask, mark = (2, b"\0\2"), 5, 6, 3
    wide = lambda n: (n << 64).to_bytes(16, "big")
    # Another zone, another mark, a label that no connection has.
    for other in ([(2, b"\0\3")], [zone, (mark, struct.pack("!I", 8))], [zone, (labels, wide(0x31)), (mask, wide(0xff))]):
        assert forget(0, *other) == every
    # The label's low bits, of one protocol.
    assert forget(58, zone, (labels, wide(0x01)), (mask, wide(0x0f))) == [("icmpv6", 0x12), *every[3:]]
    # A part of a tuple of ICMPv6: source, identifier, type and code.
    source = struct.pack("!HH", 0, 20) + socket.inet_pton(socket.AF_INET6, "fd00::12") + b"\0" * 4
    numbers = struct.pack("!HHHxx", 4, 6, 0x12) + struct.pack("!HHBxxx", 5, 5, 128) + struct.pack("!HHBxxx", 6, 5, 0)
    assert forget(58, zone, (0, b"\0" * 4 + source + numbers)) == every[3:]
    assert forget(0, zone, (mark, struct.pack("!I", 9))) == []
    controller.close()


if __name__ == "__main__":
    main()
