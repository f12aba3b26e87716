"""Parts of a case that need more than one flow: groups, meters, learning, conjunctions, recirculation,
encapsulation.

Each is a block of flows in tables of its own, with one flow in table 0 that leads there. So random flows and
blocks can interact. The fields that a bucket's hash uses are left out: select groups have one bucket that can
be chosen.
"""

from packets import IPS, MACS, PORTS

LEARN_TABLE, LEARNED_TABLE, CONJUNCTION_TABLE, GROUP_TABLE, RECIRC_TABLE, METER_TABLE, ENCAP_TABLE = \
    20, 21, 30, 40, 50, 60, 70
TCP_FIELDS = ["", "nw_src", "nw_dst", "tp_dst"]


def blocks(rng, bridge, ports, encapsulation=False):
    """(groups, meters, flows) for one bridge; ports are OpenFlow numbers."""
    made = Blocks(rng, bridge, ports)
    kinds = [made.learning, made.conjunctions, made.groups_, made.recirculation, made.metering]
    if encapsulation:
        kinds.append(made.encapsulation)
    for kind in rng.sample(kinds, rng.choice([1, 1, 2, 3])):
        kind()
    made.entrance()
    return made.groups, made.meters, made.flows


class Blocks:
    def __init__(self, rng, bridge, ports):
        self.rng, self.bridge, self.ports = rng, bridge, ports
        self.groups, self.meters, self.flows, self.entry_tables = [], [], [], []

    def flow(self, table, priority, match, actions):
        self.flows.append({"bridge": self.bridge, "table": table, "priority": priority, "extra": [], "match": match,
                           "actions": actions})

    def port(self):
        return self.rng.choice(self.ports)

    def entrance(self):
        """One flow that sends some packets into every block."""
        kind = self.rng.choice([[], ["ip"], ["tcp"], ["ip", f"nw_src={self.rng.choice(IPS)}"]])
        last = self.rng.choice([[], ["NORMAL"], [f"output:{self.port()}"]])
        self.flow(0, 61000 + self.rng.randrange(4000), kind, [f"resubmit(,{t})" for t in self.entry_tables] + last)

    def learning(self):
        """Learns addresses, with or without VLAN, port or a register."""
        rng = self.rng
        self.entry_tables += [LEARN_TABLE, LEARNED_TABLE]
        spec = [f"table={LEARNED_TABLE}", f"priority={rng.choice([1, 70, 32768])}"]
        if rng.random() < 0.3:
            spec.append(f"cookie={rng.randrange(1, 99):#x}")
        if rng.random() < 0.3:
            spec.append(f"{rng.choice(['hard', 'idle'])}_timeout=600")
        if rng.random() < 0.4:
            spec.append("NXM_OF_VLAN_TCI[0..11]")
        spec.append(rng.choice(["NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[]", "NXM_OF_ETH_DST[0..31]=NXM_OF_ETH_SRC[0..31]"]))
        match = rng.choice([[], ["ip"], ["tcp"]])
        if match and rng.random() < 0.5:
            spec += ["dl_type=0x800", "NXM_OF_IP_DST[]=NXM_OF_IP_SRC[]"]
        then = rng.choice([["output:NXM_OF_IN_PORT[]"], ["load:NXM_OF_IN_PORT[]->NXM_NX_REG0[0..15]", f"output:{self.port()}"],
                           [f"load:{rng.randrange(9)}->NXM_NX_REG1[4..7]", "output:NXM_OF_IN_PORT[]"]])
        self.flow(LEARN_TABLE, 10, match, [f"learn({','.join(spec + then)})"])
        if rng.random() < 0.5:
            self.flow(LEARNED_TABLE, 0, [], [f"output:{self.port()}"])

    def conjunctions(self):
        """Sets of addresses and ports, any of one with any of the other."""
        rng = self.rng
        self.entry_tables.append(CONJUNCTION_TABLE)
        for number in range(1, rng.randrange(2, 4)):
            priority = 100 * number
            for address in rng.sample(IPS, rng.randrange(1, min(4, len(IPS)))):
                self.flow(CONJUNCTION_TABLE, priority, ["tcp", f"nw_src={address}"], [f"conjunction({number},1/2)"])
            for port in rng.sample(PORTS, rng.randrange(1, min(4, len(PORTS)))):
                self.flow(CONJUNCTION_TABLE, priority, ["tcp", f"tp_dst={port}"], [f"conjunction({number},2/2)"])
            self.flow(CONJUNCTION_TABLE, priority, [f"conj_id={number}", "ip"],
                      rng.choice([[f"output:{self.port()}"], [f"mod_dl_src:{rng.choice(MACS)}", f"output:{self.port()}"]]))
        if rng.random() < 0.5:
            self.flow(CONJUNCTION_TABLE, rng.choice([1, 150]), ["tcp", f"tp_dst={rng.choice(PORTS)}"],
                      [f"output:{self.port()}"])

    def groups_(self):
        rng = self.rng
        self.entry_tables.append(GROUP_TABLE)
        last = rng.randrange(1, 4)
        for number in range(1, last + 1):
            kind = rng.choice(["all", "all", "indirect", "ff", "select"])
            count = {"indirect": 1, "all": rng.randrange(4)}.get(kind, rng.randrange(1, 4))
            buckets = []
            for index in range(count):
                head = {"ff": f"watch_port:{self.port()},",
                        "select": f"weight:{1 if index == 0 else 0},"}.get(kind, "")
                body = rng.choice([[f"output:{self.port()}"], [f"mod_dl_dst:{rng.choice(MACS)}", f"output:{self.port()}"],
                                   [f"set_field:{rng.randrange(4)}->reg3", f"resubmit(,{GROUP_TABLE + 1})"],
                                   ["push_vlan:0x8100", "set_field:4106->vlan_vid", f"output:{self.port()}"]])
                if number > 1 and rng.random() < 0.3:
                    body = [f"group:{rng.randrange(1, number)}"]
                buckets.append(f"bucket={head}actions={','.join(body)}")
            self.groups.append({"bridge": self.bridge, "text": ",".join([f"group_id={number}", f"type={kind}"] + buckets)})
        choice = rng.choice([[f"group:{last}"], [f"group:{last}", f"output:{self.port()}"], [f"write_actions(group:{last})"],
                             [f"mod_dl_src:{rng.choice(MACS)}", f"group:{last}"]])
        self.flow(GROUP_TABLE, 10, rng.choice([[], ["ip"]]), choice)
        self.flow(GROUP_TABLE + 1, 10, [f"reg3={rng.randrange(4)}"], [f"output:{self.port()}"])
        self.flow(GROUP_TABLE + 1, 5, [], [f"output:{self.port()}"])

    def recirculation(self):
        """Pushes and pops a label: the next match needs the packet to be parsed anew."""
        rng = self.rng
        self.entry_tables.append(RECIRC_TABLE)
        between = rng.choice([[], [f"set_field:{rng.randrange(1 << 20)}->mpls_label"], [f"output:{self.port()}"],
                              ["push_mpls:0x8847", "pop_mpls:0x8847"]])
        after = rng.choice([[f"resubmit(,{RECIRC_TABLE + 1})"], ["dec_ttl", f"output:{self.port()}"],
                            [f"set_field:{rng.choice(IPS)}->ip_dst", f"resubmit(,{RECIRC_TABLE + 1})", f"output:{self.port()}"]])
        self.flow(RECIRC_TABLE, 10, ["ip"], ["push_mpls:0x8847", *between, "pop_mpls:0x0800", *after])
        self.flow(RECIRC_TABLE + 1, 10, ["tcp", f"tp_dst={rng.choice(PORTS)}"], [f"output:{self.port()}"])
        self.flow(RECIRC_TABLE + 1, 5, ["ip"], [f"mod_dl_dst:{rng.choice(MACS)}", f"output:{self.port()}"])

    def encapsulation(self):
        """Headers in front of the packet, taken off again here or in another table; and packets without an Ethernet header.

        Labels are put in front of IP packets only: the reference dies of them where the frame has labels already.
        """
        rng, table = self.rng, ENCAP_TABLE
        self.entry_tables.append(table)
        ethernet = ["encap(ethernet)", *rng.sample([f"set_field:{rng.choice(MACS)}->eth_dst", f"set_field:{rng.choice(MACS)}->eth_src"],
                                                   rng.randrange(3))]
        leave = rng.choice([[f"output:{self.port()}"], [f"resubmit(,{table + 1})"], [f"output:{self.port()}", f"resubmit(,{table + 1})"]])
        nsh = [rng.choice(["encap(nsh)", "encap(nsh(md_type=1))", "encap(nsh(md_type=2))",
                           "encap(nsh(md_type=2,tlv(0x1000,10,0x12345678)))",
                           "encap(nsh(md_type=2,tlv(0x1000,10,0x12),tlv(0x2000,20,0xfedcba9876543210)))"])]
        nsh += rng.sample([f"set_field:{rng.choice([0, 0x1234, 0xffffff]):#x}->nsh_spi", f"set_field:{rng.randrange(256)}->nsh_si",
                           f"set_field:{rng.randrange(4)}->nsh_flags", f"set_field:{rng.randrange(64)}->nsh_ttl",
                           "load:0x5->NXOXM_NSH_SI[0..3]", "dec_nsh_ttl"], rng.randrange(3))
        label = ["encap(mpls)"] + rng.choice([[], [f"set_field:{rng.randrange(1 << 20)}->mpls_label"], ["set_field:3->mpls_tc"]])
        start = rng.choice([
            ([], [*nsh, *ethernet, *leave]),
            (["ip"], [*nsh, *ethernet, f"output:{self.port()}", "decap()", "decap()", f"resubmit(,{table + 2})"]),
            (["ip"], [*nsh, *nsh, *ethernet, *leave]),
            (["ip"], ["decap()", *leave]),
            (["ip"], ["decap()", *nsh, *ethernet, *leave]),
            (["ip"], [*label, *ethernet, *leave]),
            (["ip"], [*label, *label, *ethernet, f"output:{self.port()}"]),
            (["ip"], [f"clone({','.join([*nsh, *ethernet, f'output:{self.port()}'])})", f"output:{self.port()}"]),
        ])
        self.flow(table, 10, *start)
        self.flow(table, 5, [], [f"output:{self.port()}"])
        # Packets with such a header, from this pipeline or from outside.
        self.flow(table + 1, 20, ["dl_type=0x894f"] + rng.choice([[], ["nsh_mdtype=1"], ["nsh_si=255"], ["nsh_flags=0/1"]]),
                  rng.choice([["set_field:254->nsh_si", f"output:{self.port()}"], ["dec_nsh_ttl", f"output:{self.port()}"],
                              ["decap()", "decap()", f"resubmit(,{table + 2})"], ["decap()", f"resubmit(,{table + 1})"],
                              ["load:0x1->NXOXM_NSH_C1[4..7]", f"output:{self.port()}"]]))
        self.flow(table + 1, 20, ["packet_type=(1,0x894f)"], rng.choice([[*ethernet, f"output:{self.port()}"],
                                                                        ["decap()", f"resubmit(,{table + 2})"]]))
        self.flow(table + 1, 15, ["dl_type=0x8847"], rng.choice([["decap()", "decap(packet_type(ns=0,type=0))", f"resubmit(,{table + 2})"],
                                                                 [f"output:{self.port()}"]]))
        for ethertype in ("0x800", "0x86dd"):
            self.flow(table + 1, 15, [f"packet_type=(1,{ethertype})"], [*ethernet, f"output:{self.port()}"])
            self.flow(table + 2, 15, [f"packet_type=(1,{ethertype})"], [*ethernet, f"output:{self.port()}"])
        self.flow(table + 2, 10, rng.choice([[], ["ip"], ["tcp"]]), [f"output:{self.port()}"])

    def metering(self):
        """A meter that drops nothing, and counts."""
        self.entry_tables.append(METER_TABLE)
        self.meters.append({"bridge": self.bridge, "text": "meter=1,pktps,burst,stats,bands=type=drop,rate=1000000,burst_size=1000000"})
        self.flow(METER_TABLE, 10, self.rng.choice([[], ["ip"]]), ["meter:1", f"output:{self.port()}"])
