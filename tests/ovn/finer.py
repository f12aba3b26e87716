"""Finer points: what port security looks at, refusals and sizes of IPv6, NAT from inside, groups that follow
BFD, ports of two chassis, VLAN networks.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left
out."""

import re
import socket
import subprocess
import time

from checks import balancer, check, gone, version
from cluster import POD_MTU, has_column, server
from more import background, captured, until, way_back, world2
from rest import BFD_PEER

# Frames from a pod's eth0: hexadecimal digits, one frame per argument, each sent three times.
FRAMES = """
import socket,sys,time
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))
for _ in range(3):
    for f in sys.argv[1:]: s.send(bytes.fromhex(f))
    time.sleep(0.05)
"""


def sum16(data):
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i:i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return (~total & 0xffff).to_bytes(2, "big")


def mac(text):
    return bytes.fromhex(text.replace(":", ""))


def ip4(text):
    return bytes(map(int, text.split(".")))


def arp(src, sha, spa, tpa):
    """A request for everybody."""
    return b"\xff" * 6 + mac(src) + bytes.fromhex("08060001080006040001") + mac(sha) + ip4(spa) + b"\0" * 6 + ip4(tpa)


def echo4(dst_mac, src_mac, src, dst, tag=None):
    """A ping."""
    ping = bytes([8, 0, 0, 0, 0, 7, 0, 1]) + b"heddle.."
    ping = ping[:2] + sum16(ping) + ping[4:]
    head = bytes([0x45, 0, 0, 20 + len(ping), 0, 1, 0, 0, 64, 1, 0, 0]) + ip4(src) + ip4(dst)
    head = head[:10] + sum16(head) + head[12:]
    vlan = b"" if tag is None else b"\x81\0" + tag.to_bytes(2, "big")
    return mac(dst_mac) + mac(src_mac) + vlan + b"\x08\0" + head + ping


def ip6(text):
    return socket.inet_pton(socket.AF_INET6, text)


def icmp6(dst_mac, src_mac, src, dst, body):
    """A message of ICMPv6; `body` from its type on, with a checksum of 0."""
    pseudo = ip6(src) + ip6(dst) + len(body).to_bytes(4, "big") + b"\0\0\0\x3a"
    body = body[:2] + sum16(pseudo + body) + body[4:]
    return mac(dst_mac) + mac(src_mac) + b"\x86\xdd" + b"\x60\0\0\0" + len(body).to_bytes(2, "big") + b"\x3a\xff" + ip6(src) + ip6(dst) + body


def advertisement(src_mac, src, target):
    """A neighbour advertisement for everybody: `target` is at `src_mac`."""
    return icmp6("33:33:00:00:00:01", src_mac, src, "ff02::1", bytes([136, 0, 0, 0, 0x20, 0, 0, 0]) + ip6(target) + b"\x02\x01" + mac(src_mac))


def lets_through(c, good, bad, what, good_sign, bad_sign):
    """Whether a2 sees the frame `good` of a1, and does not see `bad`."""
    seen = captured(c, "a2", what, lambda: c.run("a1", "python3", "-c", FRAMES, bad.hex(), good.hex()), seconds=3, count=12)
    if good_sign not in seen:
        return f"what is allowed does not arrive: {seen[:200]!r}"
    return f"it arrives: {seen[:300]!r}" if bad_sign in seen else None


A1, A2, A3 = "02:00:00:00:00:11", "02:00:00:00:00:12", "02:00:00:00:00:13"


def secured(c, words, probe):
    c.nbctl("lsp-set-port-security", "a1", words)
    c.sync()
    try:
        return probe()
    finally:
        c.nbctl("lsp-set-port-security", "a1")
        c.sync()


@check
def port_security_of_macs(c):
    other = "02:00:00:00:00:e1"
    return secured(c, A1, lambda: lets_through(c, echo4(A2, A1, "10.0.0.11", "10.0.0.12"), echo4(A2, other, "10.0.0.11", "10.0.0.12"), "icmp", f"{A1} > {A2}", other))


