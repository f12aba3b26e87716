"""Multicast: IGMP and MLD snooping, and routing between networks.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

from checks import check
from probes import background, captured, JOIN, until


@check
def igmp_snooping(c):
    c.nbctl("set", "logical_switch", "ls0", "other_config:mcast_snoop=true", "other_config:mcast_querier=false")
    c.sync()
    join = "s.setsockopt(socket.IPPROTO_IP,socket.IP_ADD_MEMBERSHIP,socket.inet_aton('239.1.2.3')+socket.inet_aton('%s'))"
    try:
        member = background(c, "a3", "python3", "-c", JOIN.format(join=join % "10.0.0.13"))
        if not until(lambda: "239.1.2.3" in c.sbctl("--bare", "--columns=address", "list", "igmp_group"), 8):
            return "the group is not known"
        c.sync()
        send = ("import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.IPPROTO_IP,socket.IP_MULTICAST_IF,socket.inet_aton('10.0.0.11'))\n"
                "for _ in range(5): s.sendto(b'hello',('239.1.2.3',5007)); time.sleep(0.2)\n")
        seen = captured(c, "a2", "udp port 5007", lambda: c.run("a1", "python3", "-c", send), seconds=3)
        got = member.communicate()[0].strip()
        if got != "hello":
            return f"the member gets {got}"
        return "others get it too" if "239.1.2.3" in seen else None
    finally:
        c.nbctl("clear", "logical_switch", "ls0", "other_config")
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
