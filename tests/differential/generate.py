"""Random cases: bridges, ports, flows and frames, everything a function of the seed.

A case is plain JSON, so that it can be kept, read and replayed:
  bridges  [{name, settings}]                settings: ovs-vsctl column assignments
  ports    [{bridge, name, ofport, settings}]
  patches  [{bridges: [a, b], names: [pa, pb], ofports: [x, y]}]
  flows    [{bridge, table, priority, extra, match: [...], actions: [...]}]
  groups   [{bridge, text}]                  text: as ovs-ofctl reads it; absent in cases kept from before
  meters   [{bridge, text}]
  packets  [{port, hex}]
  protocol the OpenFlow version that ovs-ofctl speaks
"""

import random
import re

from features import blocks
from packets import IP6S, IPS, LABELS, MACS, GROUPS, PORTS, TCP_FLAGS, TOS, TTLS, VLANS, Maker, hint_from

L4 = {"tcp": "tcp", "udp": "udp", "sctp": "sctp"}
TABLES = [0, 0, 0, 0, 1, 1, 2, 3, 10, 253]
REGS = [f"reg{i}" for i in (0, 1, 2, 3, 7, 15)]
# name -> bits, for load, move, set_field and the stack
REGISTER_BITS = {f"NXM_NX_REG{i}": 32 for i in (0, 1, 2, 3, 7, 15)} | {
    "OXM_OF_METADATA": 64, "NXM_NX_XXREG0": 128, "OXM_OF_PKT_REG1": 64}
L2_BITS = {"NXM_OF_ETH_SRC": 48, "NXM_OF_ETH_DST": 48}
IP4_BITS = {"NXM_OF_IP_SRC": 32, "NXM_OF_IP_DST": 32, "NXM_NX_IP_TTL": 8}
IP6_BITS = {"NXM_NX_IPV6_SRC": 128, "NXM_NX_IPV6_DST": 128, "NXM_NX_IPV6_LABEL": 20}
ARP_BITS = {"NXM_OF_ARP_SPA": 32, "NXM_OF_ARP_TPA": 32, "NXM_NX_ARP_SHA": 48, "NXM_NX_ARP_THA": 48,
            "NXM_OF_ARP_OP": 16}
L4_BITS = {"tcp": {"NXM_OF_TCP_SRC": 16, "NXM_OF_TCP_DST": 16}, "udp": {"NXM_OF_UDP_SRC": 16, "NXM_OF_UDP_DST": 16},
           "sctp": {"OXM_OF_SCTP_SRC": 16, "OXM_OF_SCTP_DST": 16}}


def _masked(rng, value, bits, style=str):
    """value, or value/mask with a random mask that the value is cut to."""
    pick = rng.random()
    if pick < 0.6:
        return style(value)
    full = (1 << bits) - 1
    mask = rng.choice([rng.getrandbits(bits), full << rng.randrange(bits) & full, 1 << rng.randrange(bits), full >> 1])
    return f"{style(value & mask)}/{style(mask)}"


def _mac_text(value):
    return ":".join(f"{value >> shift & 255:02x}" for shift in range(40, -8, -8))


def _mac_value(text):
    return int(text.replace(":", ""), 16)


def _match_mac(rng, field):
    value = _mac_value(rng.choice(MACS + GROUPS if field == "dl_dst" else MACS))
    if field == "dl_dst" and rng.random() < 0.3:
        return "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00" if rng.random() < 0.5 else \
            "dl_dst=00:00:00:00:00:00/01:00:00:00:00:00"
    return f"{field}={_masked(rng, value, 48, _mac_text)}"


def _match_ip(rng, field):
    address = rng.choice(IPS)
    pick = rng.random()
    if pick < 0.6:
        return f"{field}={address}"
    if pick < 0.85:
        return f"{field}={address}/{rng.choice([1, 8, 16, 24, 30, 31])}"
    return f"{field}={address}/{rng.choice(['255.0.255.0', '0.0.0.255', '255.255.0.1'])}"


def _match_ip6(rng, field):
    address = rng.choice(IP6S)
    pick = rng.random()
    if pick < 0.6:
        return f"{field}={address}"
    if pick < 0.85:
        return f"{field}={address}/{rng.choice([1, 16, 64, 127])}"
    return f"{field}={address}/{rng.choice(['ffff::ffff', '::ffff', 'ffff:0:ffff::'])}"


