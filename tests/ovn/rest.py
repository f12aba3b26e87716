"""The rest of OVN's promises: gateway routers, more of access lists, load balancers, NAT, mirrors and
multicast, and features of later OVN.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left
out."""

import time

from checks import Absent, balancer, check, gone, version
from cluster import has_column, server
from more import JOIN, background, captured, flood, until, way_back, world2

# A client and a server of SCTP by raw sockets: this kernel may have none of its own. Their checksum is CRC32c.
SCTP = """
import socket,struct,sys,time
def crc(b):
    c=0xffffffff
    for x in b:
        c^=x
        for _ in range(8): c=c>>1^(0x82f63b78 if c&1 else 0)
    return struct.pack('<I',c^0xffffffff)
def packet(sport,dport,tag,kind):
    head=struct.pack('!HHI',sport,dport,tag); chunk=struct.pack('!BBHIIHHI',kind,0,20,0x1111,65535,1,1,7)
    return head+crc(head+b'\\0'*4+chunk)+chunk
def sound(p): return crc(p[:8]+b'\\0'*4+p[12:])==p[8:12]
s=socket.socket(socket.AF_INET,socket.SOCK_RAW,132); s.settimeout(0.5)
end=time.time()+12
if sys.argv[1]=='serve':
    while time.time()<end:
        try: p,a=s.recvfrom(2000)
        except OSError: continue
        p=p[(p[0]&15)*4:]
        sport,dport=struct.unpack('!HH',p[:4])
        if dport==int(sys.argv[2]) and p[12]==1 and sound(p): s.sendto(packet(dport,sport,0x1111,2),(a[0],0))
else:
    for _ in range(6):
        s.sendto(packet(5555,int(sys.argv[3]),0,1),(sys.argv[2],0))
        try: p,a=s.recvfrom(2000)
        except OSError: continue
        p=p[(p[0]&15)*4:]
        print(a[0],*struct.unpack('!HH',p[:4]),p[12],'sound' if sound(p) else 'broken'); break
    else: print('silence')
"""


@check
def load_balancer_of_sctp(c):
    s = background(c, "a3", "python3", "-c", SCTP, "serve", "9999")
    c.nbctl("lb-add", "lb0", "10.0.0.56:9000", "10.0.0.13:9999", "sctp", "--", "ls-lb-add", "ls0", "lb0", "--", "lr-lb-add", "lr0", "lb0")
    c.sync()
    try:
        got = c.run("a1", "python3", "-c", SCTP, "ask", "10.0.0.56", "9000", timeout=30).strip()
        return None if got == "10.0.0.56 9000 5555 2 sound" else got
    finally:
        gone(c)
        s.kill()


@check
def acl_tiers(c):
    """The second tier decides about packets that the first one passes."""
    if not has_column("ACL", "tier"):
        raise Absent
    for tier, priority, match, action in ((0, 1000, "ip4.src == 10.0.0.11", "pass"), (0, 900, "ip4.src == 10.0.0.13", "drop"), (1, 1000, "ip4", "drop")):
        c.nbctl("--id=@a", "create", "acl", "direction=to-lport", f"priority={priority}", f'match="outport == \\"a2\\" && icmp4 && {match}"', f"action={action}",
                f"tier={tier}", "--", "add", "logical_switch", "ls0", "acls", "@a")
    c.sync()
    try:
        if c.reaches("a1", "10.0.0.12", tries=1):
            return "what was passed to the second tier is answered"
        c.nbctl("set", "acl", c.nbctl("--bare", "--columns=_uuid", "find", "acl", "tier=1").strip(), "action=allow-related")
        c.sync()
        if not c.reaches("a1", "10.0.0.12"):
            return "what the second tier allows is not answered"
        return "what the first tier drops is answered" if c.reaches("a3", "10.0.0.12", tries=1) else None
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


