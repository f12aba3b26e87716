"""The cases: frames, rings and directions; flows, rules and storms."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    size: int = 64
    packed: bool = False
    mergeable: bool = True
    both: bool = False
    answers: bool = False   # packets go both ways, as in a connection
    ports: int = 2
    huge: bool = True
    rules: str = "in-port"  # a kind of `heddle bench rules`
    count: int = 1          # number of rules
    flows: int = 1
    masks: int = 0          # different masks that the flows hit
    new: bool = False       # each packet is a flow of its own
    storm: str = ""         # beside established traffic of `established` packets per second
    established: int = 1_000_000
    changes: int = 0        # rules that change per second, none of which is about the traffic
    where: str = ""         # "elsewhere": in a table that no packet looks at; "nowhere": not in the switch
    recirc: int = 0         # recirculations before the rules
    tunnel: str = ""        # "out": the packets leave in a Geneve tunnel; "through": they come out of it again before they leave
    hosts: int = 1          # remote tunnel endpoints
    csum: bool = False      # with a checksum in the outer UDP header
    ct: str = ""            # the rules are behind `ct`: "track", or "snat" with translated sources
    tcp: bool = False       # segments of TCP, which have no stamps: no latency
    expire: int = 0         # idle timeout of connections of UDP, seconds; 0: the default
    tso: bool = False
    touch: str = "heads"
    latency: bool = False
    idle: bool = False      # almost no traffic: processor time of the switch, and latency
    sleep: int = 0          # the switch's longest sleep (pmd-maxsleep, microseconds); 0: not set
    light: bool = False     # processors do not halt while packets come (heddle-light-sleep)

    @property
    def name(self):
        words = [f"{self.size}B", "packed" if self.packed else "split"]
        words += [] if self.mergeable else ["unmerged"]
        words += ["both"] if self.both else []
        words += ["answers"] if self.answers else []
        words += [f"{self.ports}ports"] if self.ports != 2 and not self.storm else []
        words += [] if self.huge else ["4k"]
        words += [self.rules + (str(self.count) if self.count > 1 else "")] if self.rules != "in-port" else []
        words += [f"recirc{self.recirc}"] if self.recirc else []
        words += ["tcp"] if self.tcp else []
        words += [f"ct_{self.ct}"] if self.ct else []
        words += [f"tunnel_{self.tunnel}"] if self.tunnel else []
        words += ["csum"] if self.csum else []
        words += [f"{self.hosts}hosts"] if self.hosts != 1 else []
        words += [f"{self.flows}flows"] if self.flows != 1 else []
        words += ["new"] if self.new else []
        words += [f"storm_{self.storm}"] if self.storm else []
        words += [f"expire{self.expire}"] if self.expire else []
        words += [f"{self.changes}changes{self.where}"] if self.changes else []
        words += [f"touch_{self.touch}"] if self.touch != "heads" else []
        words += ["tso"] if self.tso else []
        words += ["latency"] if self.latency else []
        words += ["idle"] if self.idle else []
        words += [f"sleep{self.sleep}"] if self.sleep else []
        words += ["light"] if self.light else []
        return "-".join(words)

    def plain(self):
        """The same case without recirculation, connection tracking and tunnels."""
        return dataclasses.replace(self, recirc=0, ct="", expire=0, tunnel="", hosts=1, csum=False)

    def only_out(self):
        """The same case, but the packets leave in their tunnels."""
        return dataclasses.replace(self, tunnel="out")

    def calm(self):
        """The same case without changes of rules."""
        return dataclasses.replace(self, changes=0, where="")

    def mtu(self):
        outer = 60 if self.tunnel else 0
        return max(1500, self.size - 14 + outer) if not self.tso else 1500

    def command(self):
        return "switch" if self.storm else "vhost"

    def warm_up(self):
        """Seconds until the slowest switch has seen each flow once."""
        return round(min(20.0, 0.3 + self.flows / 60_000), 2)

    def arguments(self, seconds, rate=None):
        """Options of the generator."""
        argv = ["--size", str(self.size), "--seconds", str(seconds), "--warm-up", str(self.warm_up()),
                "--flows", str(self.flows), "--touch", self.touch,
                "--mergeable", "on" if self.mergeable else "off", "--huge", "try" if self.huge else "no"]
        argv += ["--packed"] if self.packed else []
        # A reply establishes a connection of UDP.
        argv += ["--answers"] if self.answers else ["--both"] if self.both else []
        argv += ["--tso", "1448"] if self.tso else []
        argv += ["--tcp", "--check", "lengths"] if self.tcp else []
        argv += ["--masks", str(self.masks)] if self.masks else []
        argv += ["--new-flows"] if self.new else []
        if self.storm:
            argv += ["--rate", str(self.established), "--storm", self.storm]
        elif rate:
            argv += ["--rate", str(rate), "--probe-every", "1"]
        return argv

    def rule_sets(self):
        """Arguments of `heddle bench rules`, one list for each set."""
        ports = ["--ports", str(self.ports)]
        if self.storm:
            # The storm's packets each need an entry of their own. An access list causes it for crafted
            # packets, a rule that matches on all fields for plain ones.
            attacked = "acl" if self.storm == "explosion" else "each"
            return [["--kind", self.rules, "--count", str(self.count), *ports, "--pair", "0"],
                    ["--kind", attacked, "--count", str(self.count), *ports, "--pair", "1"]]
        return [["--kind", self.rules, "--count", str(self.count), *ports]]

    def behind(self, rules):
        """The rules as text, in the table after the recirculations. The rules that recirculate look at more than
        the port, since Open vSwitch has a short cut for rules that do not."""
        stages = [f"table={n},udp,actions=debug_recirc,resubmit(,{n + 1})" for n in range(self.recirc)]
        at = self.recirc
        if self.ct:
            nat = {"track": "", "snat": ",nat(src=10.255.0.1-10.255.0.250)"}[self.ct]
            known = ",nat" if nat else ""
            proto = "tcp" if self.tcp else "udp"
            stages += [f"table={at},{proto},actions=ct(table={at + 1}{known})",
                       f"table={at + 1},{proto},ct_state=+trk+new,actions=ct(commit{nat}),resubmit(,{at + 2})",
                       f"table={at + 1},{proto},ct_state=+trk+est,actions=resubmit(,{at + 2})"]
            at += 2
        rules = [f"table={at},{rule}" for rule in rules.splitlines()] if stages else [rules]
        return "\n".join(stages + rules)


def tracked(**case):
    """Connections, without tracking and with it."""
    return [Case(ct=ct, answers=True, **case) for ct in ("", "track")]


def tunnelled(**case):
    """Without a tunnel, into tunnels, and out of them again."""
    return [Case(rules="tuple", **case)] + [Case(rules="tuple", tunnel=tunnel, hosts=hosts, csum=csum, **case)
                                            for tunnel in ("out", "through") for hosts, csum in ((1, False), (1, True), (100, False))]


def recirculated(stages=(0, 1), **case):
    """One case without recirculation, and one for each number of `stages`."""
    return [Case(recirc=count, **case) for count in stages]


SIZES = (64, 128, 512, 1518, 9000)
FLOWS = (1, 1_000, 10_000, 100_000, 1_000_000)

# name -> cases; a full run takes them all
VHOST = {
    "sizes": [Case(size=size, packed=packed, mergeable=mergeable)
              for packed in (False, True) for mergeable in (True, False) for size in SIZES],
    "both": [Case(size=size, packed=packed, both=True) for packed in (False, True) for size in (64, 1518)],
    "ports": [Case(ports=ports, both=True) for ports in (1, 4, 8)],
    "pages": [Case(size=size, huge=False) for size in (64, 1518)],
    "touch": [Case(size=size, touch=touch) for touch in ("changes", "packets") for size in (64, 1518)],
    "rules": [Case(rules="normal"), Case(rules="tuple"), Case(rules="tuple", flows=1000)],
    # 45 full segments behind one header, as Linux sends them; OVS-DPDK takes no frame much longer.
    "tso": [Case(size=54 + 45 * 1448, packed=packed, tso=True) for packed in (False, True)],
    "latency": [Case(latency=True), Case(latency=True, packed=True)],
}
VHOST_QUICK = [Case(), Case(size=1518), Case(packed=True), Case(both=True)]
SWITCH = {
    "flows": [Case(rules="tuple", flows=flows) for flows in FLOWS],
    "masks": [Case(rules="masks", count=masks, masks=masks, flows=flows)
              for masks in (16, 64, 256) for flows in (1_000, 100_000)],
    "exact": [Case(rules="exact", count=flows, flows=flows) for flows in (1_000, 10_000, 100_000, 1_000_000)],
    "normal": [Case(rules="normal"), Case(rules="normal", flows=100_000)],
    "pipeline": [Case(rules="pipeline", count=30, flows=1_000)],
    "new": [Case(rules="tuple", new=True), Case(rules="each", new=True)],
    "changes": [Case(rules=rules, count=count, flows=50_000, changes=changes, where=where)
                for rules, count in (("exact", 50_000), ("each", 1))
                for changes, where in ((0, ""), (1_000, ""), (1_000, "elsewhere"), (1_000, "nowhere"))],
    "recirc": [*recirculated((0, 1, 3), rules="tuple"), *recirculated((0, 1, 3), rules="tuple", flows=10_000),
               *recirculated(rules="masks", count=16, masks=16, flows=10_000),
               *recirculated(rules="masks", count=64, masks=64, flows=10_000),
               *recirculated(rules="exact", count=100_000, flows=100_000),
               *recirculated(rules="exact", count=50_000, flows=50_000),
               *recirculated(rules="exact", count=50_000, flows=50_000, changes=1_000),
               *recirculated(rules="tuple", storm="new-flows", ports=4),
               *recirculated(rules="tuple", storm="explosion", ports=4)],
    "ct": [*(case for tcp in (False, True) for flows in (1, 1_000, 100_000, 1_000_000)
             for case in tracked(rules="normal", flows=flows, tcp=tcp)),
           Case(rules="normal", ct="track", new=True), Case(rules="normal", ct="snat", new=True),
           *(Case(rules="tuple", ct="track", storm="new-flows", expire=seconds, ports=4) for seconds in (0, 1))],
    "tunnel": [case for size in (64, 1518) for flows in (1, 10_000) for case in tunnelled(size=size, flows=flows)],
    "each": [Case(rules="each", flows=flows) for flows in (10_000, 100_000, 1_000_000)],
    "idle": [Case(rules="normal", idle=True), Case(rules="normal", idle=True, sleep=50), Case(rules="normal", idle=True, light=True)],
    "storm": [Case(rules="tuple", storm="new-flows", ports=4), Case(rules="tuple", storm="explosion", ports=4)],
}
SWITCH_QUICK = [Case(rules="tuple"), Case(rules="tuple", flows=10_000), Case(rules="masks", count=16, masks=16, flows=1_000),
                Case(recirc=1, rules="tuple", flows=10_000), Case(rules="tuple", storm="new-flows", ports=4)]
