"""Runs one case in one daemon and returns the visible results.

One daemon serves all cases. Each case gets bridges and ports under names that alternate. So one ovs-vsctl
call removes the previous case and makes the next, and the daemon does not take the new bridge for the old
one.
"""

import ipaddress
import os
import re
import time

from generate import flow_text
from lab.frames import read_pcap
from lab.shell import CommandError, Trace
from lab.switch import Switch
from lab.unixctl import UnixctlError
from tunnels import comparable, is_flooded

ARGS = ("--enable-dummy=override", "--disable-system", "--disable-system-route")
# "override" makes dummies of the reference's tunnels, too.
TUNNEL_ARGS = ("--enable-dummy", "--disable-system", "--disable-system-route")


class Died(Exception):
    """The daemon ended or stopped replying."""


class Side:
    """A daemon that cases are run in.

    twist: changes a case before it is run; a deliberate fault, to prove that it is found.
    """

    def __init__(self, binary, twist=None):
        self.binary = binary
        self.twist = twist
        self.args = ARGS
        self.switch = None
        self.control = None
        self.count = 0
        self.bridges, self.routes = [], []

    def start(self):
        self.switch = Switch(Trace(), self.binary, args=self.args, prefix="heddle-diff")
        self.switch.start()
        self.control = self.switch.unixctl()
        self.bridges, self.routes = [], []

    def close(self, keep=None):
        if self.control:
            self.control.close()
            self.control = None
        switch, self.switch = self.switch, None
        if switch:
            switch.close(keep)

    def run(self, case):
        """The observations of a case; raises Died when the daemon does not survive it."""
        try:
            args = TUNNEL_ARGS if case.get("tunnels") else ARGS
            if self.switch and self.args != args:
                self.close()
            if self.switch is None:
                self.args = args
                self.start()
            self.switch.trace.lines.clear()
            return self._run(self.twist(case) if self.twist else case)
        except (CommandError, UnixctlError, AssertionError, ConnectionError, TimeoutError, OSError) as exc:
            alive = bool(self.switch) and self.switch.alive()
            tail = self.switch.log()[-2000:] if self.switch else ""
            try:
                self.close()
            except AssertionError as late:
                tail += f"\n{late}"
            raise Died(f"{self.binary}: {'does not answer as it should' if alive else 'ended'}: {exc}\n{tail}") from None

    def _run(self, case):
        self.count += 1
        suffix = "xy"[self.count & 1]
        seen = {"rejected": {}, "traces": [], "delivered": [], "out": {}, "flows": {}, "groups": {}, "fdb": {},
                "connections": []}
        captures = self._configure(case, suffix)
        if case.get("tunnels"):
            self._make_underlay(case, suffix)
        if case.get("connections"):
            self.control.call("dpctl/flush-conntrack")
        for bridge in case["bridges"]:
            seen["rejected"][bridge["name"]] = self._add_others(case, bridge["name"], suffix) + \
                self._add_flows(case, bridge["name"], suffix)
        ports = self._datapath_ports(suffix)
        home = {port["name"]: port for port in case["ports"]}
        for packet in case["packets"]:
            port = home[packet["port"]]
            traced_last = case.get("connections") or case.get("tunnels")
            if not case.get("meters") and not traced_last:
                # In the reference, a trace changes state: meters count traced packets, the tracker learns
                # them, and packets from a tunnel are really forwarded.
                seen["traces"].append(self._trace(port, packet, suffix, ports))
            seen["delivered"].append(self._inject(port["name"] + suffix, packet["hex"]))
            self._settle(case)
        if case.get("connections"):
            seen["connections"] = sorted(self.control.call("dpctl/dump-conntrack").splitlines())
        for bridge in case["bridges"]:
            name = bridge["name"]
            dump = self.switch.ofctl("-O", case["protocol"], "dump-flows", name + suffix, quiet=True)
            seen["flows"][name] = sorted(canonical_flow(line) for line in dump.splitlines() if "actions=" in line)
            seen["groups"][name] = self._counted(case, name, suffix)
            seen["fdb"][name] = canonical_fdb(self.control.call("fdb/show", name + suffix))
        seen["out"] = {name: [frame.hex() for frame in read_pcap(path)] for name, path in captures.items()}
        if case.get("connections") or case.get("tunnels"):
            seen["traces"] = [self._trace(home[p["port"]], p, suffix, ports) for p in case["packets"]]
        if case.get("tunnels"):
            seen["out"] = {name: [comparable(frame) for frame in out] for name, out in seen["out"].items()}
            if is_flooded(case):
                seen["out"] = {name: sorted(out) for name, out in seen["out"].items()}
        self.captures = captures
        for path in captures.values():
            if os.path.exists(path):
                os.unlink(path)
        return seen

    def _configure(self, case, suffix):
        """One ovs-vsctl call from the last case's configuration to this one's; returns the capture files."""
        words, captures = [], {}

        def capture(name):
            captures[name] = f"{self.switch.dir}/{self.count}-{name}.pcap"
            return f"options:tx_pcap={captures[name]}"
        for bridge in self.bridges:
            words += ["--", "--if-exists", "del-br", bridge]
        self.bridges = [bridge["name"] + suffix for bridge in case["bridges"]]
        for bridge in case["bridges"]:
            name = bridge["name"] + suffix
            words += ["--", "add-br", name, "--", "set", "bridge", name, "datapath_type=dummy", *bridge["settings"],
                      "--", "set", "interface", name, capture(bridge["name"])]
        for port in case["ports"]:
            name = port["name"] + suffix
            words += ["--", "add-port", port["bridge"] + suffix, name, *port["settings"], "--", "set", "interface", name,
                      "type=dummy", f"ofport_request={port['ofport']}", capture(port["name"])]
        for patch in case["patches"]:
            for index in (0, 1):
                name, peer = patch["names"][index] + suffix, patch["names"][1 - index] + suffix
                words += ["--", "add-port", patch["bridges"][index] + suffix, name, "--", "set", "interface", name,
                          "type=patch", f"options:peer={peer}", f"ofport_request={patch['ofports'][index]}"]
        for tunnel in case.get("tunnels", []):
            name = tunnel["name"] + suffix
            words += ["--", "add-port", tunnel["bridge"] + suffix, name, "--", "set", "interface", name, f"type={tunnel['type']}",
                      f"ofport_request={tunnel['ofport']}", *(f"options:{option}" for option in tunnel["options"])]
        for route in self.routes:
            self.control.call("ovs/route/del", route)
        self.routes = []
        self.switch.vsctl(*words[1:])
        return captures

    def _make_underlay(self, case, suffix):
        """The addresses, routes and neighbours of br0, and the options that br1 maps."""
        under = case["underlay"]
        self.control.call("tnl/neigh/flush")
        for address in under["addresses"]:
            self.control.call("netdev-dummy/ip6addr" if ":" in address else "netdev-dummy/ip4addr", "br0" + suffix, address)
        for address in under["addresses"]:
            self._route(str(ipaddress.ip_interface(address).network), "br0" + suffix)
        for route, gateway in under["routes"]:
            self._route(route, "br0" + suffix, gateway)
        for address, mac in under["neighbours"]:
            self.control.call("tnl/neigh/set", "br0" + suffix, address, mac)
        self.switch.ofctl("add-tlv-map", "br1" + suffix, case["tlv"], quiet=True)

    def _route(self, prefix, *way):
        self.control.call("ovs/route/add", prefix, *way)
        self.routes.append(prefix)

    def _add_flows(self, case, bridge, suffix):
        """Loads a bridge's flows; returns the indices of the refused ones."""
        flows = [(index, flow_text(flow)) for index, flow in enumerate(case["flows"]) if flow["bridge"] == bridge]
        if not flows:
            return []
        name = bridge + suffix
        try:
            self._add(case, name, [text for _, text in flows])
            return []
        except CommandError:
            pass
        self.switch.ofctl("-O", case["protocol"], "del-flows", name, quiet=True)
        rejected = []
        for index, text in flows:
            try:
                self._add(case, name, [text])
            except CommandError:
                rejected.append(index)
        return rejected

    def _add_others(self, case, bridge, suffix):
        """Makes a bridge's groups and meters; returns the texts of the refused ones."""
        refused = []
        for command, key, version in (("add-group", "groups", "OpenFlow15"), ("add-meter", "meters", "OpenFlow13")):
            for item in case.get(key, []):
                if item["bridge"] == bridge:
                    try:
                        # Meters and buckets in the words of a version that has all of them.
                        self.switch.ofctl("-O", self._version(case, version), command, bridge + suffix, item["text"],
                                          quiet=True)
                    except CommandError:
                        refused.append(item["text"])
        return refused

    @staticmethod
    def _version(case, wanted):
        return wanted if case["protocol"] == "OpenFlow10" else case["protocol"]

    def _counted(self, case, bridge, suffix):
        """Counters of a bridge's groups and meters."""
        lines = []
        for command, key in (("dump-group-stats", "groups"), ("dump-groups", "groups"), ("meter-stats", "meters")):
            if any(item["bridge"] == bridge for item in case.get(key, [])):
                dump = self.switch.ofctl("-O", self._version(case, "OpenFlow13"), command, bridge + suffix, quiet=True)
                lines += sorted(re.sub(r"duration[:=][0-9.]+s?,?", "", line.strip()) for line in dump.splitlines()
                                if "reply" not in line)
        return lines

    def _add(self, case, name, texts):
        self.switch.ofctl("-O", case["protocol"], "add-flows", name, "-", stdin="\n".join(texts) + "\n", quiet=True)

    def _datapath_ports(self, suffix):
        """Datapath port number -> name without the suffix."""
        found = re.findall(r"^\s+(\S+) \d+/(\d+): \(", self.control.call("dpif/show"), re.M)
        return {int(number): name.removesuffix(suffix) for name, number in found}

    def _trace(self, port, packet, suffix, ports):
        try:
            text = self.control.call("ofproto/trace", port["bridge"] + suffix, f"in_port={port['ofport']}",
                                     packet["hex"])
        except UnixctlError:
            return "refused"
        actions = re.findall(r"^Datapath actions: (.*)$", text, re.M)
        return " | ".join(canonical_actions(line, ports) for line in actions)

    def _inject(self, port, hexadecimal):
        """Hands a frame to a dummy port and waits until the datapath has looked it up."""
        before = self._looked_up()
        try:
            self.control.call("netdev-dummy/receive", port, hexadecimal)
        except UnixctlError:
            return False
        end = time.monotonic() + 0.2
        while self._looked_up() == before and time.monotonic() < end:
            time.sleep(0.0002)
        return True

    def _settle(self, case):
        """Waits until addresses learned from the last frame apply to the next one, also where a cached entry
        exists.

        OVS corrects its caches some time later, so they are emptied and each of its frames is translated
        afresh: the plain reference. The daemon under test keeps its caches, since it must never use a stale
        result.
        """
        purge = self.switch.is_reference and not case.get("connections")
        self.control.call("revalidator/purge" if purge else "revalidator/wait")

    def _looked_up(self):
        found = re.findall(r"hit:(\d+) missed:(\d+)", self.control.call("dpif/show"))
        return sum(int(hit) + int(missed) for hit, missed in found)


