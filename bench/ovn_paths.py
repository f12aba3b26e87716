"""OVN's configuration: two switches and a router between two pods of a node, further objects case by case,
and a third pod on another node.

    client (ls0) - lr0 - server (ls1)           all cases but `geneve`
    client (ls0) - lr2 - remote (ls2)           `geneve`: `remote` is on another node

The router has one Ethernet address on all sides, so that senders need only one.
"""

import dataclasses

from vhost_cases import Case

ROUTER, REMOTE_ROUTER = "02:00:00:00:99:01", "02:00:00:00:99:02"
BALANCED, TRANSLATED = "30.0.0.1", "20.99.0.1"
# Objects on the packets' path, by their names in tables.
PATHS = {
    "router": "switch, router, switch",
    "acl": "the same, a stateful access list",
    "lb": "the same, a load balancer",
    "beside": "the same, a load balancer that they do not use",
    "stateless": "the same, and what it does not balance is not tracked",
    "snat": "the same, translated sources",
    "geneve": "over Geneve to another node",
}


@dataclasses.dataclass(frozen=True)
class Path(Case):
    """A case: the objects on the packets' path. Packets of vhost-user ports go both ways, since a connection
    of UDP needs a reply."""

    path: str = "router"
    taps: bool = False

    @property
    def name(self):
        words = ["taps" if self.taps else "guests", self.path]
        words += [f"{self.changes}changes"] if self.changes else []
        return "-".join(words)

    def title(self):
        return PATHS[self.path] + (f", {self.changes} changes of another port's list a second" if self.changes else "")

    def plain(self):
        return dataclasses.replace(self, path="router", ct="", tunnel="", changes=0)

    def warm_up(self):
        return 0.7

    def arguments(self, seconds, rate=None):
        words = super().arguments(seconds, rate) + ["--gateway", REMOTE_ROUTER if self.path == "geneve" else ROUTER]
        words += ["--to", BALANCED] if self.path == "lb" else []
        words += ["--answer-to", TRANSLATED] if self.path == "snat" else []
        return words


def guests(path, **more):
    ct = "track" if path in ("acl", "lb", "beside", "snat") else ""
    return Path(path=path, ct=ct, tunnel="through" if path == "geneve" else "", answers=True, flows=1000, **more)


GUESTS = [*(guests(path) for path in PATHS), guests("acl", changes=10)]
TAPS = [Path(path=path, taps=True) for path in PATHS]


class Paths:
    """The logical network in the databases of `central`. `pods` are client, server and remote, as (Ethernet address, IPv4 address); `services` are
    pairs of a protocol and a port that are balanced."""

    def __init__(self, central, pods, services):
        self.central, self.pods, self.services = central, pods, services
        self.path = "router"

    def make(self):
        nbctl = self.central.nbctl
        nbctl("ls-add", "ls0", "--", "ls-add", "ls1", "--", "ls-add", "ls2", "--", "lr-add", "lr0", "--", "lr-add", "lr2")
        for router, switch, mac, address in (("lr0", "ls0", ROUTER, "10.99.99.1/8"), ("lr0", "ls1", ROUTER, "20.99.99.1/8"),
                                             ("lr2", "ls0", REMOTE_ROUTER, "10.99.99.2/8"), ("lr2", "ls2", REMOTE_ROUTER, "20.99.99.2/8")):
            port, peer = f"{router}-{switch}", f"{switch}-{router}"
            nbctl("lrp-add", router, port, mac, address, "--", "lsp-add", switch, peer, "--", "lsp-set-type", peer, "router",
                  "--", "lsp-set-addresses", peer, "router", "--", "lsp-set-options", peer, f"router-port={port}")
        for (pod, (mac, address)), switch in zip(self.pods.items(), ("ls0", "ls1", "ls2")):
            nbctl("lsp-add", switch, pod, "--", "lsp-set-addresses", pod, f"{mac} {address}")
        # This port has no traffic: its access list changes.
        nbctl("lsp-add", "ls1", "other", "--", "lsp-set-addresses", "other", "02:00:00:00:98:01 20.98.0.1")
        for number, (protocol, port) in enumerate(self.services):
            nbctl("lb-add", f"lb{number}", f"{BALANCED}:{port}", f"{self.pods['server'][1]}:{port}", protocol)

    def become(self, path):
        """Removes the objects of the last case, and adds those of this one; returns when the switches
        obey."""
        if path == self.path:
            return
        nbctl, balancers = self.central.nbctl, [f"lb{number}" for number in range(len(self.services))]
        if self.path == "acl":
            nbctl("acl-del", "ls1")
        elif self.path in ("lb", "beside", "stateless"):
            nbctl("ls-lb-del", "ls0", "--", "acl-del", "ls0")
        elif self.path == "snat":
            nbctl("lr-nat-del", "lr0", "--", "lrp-del-gateway-chassis", "lr0-ls1", "ch1")
        if path == "acl":
            for priority, what in ((1000, "allow-related"), (900, "drop")):
                nbctl("acl-add", "ls1", "to-lport", str(priority), 'outport == "server" && ip4', what)
        elif path in ("lb", "beside", "stateless"):
            for balancer in balancers:
                nbctl("ls-lb-add", "ls0", balancer)
            # Pods send nothing to the balanced address here; otherwise replies of its servers would have to
            # be left out, too (docs/ovn.md).
            if path == "stateless":
                for direction, far in (("from-lport", "dst"), ("to-lport", "src")):
                    nbctl("acl-add", "ls0", direction, "2000", f"ip4 && ip4.{far} != {BALANCED}", "allow-stateless")
        elif path == "snat":
            nbctl("lrp-set-gateway-chassis", "lr0-ls1", "ch1", "20", "--", "lr-nat-add", "lr0", "snat", TRANSLATED, "10.0.0.0/8")
        self.path = path
        self.central.sync()
