"""Contenders with vhost-user ports: Heddle, OVS-DPDK, and loops that switch nothing."""

import json
import os
import re
import signal
import subprocess
import time

from vhost_tunnels import Underlay
from lab.shell import Trace, wait_for
from lab.switch import Switch
from lab.unixctl import Unixctl
from programs import built

GENERATOR_CORE, SWITCH_CORE = 0, 1
BRIDGE = "br0"
IDLE_SECONDS = 10
IDLE_RATES = (1, 1000)  # packets per second
PERF = re.compile(r"Rx packets:\s+(\d+)\s+\(\S+ Kpps, (\d+) cycles/pkt\)")
HITS = re.compile(r"- (EMC|SMC|Megaflow) hits:\s+\d+\s+\(\s*([\d.]+) %(?:, ([\d.]+) subtbl)?")


def longest(text):
    """Bounds, in cycles, of a forwarding thread's longest iteration, from `pmd-perf-show` with histograms:
    the last bin of the first column that is not empty. The last bin of all has no upper bound."""
    rows = (line.split()[:2] for line in text.partition("cycles/it")[2].splitlines()[1:])
    found, above = None, 0
    for row in rows:
        if len(row) < 2 or not row[1].isdigit():
            break
        to = None if row[0] == ">" else int(row[0])
        if int(row[1]):
            found = above, to
        above = to
    return found


class Failed(Exception):
    """A measurement could not be made; the text is the reason."""


def processor_time(pids):
    """Seconds that both cores worked, seconds that the host took away from them, seconds of these processes."""
    tick, busy, stolen, own = os.sysconf("SC_CLK_TCK"), 0, 0, 0
    with open("/proc/stat") as file:
        for line in file:
            name, *fields = line.split()
            if name in (f"cpu{GENERATOR_CORE}", f"cpu{SWITCH_CORE}"):
                user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields[:8])
                busy += user + nice + system + irq + softirq
                stolen += steal
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
            own += int(fields[11]) + int(fields[12])
    return busy / tick, stolen / tick, own / tick


def thread_time(pid, forwarding=True):
    """Seconds that a process's threads ran, with or without the forwarding ones."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as file:
                if not forwarding and file.read().startswith("pmd"):
                    continue
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            pass
    return total / 1e9


MOST_CONNECTIONS = 20_000_000


class Share:
    """The share of a core that a process takes between two times."""

    def __init__(self, pid):
        self.pid = pid

    def begin(self):
        self.began = time.monotonic(), thread_time(self.pid)

    def end(self):
        time0, busy0 = self.began
        self.share = (thread_time(self.pid) - busy0) / (time.monotonic() - time0)


def settle(pid, longest=15.0):
    """Waits until the switch has freed the rules and entries that it had before: that work is on the generator's core."""
    end = time.monotonic() + longest
    quiet, before = 0, thread_time(pid, forwarding=False)
    while quiet < 2 and time.monotonic() < end:
        time.sleep(0.25)
        now = thread_time(pid, forwarding=False)
        quiet, before = quiet + 1 if now - before < 0.025 else 0, now


def generate(heddle, arguments, began=None, ended=None, pid=None, timeout=120, before=()):
    """Runs the generator; calls `began` and `ended` around the measured time. Returns its result, with `disturbed`: the
    share of a core's time in it that went to others than the generator and the switch `pid`. `before`: words before its
    command line."""
    argv = [*before, heddle, "bench", *arguments, "--json", "--events", "--core", str(GENERATOR_CORE),
            "--switch-core", str(SWITCH_CORE)]
    proc = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    result, end, clock = None, time.monotonic() + timeout, {}

    def now():
        return time.monotonic(), processor_time([proc.pid] + ([pid] if pid else []))
    try:
        for line in proc.stdout:
            event = json.loads(line)
            if event.get("event") == "measuring":
                if began:
                    began()
                clock["began"] = now()
            elif event.get("event") == "measured":
                clock["ended"] = now()
                if ended:
                    ended()
            elif "received_pps" in event:
                result = event
            if time.monotonic() > end:
                raise Failed(f"no end after {timeout} s")
        proc.wait(timeout=30)
    finally:
        if proc.poll() is None:
            proc.kill()
        errors = proc.stderr.read().strip()
        proc.wait()
        proc.stdout.close()
        proc.stderr.close()
    if proc.returncode or result is None:
        raise Failed(errors or f"the generator ended with status {proc.returncode}")
    (t0, (busy0, stolen0, own0)), (t1, (busy1, stolen1, own1)) = clock["began"], clock["ended"]
    result["disturbed"] = max(0.0, stolen1 - stolen0 + busy1 - busy0 - (own1 - own0)) / (t1 - t0)
    return result