@check
def port_security_of_arp(c):
    """Both sender addresses of an ARP request are checked. The target is an unused address, since OVN itself
    replies for used ones."""
    words = f"{A1} 10.0.0.11"
    good = arp(A1, A1, "10.0.0.11", "10.0.0.201")
    for bad, sign in ((arp(A1, "02:00:00:00:00:e2", "10.0.0.11", "10.0.0.202"), "who-has 10.0.0.202"), (arp(A1, A1, "10.0.0.98", "10.0.0.203"), "who-has 10.0.0.203")):
        if why := secured(c, words, lambda bad=bad, sign=sign: lets_through(c, good, bad, "arp", "who-has 10.0.0.201", sign)):
            return f"{sign}: {why}"
    return None


@check
def port_security_of_ipv6(c):
    """The source of packets, and the target of advertisements."""
    words = f"{A1} 10.0.0.11 fd00::11"
    echo = bytes([128, 0, 0, 0, 0, 7, 0, 1]) + b"heddle.."
    cases = ((icmp6(A2, A1, "fd00::11", "fd00::12", echo), icmp6(A2, A1, "fd00::98", "fd00::12", echo), "icmp6 and ip6[40]=128", "fd00::11 >", "fd00::98 >"),
             (advertisement(A1, "fd00::11", "fd00::11"), advertisement(A1, "fd00::11", "fd00::98"), "icmp6 and ip6[40]=136", "tgt is fd00::11", "tgt is fd00::98"))
    for good, bad, what, good_sign, bad_sign in cases:
        if why := secured(c, words, lambda: lets_through(c, good, bad, what, good_sign, bad_sign)):
            return f"{bad_sign}: {why}"
    return None


@check
def port_security_towards_a_port(c):
    """A packet to another address than the port's does not arrive, even with its MAC."""
    c.nbctl("lsp-set-port-security", "a2", f"{A2} 10.0.0.12")
    c.sync()
    try:
        return lets_through(c, echo4(A2, A1, "10.0.0.11", "10.0.0.12"), echo4(A2, A1, "10.0.0.11", "10.0.0.97"), "icmp", "> 10.0.0.12", "> 10.0.0.97")
    finally:
        c.nbctl("lsp-set-port-security", "a2")
        c.sync()


@check
def acl_reject_of_ipv6(c):
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a3\" && ip6 && (tcp || udp)", "reject")
    c.sync()
    code = ("import socket\ns=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.settimeout(1); s.connect(('fd00::13',9999))\n"
            "for _ in range(4):\n    try:\n        s.send(b'x'); s.recv(10)\n    except ConnectionRefusedError: print('refused'); break\n    except OSError: pass\n")
    try:
        if (got := c.tcp("a1", "fd00::13", 7004)) != "refused":
            return f"TCP: {got}"
        return None if c.run("a1", "python3", "-c", code, check=False, timeout=20).strip() == "refused" else "datagrams: silence"
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def acl_log_is_limited_by_its_meter(c):
    """Fifty dropped pings in a second: without a meter all are logged, with one of two a second a few."""
    told = lambda name: sum(f'name="{name}"' in line for line in c.chassis[0].log().splitlines())
    counts = {}
    c.nbctl("meter-add", "slow", "drop", "2", "pktps", "1")
    for name, meter in (("free", ()), ("limited", ("--meter=slow",))):
        c.nbctl("--log", f"--name={name}", *meter, "acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && icmp4", "drop")
        c.sync()
        try:
            c.run("a1", "ping", "-n", "-q", "-c", "50", "-i", "0.02", "-W", "1", "10.0.0.12", check=False)
            until(lambda: told("free") >= 50, 3)
            counts[name] = told(name)
        finally:
            c.nbctl("acl-del", "ls0")
            c.sync()
    c.nbctl("meter-del", "slow")
    return None if counts["free"] >= 45 and 1 <= counts["limited"] <= 15 else f"of 50: {counts['free']} without a meter, {counts['limited']} with one"


@check
def dnat_alone(c):
    way_back(c)
    c.nbctl("lr-nat-add", "lr0", "dnat", "192.168.50.9", "10.0.1.12")
    c.sync()
    s = server(c, "b2", 7040)
    try:
        got = c.tcp("world", "192.168.50.9", 7040)
        return None if got == "b2 192.168.50.10" else got
    finally:
        s.kill()
        c.nbctl("lr-nat-del", "lr0", "dnat", "192.168.50.9")
        c.sync()