COLLECT_POINTS = """
import socket,struct,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('127.0.0.1',4739)); s.settimeout(0.5)
end=time.time()+float(sys.argv[1]); templates={}; points=set()
while time.time()<end:
    try: d=s.recv(4000)
    except OSError: continue
    domain=struct.unpack('!I',d[12:16])[0]; at=16
    while at+4<=len(d):
        kind,size=struct.unpack('!HH',d[at:at+4]); body=d[at+4:at+size]; at+=max(size,4)
        if kind==2:
            while len(body)>=4:
                number,count=struct.unpack('!HH',body[:4]); body=body[4:]; fields=[]
                for _ in range(count):
                    e,n=struct.unpack('!HH',body[:4]); far=e>>15; body=body[8 if far else 4:]; fields.append((0 if far else e,n))
                templates[domain,number]=fields
        elif (domain,kind) in templates:
            while len(body)>=4:
                for e,n in templates[domain,kind]:
                    if n==65535:
                        n=body[0]; body=body[1:]
                    if e==138: points.add((domain>>24,int.from_bytes(body[:n],'big')))
                    body=body[n:]
print(sorted(points))
"""


@check
def connections_of_an_acl_are_sampled(c):
    """New connections and established ones, each with the number that the access list gave, which the rules have in registers and labels."""
    if not has_column("ACL", "sample_new"):
        raise Absent
    for node in c.chassis:
        c.net.ip(node.ns, "link", "set", "lo", "up")
        node.sw.vsctl("--id=@b", "get", "bridge", "br-int", "--", "--id=@i", "create", "ipfix", 'targets="127.0.0.1:4739"', "template_interval=1", "--",
                      "create", "flow_sample_collector_set", "id=78", "bridge=@b", "ipfix=@i")
    for kind, number in (("acl-new", 11), ("acl-est", 12)):
        c.nbctl("create", "sampling_app", f"type={kind}", f"id={number}")
    c.nbctl("--id=@c", "create", "sample_collector", "name=c0", "id=1", "probability=65535", "set_id=78",
            "--", "--id=@n", "create", "sample", "collectors=@c", "metadata=1001", "--", "--id=@e", "create", "sample", "collectors=@c", "metadata=1002",
            "--", "--id=@a", "create", "acl", "direction=to-lport", "priority=1000", 'match="outport == \\"a2\\" && ip4"', "action=allow-related",
            "sample_new=@n", "sample_est=@e", "--", "add", "logical_switch", "ls0", "acls", "@a")
    c.sync()
    s = server(c, "a2", 7031)
    try:
        listener = background(c, c.chassis[0].ns, "python3", "-c", COLLECT_POINTS, "8")
        time.sleep(1)
        for _ in range(4):
            c.tcp("a1", "10.0.0.12", 7031)
            time.sleep(0.5)
        got = eval(listener.communicate(timeout=30)[0])
        return None if {(11, 1001), (12, 1002)} <= set(got) else f"points: {got}"
    finally:
        s.kill()
        c.nbctl("acl-del", "ls0", "--", "--all", "destroy", "sampling_app")
        for node in c.chassis:
            node.sw.vsctl("--all", "destroy", "flow_sample_collector_set")
        c.sync()


@check
def acl_label(c):
    c.nbctl("--label=1234", "acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && ip4", "allow-related")
    c.sync()
    try:
        if not c.reaches("a1", "10.0.0.12"):
            return "no answer"
        out = c.chassis[0].sw.appctl("dpctl/dump-conntrack")
        return None if "0x4d2" in out else "no connection has the label"
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def acl_after_load_balancers(c):
    """The access list sees the server's address and port."""
    s = server(c, "a2", 8080)
    balancer(c, "10.0.0.57:80", "10.0.0.12:8080")
    c.nbctl("--apply-after-lb", "acl-add", "ls0", "from-lport", "1000", "ip4.dst == 10.0.0.12 && tcp.dst == 8080 && ip4.src == 10.0.0.11", "drop")
    c.sync()
    try:
        got = [c.tcp(pod, "10.0.0.57", 80, timeout=2) for pod in ("a1", "a3")]
        return None if got == ["silence", "a2 10.0.0.13"] else str(got)
    finally:
        c.nbctl("acl-del", "ls0")
        gone(c)
        s.kill()