class Floor:
    """The generator's own loop on the switch's core."""

    pid = None

    def __init__(self, name, kind, heddle):
        self.name, self.kind, self.heddle = name, kind, heddle

    def setup(self, ports):
        pass

    def thaw(self):
        pass

    def freeze(self):
        pass

    def close(self):
        pass

    def able(self, case):
        # The loop looks at no packet, so more flows would only measure the generator. And it never sleeps.
        return case.flows == 1 and not case.new and not case.storm and not case.idle and not case.tunnel

    def measure(self, case, seconds, rate=None):
        result = generate(self.heddle, ["floor", "--kind", self.kind, "--ports", str(case.ports),
                                        *case.arguments(seconds, rate)])
        return result | {"cycles": result.get("loop_cycles")}


class Wake(Floor):
    """A thread that sleeps until it is woken: no switch that sleeps can be faster."""

    def __init__(self):
        super().__init__("wake", None, None)

    def setup(self, ports):
        self.binary = built("wake")

    def able(self, case):
        return case.idle and not case.sleep and not case.light

    def idle(self, case, seconds):
        row = {"received_pps": IDLE_RATES[-1], "loss": 0.0}
        for rate in IDLE_RATES:
            out = subprocess.run([self.binary, str(GENERATOR_CORE), str(SWITCH_CORE), str(rate), str(IDLE_SECONDS)],
                                 stdout=subprocess.PIPE, text=True, check=True, timeout=IDLE_SECONDS + 30).stdout
            row[f"p50_{rate}"], row[f"p99_{rate}"] = map(float, out.split())
        return row