def _maybe(rng, share, items, produce):
    if rng.random() < 0.7 * share:
        items.append(produce())


def _match_l4(rng, proto, match):
    style = rng.choice(["tp", "full"])
    for side in ("src", "dst"):
        if rng.random() < 0.25:
            name = f"tp_{side}" if style == "tp" else f"{proto}_{side}"
            match.append(f"{name}={_masked(rng, rng.choice(PORTS), 16, hex if rng.random() < .5 else str)}")
    if proto == "tcp" and rng.random() < 0.3:
        match.append("tcp_flags=" + rng.choice(["+syn-ack", "+syn+ack", "+rst", "-fin", "+ack", "0x2/0x12", "0x010",
                                                 f"{rng.choice(TCP_FLAGS):#x}"]))


def match(rng, ports):
    """(kind, [field, ...]); kind decides which fields the actions may set."""
    fields = []
    kind = rng.choice(["any", "any", "l2", "arp", "ip", "ip", "tcp", "udp", "icmp", "sctp", "ipv6", "tcp6", "udp6",
                       "sctp6", "icmp6", "nd", "type"])
    _maybe(rng, 0.35, fields, lambda: f"in_port={rng.choice(ports + ['LOCAL'])}")
    if kind == "any" and rng.random() < 0.5:
        return kind, fields
    _maybe(rng, 0.2, fields, lambda: _match_mac(rng, "dl_src"))
    _maybe(rng, 0.2, fields, lambda: _match_mac(rng, "dl_dst"))
    if rng.random() < 0.2:
        vid = rng.choice(VLANS)
        fields.append(rng.choice([
            f"dl_vlan={vid}", "dl_vlan=0xffff", f"vlan_tci={0x1000 | vid:#x}/0x1fff", "vlan_tci=0x1000/0x1000",
            "vlan_tci=0", f"vlan_vid={0x1000 | vid:#x}", "vlan_vid=0x1000/0x1000", "vlan_tci=0x0000/0x1fff",
            f"vlan_tci=0x{rng.choice([1, 7]) * 0x2000 | 0x1000:x}/0xf000"]))
        if fields[-1] == f"dl_vlan={vid}" and rng.random() < 0.4:
            fields.append(f"dl_vlan_pcp={rng.choice([0, 1, 7])}")
    pick = rng.random()
    if pick < 0.12:
        fields.append(f"{rng.choice(REGS)}={_masked(rng, rng.randrange(4), 32, hex)}")
    if rng.random() < 0.06:
        fields.append(f"metadata={_masked(rng, rng.randrange(4), 64, hex)}")
    if pick > 0.97:
        fields.append(rng.choice(["xreg0=0x1", "xreg1=0x0/0xffffffff00000001", "pkt_mark=0", "tun_id=0",
                                  "xxreg0=0x0/0x3", "reg15=0/1"]))
    if kind in ("tcp", "udp", "sctp"):
        fields.append(kind)
        _match_l4(rng, kind, fields)
    elif kind in ("tcp6", "udp6", "sctp6"):
        fields.append(kind)
        _match_l4(rng, kind[:-1], fields)
    elif kind == "icmp":
        fields.append("icmp")
        _maybe(rng, 0.5, fields, lambda: f"icmp_type={rng.choice([0, 3, 8])}")
        _maybe(rng, 0.3, fields, lambda: f"icmp_code={rng.choice([0, 1])}")
    elif kind == "icmp6":
        fields.append("icmp6")
        _maybe(rng, 0.5, fields, lambda: f"icmp_type={rng.choice([128, 129, 135])}")
    elif kind == "nd":
        which = rng.choice([135, 136])
        fields += ["icmp6", f"icmp_type={which}", "icmp_code=0"]
        _maybe(rng, 0.5, fields, lambda: _match_ip6(rng, "nd_target"))
        _maybe(rng, 0.3, fields, lambda: f"{'nd_sll' if which == 135 else 'nd_tll'}={rng.choice(MACS)}")
    elif kind == "arp":
        fields.append("arp")
        _maybe(rng, 0.4, fields, lambda: f"arp_op={rng.choice([1, 2])}")
        _maybe(rng, 0.3, fields, lambda: _match_ip(rng, "arp_spa"))
        _maybe(rng, 0.3, fields, lambda: _match_ip(rng, "arp_tpa"))
        _maybe(rng, 0.2, fields, lambda: f"arp_sha={rng.choice(MACS)}")
        _maybe(rng, 0.2, fields, lambda: f"arp_tha={_masked(rng, _mac_value(rng.choice(MACS)), 48, _mac_text)}")
    elif kind in ("ip", "ipv6"):
        fields.append(kind)
        _maybe(rng, 0.2, fields, lambda: f"nw_proto={rng.choice([1, 6, 17, 47, 58])}")
    elif kind == "type":
        fields.append(f"dl_type={rng.choice([0x88cc, 0x9000, 0x05ff, 0x8035, 0x88a8, 0x22f0]):#x}")
    four = kind in ("ip", "tcp", "udp", "sctp", "icmp")
    six = kind in ("ipv6", "tcp6", "udp6", "sctp6", "icmp6", "nd")
    if four or six:
        name, make = ("nw", _match_ip) if four else ("ipv6", _match_ip6)
        _maybe(rng, 0.3, fields, lambda: make(rng, f"{name}_src"))
        _maybe(rng, 0.3, fields, lambda: make(rng, f"{name}_dst"))
        _maybe(rng, 0.1, fields, lambda: rng.choice([f"nw_tos={rng.choice(TOS) & 0xfc}", f"ip_dscp={rng.choice([0, 8, 46])}",
                                                     f"nw_ecn={rng.randrange(4)}"]))
        _maybe(rng, 0.1, fields, lambda: f"nw_ttl={rng.choice(TTLS)}")
        _maybe(rng, 0.12, fields, lambda: f"ip_frag={rng.choice(['no', 'yes', 'first', 'later', 'not_later'])}")
        if six:
            _maybe(rng, 0.12, fields, lambda: f"ipv6_label={_masked(rng, rng.choice(LABELS), 20, hex)}")
    return kind, fields