@check
def traffic_without_a_service_is_not_tracked(c):
    """A switch with a load balancer tracks all packets of its pods. Stateless access lists exclude packets of
    no service; services keep working."""
    s = server(c, "b2", 8080)
    balancer(c, "10.0.0.59:80", "10.0.1.12:8080")
    c.nbctl("create", "address_set", "name=services", 'addresses="10.0.0.59"', "--", "create", "address_set", "name=backends", 'addresses="10.0.1.12"')

    def tracked():
        c.chassis[0].sw.appctl("dpctl/flush-conntrack")
        if not c.reaches("a1", "10.0.0.12"):
            return "no answer"
        return "src=10.0.0.11,dst=10.0.0.12" in c.chassis[0].sw.appctl("dpctl/dump-conntrack")
    try:
        if (got := tracked()) is not True:
            return f"without lists: {got or 'not tracked'}"
        for direction, match in (("from-lport", "ip4.dst != $services && ip4.src != $backends"), ("to-lport", "ip4.src != $backends && ip4.dst != $backends")):
            c.nbctl("acl-add", "ls0", direction, "2000", f"ip4 && {match}", "allow-stateless")
        c.sync()
        if (got := tracked()) is not False:
            return f"with lists: {got if isinstance(got, str) else 'tracked'}"
        got = {c.tcp(pod, "10.0.0.59", 80) for pod in ("a1", "a3")}
        return None if got == {"b2 10.0.0.11", "b2 10.0.0.13"} else f"the service: {got}"
    finally:
        c.nbctl("acl-del", "ls0")
        gone(c)
        c.nbctl("--all", "destroy", "address_set")
        s.kill()


def with_gateway_router(c):
    """A router `gr` that lives on chassis 2, behind a switch that joins it with lr0; 192.168.60.0/24 of the provider's network is behind it."""
    c.nbctl("ls-add", "join", "--", "lr-add", "gr", "--", "set", "logical_router", "gr", "options:chassis=ch2", 'options:lb_force_snat_ip="router_ip"')
    for lr, mac, ip in (("lr0", "02:00:00:00:64:01", "100.64.0.1/16"), ("gr", "02:00:00:00:64:02", "100.64.0.2/16")):
        c.nbctl("lrp-add", lr, f"{lr}-join", mac, ip, "--", "lsp-add", "join", f"join-{lr}", "--", "lsp-set-type", f"join-{lr}", "router",
                "--", "lsp-set-addresses", f"join-{lr}", "router", "--", "lsp-set-options", f"join-{lr}", f"router-port={lr}-join")
    c.nbctl("ls-add", "ext2", "--", "lsp-add", "ext2", "ext2-phys", "--", "lsp-set-type", "ext2-phys", "localnet", "--", "lsp-set-addresses", "ext2-phys", "unknown",
            "--", "lsp-set-options", "ext2-phys", "network_name=phys")
    c.nbctl("lrp-add", "gr", "gr-ext", "02:00:00:00:50:09", "192.168.60.1/24", "--", "lsp-add", "ext2", "ext2-gr", "--", "lsp-set-type", "ext2-gr", "router",
            "--", "lsp-set-addresses", "ext2-gr", "router", "--", "lsp-set-options", "ext2-gr", "router-port=gr-ext", "nat-addresses=router")
    c.nbctl("lr-route-add", "gr", "10.0.0.0/16", "100.64.0.1")
    for net in ("192.168.60.0/24", "172.21.0.0/24"):
        c.nbctl("lr-route-add", "lr0", net, "100.64.0.2")
    c.net.ip(c.world, "addr", "replace", "192.168.60.10/24", "dev", "eth0")
    c.net.ip(world2(c), "addr", "replace", "192.168.60.11/24", "dev", "eth0")


def without_gateway_router(c):
    c.nbctl("lr-del", "gr", "--", "ls-del", "ext2", "--", "ls-del", "join", "--", "lrp-del", "lr0-join")
    for net in ("192.168.60.0/24", "172.21.0.0/24"):
        c.nbctl("lr-route-del", "lr0", net)
    for ns, host in ((c.world, 10), (c.pods["world2"], 11)):
        c.net.ip(ns, "addr", "del", f"192.168.60.{host}/24", "dev", "eth0")
    c.sync()


