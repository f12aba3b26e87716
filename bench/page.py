"""The tables of the pages docs/benchmarks*.md: their cases, the tables themselves, and the plot.

A table is a list of rows, each a label and what it shows. All numbers come from docs/benchmarks.json: three
of each, the least, the median and the greatest of the rounds. A table has the rows that were measured, all in
one run of one build.
"""

import math
from html import escape

from loads import TITLES as LOADED
from vhost_cases import Case

POD_COLUMNS = {"tcp1_gbps": ("TCP, 1 stream, Gbit/s", 1), "tcp4_gbps": ("TCP, 4 streams, Gbit/s", 1),
               "udp64_kpps": ("UDP, 64 B, thousand/s", 0), "p50_us": ("one way p50, us", 1),
               "p99_us": ("p99, us", 0), "resident_mib": ("memory at start, MiB", 0)}
PODS = {"heddle-tap": "Heddle, internal ports", "heddle-veth": "Heddle, veth",
        "ovs-tap-tso": "OVS with TSO, taps", "ovs-veth-tso": "OVS with TSO, veth", "ovs-veth": "OVS, veth",
        "bridge": "Linux bridge", "veth": "no switch"}
LOADED_PORTS = PODS | {"heddle-guests": "Heddle, vhost-user", "ovs-guests": "OVS with DPDK, vhost-user"}
LOADED_COLUMNS = {"p50_us": ("p50, us", 1), "p99_us": ("p99, us", 0), "rested_p50_us": ("p50 after a rest", 1),
                  "rested_p99_us": ("p99 after a rest", 0), "loss": ("the load loses, %", 0), "tcp1_gbps": ("TCP, Gbit/s", 1),
                  "transactions_k": ("ordinary requests, thousand/s", 1)}
GUESTS = {
    "64 B": Case(), "64 B, packed rings": Case(packed=True), "64 B, both ways": Case(both=True),
    "64 B, 4 ports": Case(ports=4, both=True),
    "1518 B": Case(size=1518), "1518 B, packed rings": Case(size=1518, packed=True),
}
FLOWS = {
    "one rule, 1 flow": Case(rules="tuple"),
    "one rule, 10,000 flows": Case(rules="tuple", flows=10_000),
    "one rule, 1,000,000 flows": Case(rules="tuple", flows=1_000_000),
    "learning switch, 100,000 flows": Case(rules="normal", flows=100_000),
    "30 tables, 1,000 flows": Case(rules="pipeline", count=30, flows=1_000),
    "16 masks, 100,000 flows": Case(rules="masks", count=16, masks=16, flows=100_000),
    "256 masks, 100,000 flows": Case(rules="masks", count=256, masks=256, flows=100_000),
    "10,000 exact rules and flows": Case(rules="exact", count=10_000, flows=10_000),
    "100,000 exact rules and flows": Case(rules="exact", count=100_000, flows=100_000),
    "1,000,000 exact rules and flows": Case(rules="exact", count=1_000_000, flows=1_000_000),
}
RECIRCULATED = {
    "one recirculation, 1 flow": Case(recirc=1, rules="tuple"),
    "one recirculation, 10,000 flows": Case(recirc=1, rules="tuple", flows=10_000),
    "three recirculations, 1 flow": Case(recirc=3, rules="tuple"),
    "three recirculations, 10,000 flows": Case(recirc=3, rules="tuple", flows=10_000),
    "one, then 16 masks, 10,000 flows": Case(recirc=1, rules="masks", count=16, masks=16, flows=10_000),
    "one, then 64 masks, 10,000 flows": Case(recirc=1, rules="masks", count=64, masks=64, flows=10_000),
    "one, then 100,000 exact rules": Case(recirc=1, rules="exact", count=100_000, flows=100_000),
}
TRACKED = {f"{flows:,} connection{'s' * (flows > 1)}": Case(rules="normal", ct="track", answers=True, flows=flows)
           for flows in (1, 1_000, 100_000, 1_000_000)}