def _settable(kind):
    """Fields with their widths that a flow of this kind may write."""
    fields = dict(REGISTER_BITS) | L2_BITS
    if kind in ("ip", "tcp", "udp", "sctp", "icmp"):
        fields |= IP4_BITS
    if kind in ("ipv6", "tcp6", "udp6", "sctp6", "icmp6", "nd"):
        fields |= IP6_BITS
    if kind == "arp":
        fields |= ARP_BITS
    proto = kind.removesuffix("6")
    if proto in L4_BITS:
        fields |= L4_BITS[proto]
    return fields


def _subfield(rng, name, bits, width=None):
    if width is None:
        if rng.random() < 0.5:
            return f"{name}[]", bits
        width = rng.randrange(1, bits + 1)
    start = rng.randrange(bits - width + 1)
    if width == bits:
        return f"{name}[]", bits
    return (f"{name}[{start}..{start + width - 1}]" if width > 1 else f"{name}[{start}]"), width


def _set_field(rng, kind):
    """A set_field of a value that makes sense, or of registers with a mask."""
    choices = [lambda: f"{rng.choice(MACS)}->eth_{rng.choice(['src', 'dst'])}",
               lambda: f"{_masked(rng, rng.randrange(4), 32, hex)}->{rng.choice(REGS)}",
               lambda: f"{_masked(rng, rng.randrange(4), 64, hex)}->metadata",
               lambda: f"{_masked(rng, _mac_value(rng.choice(MACS)), 48, _mac_text)}->eth_dst"]
    proto = kind.removesuffix("6")
    if kind in ("ip", "tcp", "udp", "sctp", "icmp"):
        choices += [lambda: f"{rng.choice(IPS)}->ip_{rng.choice(['src', 'dst'])}",
                    lambda: f"{rng.choice(IPS[:2])}/255.255.0.255->ip_dst",
                    lambda: f"{rng.choice([0, 8, 46])}->ip_dscp", lambda: f"{rng.choice(TTLS)}->nw_ttl",
                    lambda: f"{rng.randrange(4)}->nw_ecn"]
    if kind in ("ipv6", "tcp6", "udp6", "sctp6", "icmp6", "nd"):
        choices += [lambda: f"{rng.choice(IP6S)}->ipv6_{rng.choice(['src', 'dst'])}",
                    lambda: f"{rng.choice(LABELS):#x}->ipv6_label", lambda: f"{rng.choice(TTLS)}->nw_ttl",
                    lambda: f"{rng.choice([0, 8, 46])}->ip_dscp"]
    if proto in L4:
        choices += [lambda: f"{rng.choice(PORTS)}->{proto}_{rng.choice(['src', 'dst'])}"] * 2
    if kind == "arp":
        choices += [lambda: f"{rng.choice(IPS)}->arp_{rng.choice(['spa', 'tpa'])}",
                    lambda: f"{rng.choice(MACS)}->arp_{rng.choice(['sha', 'tha'])}",
                    lambda: f"{rng.choice([1, 2])}->arp_op"]
    if kind == "nd":
        choices += [lambda: f"{rng.choice(IP6S)}->nd_target"]
    return "set_field:" + rng.choice(choices)()