@check
def gateway_router(c):
    """The gateway router translates, and balances with its own address as the source."""
    with_gateway_router(c)
    c.nbctl("lr-nat-add", "gr", "snat", "192.168.60.2", "10.0.0.0/16", "--", "lb-add", "lb0", "192.168.60.20:80", "10.0.0.13:8080,10.0.1.12:8080", "tcp",
            "--", "lr-lb-add", "gr", "lb0")
    c.sync()
    servers = [server(c, "a3", 8080), server(c, "b2", 8080), server(c, "world", 7032)]
    try:
        if (got := c.tcp("a1", "192.168.60.10", 7032)) != "world 192.168.60.2":
            return f"from inside: {got}"
        balanced = lambda: {c.tcp("world", "192.168.60.20", 80) for _ in range(16)}
        # Some of the first ones are lost while neighbours are found.
        balanced()
        got = balanced()
        return None if got == {"a3 100.64.0.2", "b2 100.64.0.2"} else f"balanced: {got}"
    finally:
        [s.kill() for s in servers]
        c.nbctl("lb-del", "lb0")
        without_gateway_router(c)


@check
def snat_with_a_range_of_ports(c):
    way_back(c)
    c.nbctl("--may-exist", "--portrange", "lr-nat-add", "lr0", "snat", "192.168.50.7", "10.0.1.11/32", "40000-40099")
    c.sync()
    code = ("import socket\ns=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',7033)); s.listen(9); s.settimeout(9)\n"
            "a=s.accept()[1]; print(*a)\n")
    listener = background(c, "world", "python3", "-c", code)
    try:
        until(lambda: ":7033 " in c.run("world", "ss", "-Hltn", quiet=True), 5)
        c.tcp("b1", "192.168.50.10", 7033)
        got = listener.communicate(timeout=20)[0].split()
        return None if len(got) == 2 and got[0] == "192.168.50.7" and 40000 <= int(got[1]) <= 40099 else str(got)
    finally:
        listener.kill()
        c.nbctl("lr-nat-del", "lr0", "snat", "10.0.1.11/32", check=False)
        c.sync()


@check
def stateless_floating_address(c):
    way_back(c)
    c.nbctl("--stateless", "lr-nat-add", "lr0", "dnat_and_snat", "192.168.50.8", "10.0.0.13")
    c.sync()
    s = server(c, "a3", 7034)
    try:
        got = c.tcp("world", "192.168.50.8", 7034)
        return None if got == "a3 192.168.50.10" else got
    finally:
        s.kill()
        c.nbctl("lr-nat-del", "lr0", "dnat_and_snat", "192.168.50.8")
        c.sync()


@check
def load_balancer_of_fragments(c):
    """Datagrams of several fragments, whose later ones have no ports."""
    s = server(c, "a3", 5301, udp=True)
    c.nbctl("lb-add", "lb0", "10.0.0.58:53", "10.0.0.13:5301", "udp", "--", "ls-lb-add", "ls0", "lb0", "--", "lr-lb-add", "lr0", "lb0")
    c.sync()
    code = ("import socket\nfor _ in range(4):\n    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b'x'*4000,('10.0.0.58',53))\n"
            "    try: d,a=s.recvfrom(100); print(d.decode(),a[0]); break\n    except OSError: pass\n")
    try:
        got = c.run("a1", "python3", "-c", code, check=False, timeout=20).strip()
        return None if got == "a3 10.0.0.11 10.0.0.58" else got or "silence"
    finally:
        gone(c)
        s.kill()


def watched_mirror(c, kind, what, index):
    """The mirrored packets that a host of the underlay receives."""
    watcher = c.pods.get("watcher")
    if not watcher:
        watcher = c.pods["watcher"] = c.net.namespace("watcher")
        c.net.veth(watcher, "eth0", c.fabric, "watcher")
        c.net.ip(c.fabric, "link", "set", "watcher", "master", "fabric")
        c.net.address(watcher, "eth0", "172.31.0.99/24")
    c.nbctl("mirror-add", "m1", kind, index, "from-lport", "172.31.0.99", "--", "lsp-attach-mirror", "a1", "m1")
    c.sync()
    try:
        # The first packets find the neighbour.
        return captured(c, "watcher", what, lambda: c.reaches("a1", "10.0.0.12", count=8), seconds=8, count=3)
    finally:
        c.nbctl("lsp-detach-mirror", "a1", "m1", "--", "mirror-del", "m1")
        c.sync()


@check
def mirror_to_erspan(c):
    seen = watched_mirror(c, "erspan", "proto gre", "7")
    return None if "gre" in seen.lower() and "0x88be" in seen else seen[:300] or "nothing"


