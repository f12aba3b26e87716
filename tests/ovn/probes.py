"""Parts of the checks: waiting, captures, streams of lines and a second way to the world."""

import subprocess
import time


def until(probe, seconds=15):
    """Whether something becomes true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if probe():
            return True
        time.sleep(0.3)
    return False


def background(c, pod, *argv):
    """Starts a command in a pod; its output is read later."""
    ns = c.pods.get(pod) or getattr(c, pod, pod)
    return subprocess.Popen(["ip", "netns", "exec", ns, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def captured(c, pod, what, act, seconds=6, count=1):
    """The output of tcpdump in a pod while `act` runs."""
    dump = background(c, pod, "timeout", str(seconds), "tcpdump", "-n", "-e", "-v", "-c", str(count), "-i", "eth0", *what.split())
    time.sleep(1)
    act()
    return dump.communicate()[0]


def way_back(c):
    """The world knows where pods are."""
    c.run("world", "ip", "route", "replace", "10.0.0.0/16", "via", "192.168.50.1")


def world2(c):
    """A second host of the provider's network."""
    way_back(c)
    if "world2" not in c.pods:
        ns = c.net.namespace("world2")
        c.net.veth(ns, "eth0", c.fabric, "world2")
        c.net.ip(c.fabric, "link", "set", "world2", "master", "phys")
        if c.chassis[0].sw.is_reference:
            c.net.run(ns, "ethtool", "-K", "eth0", "tx", "off", check=False)
        c.net.address(ns, "eth0", "192.168.50.11/24")
        c.net.ip(ns, "route", "replace", "10.0.0.0/16", "via", "192.168.50.1")
        c.pods["world2"] = ns
    for pod in (c.world, c.pods["world2"]):
        c.net.ip(pod, "link", "set", "lo", "up")
        c.net.ip(pod, "addr", "replace", "172.20.0.1/32", "dev", "lo")
    return c.pods["world2"]


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


# A server that echoes lines. And a client that sends one each 50 ms until a file exists, then prints the
# number of echoes.
LINES = ("import socket\ns=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',PORT)); s.listen(5)\n"
         "while True:\n    c,a=s.accept()\n    while True:\n        d=c.recv(100)\n        if not d: break\n        c.sendall(d)\n")


def lines(c, pod, port):
    process = background(c, pod, "python3", "-c", LINES.replace("PORT", str(port)))
    until(lambda: f":{port} " in c.run(pod, "ss", "-Hltn", quiet=True), 5)
    return process


JOIN = """
import socket,struct
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('',5007)); s.settimeout(8)
{join}
try: print(s.recv(100).decode())
except OSError: print('nothing')
"""
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
