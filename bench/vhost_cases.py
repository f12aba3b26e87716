"""What is measured: frames, rings and directions."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    size: int = 64
    packed: bool = False
    mergeable: bool = True
    both: bool = False
    ports: int = 2
    huge: bool = True
    rules: str = "in_port"
    flows: int = 1
    tso: bool = False
    touch: str = "heads"
    latency: bool = False

    @property
    def name(self):
        words = [f"{self.size}B", "packed" if self.packed else "split"]
        words += [] if self.mergeable else ["unmerged"]
        words += ["both"] if self.both else []
        words += [f"{self.ports}ports"] if self.ports != 2 else []
        words += [] if self.huge else ["4k"]
        words += [self.rules] if self.rules != "in_port" else []
        words += [f"{self.flows}flows"] if self.flows != 1 else []
        words += [f"touch_{self.touch}"] if self.touch != "heads" else []
        words += ["tso"] if self.tso else []
        words += ["latency"] if self.latency else []
        return "-".join(words)

    def mtu(self):
        return max(1500, self.size - 14) if not self.tso else 1500

    def arguments(self, seconds, rate=None):
        """Options of the generator."""
        argv = ["--size", str(self.size), "--seconds", str(seconds), "--flows", str(self.flows), "--touch", self.touch,
                "--mergeable", "on" if self.mergeable else "off", "--huge", "try" if self.huge else "no"]
        argv += ["--packed"] if self.packed else []
        argv += ["--both"] if self.both else []
        argv += ["--tso", "1448"] if self.tso else []
        argv += ["--rate", str(rate), "--probe-every", "1"] if rate else []
        return argv

    def openflow(self):
        """Rules between partners."""
        if self.rules == "normal":
            return ["actions=NORMAL"]
        if self.ports == 1:
            return ["in_port=1,actions=in_port"]
        pairs = [(port + 1, (port ^ 1) + 1) for port in range(self.ports) if (port ^ 1) < self.ports]
        if self.rules == "tuple":
            # The destination port makes every lookup one of the 5-tuple's fields.
            return [f"in_port={a},udp,tp_dst=5001,actions={b}" for a, b in pairs]
        return [f"in_port={a},actions={b}" for a, b in pairs]


SIZES = (64, 128, 512, 1518, 9000)

# name -> cases; a full run takes them all
GROUPS = {
    "sizes": [Case(size=size, packed=packed, mergeable=mergeable)
              for packed in (False, True) for mergeable in (True, False) for size in SIZES],
    "both": [Case(size=size, packed=packed, both=True) for packed in (False, True) for size in (64, 1518)],
    "ports": [Case(ports=ports, both=True) for ports in (1, 4, 8)],
    "pages": [Case(size=size, huge=False) for size in (64, 1518)],
    "touch": [Case(size=size, touch=touch) for touch in ("changes", "packets") for size in (64, 1518)],
    "rules": [Case(rules="normal"), Case(rules="tuple"), Case(rules="tuple", flows=1000)],
    "tso": [Case(size=65549, packed=packed, tso=True) for packed in (False, True)],
    "latency": [Case(latency=True), Case(latency=True, packed=True)],
}
QUICK = [Case(), Case(size=1518), Case(packed=True), Case(both=True)]
