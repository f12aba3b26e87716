"""Kinds of logical switch ports: port security, containers, virtual addresses, VLANs, two chassis.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import subprocess
import time

from checks import check, version
from cluster import POD_MTU, server
from pod_frames import A1, A2, A3, advertisement, arp, echo4, FRAMES, icmp6, mac
from probes import captured, until


@check
def virtual_port(c):
    c.nbctl("lsp-add", "ls0", "vip", "--", "lsp-set-addresses", "vip", "02:00:00:00:00:88 10.0.0.88", "--", "lsp-set-type", "vip", "virtual",
            "--", "set", "logical_switch_port", "vip", "options:virtual-ip=10.0.0.88", "options:virtual-parents=a1,a3")
    c.sync()
    try:
        for pod in ("a3", "a1"):
            c.net.ip(c.pods[pod], "addr", "add", "10.0.0.88/24", "dev", "eth0")
            code = ("import socket\nm=open('/sys/class/net/eth0/address').read().strip().replace(':','')\nm=bytes.fromhex(m); ip=socket.inet_aton('10.0.0.88')\n"
                  "s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))\ns.send(b'\\xff'*6+m+bytes.fromhex('08060001080006040001')+m+ip+b'\\0'*6+ip)\n")

            def bound(pod=pod, code=code):
                # The announcement is repeated, as programs that move addresses do: later OVN does not listen
                # right after a move.
                c.run(pod, "python3", "-c", code)
                time.sleep(0.3)
                return c.sbctl("--bare", "--columns=virtual_parent", "find", "port_binding", "logical_port=vip").strip() == pod
            if not until(bound, 15):
                return f"{pod} is not its parent"
            c.sync()
            c.run("b1", "true")
            if not c.reaches("b1", "10.0.0.88"):
                return f"no answer from {pod}"
            c.net.ip(c.pods[pod], "addr", "del", "10.0.0.88/24", "dev", "eth0")
    finally:
        for pod in ("a1", "a3"):
            c.net.ip(c.pods[pod], "addr", "del", "10.0.0.88/24", "dev", "eth0", check=False)
        c.nbctl("lsp-del", "vip")
        c.sync()


@check
def container_port(c):
    """A port within another port, by a VLAN tag."""
    c.nbctl("lsp-add", "ls0", "nested", "a1", "42", "--", "lsp-set-addresses", "nested", "02:00:00:00:00:42 10.0.0.42")
    c.sync()
    if not until(lambda: c.sbctl("--bare", "--columns=up", "find", "port_binding", "logical_port=nested").strip() == "true", 10):
        return "it does not come up"
    frame = ("import socket\nm=bytes.fromhex('020000000042')\ns=socket.socket(socket.AF_PACKET,socket.SOCK_RAW); s.bind(('eth0',0))\n"
             "for _ in range(3): s.send(b'\\xff'*6+m+bytes.fromhex('8100002a08060001080006040001')+m+socket.inet_aton('10.0.0.42')+b'\\0'*6+socket.inet_aton('10.0.0.13'))\n")
    try:
        seen = captured(c, "a1", "vlan 42 and arp", lambda: c.run("a1", "python3", "-c", frame), count=6, seconds=4)
        return None if "Reply 10.0.0.13 is-at 02:00:00:00:00:13" in seen else seen[:300] or "no answer"
    finally:
        c.nbctl("lsp-del", "nested")
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
def localnet_with_a_tag(c):
    c.nbctl("ls-add", "vl", "--", "lsp-add", "vl", "vl-phys", "", "30", "--", "lsp-set-type", "vl-phys", "localnet", "--", "lsp-set-addresses", "vl-phys", "unknown",
            "--", "lsp-set-options", "vl-phys", "network_name=phys")
    c.pod("v1", 1, "vl", "02:00:00:00:30:11", "10.30.0.11/24")
    c.pod("v2", 2, "vl", "02:00:00:00:30:12", "10.30.0.12/24")
    c.sync()
    try:
        if not c.reaches("v1", "10.30.0.12"):
            return "no answer from the other chassis"
        seen = captured(c, "world", "vlan 30 and arp", lambda: c.run("v1", "ping", "-n", "-c", "2", "-W", "1", "10.30.0.99", check=False), count=8)
        return None if "who-has 10.30.0.99" in seen else seen[:300] or "nothing with the tag"
    finally:
        c.nbctl("lsp-del", "v1", "--", "lsp-del", "v2", "--", "ls-del", "vl")
        c.sync()


@check
def l2gateway(c):
    c.nbctl("ls-add", "l2", "--", "lsp-add", "l2", "l2-gw", "--", "lsp-set-type", "l2-gw", "l2gateway", "--", "lsp-set-addresses", "l2-gw", "unknown",
            "--", "lsp-set-options", "l2-gw", "network_name=phys", "l2gateway-chassis=ch1")
    c.pod("g1", 3, "l2", "02:00:00:00:90:11", "10.9.0.11/24")
    c.sync()
    c.net.ip(c.world, "addr", "add", "10.9.0.10/24", "dev", "eth0")
    try:
        return None if c.reaches("g1", "10.9.0.10", tries=5) else "no answer"
    finally:
        c.net.ip(c.world, "addr", "del", "10.9.0.10/24", "dev", "eth0")
        c.nbctl("lsp-del", "g1", "--", "ls-del", "l2")
        c.sync()


def lets_through(c, good, bad, what, good_sign, bad_sign):
    """Whether a2 sees the frame `good` of a1, and does not see `bad`."""
    seen = captured(c, "a2", what, lambda: c.run("a1", "python3", "-c", FRAMES, bad.hex(), good.hex()), seconds=3, count=12)
    if good_sign not in seen:
        return f"what is allowed does not arrive: {seen[:200]!r}"
    return f"it arrives: {seen[:300]!r}" if bad_sign in seen else None


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
def unknown_addresses_are_learned_and_age(c):
    """Addresses behind a port that OVN has no addresses of; they are forgotten after a while, where this OVN
    can."""
    c.nbctl("lsp-add", "ls0", "unk", "--", "lsp-set-addresses", "unk", "unknown")
    ns = c.net.namespace("unk")
    node = c.chassis[1]
    c.net.veth(node.ns, "vunk", ns, "eth0")
    if node.sw.is_reference:
        c.net.run(ns, "ethtool", "-K", "eth0", "tx", "off", check=False)
    c.net.ip(ns, "link", "set", "eth0", "address", "02:00:00:00:00:90", "mtu", "1442")
    c.net.address(ns, "eth0", "10.0.0.90/24")
    node.sw.vsctl("add-port", "br-int", "vunk", "--", "set", "interface", "vunk", "external_ids:iface-id=unk")
    c.pods["unk"] = ns
    c.sync()
    known = lambda: c.sbctl("--bare", "--columns=mac", "find", "fdb", 'mac="02:00:00:00:00:90"').strip()
    try:
        if not c.reaches("unk", "10.0.0.11") or not c.reaches("a1", "10.0.0.90"):
            return "no answer"
        if not until(known, 10):
            return "it is not learned"
        if tuple(map(int, version().split()[1].split(".")[:2])) < (23, 6):
            return None
        c.nbctl("set", "logical_switch", "ls0", "other_config:fdb_age_threshold=2")
        return None if until(lambda: not known(), 20) else "it is not forgotten"
    finally:
        c.nbctl("lsp-del", "unk", "--", "clear", "logical_switch", "ls0", "other_config")
        node.sw.vsctl("del-port", "br-int", "vunk")
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
def forwarding_group(c):
    """One address of several ports of a switch."""
    c.nbctl("fwd-group-add", "fg", "ls0", "10.0.0.200", "02:00:00:00:00:c8", "a2", "a3")
    c.sync()
    for pod in ("a2", "a3"):
        c.net.ip(c.pods[pod], "link", "add", "fg0", "link", "eth0", "address", "02:00:00:00:00:c8", "type", "macvlan", check=False)
        c.net.ip(c.pods[pod], "addr", "add", "10.0.0.200/32", "dev", "fg0", check=False)
        c.net.ip(c.pods[pod], "link", "set", "fg0", "up", check=False)
    try:
        return None if c.reaches("b1", "10.0.0.200") else "no answer"
    finally:
        for pod in ("a2", "a3"):
            c.net.ip(c.pods[pod], "link", "del", "fg0", check=False)
        c.nbctl("fwd-group-del", "fg")
        c.sync()