def _output(rng, ports):
    return rng.choice([
        *[lambda: f"output:{rng.choice(ports)}"] * 6, lambda: "NORMAL", lambda: "NORMAL", lambda: "FLOOD", lambda: "ALL",
        lambda: "IN_PORT", lambda: "LOCAL", lambda: "CONTROLLER", lambda: f"CONTROLLER:{rng.choice([64, 128])}",
        lambda: "output:NXM_NX_REG0[]", lambda: f"output(port={rng.choice(ports)},max_len={rng.choice([14, 40, 100])})",
        lambda: f"output:{rng.choice([77, 'NXM_NX_REG1[0..15]'])}"])()


def _has_vlan(fields):
    """Whether a match makes sure of a VLAN tag, which OpenFlow 1.1 and later want before a tag is popped."""
    return any(field.startswith("dl_vlan=") and not field.endswith("0xffff") or
               re.match(r"vlan_(tci|vid)=0x[1357]\w*(/0x[1f]...)?$", field) for field in fields)


def action(rng, kind, ports, table, style, depth=0):
    """One action; depth limits clone nesting; style: {"tagged", "old"} as far as they apply."""
    fields = _settable(kind)

    def load():
        target, width = _subfield(rng, *rng.choice(list(fields.items())))
        width = min(width, 64)
        if target.endswith("XXREG0[]"):
            target = "NXM_NX_XXREG0[0..63]"
        return f"load:{rng.choice([0, 1, rng.getrandbits(width)]) & ((1 << width) - 1):#x}->{target}"

    def move():
        source, bits = rng.choice(list(fields.items()))
        name, target_bits = rng.choice(list(fields.items()))
        width = min(bits, target_bits) if rng.random() < 0.5 else rng.randrange(1, min(bits, target_bits) + 1)
        return f"move:{_subfield(rng, source, bits, width)[0]}->{_subfield(rng, name, target_bits, width)[0]}"

    def resubmit():
        # Only later tables: an earlier one would make a loop that ends at the depth limit.
        later = [t for t in (1, 2, 3, 10, 253) if t > table]
        if not later:
            return _output(rng, ports)
        return f"resubmit({rng.choice(['', '', rng.choice(ports)])},{rng.choice(later)})"

    def stack():
        name = rng.choice(list(REGISTER_BITS) + ["NXM_OF_ETH_SRC", "NXM_OF_IN_PORT"])
        if rng.random() < 0.5:
            return f"push:{name}[]"
        return f"pop:{rng.choice([n for n in REGISTER_BITS])}[]"

    def clone():
        if depth > 1:
            return _output(rng, ports)
        inner = [action(rng, kind, ports, table, style, depth + 1) for _ in range(rng.randrange(1, 4))]
        return f"clone({','.join(inner)})"

    def vlan():
        vid, pcp = rng.choice(VLANS), rng.choice([0, 1, 7])
        choices = [f"mod_vlan_vid:{vid}", f"mod_vlan_pcp:{pcp}", f"load:{0x1000 | vid:#x}->NXM_OF_VLAN_TCI[]",
                   "load:0->NXM_OF_VLAN_TCI[]"]
        if "old" not in style:
            choices += ["push_vlan:0x8100", f"push_vlan:0x8100,set_field:{0x1000 | vid}->vlan_vid",
                        f"push_vlan:0x88a8,set_field:{0x1000 | vid}->vlan_vid", "push_vlan:0x8100,pop_vlan"]
        if "tagged" in style or "old" in style:
            choices += ["strip_vlan"] * 2 if "old" in style else ["pop_vlan"] * 2
            style.discard("tagged")
        return rng.choice(choices)

    def classic():
        choices = [lambda: f"mod_dl_src:{rng.choice(MACS)}", lambda: f"mod_dl_dst:{rng.choice(MACS)}"]
        if kind in ("ip", "tcp", "udp", "sctp", "icmp"):
            choices += [lambda: f"mod_nw_src:{rng.choice(IPS)}", lambda: f"mod_nw_dst:{rng.choice(IPS)}",
                        lambda: f"mod_nw_tos:{rng.choice(TOS) & 0xfc}", lambda: f"mod_nw_ecn:{rng.randrange(4)}",
                        lambda: f"mod_nw_ttl:{rng.choice(TTLS)}"]
        if kind.removesuffix("6") in L4:
            choices += [lambda: f"mod_tp_src:{rng.choice(PORTS)}", lambda: f"mod_tp_dst:{rng.choice(PORTS)}"]
        return rng.choice(choices)()

    choices = [lambda: _output(rng, ports)] * 8 + [load] * 2 + [move] * 2 + [resubmit] * 3 + [stack] + [vlan] * 2 + \
        [clone] + [classic] * 2 + [lambda: _set_field(rng, kind)] * 4 + [lambda: "note:01.02.03"]
    if kind in ("ip", "tcp", "udp", "sctp", "icmp", "ipv6", "tcp6", "udp6", "sctp6", "icmp6", "nd"):
        choices += [lambda: "dec_ttl"] * 2
    return rng.choice(choices)()