class Vhost:
    """A switch process with vhost-user ports in client mode: the generator owns the sockets."""

    bridge, netns = BRIDGE, None
    # Words before the generator's command line.
    before = ()

    def __init__(self, name, binary, heddle, env=None, options=(), dpdk=False):
        self.name, self.binary, self.heddle, self.dpdk = name, binary, heddle, dpdk
        self.options = [f"other_config:pmd-cpu-mask={1 << SWITCH_CORE:x}", *options]
        self.trace = Trace()
        self.env = env or {}
        self.switch = None
        self.rules = self.mtu = None
        self.unixctl = None
        self.helpers = []
        self.sleep, self.light, self.expire, self.histograms = 0, False, 0, False
        self.underlay = None

    def setup(self, ports):
        # With --enable-dummy the action debug_recirc is there.
        self.switch = Switch(self.trace, self.binary, args=("--disable-system", "--enable-dummy"),
                             netns=self.netns, prefix=f"heddle-bench-{self.name}")
        self.switch.start_ovsdb()
        if self.options:
            self.switch.vsctl("--no-wait", "set", "open_vswitch", ".", *self.options)
        command = self.switch.command
        # Everything but the thread that forwards runs on the generator's core, which is where a busy host would have it.
        self.switch.command = lambda *args: ["taskset", "-c", f"{GENERATOR_CORE},{SWITCH_CORE}", "env",
                                             *(f"{key}={value}" for key, value in self.env.items()), *command(*args)]
        self.switch.start_daemon(timeout=60)
        self.switch.vsctl("add-br", self.bridge, "--", "set", "bridge", self.bridge, "datapath_type=netdev")
        for port in range(ports):
            self.add_port(port, self.bridge)
        self.ports = ports
        self.unixctl = Unixctl(self.switch.ctl)

    def add_port(self, port, bridge, *settings):
        self.switch.vsctl("add-port", bridge, f"vhost{port}", "--", "set", "interface", f"vhost{port}",
                          "type=dpdkvhostuserclient", f"ofport_request={port + 1}",
                          f"options:vhost-server-path={self.socket(port)}", *settings)
        error = self.switch.get("interface", f"vhost{port}", "error")
        if error not in ("", "[]"):
            raise Failed(f"port vhost{port}: {error}")

    def sockets(self, case):
        """Sockets of the generator, in its order."""
        return [self.socket(port) for port in range(case.ports)]

    def socket(self, port):
        return f"{self.switch.dir}/vhost{port}.sock"

    def thaw(self):
        if self.switch and self.switch.pid:
            os.kill(self.switch.pid, signal.SIGCONT)

    def freeze(self):
        if self.switch and self.switch.pid:
            os.kill(self.switch.pid, signal.SIGSTOP)

    def close(self):
        while self.helpers:
            helper = self.helpers.pop()
            helper.kill()
            helper.wait()
        if self.switch:
            self.thaw()
            if self.underlay:
                self.underlay.close()
                self.underlay = None
            if self.unixctl:
                self.unixctl.close()
            self.switch.close()

    def able(self, case):
        # OVS takes GSO packets only with an option that is read at its start; both variants run where GSO
        # packets are measured.
        return not self.dpdk or not case.light and case.tso == self.name.endswith("-tso")

    def prepare(self, case):
        """Sets rules and MTU, if they differ from those of the last case."""
        if self.dpdk and self.mtu not in (None, case.mtu()):
            # OVS makes a port's memory pool when a guest connects for the first time, and ignores an MTU that
            # is set later.
            self.close()
            self.rules, self.mtu, self.sleep, self.light, self.expire, self.histograms = None, None, 0, False, 0, False
            self.setup(self.ports)
        if case.mtu() != self.mtu:
            self.switch.vsctl(*(word for port in range(self.ports) for word in (
                "--", "set", "interface", f"vhost{port}", f"mtu_request={case.mtu()}")))
            self.mtu = case.mtu()
            time.sleep(1 if self.dpdk else 0.2)  # OVS makes its memory pools again
        if self.dpdk:
            # The best setting of OVS for this number of flows.
            many = case.flows >= 10_000 or case.new
            self.switch.vsctl("set", "open_vswitch", ".", f"other_config:smc-enable={str(many).lower()}")
        if case.sleep != self.sleep:
            self.switch.vsctl(*(("set", "open_vswitch", ".", f"other_config:pmd-maxsleep={case.sleep}") if case.sleep
                                else ("remove", "open_vswitch", ".", "other_config", "pmd-maxsleep")))
            self.sleep = case.sleep
        if case.light != self.light:
            self.switch.vsctl("set", "open_vswitch", ".", f"other_config:heddle-light-sleep={str(case.light).lower()}")
            self.light = case.light
        self.unixctl.call("upcall/set-flow-limit", "2000000")
        if case.ct:
            # The tracker is empty, and no limit stops new connections.
            self.unixctl.call("dpctl/ct-set-maxconns", str(MOST_CONNECTIONS))
            self.unixctl.call("dpctl/flush-conntrack")
            self.expire_after(case.expire)
        # Histograms of iterations cost a little: only where the longest is wanted.
        if bool(case.expire) != self.histograms:
            self.histograms = bool(case.expire)
            self.switch.vsctl("set", "open_vswitch", ".", f"other_config:pmd-perf-metrics={str(self.histograms).lower()}")
        wanted = case.recirc, case.ct, case.tcp, case.tunnel, case.hosts, case.csum, case.rule_sets()
        if wanted != self.rules:
            if case.tunnel and not self.underlay:
                self.underlay = Underlay(self, BRIDGE)
            rules = [self.trace.run(self.heddle, "bench", "rules", *words, quiet=True)
                     for words in case.rule_sets()]
            text = self.underlay.rules(case) if case.tunnel else case.behind("".join(rules))
            self.switch.ofctl("del-flows", BRIDGE)
            # One by one, each would wait for the one before it: a million of them takes minutes with any
            # switch.
            self.switch.run("ovs-ofctl", "--timeout=120", "--bundle", "add-flows", BRIDGE, "-", stdin=text, timeout=150, quiet=True)
            self.rules = wanted
            settle(self.switch.pid)

    def expire_after(self, seconds):
        """Sets the idle timeout of connections of UDP, in seconds; 0: the default."""
        if seconds == self.expire:
            return
        if not self.switch.vsctl("--if-exists", "get", "open_vswitch", ".", "datapaths:netdev"):
            self.switch.vsctl("--", "--id=@dp", "create", "Datapath", "datapath_version=0", "--", "set", "open_vswitch", ".",
                              "datapaths:netdev=@dp")
        if self.expire:
            self.switch.vsctl("del-zone-tp", "netdev", "zone=0")
        if seconds:
            kinds = [f"udp_{kind}={seconds}" for kind in ("first", "single", "multiple")]
            self.switch.vsctl("add-zone-tp", "netdev", "zone=0", *kinds)
        self.expire = seconds

    def clear(self):
        self.unixctl.call("dpif-netdev/pmd-stats-clear")

    def connections(self):
        """Number of tracked connections."""
        return int(self.unixctl.call("dpctl/ct-get-nconns"))

    def cycles(self):
        """Busy cycles per packet since the last clear, on the switch's core; per cent of hits of each cache;
        masks per hit of wildcarded entries."""
        text = self.unixctl.call("dpif-netdev/pmd-perf-show", "-nh", "-pmd", str(SWITCH_CORE))
        found = PERF.search(text)
        hits = {level: float(percent) for level, percent, _ in HITS.findall(text)}
        lookups = [float(masks) for _, _, masks in HITS.findall(text) if masks]
        return {"cycles": float(found[2]), "counted": int(found[1]), "hits": hits, "lookups": lookups} if found else {}

    def measure(self, case, seconds, rate=None):
        self.prepare(case)
        seen = {}
        ports = [word for path in self.sockets(case) for word in ("--port", f"listen:{path}")]
        changing = self.changing(case)

        def began():
            if case.ct:
                seen["had"] = self.connections(), time.monotonic()
            self.clear()

        def ended():
            seen.update(self.cycles())
            if case.expire:
                seen["longest_iteration"] = longest(self.unixctl.call("dpif-netdev/pmd-perf-show", "-pmd", str(SWITCH_CORE)))
            if case.ct:
                seen["connections"] = self.connections()
                had, since = seen.pop("had")
                seen["new_connections"] = (seen["connections"] - had) / (time.monotonic() - since)
        try:
            result = generate(self.heddle, [case.command(), *ports, *case.arguments(seconds, rate)],
                              began=began, ended=ended, pid=self.switch.pid, before=self.before)
        finally:
            if changing:
                changing.terminate()
                out, _ = changing.communicate(timeout=10)
                self.rules = None  # some of its rules are left
        if changing:
            if not out:
                raise Failed("what changes rules ended without a word")
            done = json.loads(out)
            seen["changes"] = done["changes"] / done["seconds"]
        if case.tunnel == "out":
            # With outer headers they are not the generator's own.
            result["received_pps"] = result["foreign_pps"]
        if case.new:
            found = re.search(r"flows: (\d+)", self.unixctl.call("dpctl/show"))
            seen["installed"] = int(found[1]) if found else None
        return result | {"cycles": None} | seen

    def idle(self, case, seconds):
        """The share of a core that the daemon takes without guests, with a packet a second, and with a
        thousand. Also the latencies after a second of silence, and at a thousand packets a second."""
        self.prepare(case)
        share = Share(self.switch.pid)
        time.sleep(1)
        share.begin()
        time.sleep(IDLE_SECONDS)
        share.end()
        row = {"idle_alone": share.share}
        ports = [word for port in range(case.ports) for word in ("--port", f"listen:{self.socket(port)}")]
        for rate in IDLE_RATES:
            result = generate(self.heddle, [case.command(), *ports, *case.arguments(IDLE_SECONDS, rate)],
                              began=share.begin, ended=share.end, pid=self.switch.pid)
            row |= result | {f"idle_{rate}": share.share, f"p50_{rate}": result["latency"]["p50_us"],
                             f"p99_{rate}": result["latency"]["p99_us"]}
        return row

    def changing(self, case):
        """The process that changes rules beside the traffic, if the case has one; it runs where the generator does."""
        if not case.changes:
            return None
        churn = os.path.join(os.path.dirname(os.path.abspath(__file__)), "churn.py")
        path = f"{self.switch.dir}/{BRIDGE}.mgmt"
        if case.where == "nowhere":
            path = f"{self.switch.dir}/nowhere"
            if not os.path.exists(path):
                sink = subprocess.Popen(["taskset", "-c", str(GENERATOR_CORE), built("flow_mods"), "sink", path])
                self.helpers.append(sink)
                wait_for("the sink", lambda: os.path.exists(path))
        table = ["--table", "100" if case.where == "elsewhere" else str(case.recirc)]
        return subprocess.Popen(["taskset", "-c", str(GENERATOR_CORE), churn, path, str(case.changes), *table],
                                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def contenders(heddled, heddle, dpdk, names, tso, kind=Vhost):
    """Name -> contender, not yet set up, in the order of a round; switches are of class `kind`."""
    made = {}
    if os.access(heddled, os.X_OK):
        made["heddle"] = kind("heddle", heddled, heddle)
    if os.environ.get("HEDDLED_BEFORE"):
        made["before"] = kind("before", os.environ["HEDDLED_BEFORE"], heddle)
    if dpdk:
        # The best settings: a processor mask of its own, all ports on one forwarding thread, memory pools of
        # the usual size. The emergency insertion probability and the caches are the defaults, which its
        # documentation recommends for few flows.
        best = ["other_config:dpdk-init=true", "other_config:dpdk-socket-mem=1024",
                f"other_config:dpdk-lcore-mask={1 << GENERATOR_CORE:x}",
                "other_config:dpdk-extra=--no-pci --in-memory"]
        made["ovs"] = kind("ovs", dpdk.daemon, heddle, dpdk.env, best, dpdk=True)
        if tso:
            made["ovs-tso"] = kind("ovs-tso", dpdk.daemon, heddle, dpdk.env,
                                    [*best, "other_config:userspace-tso-enable=true"], dpdk=True)
    made["wake"] = Wake()
    for floor in ("one-copy", "two-copies", "rings"):
        made[floor] = Floor(floor, floor, heddle)
    chosen = names or [name for name in made if name != "rings"]
    return {name: made[name] for name in made if name in chosen}
