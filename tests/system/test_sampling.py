#!/usr/bin/env python3
"""Samples of packets reach an IPFIX collector that others wrote (nfcapd), and readers of local samples."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import main
from lab.shell import wait_for
from lab.switch import end_process
from lab.vhost import heddle_path

PORT = 9995


class Collector:
    """An nfcapd beside the switch."""

    def __init__(self, lab, sw):
        self.lab = lab
        self.dir = tempfile.mkdtemp(prefix="nfcapd-")
        lab.cleanups.append(lambda: shutil.rmtree(self.dir))
        self.process = subprocess.Popen(["ip", "netns", "exec", sw.netns, "nfcapd", "-b", "127.0.0.1", "-p", str(PORT), "-l", self.dir],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        lab.cleanups.append(self.close)
        wait_for("nfcapd", lambda: f":{PORT} " in lab.net.run(sw.netns, "ss", "-Hlun", quiet=True))

    def close(self):
        if self.process.poll() is None:
            end_process(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def records(self):
        """Sums of packets and bytes by protocol, addresses and ports. The collector ends."""
        self.process.send_signal(signal.SIGTERM)
        said = self.process.communicate(timeout=20)[0]
        self.lab.trace.note(said)
        for bad in ("unknown", "corrupt", "sequence failures: 1", "Skip", "invalid"):
            assert bad not in said, said
        out = self.lab.trace.run("nfdump", "-q", "-R", self.dir, "-N", "-o", "fmt:%pr %sa %da %sp %dp %in %out %pkt %byt %flg", merge=False)
        found = {}
        for line in out.splitlines():
            proto, sa, da, sp, dp, _, _, packets, size, flags = line.split(None, 9)
            key = (proto, sa, da) if proto in ("1", "58") else (proto, sa, da, sp, dp)
            n = found.setdefault(key, [0, 0])
            n[0] += int(packets)
            n[1] += int(size)
        return found


def two_pods(lab):
    sw = lab.switch()
    lab.net.ip(sw.netns, "link", "set", "lo", "up")
    lab.bridge(sw)
    a = lab.veth_pod(sw, "a", "10.1.0.1/24", ipv6=True)
    b = lab.veth_pod(sw, "b", "10.1.0.2/24", ipv6=True)
    return sw, a, b


def stats(sw, what, which):
    """Counters of an exporter by OpenFlow, e.g. {"flows": 2, "tx pkts": 3}."""
    out = sw.ofctl(f"dump-ipfix-{what}", "br0")
    text = out.split(which, 1)[1]
    return {name: int(n) for name, n in re.findall(r"([a-z][a-z0-9 ]*?)=(\d+)", text)}


def scenario_all_packets_of_a_bridge(lab):
    sw, a, _ = two_pods(lab)
    collector = Collector(lab, sw)
    sw.vsctl("set", "bridge", "br0", "ipfix=@i", "--", "--id=@i", "create", "ipfix", f'targets="127.0.0.1:{PORT}"', "sampling=1", "obs_domain_id=7",
             "cache_active_timeout=1", "cache_max_flows=100", "other_config:enable-output-sampling=true")
    lab.net.ping(a, "10.1.0.2", count=5, size=100)
    wait_for("records to be sent", lambda: stats(sw, "bridge", "bridge ipfix")["current flows"] == 0)
    counted = stats(sw, "bridge", "bridge ipfix")
    assert counted["ipv4 ok"] >= 10 and counted["tx errs"] == 0, counted
    found = collector.records()
    # 100 bytes of data, 28 of headers.
    for pair in (("10.1.0.1", "10.1.0.2"), ("10.1.0.2", "10.1.0.1")):
        assert found[("1", *pair)] == [5, 5 * 128], found
    sw.vsctl("clear", "bridge", "br0", "ipfix")
    assert "NXST_NOT_CONFIGURED" in sw.ofctl("dump-ipfix-bridge", "br0", check=False)
    lab.net.ping(a, "10.1.0.2")


# Sends a million bytes. When all have arrived, it prints the number of those sent more than once
# (tcpi_bytes_retrans of the kernel's struct tcp_info).
SEND = """
import socket,struct,time
c=socket.create_connection(('10.1.0.2',7777))
c.sendall(b'x'*1000000)
info=lambda: c.getsockopt(socket.IPPROTO_TCP,socket.TCP_INFO,216)
while struct.unpack_from('I',info(),24)[0]: time.sleep(0.01)
print(struct.unpack_from('Q',info(),208)[0])
"""


def scenario_what_rules_sample(lab):
    sw, a, b = two_pods(lab)
    collector = Collector(lab, sw)
    sw.vsctl("--id=@b", "get", "bridge", "br0", "--", "--id=@i", "create", "ipfix", f'targets="127.0.0.1:{PORT}"', "cache_active_timeout=1", "cache_max_flows=1000",
             "--", "create", "Flow_Sample_Collector_Set", "id=9", "bridge=@b", "ipfix=@i")
    sample = "sample(probability=65535,collector_set_id=9,obs_domain_id=1,obs_point_id=2)"
    sw.ofctl("add-flow", "br0", f"priority=10,tcp,tp_dst=7777,actions={sample},NORMAL")
    # Another domain, half of the packets: they count twice.
    half = sample.replace("65535", "32768").replace("domain_id=1", "domain_id=5")
    sw.ofctl("add-flow", "br0", f"priority=10,ip,icmp,in_port=va,actions={half},NORMAL")
    server = subprocess.Popen(["ip", "netns", "exec", b, "python3", "-c", "import socket\ns=socket.create_server(('',7777))\nc,_=s.accept()\nwhile c.recv(65536): pass\n"])
    try:
        wait_for("a server", lambda: ":7777 " in lab.net.run(b, "ss", "-Hltn", quiet=True))
        again = int(lab.net.run(a, "python3", "-c", SEND))
        server.wait(timeout=20)
    finally:
        server.kill()
    lab.net.run(a, "ping", "-q", "-c", "200", "-i", "0.002", "10.1.0.2")
    flows = sw.appctl("dpctl/dump-flows")
    assert "flow_sample(probability=65535,collector_set_id=9,obs_domain_id=1,obs_point_id=2,output_port=4294967295)" in flows, flows
    assert "sample(sample=50.0%,actions(userspace(pid=0,flow_sample(probability=32768," in flows, flows
    wait_for("records to be sent", lambda: stats(sw, "flow", "id   9:")["current flows"] == 0)
    counted = stats(sw, "flow", "id   9:")
    found = collector.records()
    tcp = [n for key, n in found.items() if key[0] == "6" and key[4] == "7777"]
    assert len(tcp) == 1 and not any(key[0] == "6" and key[3] == "7777" for key in found), found
    # Segments, also those of GSO packets; each has 40 to 60 bytes of headers. Some came again.
    assert 690 <= tcp[0][0] <= 900 + again / 1000 and 1_020_000 <= tcp[0][1] <= 1_070_000 + 1.1 * again, (tcp, again)
    pings = found[("1", "10.1.0.1", "10.1.0.2")]
    assert 120 <= pings[0] <= 280 and pings[0] % 2 == 0, pings
    assert counted["tx errs"] == 0 and counted["flows"] >= 2, counted


def scenario_a_flood_of_samples(lab):
    """Every packet of a flood is sampled, each is a flow of its own, and no collector listens: others do not
    notice."""
    sw, a, b = two_pods(lab)
    sw.vsctl("set", "bridge", "br0", "ipfix=@i", "--", "--id=@i", "create", "ipfix", 'targets="127.0.0.1:9","[::1]:9"', "sampling=1", "cache_active_timeout=4200",
             "cache_max_flows=1000")
    flood = """
import socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
end=time.time()+4
n=0
while time.time()<end:
    for p in range(200): s.sendto(b'x',('10.1.0.2',1024+(n+p)%60000))
    n+=200
print(n)
"""
    process = subprocess.Popen(["ip", "netns", "exec", a, "python3", "-c", flood], stdout=subprocess.PIPE, text=True)
    try:
        lab.net.run(b, "ping", "-q", "-c", "20", "-i", "0.1", "10.1.0.1")
    finally:
        sent = int(process.communicate(timeout=30)[0])
    counted = stats(sw, "bridge", "bridge ipfix")
    lab.trace.note(f"{sent} packets: {counted}")
    assert counted["sampled pkts"] > 500 and counted["current flows"] <= 1000, counted
    sw.vsctl("clear", "bridge", "br0", "ipfix")
    lab.net.ping(a, "10.1.0.2")


ANSWERS = """
import os,socket,time
s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('127.0.0.1',4741)); s.settimeout(1); end=time.time()+60
while time.time()<end:
    try: d,a=s.recvfrom(3000)
    except OSError: continue
    for n in (0,1,20,1400,60000):
        try: s.sendto(os.urandom(n),a)
        except OSError: pass
"""


def scenario_bad_collectors(lab):
    """One has no route, one refuses, and one replies with rubbish. One is behind the bridge whose packets are
    sampled, with a record for each packet, those with records too. The good one gets all records, pods do not
    notice, and all work ends with the settings."""
    sw, a, _ = two_pods(lab)
    lab.net.address(sw.netns, "br0", "10.1.0.254/24")
    collector = Collector(lab, sw)
    answers = subprocess.Popen(["ip", "netns", "exec", sw.netns, "python3", "-c", ANSWERS], stdin=subprocess.DEVNULL)
    try:
        targets = ",".join(f'"{t}"' for t in ("203.0.113.1:4739", "127.0.0.1:9", "127.0.0.1:4741", "10.1.0.2:4739", f"127.0.0.1:{PORT}", "nonsense", "1.2.3.4:99999"))
        sw.vsctl("set", "bridge", "br0", "ipfix=@i", "--", "--id=@i", "create", "ipfix", f"targets=[{targets}]", "sampling=1", "obs_domain_id=7", "cache_max_flows=0")
        for _ in range(4):
            lab.net.ping(a, "10.1.0.2", count=10)
        counted = stats(sw, "bridge", "bridge ipfix")
        assert counted["tx errs"] > 0 and counted["sampled pkts"] >= 80, counted
        memory = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{sw.pid}/status").read())[1])
        assert memory < 300_000, memory
        sw.vsctl("clear", "bridge", "br0", "ipfix")
        lab.net.ping(a, "10.1.0.2")
        wait_for("the end of records", lambda: "NXST_NOT_CONFIGURED" in sw.ofctl("dump-ipfix-bridge", "br0", check=False))
        assert sum(n[0] for key, n in collector.records().items() if key[:3] == ("1", "10.1.0.1", "10.1.0.2")) >= 40
    finally:
        answers.kill()
        answers.wait()


class LocalSamples:
    """Two pods, a collector set with a local group, and `heddle samples` as the reader."""

    def __init__(self, lab, group=10):
        self.lab = lab
        self.sw = sw = lab.switch(start=False)
        schema = json.load(open(sw.schema))
        columns = schema["tables"]["Flow_Sample_Collector_Set"]["columns"]
        # The column of Open vSwitch 3.4, also where the installed schema is older.
        columns["local_group_id"] = {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 4294967295}, "min": 0, "max": 1}}
        sw.schema = f"{sw.dir}/samples.ovsschema"
        with open(sw.schema, "w") as file:
            json.dump(schema, file)
        sw.start()
        lab.bridge(sw)
        self.a = lab.veth_pod(sw, "a", "10.1.0.1/24")
        self.b = lab.veth_pod(sw, "b", "10.1.0.2/24")
        sw.vsctl("--id=@b", "get", "bridge", "br0", "--", "create", "Flow_Sample_Collector_Set", "id=9", "bridge=@b")
        self.group(group)
        self.flow()
        self.out = f"{sw.dir}/samples.txt"
        self.read()

    def group(self, group):
        """Sets the group of the collector set, or clears it. An older ovs-vsctl does not know the column."""
        row = {"local_group_id": ["set", []] if group is None else group}
        change = {"op": "update", "table": "Flow_Sample_Collector_Set", "where": [["id", "==", 9]], "row": row}
        out = self.sw.run("ovsdb-client", "transact", self.sw.db, json.dumps(["Open_vSwitch", change]))
        assert json.loads(out) == [{"count": 1}], out

    def flow(self, probability=65535, point="0x12345678"):
        self.sw.ofctl("add-flow", "br0", f"priority=10,ip,icmp,in_port=va,actions=sample(probability={probability},collector_set_id=9,"
                      f"obs_domain_id=0x200000a,obs_point_id={point}),NORMAL")

    def read(self, *args):
        """A reader that writes JSON lines into a file."""
        with open(self.out, "w") as out:
            process = subprocess.Popen([heddle_path(), "samples", "--json", "--target", self.sw.ctl, *args], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT)
        self.lab.cleanups.append(lambda: (process.kill(), process.wait()))
        self.process = process
        wait_for("a sample", lambda: self.ping() and self.samples(), 20, 0.2)

    def ping(self, count=1):
        self.lab.net.ping(self.a, "10.1.0.2", count=count)
        return True

    def samples(self):
        return [json.loads(line) for line in open(self.out).read().splitlines()]

    def counts(self):
        return json.loads(self.sw.appctl("heddle/samples"))["counts"]


def scenario_local_samples_are_read(lab):
    """`heddle samples` has each sampled packet with group, cookie, port, length and bytes; counters and metrics agree."""
    s = LocalSamples(lab)
    # The sample of the last packet before may be late.
    time.sleep(0.5)
    before = len(s.samples())
    s.ping(5)
    wait_for("five samples", lambda: len(s.samples()) >= before + 5)
    found = s.samples()[before:]
    assert len(found) == 5, found
    for sample in found:
        assert (sample["group"], sample["cookie"], sample["port"]) == (10, "0200000a12345678", "va"), sample
        assert sample["packet"] == "icmp 10.1.0.1 > 10.1.0.2 type 8 code 0" and sample["length"] == len(sample["bytes"]) // 2, sample
        assert sample["bytes"][24:28] == "0800" and sample["probability"] == 65535, sample
    text = s.lab.trace.run("timeout", "30", "sh", "-c", f"{heddle_path()} samples -n 1 --group 10 --hex --target {s.sw.ctl} & reader=$!; "
                           f"while kill -0 $reader 2>/dev/null; do ip netns exec {s.a} ping -c 1 -W 1 10.1.0.2 >/dev/null; done; wait $reader")
    assert "group 10 domain 0x0200000a point 0x12345678 port va rate 1/1 length 98: icmp 10.1.0.1 > 10.1.0.2" in text, text
    assert re.search(r"\n  0000  ([0-9a-f]{2} ){15}", text), text
    counts = s.counts()
    assert counts["sample_local"] >= len(s.samples()) and counts["sample_reader_lost"] == 0, counts
    assert "sample_reader_sent" in s.sw.appctl("coverage/show")
    flows = s.sw.appctl("dpctl/dump-flows")
    assert "obs_point_id=305419896,output_port=4294967295,local_group_id=10)" in flows, flows


def scenario_local_samples_follow_the_set(lab):
    """The group of samples changes with the collector set, a share of the packets is sampled, and samples end with the set."""
    s = LocalSamples(lab)
    s.group(77)
    wait_for("the new group", lambda: s.ping() and s.samples()[-1]["group"] == 77)
    s.flow(probability=16384, point=5)
    before = len(s.samples())
    lab.net.run(s.a, "ping", "-q", "-c", "400", "-i", "0.002", "10.1.0.2")
    wait_for("the last samples", lambda: s.samples()[-1]["point"] == 5)
    time.sleep(0.5)
    number = len(s.samples()) - before
    assert 50 <= number <= 160, f"{number} of 400 packets were sampled"
    s.group(None)
    s.flow()

    def quiet():
        before = s.counts()["sample_local"]
        s.ping(3)
        time.sleep(0.3)
        return s.counts()["sample_local"] == before
    wait_for("the end of samples", quiet, 20, 0.2)


def scenario_local_samples_survive_kills(lab):
    """After kill -9, the next daemon replaces the socket, no device stays behind, and samples continue."""
    s = LocalSamples(lab)
    s.sw.stop_daemon(signal.SIGKILL)
    s.process.wait(timeout=20)
    assert os.path.exists(f"{s.sw.dir}/heddle-samples.sock")
    assert "hdlsample" not in lab.net.ip(s.sw.netns, "link")
    s.sw.start_daemon()
    s.flow()

    def serves():
        """The process that was killed may have the socket for a moment."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            return sock.connect_ex(f"{s.sw.dir}/heddle-samples.sock") == 0
    wait_for("the socket", serves)
    s.read()
    assert s.samples()[-1]["cookie"] == "0200000a12345678"
    s.sw.stop_daemon()
    assert not os.path.exists(f"{s.sw.dir}/heddle-samples.sock")


def scenario_local_samples_and_bad_readers(lab):
    """Readers that never read, that talk, and too many of them: the good reader gets all samples, and pings continue."""
    s = LocalSamples(lab)
    path = f"{s.sw.dir}/heddle-samples.sock"

    def reader():
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(path)
        sock.settimeout(20)
        return sock
    idle, talks = reader(), reader()
    talks.send(b"GET / HTTP/1.0\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        # Samples may come before the switch closes the connection.
        while talks.recv(65536):
            pass
    lost = 0
    deadline = time.time() + 60
    while not lost and time.time() < deadline:
        lab.net.run(s.a, "ping", "-q", "-f", "-s", "1400", "-c", "2000", "10.1.0.2")
        lost = s.counts()["sample_reader_lost"]
    assert lost > 0, s.counts()
    wait_for("the good reader", lambda: s.ping() and s.samples()[-1]["length"] == 98)
    assert sum(sample["lost"] for sample in s.samples()) < lost, lost
    crowd = [reader() for _ in range(40)]
    s.ping(5)
    memory = int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{s.sw.pid}/status").read())[1])
    assert memory < 300_000, memory
    for sock in (idle, talks, *crowd):
        sock.close()
    s.ping()


if __name__ == "__main__":
    main()