@check
def floating_addresses_from_inside(c):
    """Packets of a pod with a floating address have that source; pods reach each other by theirs."""
    way_back(c)
    c.nbctl("--may-exist", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.5", "10.0.1.12", "--", "--may-exist", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.15", "10.0.0.11")
    c.sync()
    servers = [server(c, "world", 7041), server(c, "b2", 7042)]
    try:
        if (got := c.tcp("b2", "192.168.50.10", 7041)) != "world 192.168.50.5":
            return f"to outside: {got}"
        got = c.tcp("a1", "192.168.50.5", 7042)
        return None if got == "b2 192.168.50.15" else f"between pods: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.5", "--", "lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.15")
        c.sync()


def with_ipv6_outside(c):
    way_back(c)
    c.nbctl("set", "logical_router_port", "lr0-ext", 'networks="192.168.50.1/24","fd50::1/64"')
    c.net.ip(c.world, "addr", "replace", "fd50::10/64", "dev", "eth0", "nodad")
    c.net.ip(c.world, "-6", "route", "replace", "fd00::/32", "via", "fd50::1", check=False)
    for net in (0, 1):
        c.net.ip(c.world, "-6", "route", "replace", f"fd00:{net}::/64", "via", "fd50::1")


def without_ipv6_outside(c):
    c.nbctl("set", "logical_router_port", "lr0-ext", "networks=192.168.50.1/24")
    for net in (0, 1):
        c.net.ip(c.world, "-6", "route", "del", f"fd00:{net}::/64", check=False)
    c.net.ip(c.world, "addr", "del", "fd50::10/64", "dev", "eth0", check=False)
    c.sync()


@check
def floating_address_of_ipv6(c):
    with_ipv6_outside(c)
    c.nbctl("lr-nat-add", "lr0", "dnat_and_snat", "fd50::5", "fd00:1::12")
    c.sync()
    servers = [server(c, "b2", 7043, v6=True), server(c, "world", 7044, v6=True)]
    try:
        if (got := c.tcp("world", "fd50::5", 7043)) != "b2 fd50::10":
            return f"from outside: {got}"
        got = c.tcp("b2", "fd50::10", 7044)
        return None if got == "world fd50::5" else f"to outside: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "fd50::5")
        without_ipv6_outside(c)


@check
def gateway_mtu_of_ipv6(c):
    with_ipv6_outside(c)
    c.nbctl("set", "logical_router_port", "lr0-ext", "options:gateway_mtu=1300")
    c.sync()
    try:
        out = ""
        for _ in range(3):
            out += c.run("a1", "ping", "-n", "-c", "2", "-M", "do", "-s", "1350", "-W", "1", "fd50::10", check=False)
            if "mtu" in out:
                break
        return None if re.search(r"mtu ?= ?(1300|1282|1286)", out) else out[-300:]
    finally:
        c.nbctl("remove", "logical_router_port", "lr0-ext", "options", "gateway_mtu")
        c.run("a1", "ip", "-6", "route", "flush", "cache", check=False)
        without_ipv6_outside(c)


@check
def load_balancer_to_itself_of_ipv6(c):
    s = server(c, "a2", 8080, v6=True)
    balancer(c, "[fd00:0::51]:80", "[fd00:0::12]:8080")
    try:
        got = c.tcp("a2", "fd00:0::51", 80)
        return None if got.startswith("a2 ") else got
    finally:
        gone(c)
        s.kill()


@check
def load_balancer_to_itself_by_an_address(c):
    """`hairpin_snat_ip`: the pod sees that address, with TCP and with datagrams."""
    servers = [server(c, "a2", 8080), server(c, "a2", 5302, udp=True)]
    balancer(c, "10.0.0.62:80", "10.0.0.12:8080")
    c.nbctl("lb-add", "lb1", "10.0.0.62:53", "10.0.0.12:5302", "udp", "--", "ls-lb-add", "ls0", "lb1")
    for name in ("lb0", "lb1"):
        c.nbctl("set", "load_balancer", name, "options:hairpin_snat_ip=169.254.77.7")
    c.sync()
    code = ("import socket\nfor _ in range(4):\n    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b'x',('10.0.0.62',53))\n"
            "    try: d,a=s.recvfrom(100); print(d.decode(),a[0]); break\n    except OSError: pass\n")
    try:
        if (got := c.tcp("a2", "10.0.0.62", 80)) != "a2 169.254.77.7":
            return f"TCP: {got}"
        got = c.run("a2", "python3", "-c", code, check=False, timeout=20).strip()
        return None if got == "a2 169.254.77.7 10.0.0.62" else f"datagrams: {got or 'silence'}"
    finally:
        c.nbctl("lb-del", "lb1")
        gone(c)
        [s.kill() for s in servers]


