"""Switching, routing, NAT, access lists, load balancers and services, seen from inside of pods."""

import re
import subprocess
import time

from cluster import server

CHECKS = []
# A warning of an ovn-controller that has just started, until its tunnels have numbers; also with Open
# vSwitch.
SAID_EVERYWHERE = "No tunnel endpoint found for HA chassis"


class Absent(Exception):
    """This OVN lacks the feature of a check."""


def check(function):
    CHECKS.append(function)
    return function


def version():
    """The OVN that is tried, as "OVN 23.03.1"."""
    return "OVN " + subprocess.run(["ovn-nbctl", "--version"], stdout=subprocess.PIPE, text=True).stdout.split()[1]


def topology(c):
    """Two switches with pods on three chassis, a router between them, and a gateway to the provider's network."""
    c.nbctl("ls-add", "ls0", "--", "ls-add", "ls1", "--", "ls-add", "ext", "--", "lr-add", "lr0")
    for ls, v4, v6, mac in (("ls0", "10.0.0.1/24", "fd00:0::1/64", "02:00:00:00:00:01"), ("ls1", "10.0.1.1/24", "fd00:1::1/64", "02:00:00:00:01:01")):
        c.nbctl("lrp-add", "lr0", f"lr0-{ls}", mac, v4, v6, "--", "lsp-add", ls, f"{ls}-lr0", "--", "lsp-set-type", f"{ls}-lr0", "router",
                "--", "lsp-set-addresses", f"{ls}-lr0", "router", "--", "lsp-set-options", f"{ls}-lr0", f"router-port=lr0-{ls}")
    c.nbctl("lsp-add", "ext", "ext-phys", "--", "lsp-set-type", "ext-phys", "localnet", "--", "lsp-set-addresses", "ext-phys", "unknown",
            "--", "lsp-set-options", "ext-phys", "network_name=phys")
    c.nbctl("lrp-add", "lr0", "lr0-ext", "02:00:00:00:50:01", "192.168.50.1/24", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch1", "20",
            "--", "lsp-add", "ext", "ext-lr0", "--", "lsp-set-type", "ext-lr0", "router", "--", "lsp-set-addresses", "ext-lr0", "router",
            "--", "lsp-set-options", "ext-lr0", "router-port=lr0-ext", "nat-addresses=router")
    for name, chassis, ls, net, host in (("a1", 1, "ls0", 0, 11), ("a2", 1, "ls0", 0, 12), ("a3", 2, "ls0", 0, 13), ("b1", 1, "ls1", 1, 11), ("b2", 3, "ls1", 1, 12)):
        ns = c.pod(name, chassis, ls, f"02:00:00:00:0{net}:{host}", f"10.0.{net}.{host}/24", f"fd00:{net}::{host}/64", gateway=f"10.0.{net}.1")
        c.net.ip(ns, "-6", "route", "add", "default", "via", f"fd00:{net}::1")
    c.sync()


@check
def same_switch_same_chassis(c):
    return None if c.reaches("a1", "10.0.0.12") else "no answer"


@check
def same_switch_over_a_tunnel(c):
    return None if c.reaches("a1", "10.0.0.13") else "no answer"


@check
def routed_on_one_chassis(c):
    return None if c.reaches("a1", "10.0.1.11") else "no answer"


@check
def routed_over_a_tunnel(c):
    return None if c.reaches("a1", "10.0.1.12") and c.reaches("b2", "10.0.0.13") else "no answer"


@check
def ipv6_over_switch_and_router(c):
    return None if c.reaches("a1", "fd00:0::13") and c.reaches("a1", "fd00:1::12") else "no answer"


@check
def full_size_packets(c):
    return None if c.reaches("a1", "10.0.1.12", size=1442 - 28, more=("-M", "do")) else "no answer"


@check
def tcp_over_a_tunnel(c):
    s = server(c, "b2", 7000)
    try:
        got = c.tcp("a1", "10.0.1.12", 7000)
        return None if got == "b2 10.0.0.11" else got
    finally:
        s.kill()


@check
def the_router_answers(c):
    return None if c.reaches("a1", "10.0.0.1") and c.reaches("a3", "fd00:0::1") else "no answer"


@check
def the_router_says_that_time_is_over(c):
    out = c.run("a1", "ping", "-n", "-c", "2", "-t", "1", "-W", "2", "10.0.1.12", check=False)
    return None if "Time to live exceeded" in out and "10.0.0.1" in out else out