SEGMENTS = {f"{flows:,} connection{'s' * (flows > 1)}": Case(rules="normal", ct="track", answers=True, tcp=True, flows=flows)
            for flows in (1, 1_000, 100_000, 1_000_000)}
BEGUN = {"tracked": Case(rules="normal", ct="track", new=True),
         "with translated sources": Case(rules="normal", ct="snat", new=True)}
TUNNELS = {f"{what}, {flows:,} flow{'s' * (flows > 1)}{more}": Case(rules="tuple", tunnel=tunnel, flows=flows, **case)
           for tunnel, what in (("out", "into a tunnel"), ("through", "and out of it"))
           for flows in (1, 10_000)
           for more, case in (("", {}), (", outer checksum", {"csum": True}), (", 100 hosts", {"hosts": 100}))}
KEPT = {f"{what}{behind}": Case(recirc=recirc, **case) for what, case in {
    "beside a storm of new flows": {"rules": "tuple", "storm": "new-flows", "ports": 4},
    "beside a storm that multiplies masks": {"rules": "tuple", "storm": "explosion", "ports": 4},
    "while 1,000 rules a second change":
        {"rules": "exact", "count": 50_000, "flows": 50_000, "changes": 1_000},
}.items() for behind, recirc in (("", 0), (", recirculated", 1))}
STORMS = {"beside a storm of new connections": Case(rules="tuple", ct="track", storm="new-flows", ports=4),
          "beside new connections, over after a second":
              Case(rules="tuple", ct="track", storm="new-flows", expire=1, ports=4)}
WAITING = {"Heddle": ("heddle", 0), "Heddle, `pmd-sleep-max` 50": ("heddle", 50), "OVS": ("ovs", 0),
           "OVS, `pmd-sleep-max` 50": ("ovs", 50)}
LATENCY = Case(latency=True)
LATENCIES = {"Heddle": "heddle", "OVS": "ovs"}
RULE_LOADS = {"one by one": ("single", 100_000), "as a bundle": ("bundle", 1_000_000)}


def idle(sleep):
    return Case(rules="normal", idle=True, sleep=sleep)


# Cases that a run measures for the page, with those that they are compared with.
VHOST_CASES = [*GUESTS.values(), LATENCY]
SWITCH_CASES = list(dict.fromkeys([
    *FLOWS.values(),
    *(twin for case in [*RECIRCULATED.values(), *KEPT.values(), *STORMS.values()]
      for twin in (case.plain(), case.calm(), case)),
    *(twin for case in [*TRACKED.values(), *SEGMENTS.values(), *TUNNELS.values()] for twin in (case.plain(), case)), *BEGUN.values(),
    *(idle(sleep) for _, sleep in WAITING.values())]))


# -- tables -----------------------------------------------------------------------------------------

def middle(row, key, decimals=0):
    """The median, or a dash."""
    return f"{row[key][1]:,.{decimals}f}" if row.get(key) else "-"


def ranged(row, key, decimals=0):
    """The median with the least and the greatest."""
    if not row.get(key):
        return "-"
    least, median, most = (f"{value:,.{decimals}f}" for value in row[key])
    return median if least == most else f"{median} ({least} to {most})"


def two(row, p50, p99):
    return f"{middle(row, p50, 1)} ({middle(row, p99)})" if row.get(p50) else "-"


def markdown(head, rows):
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


