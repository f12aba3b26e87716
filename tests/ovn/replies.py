"""Replies of logical switches and routers themselves: ARP, neighbour solicitations, proxies, router
advertisements, DHCPv6.

Imported for its checks; each leaves the topology as it found it. Features that this OVN lacks are left out."""

from checks import check, version
from probes import captured, until


@check
def the_switch_answers_arp(c):
    c.run("a1", "ip", "neigh", "flush", "dev", "eth0")
    seen = captured(c, "a3", "arp and arp[7]=1", lambda: c.reaches("a1", "10.0.0.13", tries=1), seconds=3)
    return "the request went to the pod" if "who-has 10.0.0.13 tell 10.0.0.11" in seen else None


@check
def the_switch_answers_neighbour_solicitations(c):
    c.run("a1", "ip", "neigh", "flush", "dev", "eth0")
    if not c.reaches("a1", "fd00:0::13"):
        return "no answer"
    neigh = c.run("a1", "ip", "-6", "neigh", "show", "fd00::13")
    return None if "02:00:00:00:00:13" in neigh else neigh


@check
def arp_proxy_of_a_router_port(c):
    c.nbctl("lsp-set-options", "ls0-lr0", "router-port=lr0-ls0", "arp_proxy=169.254.101.4 169.254.101.5")
    c.sync()
    try:
        c.run("a1", "ip", "route", "replace", "169.254.101.5/32", "dev", "eth0")
        c.run("a1", "ping", "-n", "-c", "1", "-W", "1", "169.254.101.5", check=False)
        neigh = c.run("a1", "ip", "neigh", "show", "169.254.101.5")
        return None if "02:00:00:00:00:01" in neigh else neigh or "no neighbour"
    finally:
        c.run("a1", "ip", "route", "del", "169.254.101.5/32", check=False)
        c.nbctl("lsp-set-options", "ls0-lr0", "router-port=lr0-ls0")
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
def router_advertisements(c):
    c.nbctl("set", "logical_router_port", "lr0-ls0", "ipv6_ra_configs:address_mode=slaac", "ipv6_ra_configs:mtu=1400")
    c.pod("ra1", 2, "ls0", "02:00:00:00:00:55", "10.0.0.55/24", configure=False)
    c.sync()
    try:
        ns = c.pods["ra1"]
        c.net.run(ns, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/eth0/accept_ra; echo 0 > /proc/sys/net/ipv6/conf/eth0/accept_dad", check=False)
        c.net.ip(ns, "link", "set", "eth0", "down")
        c.net.ip(ns, "link", "set", "eth0", "up")
        got = lambda: "fd00::" in c.run("ra1", "ip", "-6", "addr", "show", "dev", "eth0", "scope", "global", quiet=True)
        return None if until(got, 20) else "no address"
    finally:
        c.nbctl("clear", "logical_router_port", "lr0-ls0", "ipv6_ra_configs", "--", "lsp-del", "ra1")
        c.sync()


DHCPV6 = """
import socket,struct
mac=bytes.fromhex('020000000066')
duid=struct.pack('!HH',3,1)+mac
opt=lambda t,d: struct.pack('!HH',t,len(d))+d
msg=bytes([1,0x12,0x34,0x56])+opt(1,duid)+opt(3,struct.pack('!III',1,3600,5400))+opt(6,struct.pack('!H',23))
src=bytes.fromhex('fe80')+b'\\0'*6+bytes([0,0,0,0xff,0xfe,0,0,0x66]); dst=bytes.fromhex('ff02')+b'\\0'*9+bytes([1,0,2,0,0])
dst=bytes.fromhex('ff020000000000000000000000010002')
udp=struct.pack('!HHHH',546,547,8+len(msg),0)+msg
def csum(b):
    b+=b'\\0'*(len(b)%2)
    t=sum(struct.unpack('!%dH'%(len(b)//2),b))
    while t>>16: t=(t&0xffff)+(t>>16)
    return (~t&0xffff) or 0xffff
c=csum(src+dst+struct.pack('!II',len(udp),17)+udp)
udp=udp[:6]+struct.pack('!H',c)+udp[8:]
ip=struct.pack('!IHBB',0x60000000,len(udp),17,64)+src+dst
f=bytes.fromhex('333300010002')+mac+b'\\x86\\xdd'+ip+udp
s=socket.socket(socket.AF_PACKET,socket.SOCK_RAW,socket.htons(3)); s.bind(('eth0',0)); s.settimeout(1)
import time
for _ in range(4):
    s.send(f)
    end=time.time()+1.5
    while time.time()<end:
        try: r=s.recv(2000)
        except OSError: break
        if r[12:14]==b'\\x86\\xdd' and r[20]==17 and r[54:58]==struct.pack('!HH',547,546):
            i=r.find(struct.pack('!HH',5,24))
            print(r[62], socket.inet_ntop(socket.AF_INET6,r[i+4:i+20]) if i>0 else None); raise SystemExit
"""


@check
def dhcpv6(c):
    uuid = c.nbctl("create", "dhcp_options", 'cidr="fd00::/64"', 'options="server_id"="02:00:00:00:00:01" "dns_server"="fd00::1"').strip()
    c.pod("d6", 2, "ls0", "02:00:00:00:00:66", "10.0.0.66/24", "fd00::66/64", configure=False)
    c.nbctl("lsp-set-dhcpv6-options", "d6", uuid)
    c.sync()
    try:
        got = c.run("d6", "python3", "-c", DHCPV6, check=False, timeout=30).strip()
        return None if got == "2 fd00::66" else f"advertised: {got!r}"
    finally:
        c.nbctl("lsp-del", "d6")
        c.sync()