@check
def provider_network_by_the_gateway(c):
    c.run("world", "ip", "route", "replace", "10.0.0.0/16", "via", "192.168.50.1")
    return None if c.reaches("world", "10.0.0.11") and c.reaches("world", "10.0.1.12") else "no answer"


@check
def snat(c):
    c.nbctl("--may-exist", "lr-nat-add", "lr0", "snat", "192.168.50.2", "10.0.0.0/24")
    c.sync()
    s = server(c, "world", 7001)
    try:
        got = [c.tcp(pod, "192.168.50.10", 7001) for pod in ("a1", "a3")]
        if got != ["world 192.168.50.2"] * 2:
            return str(got)
        return None if c.reaches("a3", "192.168.50.10") else "no answer to pings"
    finally:
        s.kill()


@check
def floating_address(c):
    c.nbctl("--may-exist", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.5", "10.0.1.12")
    c.sync()
    s = server(c, "b2", 7002)
    try:
        got = c.tcp("world", "192.168.50.5", 7002)
        return None if got == "b2 192.168.50.10" and c.reaches("world", "192.168.50.5") else got
    finally:
        s.kill()
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.5")


@check
def distributed_floating_address(c):
    c.nbctl("lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.6", "10.0.0.13", "a3", "02:00:00:00:50:06")
    c.sync()
    try:
        if not c.reaches("world", "192.168.50.6"):
            return "no answer"
        mac = c.run("world", "ip", "neigh", "show", "192.168.50.6")
        return None if "02:00:00:00:50:06" in mac else mac
    finally:
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.6")


@check
def fragments_by_nat(c):
    c.nbctl("--may-exist", "lr-nat-add", "lr0", "snat", "192.168.50.2", "10.0.0.0/24")
    c.sync()
    return None if c.reaches("a3", "192.168.50.10", size=4000) else "no answer"


@check
def acl_drop(c):
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && icmp4", "drop")
    c.sync()
    try:
        return "answered" if c.reaches("a1", "10.0.0.12", tries=1) else None
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def acl_allow_related(c):
    c.nbctl("acl-add", "ls1", "to-lport", "1000", "outport == \"b2\" && ip4", "drop",
            "--", "acl-add", "ls1", "from-lport", "1001", "inport == \"b2\" && ip4", "allow-related")
    c.sync()
    s, t = server(c, "a1", 7003), server(c, "b2", 7003)
    try:
        if (got := c.tcp("b2", "10.0.0.11", 7003)) != "a1 10.0.1.12":
            return f"from inside: {got}"
        if (got := c.tcp("a1", "10.0.1.12", 7003)) != "silence":
            return f"from outside: {got}"
        if not c.reaches("b2", "10.0.0.11", size=3000):
            return "fragments are not answered"
        return "pings from outside are answered" if c.reaches("a1", "10.0.1.12", tries=1) else None
    finally:
        s.kill()
        t.kill()
        c.nbctl("acl-del", "ls1")
        c.sync()


@check
def acl_reject(c):
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a3\" && tcp", "reject")
    c.sync()
    try:
        got = c.tcp("a1", "10.0.0.13", 7004)
        return None if got == "refused" else got
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def acl_log_with_a_meter(c):
    c.nbctl("meter-add", "acl-log", "drop", "5", "pktps", "1", "--", "--log", "--meter=acl-log", "--name=told", "acl-add", "ls0", "to-lport", "1000",
            "outport == \"a2\" && icmp4", "drop")
    c.sync()
    try:
        c.reaches("a1", "10.0.0.12", tries=1)
        time.sleep(0.5)
        return None if 'name="told"' in c.chassis[0].log() else "no line in ovn-controller's log"
    finally:
        c.nbctl("acl-del", "ls0", "--", "meter-del", "acl-log")
        c.sync()


@check
def address_sets_and_port_groups(c):
    c.nbctl("pg-add", "pg0", "a1", "a2", "a3", "--", "create", "address_set", "name=as0", "addresses=10.0.1.11")
    c.nbctl("acl-add", "pg0", "to-lport", "1000", "outport == @pg0 && ip4.src == $as0 && icmp4", "drop")
    c.sync()
    try:
        if c.reaches("b1", "10.0.0.13", tries=1):
            return "an address of the set is answered"
        c.nbctl("set", "address_set", "as0", "addresses=10.0.1.99")
        c.sync()
        return None if c.reaches("b1", "10.0.0.13") else "an address that left the set is not answered"
    finally:
        c.nbctl("pg-del", "pg0", "--", "destroy", "address_set", "as0")
        c.sync()