@check
def mirror_to_a_local_port(c):
    if not has_column("Mirror", "mirror_rules"):
        raise Absent
    node = c.chassis[0]
    sink = c.pods.get("sink")
    if not sink:
        sink = c.pods["sink"] = c.net.namespace("sink")
        c.net.veth(node.ns, "vsink", sink, "eth0")
        c.net.ip(sink, "link", "set", "eth0", "up")
    node.sw.vsctl("--may-exist", "add-port", "br-int", "vsink", "--", "set", "interface", "vsink", "external_ids:mirror-id=here")
    c.nbctl("mirror-add", "m2", "local", "both", "here", "--", "lsp-attach-mirror", "a1", "m2")
    c.sync()
    try:
        seen = captured(c, "sink", "icmp", lambda: c.reaches("a1", "10.0.0.12", count=4), seconds=6, count=4)
        return None if "echo request" in seen and "echo reply" in seen else seen[:300] or "nothing"
    finally:
        c.nbctl("lsp-detach-mirror", "a1", "m2", "--", "mirror-del", "m2")
        node.sw.vsctl("del-port", "br-int", "vsink")
        c.sync()


JOIN6 = """
import socket,struct
s=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('::',5008)); s.settimeout(12)
s.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_JOIN_GROUP,socket.inet_pton(socket.AF_INET6,'ff0e::1:2')+struct.pack('@I',socket.if_nametoindex('eth0')))
try: print(s.recv(100).decode())
except OSError: print('nothing')
"""


@check
def mld_snooping(c):
    c.nbctl("set", "logical_switch", "ls0", "other_config:mcast_snoop=true", "other_config:mcast_querier=false")
    c.sync()
    try:
        member = background(c, "a3", "python3", "-c", JOIN6)
        if not until(lambda: "ff0e::1:2" in c.sbctl("--bare", "--columns=address", "list", "igmp_group"), 10):
            return "the group is not known"
        c.sync()
        send = ("import socket,time,struct\ns=socket.socket(socket.AF_INET6,socket.SOCK_DGRAM); s.setsockopt(socket.IPPROTO_IPV6,socket.IPV6_MULTICAST_IF,socket.if_nametoindex('eth0'))\n"
                "for _ in range(5): s.sendto(b'hello',('ff0e::1:2',5008)); time.sleep(0.2)\n")
        seen = captured(c, "a2", "udp port 5008", lambda: c.run("a1", "python3", "-c", send), seconds=3)
        got = member.communicate()[0].strip()
        if got != "hello":
            return f"the member gets {got}"
        return "others get it too" if "ff0e::1:2" in seen else None
    finally:
        c.nbctl("clear", "logical_switch", "ls0", "other_config")
        c.sync()


@check
def multicast_is_routed(c):
    c.nbctl("set", "logical_router", "lr0", "options:mcast_relay=true")
    for ls, net in (("ls0", 0), ("ls1", 1)):
        c.nbctl("set", "logical_switch", ls, "other_config:mcast_snoop=true", "other_config:mcast_querier=true", f"other_config:mcast_eth_src=02:00:00:00:0{net}:01",
                f"other_config:mcast_ip4_src=10.0.{net}.1")
    c.sync()
    join = "s.setsockopt(socket.IPPROTO_IP,socket.IP_ADD_MEMBERSHIP,socket.inet_aton('239.1.2.4')+socket.inet_aton('10.0.1.12'))"
    try:
        member = background(c, "b2", "python3", "-c", JOIN.format(join=join))
        if not until(lambda: "239.1.2.4" in c.sbctl("--bare", "--columns=address", "list", "igmp_group"), 10):
            return "the group is not known"
        c.sync()
        send = ("import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.IPPROTO_IP,socket.IP_MULTICAST_IF,socket.inet_aton('10.0.0.11'))\n"
                "s.setsockopt(socket.IPPROTO_IP,socket.IP_MULTICAST_TTL,8)\n"
                "for _ in range(5): s.sendto(b'hello',('239.1.2.4',5007)); time.sleep(0.2)\n")
        c.run("a1", "python3", "-c", send)
        got = member.communicate()[0].strip()
        return None if got == "hello" else f"the member gets {got}"
    finally:
        c.nbctl("remove", "logical_router", "lr0", "options", "mcast_relay")
        c.nbctl("clear", "logical_switch", "ls0", "other_config", "--", "clear", "logical_switch", "ls1", "other_config")
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


