"""Load balancers: protocols, health checks, templates, fragments, hairpins, and connections that outlive changes.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import time

from checks import balancer, check, gone
from cluster import server
from probes import background, lines, talk, until


@check
def load_balancer_of_datagrams(c):
    servers = [server(c, pod, 5300, udp=True) for pod in ("a2", "a3")]
    c.nbctl("lb-add", "lb0", "10.0.0.54:53", "10.0.0.12:5300,10.0.0.13:5300", "udp", "--", "ls-lb-add", "ls0", "lb0", "--", "lr-lb-add", "lr0", "lb0")
    c.sync()
    code = ("import socket\nfor _ in range(20):\n    s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b'x',('10.0.0.54',53))\n"
            "    try: d,a=s.recvfrom(100); print(d.decode(),a[0])\n    except OSError: print('silence')\n")
    try:
        got = set(c.run("a1", "python3", "-c", code, check=False, timeout=40).split("\n")) - {""}
        return None if got == {"a2 10.0.0.11 10.0.0.54", "a3 10.0.0.11 10.0.0.54"} else str(got)
    finally:
        gone(c)
        [s.kill() for s in servers]


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
def load_balancer_with_health_checks(c):
    servers = {pod: server(c, pod, 8080) for pod in ("a2", "a3")}
    balancer(c, "10.0.0.55:80", "10.0.0.12:8080,10.0.0.13:8080")
    uuid = c.nbctl("--id=@h", "create", "load_balancer_health_check", 'vip="10.0.0.55:80"', "options:interval=1", "options:timeout=1", "options:success_count=1",
                   "options:failure_count=1", "--", "add", "load_balancer", "lb0", "health_check", "@h").strip()
    for host, pod in (("12", "a2"), ("13", "a3")):
        c.nbctl("set", "load_balancer", "lb0", f'ip_port_mappings:10.0.0.{host}="{pod}:10.0.0.254"')
    c.sync()
    state = lambda: c.sbctl("--bare", "--columns=status", "list", "service_monitor").split()
    try:
        if not until(lambda: state() == ["online", "online"], 20):
            return f"both serve: {state()}"
        servers["a3"].kill()
        servers["a3"].wait()
        if not until(lambda: sorted(state()) == ["offline", "online"], 20):
            return f"one serves: {state()}"
        c.sync()
        got = {c.tcp("a1", "10.0.0.55", 80) for _ in range(8)}
        return None if got == {"a2 10.0.0.11"} else str(got)
    finally:
        c.nbctl("remove", "load_balancer", "lb0", "health_check", uuid, check=False)
        gone(c)
        [s.kill() for s in servers.values()]


@check
def load_balancer_template(c):
    s = server(c, "a2", 8080)
    for n in (1, 2, 3):
        c.nbctl("create", "chassis_template_var", f"chassis=ch{n}", "variables:vip=172.30.0.61", 'variables:backends="10.0.0.12:8080"')
    c.nbctl("--template", "lb-add", "lb0", "^vip:80", "^backends", "tcp", "ipv4")
    c.nbctl("ls-lb-add", "ls0", "lb0", "--", "lr-lb-add", "lr0", "lb0")
    c.sync()
    try:
        got = c.tcp("a1", "172.30.0.61", 80)
        return None if got == "a2 10.0.0.11" else got
    finally:
        gone(c)
        c.nbctl("--all", "destroy", "chassis_template_var")
        s.kill()


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