def balancer(c, vip, backends, *more):
    c.nbctl(*more, "lb-add", "lb0", vip, backends, "tcp")
    c.nbctl("ls-lb-add", "ls0", "lb0", "--", "lr-lb-add", "lr0", "lb0", "--", "ls-lb-add", "ls1", "lb0")
    c.sync()


def gone(c):
    c.nbctl("lb-del", "lb0")
    c.sync()


@check
def load_balancer(c):
    servers = [server(c, pod, 8080) for pod in ("a2", "b2")]
    balancer(c, "10.0.0.50:80", "10.0.0.12:8080,10.0.1.12:8080")
    try:
        got = {c.tcp("a3", "10.0.0.50", 80) for _ in range(20)}
        return None if got == {"a2 10.0.0.13", "b2 10.0.0.13"} else str(got)
    finally:
        gone(c)
        [s.kill() for s in servers]


@check
def load_balancer_from_outside(c):
    servers = [server(c, pod, 8080) for pod in ("a2", "a3")]
    balancer(c, "192.168.50.20:80", "10.0.0.12:8080,10.0.0.13:8080")
    try:
        got = {c.tcp("world", "192.168.50.20", 80).split(" ")[0] for _ in range(20)}
        return None if got == {"a2", "a3"} else str(got)
    finally:
        gone(c)
        [s.kill() for s in servers]


@check
def load_balancer_to_itself(c):
    s = server(c, "a2", 8080)
    balancer(c, "10.0.0.51:80", "10.0.0.12:8080")
    try:
        got = c.tcp("a2", "10.0.0.51", 80)
        return None if got.startswith("a2 ") else got
    finally:
        gone(c)
        s.kill()


@check
def load_balancer_ipv6(c):
    s = server(c, "a3", 8080, v6=True)
    balancer(c, "[fd00:0::50]:80", "[fd00:0::13]:8080")
    try:
        got = c.tcp("a1", "fd00:0::50", 80)
        return None if got == "a3 fd00::11" else got
    finally:
        gone(c)
        s.kill()


@check
def load_balancer_with_affinity(c):
    servers = [server(c, pod, 8080) for pod in ("a2", "a3")]
    balancer(c, "10.0.0.52:80", "10.0.0.12:8080,10.0.0.13:8080")
    c.nbctl("set", "load_balancer", "lb0", "options:affinity_timeout=60")
    c.sync()
    try:
        c.tcp("a1", "10.0.0.52", 80)
        time.sleep(0.5)
        got = {c.tcp("a1", "10.0.0.52", 80) for _ in range(12)}
        return None if len(got) == 1 and got <= {"a2 10.0.0.11", "a3 10.0.0.11"} else str(got)
    finally:
        gone(c)
        [s.kill() for s in servers]


@check
def no_backend_is_refused(c):
    balancer(c, "10.0.0.53:80", "", "--reject")
    try:
        got = c.tcp("a1", "10.0.0.53", 80)
        return None if got == "refused" else got
    finally:
        gone(c)


@check
def dhcp(c):
    uuid = c.nbctl("create", "dhcp_options", "cidr=10.0.0.0/24",
                   'options="lease_time"="3600" "router"="10.0.0.1" "server_id"="10.0.0.1" "server_mac"="02:00:00:00:00:01" "dns_server"="10.0.0.1"').strip()
    c.pod("d1", 2, "ls0", "02:00:00:00:00:77", "10.0.0.77/24", configure=False)
    c.nbctl("lsp-set-dhcpv4-options", "d1", uuid)
    c.sync()
    code = """
import socket,struct,time
mac=bytes.fromhex('020000000077')
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(3)); s.bind(('eth0',0)); s.settimeout(2)
def csum(b):
    t=sum(struct.unpack('!%dH'%(len(b)//2),b)); t=(t&0xffff)+(t>>16); return ~(t+(t>>16))&0xffff
bootp=struct.pack('!BBBBIHH4s4s4s4s16s192s4s',1,1,6,0,0x1234,0,0x8000,b'','' .encode(),b'',b'',mac,b'',bytes.fromhex('63825363'))+bytes([53,1,1,255])
udp=struct.pack('!HHHH',68,67,8+len(bootp),0)+bootp
ip=struct.pack('!BBHHHBBH4s4s',0x45,0,20+len(udp),1,0,64,17,0,b'\\0'*4,b'\\xff'*4)
ip=ip[:10]+struct.pack('!H',csum(ip))+ip[12:]
for _ in range(3):
    s.send(b'\\xff'*6+mac+b'\\x08\\0'+ip+udp)
    end=time.time()+2
    while time.time()<end:
        try: f=s.recv(2000)
        except OSError: break
        if f[12:14]==b'\\x08\\0' and f[23]==17 and f[36:38]==b'\\0\\x44':
            print(socket.inet_ntoa(f[58:62])); raise SystemExit
"""
    got = c.run("d1", "python3", "-c", code, check=False, timeout=30).strip()
    return None if got == "10.0.0.77" else f"offered: {got!r}"