class Tables:
    """Each method is a table: its text, and the names of the records in it. Rows without a record are left out."""

    def __init__(self, results):
        self.results = results

    def of(self, case, contender):
        return self.results.get(case.name, {}).get(contender, {})

    def measured(self, rows):
        """The rows whose case has a record."""
        return {label: case for label, case in rows.items() if case.name in self.results}

    def label(self, label, case):
        """With a star where too much else ran."""
        worst = max((row.get("disturbed", [0])[-1] for row in self.results.get(case.name, {}).values()
                     if isinstance(row, dict)), default=0)
        return f"{label} \\*" if worst > 0.1 else label

    def pods(self):
        shown = {name: label for name, label in PODS.items() if name in self.results}
        rows = [[label, *(middle(self.results[name], key, decimals) for key, (_, decimals) in POD_COLUMNS.items())]
                for name, label in shown.items()]
        return markdown(["", *(title for title, _ in POD_COLUMNS.values())], rows), list(shown)

    def compared(self, cases, head, cells):
        """A row for each measured case: `cells` of Heddle's and Open vSwitch's numbers, and the ratio of cycles."""
        shown = self.measured(cases)
        rows = []
        for label, case in shown.items():
            heddle, ovs = self.of(case, "heddle"), self.of(case, "ovs")
            rows.append([self.label(label, case), *cells(case, heddle, ovs), ranged(heddle, "x_ovs", 2)])
        return markdown(["", *head, "cycles: x OVS"], rows), names(shown)

    def loaded(self):
        shown = {load: title for load, title in LOADED.items() if f"loaded-{load}" in self.results}
        rows = []
        for load, title in shown.items():
            rows.append([f"**{title}**", *[""] * len(LOADED_COLUMNS)])
            by = self.results[f"loaded-{load}"]
            rows += [[label, *(middle(by[name], key, decimals) for key, (_, decimals) in LOADED_COLUMNS.items())]
                     for name, label in LOADED_PORTS.items() if name in by]
        return markdown(["", *(title for title, _ in LOADED_COLUMNS.values())], rows), [f"loaded-{load}" for load in shown]

    def guests(self):
        return self.compared(
            GUESTS, ["Heddle Mpps", "OVS Mpps", "Heddle cycles", "OVS cycles", "one copy"],
            lambda case, heddle, ovs: [middle(heddle, "mpps", 1), middle(ovs, "mpps", 1), middle(heddle, "cycles"),
                                       middle(ovs, "cycles"), middle(self.of(case, "one-copy"), "cycles")])

    def flows(self):
        return self.compared(
            FLOWS, ["Heddle Mpps", "OVS Mpps", "Heddle cycles", "OVS cycles"],
            lambda _, heddle, ovs: [middle(heddle, "mpps", 1), middle(ovs, "mpps", 1), middle(heddle, "cycles"),
                                    middle(ovs, "cycles")])

    def added(self, cases):
        """Each case's cycles, and the cycles that it needs more than the case without its feature."""
        return self.compared(
            cases, ["Heddle cycles", "more by", "OVS cycles", "more by"],
            lambda _, heddle, ovs: [middle(heddle, "cycles"), ranged(heddle, "adds"), middle(ovs, "cycles"), ranged(ovs, "adds")])

    def recirculated(self):
        return self.added(RECIRCULATED)

    def tracked(self):
        return self.added(TRACKED)

    def segments(self):
        return self.added(SEGMENTS)

    def begun(self):
        return self.compared(
            BEGUN, ["Heddle, thousand/s", "OVS, thousand/s", "Heddle cycles", "OVS cycles"],
            lambda _, heddle, ovs: [middle(heddle, "new"), middle(ovs, "new"), middle(heddle, "cycles"), middle(ovs, "cycles")])

    def tunnels(self):
        return self.added(TUNNELS)

    def share(self, cases):
        shown = self.measured(cases)
        rows = [[self.label(label, case), *(ranged(self.of(case, name), "kept", 1) for name in ("heddle", "ovs"))]
                for label, case in shown.items()]
        return markdown(["", "Heddle keeps, %", "OVS keeps, %"], rows), names(shown)

    def kept(self):
        return self.share(KEPT)

    def storms(self):
        return self.share(STORMS)

    def waiting(self):
        shown = {label: (name, sleep) for label, (name, sleep) in WAITING.items() if idle(sleep).name in self.results}
        rows = []
        for label, (name, sleep) in shown.items():
            row = self.of(idle(sleep), name)
            rows.append([label, middle(row, "idle_alone", 1), middle(row, "idle_1000", 1), two(row, "p50_1000", "p99_1000")])
        return (markdown(["", "CPU idle, %", "CPU at 1 kpps, %", "us at 1 kpps"], rows),
                list(dict.fromkeys(idle(sleep).name for _, sleep in shown.values())))

    def latency(self):
        shown = LATENCIES if LATENCY.name in self.results else {}
        rows = [[label, two(self.of(LATENCY, name), "p50_100000", "p99_100000"),
                 two(self.of(LATENCY, name), "p50_1000000", "p99_1000000")] for label, name in shown.items()]
        return markdown(["", "us at 100 kpps", "us at 1 Mpps"], rows), [LATENCY.name] if shown else []

    def loading(self):
        rows, shown = [], []
        for label, (how, count) in RULE_LOADS.items():
            name = f"{count}-{how}"
            if name not in self.results:
                continue
            shown.append(name)
            heddle, ovs, alone = (self.results[name].get(who, {}) for who in ("heddle", "ovs", "sink"))
            rows.append([f"{count:,} rules, {label}", *(ranged(one, "seconds", 1) for one in (heddle, ovs, alone)),
                         middle(heddle, "bytes"), middle(ovs, "bytes")])
        return markdown(["", "Heddle, s", "OVS, s", "`ovs-ofctl` alone, s", "Heddle, B each", "OVS, B each"], rows), shown


