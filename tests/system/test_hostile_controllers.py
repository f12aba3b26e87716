#!/usr/bin/env python3
"""Harmful controllers, peers and databases: they do not read, reconnect, repeat everything, or send
nonsense."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.openflow import Connection, V10, V13, V15, message
from lab.runner import main
from lab.shell import wait_for

MULTIPART, BARRIER = 18, 20
FLOW_MOD = 14
ALL_FLOWS = struct.pack("!HHI", 1, 0, 0) + struct.pack("!BxxxIIxxxxQQHHxxxx", 0xff, 0xffffffff, 0xffffffff, 0, 0, 1, 4)


def two_pods(lab, *settings):
    sw = lab.switch()
    lab.net.ip(sw.netns, "link", "set", "lo", "up")
    lab.bridge(sw, "br0", *settings)
    return sw, lab.veth_pod(sw, "a", "10.1.0.1/24"), lab.veth_pod(sw, "b", "10.1.0.2/24")


def memory_mb(sw):
    with open(f"/proc/{sw.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


def threads(sw):
    return len(os.listdir(f"/proc/{sw.pid}/task"))


def scenario_a_hundred_that_do_not_read(lab):
    """Each requests a dump of many flows, again and again, and reads nothing. The switch stops reading from
    them; others are served."""
    sw, a, _ = two_pods(lab)
    sw.ofctl("--bundle", "add-flows", "br0", "-", stdin="\n".join(f"priority={n},udp,tp_src={n},actions=drop" for n in range(1, 10_001)))
    before, tasks = memory_mb(sw), threads(sw)
    connections = []
    try:
        for _ in range(100):
            c = Connection.to_bridge(sw, "br0", V13)
            c.sock.setblocking(False)
            try:
                while True:
                    c.sock.send(b"".join(message(V13, MULTIPART, n, ALL_FLOWS) for n in range(50)))
            except BlockingIOError:
                connections.append(c)
        for _ in range(5):
            assert "flow_count=10001" in sw.ofctl("dump-aggregate", "br0")
            lab.net.ping(a, "10.1.0.2")
        # A reply each, of about a megabyte, and the content of the sockets.
        assert memory_mb(sw) < before + 400, (before, memory_mb(sw))
        assert threads(sw) <= tasks + 8, (tasks, threads(sw))
    finally:
        for c in connections:
            c.close()
    wait_for("their memory", lambda: memory_mb(sw) < before + 150)


def scenario_controllers_that_flap(lab):
    """Half of a message, half of a bundle, or nothing at all, and gone; five hundred times, while others talk."""
    sw, a, _ = two_pods(lab)
    ping = subprocess.Popen(["ip", "netns", "exec", a, "ping", "-q", "-i", "0.01", "10.1.0.2"], stdout=subprocess.PIPE, text=True)
    add = struct.pack("!QQBBHHHIIIHH", 0, 0, 0, 0, 0, 0, 100, 0xffffffff, 0xffffffff, 0xffffffff, 0, 0) + struct.pack("!HHIIxxxx", 1, 12, 0x80000004, 77)
    flow_mod = message(V15, FLOW_MOD, 5, add)
    ends = [b"", b"\x06", message(V15, 0, 1)[:5], message(V15, MULTIPART, 1, ALL_FLOWS)[:20],
            message(V15, 33, 1, struct.pack("!IHH", 1, 0, 3)) + message(V15, 34, 2, struct.pack("!IxxH", 1, 3) + flow_mod) + message(V15, 34, 2, b"\0" * 8)[:12]]
    for n in range(500):
        sock = socket.socket(socket.AF_UNIX)
        # Connects without a time limit: with one, a connection is refused while the listener's queue is full.
        sock.connect(f"{sw.dir}/br0.mgmt")
        sock.settimeout(60)
        sock.sendall(message(V15, 0, 0) + ends[n % len(ends)])
        sock.close()
    assert "in_port=77" not in sw.ofctl("dump-flows", "br0")
    ping.send_signal(signal.SIGINT)
    sent, got = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", ping.communicate(timeout=20)[0]).groups())
    assert sent - got <= 1, (sent, got)


def scenario_everything_is_said_again(lab):
    """A controller deletes and adds all of its rules in one bundle: unchanged rules keep their counters, and
    no packet is lost."""
    sw, a, _ = two_pods(lab, "fail_mode=secure")
    rules = "\n".join(["priority=1,arp,actions=NORMAL", "cookie=0x77,priority=5,icmp,actions=NORMAL"]
                      + [f"priority=3,udp,tp_src={n},actions=drop" for n in range(1, 3001)])
    sw.ofctl("--bundle", "replace-flows", "br0", "-", stdin=rules)
    lab.net.ping(a, "10.1.0.2")
    ping = subprocess.Popen(["ip", "netns", "exec", a, "ping", "-q", "-i", "0.01", "10.1.0.2"], stdout=subprocess.PIPE, text=True)
    began, times = time.monotonic(), 0
    # Often, and for as long as some pings take.
    while times < 10 or time.monotonic() - began < 0.5:
        sw.ofctl("--bundle", "replace-flows", "br0", "-", stdin=rules)
        times += 1
    # Deletes and adds within one bundle, with OpenFlow's semantics: counters begin again, traffic does not
    # notice.
    sw.ofctl("-OOpenFlow14", "bundle", "br0", "-", stdin="flow delete\n" + "\n".join(f"flow add {rule}" for rule in rules.split("\n")))
    ping.send_signal(signal.SIGINT)
    sent, got = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", ping.communicate(timeout=20)[0]).groups())
    assert sent - got <= 1 and sent > 20, (sent, got)


BFD_PEER = """
import os,socket,struct,sys,time,random
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('10.1.0.1',3784)); s.settimeout(0.02)
out=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); out.bind(('10.1.0.1',49160)); out.setsockopt(socket.IPPROTO_IP,socket.IP_TTL,255)
state,theirs,flood=1,0,False
r=random.Random(7); n=0; last=0
while True:
    try:
        d=s.recv(200); theirs=struct.unpack('!I',d[4:8])[0]; said=d[1]>>6; poll=d[1]&0x20
        state={1:{1:2,2:3}.get(said,1),2:{1:2,2:3,3:3}.get(said,1),3:{0:1,1:1}.get(said,3)}[state]
        if poll: out.sendto(struct.pack('!BBBBIIIII',0x20,state<<6|0x10,5,24,77,theirs,100000,100000,0),('10.1.0.2',3784))
    except OSError: pass
    now=time.monotonic()
    if now-last>0.08:
        last=now
        out.sendto(struct.pack('!BBBBIIIII',0x20,state<<6,5,24,77,theirs,100000,100000,0),('10.1.0.2',3784))
    if os.path.exists(sys.argv[1]):
        # Other versions, lengths and discriminators, demand bits, authentication, multipoint, no
        # discriminator of its own: none belongs to the session.
        for _ in range(100):
            odd=[struct.pack('!BBBBIIIII',r.choice([0,0x40,0xe0,0x20]),r.choice([0x04,0x01,0x05]),0,r.choice([24,23,255,0]),r.choice([0,9]),r.getrandbits(32)|1<<31,1,1,1),
                 r.randbytes(r.randrange(60)), struct.pack('!BBBBIIIII',0x20,0,3,24,0,theirs,0,0,0), struct.pack('!BBBBIIIII',0x20,0,0,24,77,theirs,0,0,0)]
            try: out.sendto(r.choice(odd),('10.1.0.2',3784)); n+=1
            except OSError: pass
        if n>=60000: open(sys.argv[1]+'.done','w').write(str(n)); break