# A server that echoes lines. And a client that sends one each 50 ms until a file exists, then prints the
# number of echoes.
LINES = ("import socket\ns=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',PORT)); s.listen(5)\n"
         "while True:\n    c,a=s.accept()\n    while True:\n        d=c.recv(100)\n        if not d: break\n        c.sendall(d)\n")
TALK = ("import os,socket,sys,time\ns=socket.create_connection((sys.argv[1],int(sys.argv[2])),timeout=5); s.settimeout(30); n=0\n"
        "print('up',flush=True)\ntry:\n    while not os.path.exists(sys.argv[3]):\n        s.sendall(b'x'); assert s.recv(10)==b'x'; n+=1; time.sleep(0.05)\n"
        "    print('lives',n)\nexcept Exception as e: print('ends',repr(e),n)\n")


def talk(c, source, address, port, act):
    """Whether a connection lives through `act`: None, or its end."""
    stop = f"{c.dir}/stop-{time.monotonic_ns()}"
    client = background(c, source, "python3", "-c", TALK, address, str(port), stop)
    try:
        if client.stdout.readline().strip() != "up":
            return "no connection"
        time.sleep(0.3)
        act()
        time.sleep(1)
    finally:
        open(stop, "w").close()
    try:
        said = client.communicate(timeout=40)[0].strip()
    except subprocess.TimeoutExpired:
        client.kill()
        said = "silence"
    return None if said.startswith("lives") else said


def lines(c, pod, port):
    process = background(c, pod, "python3", "-c", LINES.replace("PORT", str(port)))
    until(lambda: f":{port} " in c.run(pod, "ss", "-Hltn", quiet=True), 5)
    return process


@check
def connections_outlive_changes_of_backends(c):
    servers = [lines(c, "a3", 8081)]
    balancer(c, "10.0.0.63:80", "10.0.0.13:8081")

    def act():
        for backends in ("10.0.0.13:8081,10.0.0.12:8081", "10.0.0.12:8081,10.0.0.13:8081,10.0.1.12:8081", "10.0.0.13:8081"):
            c.nbctl("--may-exist", "lb-add", "lb0", "10.0.0.63:80", backends, "tcp")
            c.sync()
            time.sleep(0.3)
    try:
        return talk(c, "a1", "10.0.0.63", 80, act)
    finally:
        gone(c)
        [s.kill() for s in servers]


@check
def connections_outlive_changes_of_acls(c):
    """Packets of an allowed connection pass while other rules come and go; a rule against them stops them."""
    s = lines(c, "a2", 8082)
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && ip4", "drop", "--", "acl-add", "ls0", "to-lport", "1001", "outport == \"a2\" && tcp.dst == 8082", "allow-related")
    c.sync()

    def act():
        for n in range(4):
            c.nbctl("acl-add", "ls0", "to-lport", "1002", f"outport == \"a2\" && tcp.dst == {9000 + n}", "allow-related")
            c.sync()

    def against():
        c.nbctl("acl-add", "ls0", "to-lport", "1010", "outport == \"a2\" && tcp.dst == 8082", "drop")
        c.sync()
        time.sleep(31)
    try:
        if why := talk(c, "a1", "10.0.0.12", 8082, act):
            return f"with other rules: {why}"
        return None if talk(c, "a1", "10.0.0.12", 8082, against) else "it lives in spite of a rule against it"
    finally:
        s.kill()
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def neighbour_proxy_of_a_router_port(c):
    """Also for IPv6, if this OVN can."""
    proxied = (("-4", "169.254.101.6"), ("-6", "fd00::d5"))[:1 + (tuple(map(int, version().split()[1].split(".")[:2])) >= (23, 6))]
    c.nbctl("lsp-set-options", "ls0-lr0", "router-port=lr0-ls0", "arp_proxy=169.254.101.6 fd00::d5")
    c.sync()
    try:
        for family, address in proxied:
            c.run("a1", "ip", family, "route", "replace", address, "dev", "eth0")
            c.run("a1", "ping", "-n", "-c", "1", "-W", "1", address, check=False)
            neigh = c.run("a1", "ip", "neigh", "show", address)
            if "02:00:00:00:00:01" not in neigh:
                return f"{address}: {neigh or 'no neighbour'}"
        return None
    finally:
        for family, address in proxied:
            c.run("a1", "ip", family, "route", "del", address, check=False)
        c.nbctl("lsp-set-options", "ls0-lr0", "router-port=lr0-ls0")
        c.sync()