# The other end of a BFD session (RFC 5880, asynchronous mode), until it is killed.
BFD_PEER = """
import socket,struct,sys
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind((sys.argv[1],3784)); s.settimeout(0.3)
out=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); out.bind((sys.argv[1],49160)); out.setsockopt(socket.IPPROTO_IP,socket.IP_TTL,255)
state,theirs,to=1,0,None
while True:
    try:
        d,a=s.recvfrom(200); to=a[0]; theirs=struct.unpack('!I',d[4:8])[0]; said=d[1]>>6; poll=d[1]&0x20
        state={1:{1:2,2:3}.get(said,1),2:{1:2,2:3,3:3}.get(said,1),3:{0:1,1:1}.get(said,3)}[state]
        if poll: out.sendto(struct.pack('!BBBBIIIII',0x20,state<<6|0x10,5,24,77,theirs,200000,200000,0),(to,3784))
    except OSError: pass
    if to: out.sendto(struct.pack('!BBBBIIIII',0x20,state<<6,5,24,77,theirs,200000,200000,0),(to,3784))
"""


@check
def routes_with_bfd(c):
    """BFD monitors the next hop of a route. When the next hop is silent, the route goes, and another one
    takes its traffic."""
    world2(c)
    servers = [server(c, pod, 7035) for pod in ("world", "world2")]
    peer = background(c, "world", "python3", "-c", BFD_PEER, "192.168.50.10")
    other = background(c, "world2", "python3", "-c", BFD_PEER, "192.168.50.11")
    for hop in ("192.168.50.10", "192.168.50.11"):
        session = c.nbctl("create", "bfd", "logical_port=lr0-ext", f"dst_ip={hop}", "min_tx=200", "min_rx=200", "detect_mult=5").strip()
        c.nbctl("--ecmp", f"--bfd={session}", "lr-route-add", "lr0", "172.20.0.0/24", hop)
    c.sync()
    status = lambda: sorted(c.nbctl("--bare", "--columns=status", "list", "bfd").split())
    hosts = lambda: {c.tcp("a1", "172.20.0.1", 7035).split(" ")[0] for _ in range(10)}
    try:
        if not until(lambda: status() == ["up", "up"], 20):
            return f"sessions are {status()}"
        if (got := hosts()) != {"world", "world2"}:
            return f"with both: {got}"
        peer.kill()
        if not until(lambda: status() == ["down", "up"], 20):
            return f"with one silent, sessions are {status()}"
        c.sync()
        return None if (got := hosts()) == {"world2"} else f"with one: {got}"
    finally:
        peer.kill()
        other.kill()
        [s.kill() for s in servers]
        c.nbctl("lr-route-del", "lr0", "172.20.0.0/24", "--", "--all", "destroy", "bfd")
        c.sync()


@check
def ecmp_with_symmetric_replies(c):
    """Replies return by the next hop that the request came from, whatever the hash is."""
    with_gateway_router(c)
    for hop in ("192.168.60.10", "192.168.60.11"):
        c.nbctl("--ecmp-symmetric-reply", "lr-route-add", "gr", "172.21.0.0/24", hop)
    c.sync()
    s = server(c, "b2", 7036)
    worlds = (c.world, c.pods["world2"])
    try:
        for ns in worlds:
            c.net.ip(ns, "addr", "replace", "172.21.0.1/32", "dev", "lo")
            c.net.ip(ns, "route", "replace", "10.0.1.12/32", "via", "192.168.60.1")
        code = ("import socket\nok=0\nfor _ in range(8):\n    try:\n        s=socket.socket(); s.settimeout(2); s.bind(('172.21.0.1',0)); s.connect(('10.0.1.12',7036)); s.sendall(b'x')\n"
                "        ok+=s.recv(100)==b'b2 172.21.0.1'; s.close()\n    except OSError: pass\nprint(ok)\n")
        for _ in range(2):  # neighbours are found in the first round
            got = [c.net.run(ns, "python3", "-c", code, timeout=40).strip() for ns in worlds]
        return None if got == ["8", "8"] else f"of 8 connections each: {got}"
    finally:
        s.kill()
        for ns in worlds:
            c.net.ip(ns, "addr", "del", "172.21.0.1/32", "dev", "lo", check=False)
            c.net.ip(ns, "route", "del", "10.0.1.12/32", check=False)
        without_gateway_router(c)