def canonical_flow(line):
    """A dump-flows line without the fields that depend on the clock."""
    line = re.sub(r"(duration|idle_age|hard_age)=[0-9.]+s?,? ?", "", line.strip())
    return re.sub(r",? actions=", " actions=", line)


def canonical_fdb(text):
    """fdb/show without the age, sorted."""
    rows = [line.split() for line in text.splitlines()[1:]]
    return sorted(" ".join(row[:3]) for row in rows if row)


def split_actions(text):
    """A datapath action list cut at its top-level commas."""
    items, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            items.append(text[start:at])
            start = at + 1
    items.append(text[start:])
    return items


def canonical_actions(text, ports):
    """Datapath actions with port names for numbers; outputs in a row, which no packet can tell apart, sorted."""
    text = re.sub(r"recirc_id=\d+", "recirc_id=*", text.strip())
    text = re.sub(r"recirc\(0x[0-9a-f]+\)", "recirc(*)", text)
    text = re.sub(r"meter\(\d+\)", "meter(*)", text)
    # Numbers of ports that are each switch's own: of tunnels, and of where they go out.
    text = re.sub(r"(tnl_pop|tnl_port|out_port)\(\d+\)", r"\1(*)", text)
    out, run = [], []
    for item in split_actions(text):
        if item.isdigit():
            run.append(ports.get(int(item), f"?{item}"))
            continue
        out += sorted(run) + [re.sub(r"\bclone\((.*)\)$", lambda m: f"clone({canonical_actions(m[1], ports)})", item)]
        run = []
    return ",".join(out + sorted(run))