while True:
    try: s.recv(200)
    except OSError: pass
    out.sendto(struct.pack('!BBBBIIIII',0x20,state<<6,5,24,77,theirs,100000,100000,0),('10.1.0.2',3784))
    time.sleep(0.05)
"""


def scenario_a_flood_of_bfd(lab):
    """Tens of thousands of messages of no session: the session beside them stays up, and the switch's other
    work continues."""
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", mac="02:00:00:00:66:66")
    b, c = lab.veth_pod(sw, "b", "10.1.0.3/24"), lab.veth_pod(sw, "c", "10.1.0.4/24")
    del c
    sw.vsctl("set", "interface", "va", "bfd:enable=true", "bfd:min_tx=100", "bfd:min_rx=100", "bfd:mult=20", "bfd:bfd_src_ip=10.1.0.2", "bfd:bfd_dst_ip=10.1.0.1",
             'bfd:bfd_local_dst_mac="02:00:00:00:66:66"', 'bfd:bfd_remote_dst_mac="02:00:00:00:77:77"')
    lab.net.ip(a, "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:77:77", "dev", "eth0")
    flag = f"{sw.dir}/flood"
    peer = subprocess.Popen(["ip", "netns", "exec", a, "python3", "-c", BFD_PEER, flag])
    status = lambda: sw.vsctl("get", "interface", "va", "bfd_status")
    try:
        wait_for("the session", lambda: 'state=up' in status().replace('"', ""))
        flaps = re.search(r'flap_count="(\d+)"', status())[1]
        open(flag, "w").close()
        while not os.path.exists(f"{flag}.done"):
            lab.net.ping(b, "10.1.0.4", count=2)
            time.sleep(0.1)
        assert 'state=up' in status().replace('"', "") and re.search(r'flap_count="(\d+)"', status())[1] == flaps, status()
        assert memory_mb(sw) < 300
    finally:
        peer.kill()


def sample4(probability=65535, domain=(0, 7), point=(0, 9), direction=0, zeros=b"\0" * 5, collector=9):
    """The `sample` action whose numbers may come from fields, as (header, bits)."""
    ids = b"".join(struct.pack("!IHxx", header, value) if header else struct.pack("!II", 0, value) for header, value in (domain, point))
    return struct.pack("!HHIHHI", 0xffff, 40, 0x2320, 51, probability, collector) + ids + struct.pack("!HB", 0xffff, direction) + zeros


def scenario_odd_samples(lab):
    """Numbers of samples from registers, as later controllers use them; impossible ones are refused, and the
    connection lives."""
    sw, a, _ = two_pods(lab)
    sw.vsctl("--id=@b", "get", "bridge", "br0", "--", "--id=@i", "create", "ipfix", 'targets="127.0.0.1:9"', "--",
             "create", "Flow_Sample_Collector_Set", "id=9", "bridge=@b", "ipfix=@i")
    reg0, ip_dst, label = 0x00010004, 0x00001004, 0x0001d810
    c = Connection.to_bridge(sw, "br0", V10)

    def flow(action, priority=10):
        match = struct.pack("!I", 0x3820ff & ~0x10) + b"\0" * 18 + struct.pack("!H", 0x800) + b"\0" * 16
        return match + struct.pack("!QHHHHIHH", 0x5a, 0, 0, 0, priority, 0xffffffff, 0xffff, 0) + action + struct.pack("!HHHH", 0, 8, 0xfffa, 0)
    for xid, odd in enumerate([sample4(probability=0), sample4(direction=3), sample4(zeros=b"\0\0\0\0\1"), sample4(domain=(0xdead0004, 31)),
                               sample4(domain=(reg0, 32 << 6 | 3)), sample4(point=(label, 0 << 6 | 32)), sample4(point=(ip_dst, 1 << 6 | 31)), sample4()[:32]], 50):
        error = c.error_for(FLOW_MOD, xid, flow(odd))
        assert error[0] in (2, 3, 0xb0c2), (xid, error)
    c.send(FLOW_MOD, 90, flow(sample4(domain=(reg0, 31), point=(ip_dst, 0 << 6 | 7))))
    c.send(18, 91)
    c.reply(91)
    dump = sw.ofctl("dump-flows", "br0", check=False)
    assert "obs_domain_id=NXM_NX_REG0[],obs_point_id=NXM_OF_IP_DST[0..7]" in sw.appctl("bridge/dump-flows", "br0"), dump
    lab.net.ping(a, "10.1.0.2", count=5)
    flows = sw.appctl("dpctl/dump-flows")
    assert "obs_domain_id=0,obs_point_id=2," in flows and "obs_domain_id=0,obs_point_id=1," in flows, flows
    wait_for("samples", lambda: int(re.search(r"sampled pkts=(\d+)", sw.ofctl("dump-ipfix-flow", "br0"))[1]) >= 10)


def scenario_nonsense_of_rates(lab):
    """Rates that are no numbers, zero, or too big; queues by the thousand; kinds that do not exist. Traffic
    continues, and right settings are applied."""
    sw, a, b = two_pods(lab)
    if lab.net.run(sw.netns, "tc", "qdisc", "add", "dev", "va", "root", "htb", check=False).strip():
        return
    lab.net.run(sw.netns, "tc", "qdisc", "del", "dev", "va", "root")
    odd = ["", "0", "-1", "abc", "1e9", "99999999999999999999999", "18446744073709551615", "1"]
    for n, value in enumerate(odd):
        sw.vsctl("--", "--id=@q", "create", "qos", "type=linux-htb", f'other-config:max-rate="{value}"', f'other-config:burst="{odd[-n]}"', f"queues:{n}=@s", "--",
                 "--id=@s", "create", "queue", f'other-config:min-rate="{odd[n - 1]}"', f'other-config:max-rate="{value}"', f'other-config:burst="{value}"',
                 f'other-config:priority="{odd[n - 2]}"', "--", "set", "port", "vb", "qos=@q")
        sw.appctl("qos/show", "vb")
    for kind in ("linux-sfq", "egress-policer", "trtcm-policer", "", "linux-htb\n"):
        sw.vsctl("--", "--id=@q", "create", "qos", f'type="{kind}"'.replace("\n", "\\n"), "--", "set", "port", "vb", "qos=@q")
    sw.vsctl("clear", "port", "vb", "qos")
    queues = [f"queues:{n}=@s" for n in (*range(300), 61439, 61440, 65535, 4294967295)]
    sw.vsctl("--", "--id=@s", "create", "queue", "other-config:max-rate=50000000", "--", "--id=@q", "create", "qos", "type=linux-htb", "other-config:max-rate=100000000",
             *queues, "--", "set", "port", "vb", "qos=@q")
    wait_for("the queues", lambda: "htb 1:12c " in lab.net.run(sw.netns, "tc", "class", "show", "dev", "vb", quiet=True))
    sw.ofctl("add-flow", "br0", "priority=9,icmp,in_port=va,actions=set_queue:4294967295,NORMAL")
    lab.net.ping(a, "10.1.0.2")
    for column in ("ingress_policing_rate=99999999999", "ingress_policing_burst=1", "ingress_policing_rate=0"):
        sw.vsctl("set", "interface", "va", column)
    lab.net.ping(a, "10.1.0.2")
    sw.vsctl("clear", "port", "vb", "qos")
    lab.net.ping(a, "10.1.0.2")


def scenario_killed_in_the_middle_of_a_restore(lab):
    """Half of the rules forward nothing; the next restore is complete."""
    sw, a, _ = two_pods(lab, "fail_mode=secure")
    rules = "\n".join([f"priority=3,udp,tp_src={n % 60000},nw_dst=10.9.{n // 60000}.1,actions=drop" for n in range(1, 40_001)] + ["priority=1,actions=NORMAL"])
    sw.ofctl("--bundle", "add-flows", "br0", "-", stdin=rules)
    lab.net.ping(a, "10.1.0.2")
    sw.vsctl("set", "open_vswitch", ".", "other_config:flow-restore-wait=true")
    sw.stop_daemon(signal.SIGKILL)
    sw.start_daemon()
    # Half of the rules, as from a client in the middle of a restore.
    half = Connection.to_bridge(sw, "br0", V13)
    add = struct.pack("!QQBBHHHIIIHH", 0, 0, 0, 0, 0, 0, 1, 0xffffffff, 0xffffffff, 0xffffffff, 0, 0)
    half.sock.sendall(b"".join(message(V13, FLOW_MOD, n, add.replace(b"\0\1\xff", struct.pack("!H", n) + b"\xff", 1) + struct.pack("!HHxxxx", 1, 4)) for n in range(1, 20_001)))
    wait_for("some rules", lambda: int(sw.ofctl("dump-aggregate", "br0").rsplit("flow_count=", 1)[1]) > 100)
    sw.stop_daemon(signal.SIGKILL)
    half.close()
    sw.start_daemon()
    assert "flow_count=0" in sw.ofctl("dump-aggregate", "br0")
    sw.ofctl("add-flow", "br0", "priority=1,actions=NORMAL")
    lab.net.no_ping(a, "10.1.0.2")
    sw.ofctl("--bundle", "replace-flows", "br0", "-", stdin=rules)
    sw.vsctl("remove", "open_vswitch", ".", "other_config", "flow-restore-wait")
    lab.net.ping(a, "10.1.0.2")
    assert "flow_count=40001" in sw.ofctl("dump-aggregate", "br0")


if __name__ == "__main__":
    main()