def actions(rng, kind, ports, table, style):
    if rng.random() < 0.08:
        return ["drop"]
    out = [action(rng, kind, ports, table, style) for _ in range(rng.choice([1, 1, 2, 2, 3, 4, 5]))]
    if rng.random() < 0.5:
        out.append(_output(rng, ports))  # else most rewrites would never be seen
    if rng.random() < 0.04:
        out.insert(rng.randrange(len(out) + 1), "exit")
    if "old" in style:
        return out
    # Instructions, in the order in which OpenFlow runs them.
    if rng.random() < 0.06:
        out.append("clear_actions")
    if rng.random() < 0.12:
        inner = [_set_field(rng, kind) for _ in range(rng.randrange(2))]
        inner.append(rng.choice([f"output:{rng.choice(ports)}", "NORMAL", "FLOOD", "IN_PORT", "LOCAL", "CONTROLLER"]))
        out.append(f"write_actions({','.join(inner)})")
    if rng.random() < 0.08:
        out.append(f"write_metadata:{rng.randrange(8):#x}" + rng.choice(["", "/0x7", "/0xff00000000000001"]))
    later = [t for t in (1, 2, 3, 10, 253) if t > table]
    if later and rng.random() < 0.25:
        out.append(f"goto_table:{rng.choice(later)}")
    return out


def _port_settings(rng):
    pick = rng.random()
    if pick < 0.55:
        settings = []
    elif pick < 0.75:
        settings = [f"tag={rng.choice(VLANS[:3])}"]
    elif pick < 0.87:
        settings = [f"trunks={','.join(str(v) for v in rng.sample(VLANS + [0], rng.randrange(1, 4)))}"]
    else:
        settings = [f"vlan_mode={rng.choice(['native-tagged', 'native-untagged'])}", f"tag={rng.choice(VLANS[:3])}"]
        if rng.random() < 0.5:
            settings.append(f"trunks={','.join(str(v) for v in rng.sample(VLANS, 2))}")
    if rng.random() < 0.07:
        settings.append(f"other_config:priority-tags={rng.choice(['if-nonzero', 'always', 'never', 'true'])}")
    if rng.random() < 0.07:
        settings.append("protected=true")
    return settings


def _packet(rng, ports, hints):
    """A frame on a port; two times in three one that was made for some flow."""
    port = rng.choice(ports)
    if not hints or rng.random() < 0.33:
        return {"port": port["name"], "hex": Maker(rng).frame()}
    bridge, kind, fields = rng.choice(hints)
    wanted = next((int(f[8:]) for f in fields if re.match(r"in_port=\d+$", f)), None)
    fit = [p for p in ports if p["bridge"] == bridge and wanted in (None, p["ofport"])]
    return {"port": rng.choice(fit or ports)["name"], "hex": Maker(rng, hint_from(kind, fields)).frame()}