@check
def dns(c):
    uuid = c.nbctl("create", "dns", "records={\"pod.example\"=\"10.0.0.12\"}").strip()
    c.nbctl("set", "logical_switch", "ls0", f"dns_records={uuid}")
    c.sync()
    query = "\\x12\\x34\\x01\\x00\\x00\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x03pod\\x07example\\x00\\x00\\x01\\x00\\x01"
    code = f"import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.settimeout(2)\nfor _ in range(3):\n    s.sendto(b'{query}',('10.0.1.11',53))\n    try: print(socket.inet_ntoa(s.recv(500)[-4:])); break\n    except OSError: pass\n"
    got = c.run("a1", "python3", "-c", code, check=False, timeout=20).strip()
    return None if got == "10.0.0.12" else f"answer: {got!r}"


@check
def port_security(c):
    c.nbctl("lsp-set-port-security", "a1", "02:00:00:00:00:11 10.0.0.11")
    c.sync()
    try:
        if not c.reaches("a1", "10.0.0.12"):
            return "its own address is not answered"
        c.net.ip(c.pods["a1"], "addr", "add", "10.0.0.99/24", "dev", "eth0")
        c.net.ip(c.pods["a2"], "neigh", "replace", "10.0.0.99", "lladdr", "02:00:00:00:00:11", "dev", "eth0")
        return "another address is answered" if c.reaches("a1", "10.0.0.12", tries=1, more=("-I", "10.0.0.99")) else None
    finally:
        c.net.ip(c.pods["a1"], "addr", "del", "10.0.0.99/24", "dev", "eth0", check=False)
        c.nbctl("lsp-set-port-security", "a1")
        c.sync()


@check
def qos_marks_dscp(c):
    c.nbctl("qos-add", "ls0", "from-lport", "100", "inport == \"a1\" && ip4", "dscp=48")
    c.sync()
    try:
        dump = subprocess.Popen(["ip", "netns", "exec", c.pods["a3"], "timeout", "8", "tcpdump", "-n", "-v", "-c", "2", "-i", "eth0", "icmp[icmptype]=8"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        time.sleep(1)
        c.reaches("a1", "10.0.0.13", count=5)
        out = dump.communicate()[0]
        return None if re.search(r"tos 0xc0", out) else out[:200]
    finally:
        c.nbctl("qos-del", "ls0")
        c.sync()


@check
def router_policy(c):
    c.nbctl("lr-policy-add", "lr0", "100", "ip4.src == 10.0.0.12 && ip4.dst == 10.0.1.0/24", "drop")
    c.sync()
    try:
        if c.reaches("a2", "10.0.1.12", tries=1):
            return "answered"
        return None if c.reaches("a1", "10.0.1.12") else "others are not answered"
    finally:
        c.nbctl("lr-policy-del", "lr0")
        c.sync()


@check
def gateway_fails_over(c):
    c.nbctl("lrp-set-gateway-chassis", "lr0-ext", "ch2", "10", "--", "lrp-set-gateway-chassis", "lr0-ext", "ch1", "5")
    c.sync()
    for _ in range(10):
        if c.reaches("b1", "10.0.1.1") and c.reaches("a1", "192.168.50.10", tries=1):
            break
    else:
        return "no answer by the other chassis"
    port = c.sbctl("--bare", "--columns=chassis", "find", "port_binding", "logical_port=cr-lr0-ext").strip()
    name = c.sbctl("--bare", "--columns=name", "list", "chassis", port).strip()
    return None if name == "ch2" else f"the port is on {name}"


@check
def nothing_odd_in_the_logs(c):
    bad = [line for ch in c.chassis for line in ch.log().splitlines() 
           if re.search(r"OFPT_ERROR|\|(ERR|EMER)\|", line) and SAID_EVERYWHERE not in line]
    return None if not bad else f"{len(bad)} lines, the first: {bad[0][:300]}"