def names(rows):
    return [case.name for case in rows.values()]


# Table -> part of `make bench BENCH=PART` that measures it.
PARTS = {"pods": "pods", "loaded": "loaded", "guests": "vhost", "latency": "vhost", "loading": "rules"}


class MixedRuns(Exception):
    """The records of one table are of several runs, which the text names."""


def described(run):
    """A run in words: when, of which commit, how often, where."""
    return f"{run['date']}, commit {run['commit']}, {run['how']}, {run['machine']}"


def run_of(table, shown, results):
    """The one run of a table's records."""
    runs = {}
    for name in shown:
        runs.setdefault(described(results[name]["run"]), []).append(name)
    if len(runs) > 1:
        lines = "\n".join(f"  {run}: {', '.join(names)}" for run, names in runs.items())
        raise MixedRuns(f"table '{table}' would mix records of {len(runs)} runs:\n{lines}\n"
                        f"Measure all of it in one run: make bench BENCH={PARTS.get(table, 'switch')}")
    return next(iter(runs))


def filled(table, results):
    """The text of a table, with its run."""
    body, shown = getattr(Tables(results), table)()
    if not shown:
        return f"Not measured with a known build yet: `make bench BENCH={PARTS.get(table, 'switch')}`."
    return f"{body}\n\nMeasured: {run_of(table, shown, results)}."


# -- the plot ---------------------------------------------------------------------------------------

LEFT, WIDTH, ROW, TOP = 250, 760, 19, 62
AXIS = (50, 20_000)
TICKS = (50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
COLORS = {"heddle": "#0b6fb8", "ovs": "#d1670a"}


def across(number, axis=AXIS):
    """Position of a number, of cycles or of `axis`, on a logarithmic axis."""
    low, high = map(math.log, axis)
    return LEFT + (WIDTH - LEFT - 20) * (math.log(min(max(number, axis[0]), axis[1])) - low) / (high - low)


def text(x, y, words, more=""):
    return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(words)}</text>'