@check
def qos_rates_by_queues_on_both_ends(c):
    """Two pods of a provider network, on a node each, with an output rate each: the nodes' devices have
    queues."""
    c.nbctl("ls-add", "rates", "--", "lsp-add", "rates", "rates-phys", "--", "lsp-set-type", "rates-phys", "localnet", "--", "lsp-set-addresses", "rates-phys", "unknown",
            "--", "lsp-set-options", "rates-phys", "network_name=phys")
    ends = [(pod, c.chassis[number - 1], rate) for pod, number, rate in (("r1", 1, 1), ("r2", 2, 4))]
    addresses = {"r1": "192.168.50.81", "r2": "192.168.50.82"}
    try:
        for number, (pod, node, rate) in enumerate(ends, 1):
            c.pod(pod, number, "rates", f"02:00:00:00:71:1{number}", f"{addresses[pod]}/24")
            node.sw.vsctl("set", "interface", "ph0", "external_ids:ovn-egress-iface=true")
            c.nbctl("set", "logical_switch_port", pod, f"options:qos_max_rate={rate}000000", "options:qos_burst=100000")
        c.sync()
        for pod, node, rate in ends:
            pid = open(node.pidfile).read().strip()
            node.sw.run("ovn-appctl", "-t", f"{node.sw.dir}/ovn-controller.{pid}.ctl", "inc-engine/recompute")
            if not until(lambda: f"ceil {rate}Mbit" in c.net.run(node.ns, "tc", "class", "show", "dev", "ph0", quiet=True), 10):
                return f"no class of {rate} Mbit/s for {pod}"
        if not c.reaches("r1", addresses["r2"]):
            return "no answer"
        slow, fast = flood(c, "r1", "r2", addresses["r2"]), flood(c, "r2", "r1", addresses["r1"])
        # 1 and 4 of 10 Mbit/s, and then the kernel's queue, a thousand each.
        return None if 100 < slow < 1800 and slow + 400 < fast < 2800 else f"of 3000 each: {slow} at 1 Mbit/s, {fast} at 4"
    finally:
        for pod, node, _ in ends:
            node.sw.vsctl("remove", "interface", "ph0", "external_ids", "ovn-egress-iface")
        c.nbctl("--if-exists", "lsp-del", "r1", "--", "--if-exists", "lsp-del", "r2", "--", "ls-del", "rates")
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


@check
def static_bindings_of_neighbours(c):
    way_back(c)
    c.nbctl("static-mac-binding-add", "lr0-ext", "192.168.50.66", "02:00:00:00:66:66")
    c.sync()
    try:
        seen = captured(c, "world", "icmp and dst 192.168.50.66 or arp and host 192.168.50.66",
                        lambda: c.run("a1", "ping", "-n", "-c", "2", "-W", "1", "192.168.50.66", check=False), seconds=4)
        # The world's bridge does not know the address: it floods.
        return None if "02:00:00:00:66:66" in seen and "echo request" in seen else seen[:300] or "nothing"
    finally:
        c.nbctl("static-mac-binding-del", "lr0-ext", "192.168.50.66")
        c.sync()


@check
def controllers_are_protected(c):
    """A meter limits the packets of one kind to ovn-controller."""
    c.nbctl("meter-add", "few", "drop", "1", "pktps", "1", "--", "copp-add", "copp0", "icmp4-error", "few", "--", "lr-copp-add", "copp0", "lr0")
    c.sync()
    try:
        out = c.run("a1", "ping", "-n", "-q", "-c", "30", "-i", "0.05", "-t", "1", "-W", "1", "10.0.1.12", check=False)
        errors = int(out.split("+")[1].split(" ")[0]) if "+" in out else 0
        return None if 1 <= errors <= 12 else f"{errors} of 30 are told"
    finally:
        c.nbctl("lr-copp-del", "lr0", check=False)
        c.nbctl("copp-del", "copp0", "--", "meter-del", "few", check=False)
        c.sync()