@check
def routed_between_vlan_networks(c):
    """A router without a gateway between two provider networks: its packets leave with a VLAN tag and the chassis' own address."""
    for n, node in enumerate(c.chassis, 1):
        node.sw.vsctl("set", "open_vswitch", ".", f'external_ids:ovn-chassis-mac-mappings="phys:02:00:00:00:cc:0{n}"')
    c.nbctl("lr-add", "lrv")
    for n in (31, 32):
        c.nbctl("ls-add", f"vl{n}", "--", "lsp-add", f"vl{n}", f"vl{n}-phys", "", str(n), "--", "lsp-set-type", f"vl{n}-phys", "localnet", "--", "lsp-set-addresses", f"vl{n}-phys",
                "unknown", "--", "lsp-set-options", f"vl{n}-phys", "network_name=phys")
        c.nbctl("lrp-add", "lrv", f"lrv-{n}", f"02:00:00:00:{n}:01", f"10.{n}.0.1/24", "--", "lsp-add", f"vl{n}", f"vl{n}-lrv", "--", "lsp-set-type", f"vl{n}-lrv", "router",
                "--", "lsp-set-addresses", f"vl{n}-lrv", "router", "--", "lsp-set-options", f"vl{n}-lrv", f"router-port=lrv-{n}")
    c.pod("w1", 1, "vl31", "02:00:00:00:31:11", "10.31.0.11/24", gateway="10.31.0.1")
    c.pod("w2", 2, "vl32", "02:00:00:00:32:12", "10.32.0.12/24", gateway="10.32.0.1")
    c.sync()
    try:
        if not c.reaches("w1", "10.32.0.12"):
            return "no answer"
        dump = subprocess.Popen(["ip", "netns", "exec", c.fabric, "timeout", "6", "tcpdump", "-n", "-e", "-c", "2", "-i", "ph0-1", "vlan", "32", "and", "icmp[0]=8"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(1)
        c.reaches("w1", "10.32.0.12", count=5)
        seen = dump.communicate()[0]
        return None if "02:00:00:00:cc:01" in seen else seen[:300] or "nothing with the tag"
    finally:
        c.nbctl("lsp-del", "w1", "--", "lsp-del", "w2", "--", "ls-del", "vl31", "--", "ls-del", "vl32", "--", "lr-del", "lrv")
        for node in c.chassis:
            node.sw.vsctl("remove", "open_vswitch", ".", "external_ids", "ovn-chassis-mac-mappings")
        c.sync()


@check
def container_ports_talk(c):
    """A container behind a VLAN tag of a pod's device pings a pod on another chassis."""
    c.nbctl("lsp-add", "ls0", "nested", "a1", "43", "--", "lsp-set-addresses", "nested", "02:00:00:00:00:43 10.0.0.43")
    c.sync()
    if not until(lambda: c.sbctl("--bare", "--columns=up", "find", "port_binding", "logical_port=nested").strip() == "true", 10):
        return "it does not come up"
    frame = echo4(A3, "02:00:00:00:00:43", "10.0.0.43", "10.0.0.13", tag=43)
    try:
        seen = captured(c, "a1", "vlan 43 and icmp[0]=0", lambda: c.run("a1", "python3", "-c", FRAMES, frame.hex()), seconds=4)
        return None if "10.0.0.13 > 10.0.0.43: ICMP echo reply" in seen else seen[:300] or "no answer"
    finally:
        c.nbctl("lsp-del", "nested")
        c.sync()


@check
def localport(c):
    """A port that is on every chassis, as for metadata: each pod reaches the one on its own chassis."""
    c.nbctl("lsp-add", "ls0", "meta", "--", "lsp-set-type", "meta", "localport", "--", "lsp-set-addresses", "meta", "02:00:00:00:00:fe 10.0.0.253")
    servers = []
    try:
        for n in (1, 2):
            node = c.chassis[n - 1]
            ns = c.pods[f"meta{n}"] = c.net.namespace(f"meta{n}")
            c.net.veth(node.ns, f"vmeta{n}", ns, "eth0")
            if node.sw.is_reference:
                c.net.run(ns, "ethtool", "-K", "eth0", "tx", "off", check=False)
            c.net.ip(ns, "link", "set", "eth0", "address", "02:00:00:00:00:fe", "mtu", str(POD_MTU))
            c.net.address(ns, "eth0", "10.0.0.253/24")
            node.sw.vsctl("add-port", "br-int", f"vmeta{n}", "--", "set", "interface", f"vmeta{n}", "external_ids:iface-id=meta")
            servers.append(server(c, f"meta{n}", 80))
        c.sync()
        got = [c.tcp(pod, "10.0.0.253", 80) for pod in ("a1", "a3")]
        return None if got == ["meta1 10.0.0.11", "meta2 10.0.0.13"] else str(got)
    finally:
        [s.kill() for s in servers]
        for n in (1, 2):
            c.chassis[n - 1].sw.vsctl("--if-exists", "del-port", "br-int", f"vmeta{n}")
        c.nbctl("lsp-del", "meta")
        c.sync()


@check
def port_of_two_chassis(c):
    """A guest that moves: both chassis get its packets. The new one sends after the guest's RARP, and then
    has the port alone."""
    c.nbctl("lsp-add", "ls0", "mig", "--", "lsp-set-addresses", "mig", "02:00:00:00:00:4d 10.0.0.72", "--", "lsp-set-options", "mig", "requested-chassis=ch1")
    try:
        for n in (1, 2):
            node = c.chassis[n - 1]
            ns = c.pods[f"mig{n}"] = c.net.namespace(f"mig{n}")
            c.net.veth(node.ns, f"vmig{n}", ns, "eth0")
            if node.sw.is_reference:
                c.net.run(ns, "ethtool", "-K", "eth0", "tx", "off", check=False)
            c.net.ip(ns, "link", "set", "eth0", "address", "02:00:00:00:00:4d", "mtu", str(POD_MTU))
            c.net.address(ns, "eth0", "10.0.0.72/24")
            node.sw.vsctl("add-port", "br-int", f"vmig{n}", "--", "set", "interface", f"vmig{n}", "external_ids:iface-id=mig")
        c.sync()
        # The guest's new location sends nothing yet.
        c.net.ip(c.pods["mig2"], "addr", "flush", "dev", "eth0")
        if not c.reaches("a3", "10.0.0.72"):
            return "no answer before"
        c.nbctl("lsp-set-options", "mig", "requested-chassis=ch1,ch2", "activation-strategy=rarp")
        c.sync()
        if not c.reaches("a3", "10.0.0.72"):
            return "no answer while it moves"
        rarp = b"\xff" * 6 + mac("02:00:00:00:00:4d") + bytes.fromhex("80350001080006040003") + 2 * (mac("02:00:00:00:00:4d") + b"\0" * 4)
        c.run("mig2", "python3", "-c", FRAMES, rarp.hex())
        seen = ""
        for _ in range(6):
            seen = captured(c, "mig2", "icmp[0]=8", lambda: c.reaches("a2", "10.0.0.72", tries=1, count=4), seconds=3)
            if "10.0.0.72" in seen:
                break
        if "10.0.0.72" not in seen:
            return f"the other chassis gets nothing: {seen[:200]!r}"
        c.net.address(c.pods["mig2"], "eth0", "10.0.0.72/24")
        c.chassis[0].sw.vsctl("del-port", "br-int", "vmig1")
        c.nbctl("lsp-set-options", "mig", "requested-chassis=ch2")
        c.sync()
        return None if c.reaches("a3", "10.0.0.72", tries=10) and c.reaches("a2", "10.0.0.72", tries=10) else "no answer afterwards"
    finally:
        for n in (1, 2):
            c.chassis[n - 1].sw.vsctl("--if-exists", "del-port", "br-int", f"vmig{n}")
        c.nbctl("lsp-del", "mig")
        c.sync()


@check
def policies_with_several_next_hops(c):
    """Each next hop takes a share; a silent one takes none, if this OVN monitors next hops of policies with
    BFD."""
    world2(c)
    servers = [server(c, pod, 7045) for pod in ("world", "world2")]
    watched = has_column("Logical_Router_Policy", "bfd_sessions")
    peers = []
    c.nbctl("lr-route-add", "lr0", "172.20.0.0/24", "192.168.50.10", "--", "lr-policy-add", "lr0", "200", "ip4.src == 10.0.0.0/24 && ip4.dst == 172.20.0.0/24", "reroute",
            "192.168.50.10,192.168.50.11")
    hosts = lambda: {c.tcp("a1", "172.20.0.1", 7045).split(" ")[0] for _ in range(16)}
    try:
        c.sync()
        # Some of the first ones are lost while neighbours are found.
        hosts()
        if (got := hosts()) != {"world", "world2"}:
            return f"with both: {got}"
        if not watched:
            return None
        for pod, hop in (("world", "192.168.50.10"), ("world2", "192.168.50.11")):
            peers.append(background(c, pod, "python3", "-c", BFD_PEER, hop))
            session = c.nbctl("create", "bfd", "logical_port=lr0-ext", f"dst_ip={hop}", "min_tx=200", "min_rx=200", "detect_mult=5").strip()
            policy = c.nbctl("--bare", "--columns=_uuid", "find", "logical_router_policy", "priority=200").strip()
            c.nbctl("add", "logical_router_policy", policy, "bfd_sessions", session)
        status = lambda: sorted(c.nbctl("--bare", "--columns=status", "list", "bfd").split())
        if not until(lambda: status() == ["up", "up"], 20):
            return f"sessions are {status()}"
        peers[0].kill()
        if not until(lambda: status() == ["down", "up"], 20):
            return f"with one silent, sessions are {status()}"
        c.sync()
        return None if (got := hosts()) == {"world2"} else f"with one: {got}"
    finally:
        [p.kill() for p in peers]
        [s.kill() for s in servers]
        c.nbctl("lr-policy-del", "lr0", "--", "lr-route-del", "lr0", "172.20.0.0/24", "--", "--all", "destroy", "bfd")
        c.sync()


@check
def groups_follow_bfd(c):
    """A forwarding group with `--liveness` has buckets that watch tunnels: a chassis that BFD finds silent gets no new connections."""
    c.nbctl("lrp-set-gateway-chassis", "lr0-ext", "ch3", "20", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch2", "15", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch1", "10")
    c.pod("g3", 3, "ls0", "02:00:00:00:00:23", "10.0.0.23/24", gateway="10.0.0.1")
    c.nbctl("--liveness", "fwd-group-add", "fg", "ls0", "10.0.0.210", "02:00:00:00:00:d2", "a3", "g3")
    c.sync()
    servers = []
    for pod in ("a3", "g3"):
        c.net.ip(c.pods[pod], "link", "add", "fg0", "link", "eth0", "address", "02:00:00:00:00:d2", "type", "macvlan")
        c.net.ip(c.pods[pod], "addr", "add", "10.0.0.210/32", "dev", "fg0")
        c.net.ip(c.pods[pod], "link", "set", "fg0", "up")
        servers.append(server(c, pod, 7046))
    node = c.chassis[0]
    up = lambda: "state=up" in node.sw.vsctl("--bare", "--columns=bfd_status", "list", "interface", "ovn-ch2-0")
    hosts = lambda n: {c.tcp("a1", "10.0.0.210", 7046, timeout=2).split(" ")[0] for _ in range(n)}
    try:
        if not until(up, 20):
            return "no session of BFD with the chassis"
        if "watch_port" not in (groups := node.sw.ofctl("-O", "OpenFlow15", "dump-groups", "br-int")):
            return f"no bucket watches a port: {groups[-300:]}"
        if not until(lambda: hosts(12) == {"a3", "g3"}, 20):
            return f"with both: {hosts(12)}"
        c.net.ip(c.fabric, "link", "set", "up0-2", "down")
        if not until(lambda: not up(), 15):
            return "BFD does not notice"
        flaps = lambda: re.findall(r"flap_count=\d+", node.sw.vsctl("--bare", "--columns=bfd_status", "list", "interface", "ovn-ch3-0"))
        before = flaps()
        return None if (got := hosts(12)) == {"g3"} else f"with one: {got}, and the session with the other one: {before}, {flaps()}"
    finally:
        c.net.ip(c.fabric, "link", "set", "up0-2", "up")
        [s.kill() for s in servers]
        c.net.ip(c.pods["a3"], "link", "del", "fg0", check=False)
        c.nbctl("fwd-group-del", "fg", "--", "lrp-del-gateway-chassis", "lr0-ext", "ch3", "--", "lsp-del", "g3")
        c.chassis[2].sw.vsctl("del-port", "br-int", "vg3")
        until(up, 20)
        c.sync()