def plot(results):
    """Busy cycles per packet, a panel for each table: the median as a point, a line from the least to the greatest."""
    out, y = [], TOP
    for table, title, cases in (("flows", "Flows and rules", FLOWS), ("recirculated", "Recirculated packets", RECIRCULATED),
                                ("tracked", "Tracked connections", TRACKED)):
        rows = Tables(results).measured(cases)
        if not rows:
            continue
        out += [text(10, y, title, 'font-weight="bold"'),
                text(LEFT, y, run_of(table, names(rows), results), 'fill="#555" font-size="10"')]
        first, top, y = len(out), y + 6, y + ROW
        for label, case in rows.items():
            out.append(text(LEFT - 10, y + 4, label, 'text-anchor="end"'))
            for name, color in COLORS.items():
                if cycles := results[case.name].get(name, {}).get("cycles"):
                    least, median, most = map(across, cycles)
                    out += [f'<path d="M{least:.1f} {y}H{most:.1f}" stroke="{color}" stroke-width="3" opacity=".4"/>',
                            f'<circle cx="{median:.1f}" cy="{y}" r="5" fill="{color}"/>']
            y += ROW
        out[first:first] = [f'<path d="M{across(tick):.0f} {top}V{y - ROW + 8}" stroke="#ddd"/>' for tick in TICKS]
        y += 14
    ticks = [text(across(tick), y, f"{tick:,}", 'text-anchor="middle" fill="#555"') for tick in TICKS]
    head = [text(10, 20, "Busy cycles of the switch's core per packet of 64 bytes (less is better)", 'font-size="15"')]
    for at, (name, label) in enumerate((("heddle", "Heddle"), ("ovs", "OVS-DPDK"))):
        head += [f'<circle cx="{LEFT + 10 + 90 * at}" cy="34" r="5" fill="{COLORS[name]}"/>', text(LEFT + 20 + 90 * at, 38, label)]
    return drawing(y + 12, [*head, *out, *ticks])


LOADED_AXIS = (5, 20_000)
LOADED_TICKS = (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


def plot_loaded(results):
    """One-way latency beside loads, a panel for each: p50 as a ring, p99 as a point, medians of the rounds."""
    def at(us):
        return across(us, LOADED_AXIS)
    out, y = [], TOP
    for load, title in LOADED.items():
        by = results.get(f"loaded-{load}", {})
        rows = {label: by[name] | {"color": COLORS.get(name.partition("-")[0], "#666")}
                for name, label in LOADED_PORTS.items() if name in by}
        if not rows:
            continue
        out += [text(10, y, title, 'font-weight="bold"'), text(LEFT, y, run_of("loaded", [f"loaded-{load}"], results),
                                                               'fill="#555" font-size="10"')]
        first, top, y = len(out), y + 6, y + ROW
        for label, row in rows.items():
            out.append(text(LEFT - 10, y + 4, label, 'text-anchor="end"'))
            p50, p99 = (at(row[key][1]) for key in ("p50_us", "p99_us"))
            out += [f'<path d="M{p50:.1f} {y}H{p99:.1f}" stroke="{row["color"]}" stroke-width="3" opacity=".4"/>',
                    f'<circle cx="{p50:.1f}" cy="{y}" r="4" fill="#fff" stroke="{row["color"]}"/>',
                    f'<circle cx="{p99:.1f}" cy="{y}" r="5" fill="{row["color"]}"/>']
            y += ROW
        out[first:first] = [f'<path d="M{at(tick):.0f} {top}V{y - ROW + 8}" stroke="#ddd"/>' for tick in LOADED_TICKS]
        y += 14
    ticks = [text(at(tick), y, f"{tick:,}", 'text-anchor="middle" fill="#555"') for tick in LOADED_TICKS]
    head = [text(10, 20, "One way of a datagram beside loads, us: p50 (ring) and p99 (point); less is better", 'font-size="15"')]
    for place, (label, color) in enumerate((("Heddle", COLORS["heddle"]), ("Open vSwitch", COLORS["ovs"]), ("the kernel", "#666"))):
        head += [f'<circle cx="{LEFT + 10 + 110 * place}" cy="34" r="5" fill="{color}"/>', text(LEFT + 20 + 110 * place, 38, label)]
    return drawing(y + 12, [*head, *out, *ticks])


def drawing(height, parts):
    """A picture of this height."""
    return "\n".join(['<svg xmlns="http://www.w3.org/2000/svg" '
                      f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
                      'font-family="sans-serif" font-size="12">',
                      f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])
