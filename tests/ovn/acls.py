"""Access lists: kinds of decisions, tiers, labels, logs, samples, and connections that outlive changes.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

import subprocess
import time

from checks import Absent, balancer, check, gone
from cluster import has_column, server
from probes import background, lines, talk, until


@check
def acl_allow_stateless(c):
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && icmp4", "drop", "--", "acl-add", "ls0", "to-lport", "1001",
            "outport == \"a2\" && ip4.src == 10.0.0.11 && icmp4", "allow-stateless")
    c.sync()
    try:
        if not c.reaches("a1", "10.0.0.12"):
            return "who is allowed is not answered"
        return "others are answered" if c.reaches("a3", "10.0.0.12", tries=1) else None
    finally:
        c.nbctl("acl-del", "ls0")
        c.sync()


@check
def acl_reject_of_datagrams(c):
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a3\" && udp", "reject")
    c.sync()
    code = ("import socket\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(1); s.connect(('10.0.0.13',9999))\n"
            "for _ in range(4):\n    try:\n        s.send(b'x'); s.recv(10)\n    except ConnectionRefusedError: print('refused'); break\n    except OSError: pass\n")
    try:
        got = c.run("a1", "python3", "-c", code, check=False, timeout=20).strip()
        return None if got == "refused" else "silence"
    finally:
        c.nbctl("acl-del", "ls0")
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


COLLECTOR = """
import socket,struct,sys,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('127.0.0.1',4739)); s.settimeout(0.5)
end=time.time()+float(sys.argv[1]); domains=set()
while time.time()<end:
    try: d=s.recv(2000)
    except OSError: continue
    set_id=struct.unpack('!H',d[16:18])[0]
    if set_id>=256: domains.add(struct.unpack('!I',d[12:16])[0])
print(sorted(domains))
"""


@check
def drops_are_sampled(c):
    """Debugging of drops: each packet that OVN drops is sampled for an IPFIX collector, under the configured
    domain."""
    for node in c.chassis:
        c.net.ip(node.ns, "link", "set", "lo", "up")
        node.sw.vsctl("--id=@b", "get", "bridge", "br-int", "--", "--id=@i", "create", "ipfix", 'targets="127.0.0.1:4739"', "--",
                      "create", "flow_sample_collector_set", "id=77", "bridge=@b", "ipfix=@i")
    c.nbctl("set", "nb_global", ".", "options:debug_drop_collector_set=77", "options:debug_drop_domain_id=9")
    c.nbctl("acl-add", "ls0", "to-lport", "1000", "outport == \"a2\" && icmp4", "drop")
    c.sync()
    try:
        listener = subprocess.Popen(["ip", "netns", "exec", c.chassis[0].ns, "python3", "-c", COLLECTOR, "6"], stdout=subprocess.PIPE, text=True)
        time.sleep(1)
        # The pod's router has no route there.
        c.run("a1", "ping", "-n", "-c", "3", "-W", "1", "203.0.113.9", check=False)
        c.reaches("a1", "10.0.0.12", tries=1)
        domains = eval(listener.communicate(timeout=30)[0])
        return None if any(d >> 24 == 9 for d in domains) else f"domains: {domains}"
    finally:
        c.nbctl("acl-del", "ls0", "--", "remove", "nb_global", ".", "options", "debug_drop_collector_set", "debug_drop_domain_id")
        for node in c.chassis:
            node.sw.vsctl("--all", "destroy", "flow_sample_collector_set")
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