def case(seed, encapsulation=False):
    """The case of this seed (any text)."""
    rng = random.Random(seed)
    bridges, ports, patches, flows, hints = [], [], [], [], []
    groups, meters = [], []
    protocol = rng.choice(["OpenFlow10", "OpenFlow13", "OpenFlow13", "OpenFlow14", "OpenFlow15", "OpenFlow15"])
    count = 2 if rng.random() < 0.4 else 1
    for index in range(count):
        settings = [f"fail_mode={rng.choice(['secure', 'secure', 'standalone'])}",
                    f"other_config:hwaddr=aa:55:aa:55:00:0{index}"]
        if rng.random() < 0.08:
            settings.append(f"flood_vlans={rng.choice(VLANS[:3])}")
        if rng.random() < 0.1:
            settings.append("other_config:forward-bpdu=true")
        bridges.append({"name": f"br{index}", "settings": settings})
        for number in range(1, rng.randrange(3, 6) if index == 0 else rng.randrange(2, 4)):
            ports.append({"bridge": f"br{index}", "name": f"p{index}{number}", "ofport": number,
                          "settings": _port_settings(rng)})
    if count == 2:
        # One link only: two would be a loop, and where OVS cuts a flooded loop off depends on its timing.
        patches.append({"bridges": ["br0", "br1"], "names": ["pa", "pb"], "ofports": [20, 20]})
    for bridge in bridges:
        numbers = [p["ofport"] for p in ports if p["bridge"] == bridge["name"]] + \
            ([p["ofports"][0] for p in patches])
        if rng.random() < 0.15:
            continue  # plain learning switch, or nothing at all
        seen = set()
        for _ in range(rng.randrange(2, 16)):
            kind, fields = match(rng, numbers)
            table = rng.choice(TABLES)
            style = ({"old"} if protocol == "OpenFlow10" else set()) | ({"tagged"} if _has_vlan(fields) else set())
            flow = {"bridge": bridge["name"], "table": table, "priority": rng.choice([0, 1, 10, 100, 32768, 65535]),
                    "extra": rng.choice([[], [], [f"cookie={rng.getrandbits(16):#x}"]]),
                    "match": fields, "actions": actions(rng, kind, numbers, table, style)}
            key = (table, tuple(sorted(fields)))
            # Overlapping flows of the same priority would make the outcome random, also under different
            # masks. So every flow of a table gets a priority of its own.
            used = {f["priority"] for f in flows if f["bridge"] == bridge["name"] and f["table"] == table}
            while flow["priority"] in used:
                flow["priority"] = rng.randrange(65536)
            if key not in seen:
                seen.add(key)
                flows.append(flow)
                hints.append((bridge["name"], kind, fields))
        if rng.random() < 0.8 and not any(f["table"] == 0 and f["bridge"] == bridge["name"] and not f["match"]
                                          for f in flows):
            used = {f["priority"] for f in flows if f["bridge"] == bridge["name"] and f["table"] == 0}
            if 5 not in used:
                flows.append({"bridge": bridge["name"], "table": 0, "priority": 5, "extra": [], "match": [],
                              "actions": [rng.choice(["NORMAL", "NORMAL", "NORMAL,resubmit(,1)", "resubmit(,1),resubmit(,2),NORMAL",
                                          "resubmit(,1)", "FLOOD"])]})
        if protocol != "OpenFlow10" and rng.random() < 0.45:
            # Blocks of flows that belong together.
            more = blocks(rng, bridge["name"], numbers, encapsulation)
            groups += more[0]
            meters += more[1]
            flows += more[2]
            hints += [(bridge["name"], "tcp", ["tcp"])] * 2
    distinct = [_packet(rng, ports, hints) for _ in range(rng.randrange(4, 11))]
    # Some packets come twice: the first misses the datapath's caches, the second hits the entry of the first.
    packets = distinct + [rng.choice(distinct) for _ in range(rng.randrange(1, 5))]
    return {"seed": str(seed), "protocol": protocol, "bridges": bridges, "ports": ports, "patches": patches, "flows": flows,
            "groups": groups, "meters": meters, "packets": packets}


def flow_text(flow):
    """One flow as ovs-ofctl reads it."""
    return ",".join([f"table={flow['table']}", f"priority={flow['priority']}", *flow["extra"], *flow["match"]]) + \
        " actions=" + ",".join(flow["actions"])
