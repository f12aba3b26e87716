"""Contenders in turns: the part that bench/vhost and bench/switch share."""

import argparse
import contextlib
import os
import platform
import re
import signal
import statistics
import sys

from dpdk import Hugepages, Unavailable, fetch
from lab import daemon_path
from results import write
from vhost_switches import GENERATOR_CORE, SWITCH_CORE, Failed, contenders

DPDK_PAGES, GUEST_PAGES = 560, 256
IDLE = (("alone", "without guests"), (1, "at 1 pps"), (1000, "at 1 kpps"))
RATES = (100e3, 1e6, 0.9)  # packets per second; at most 1: a share of the maximum


def parse(doc, groups, quick, rounds=5):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true",
                        help="a few cases (or those of --group), one round of 0.3 s")
    parser.add_argument("--group", help=f"groups of cases: {', '.join(groups)}")
    parser.add_argument("--cases", help="a regular expression on the cases' names")
    parser.add_argument("--only", help="contenders: heddle, ovs, ovs-tso, one-copy, two-copies, rings, wake; before: the daemon $HEDDLED_BEFORE")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--json", help="where to write the numbers (default: in target/bench)")
    args = parser.parse_args()
    args.rounds = args.rounds or (1 if args.quick else rounds)
    args.seconds = args.seconds or (0.3 if args.quick else 2.0)
    if args.group and not set(args.group.split(",")) - set(groups):
        cases = [case for name in args.group.split(",") for case in groups[name]]
    else:
        cases = quick if args.quick else [case for group in groups.values() for case in group]
    if args.group and set(args.group.split(",")) - set(groups):
        parser.error("no group of that name")
    # Some belong to two groups.
    args.cases = [case for case in dict.fromkeys(cases) if re.search(args.cases or "", case.name)]
    if not args.cases:
        parser.error("no case of that name")
    return args


def generator():
    """The command `heddle` beside the daemon under test."""
    path = os.path.join(os.path.dirname(daemon_path()), "heddle")
    if not os.access(path, os.X_OK):
        sys.exit(f"bench: no {path} (cargo build --release -p heddle-ctl)")
    return path


def shown(row):
    """One result in a line."""
    parts = [f"{row['received_pps'] / 1e6:7.3f} Mpps received"]
    if row.get("cycles"):
        parts.append(f"{row['cycles']:6.0f} cycles")
    if row.get("hits"):
        parts.append("hits " + " ".join(f"{level} {percent:.1f}" for level, percent in row["hits"].items() if percent)
                     + "".join(f" ({masks:.1f} masks)" for masks in row["lookups"]))
    parts.append(f"loss {row['loss'] * 100:6.3f} %")
    if row.get("tso"):
        parts.append(f"{row['received_gbps']:6.1f} Gbit/s")
    if row.get("pairs"):
        established, storm = row["pairs"][:2]
        parts.append(f"established kept {row['kept'] * 100:5.1f} %, p99 {established['latency']['p99_us']:.0f} us, "
                     f"longest {established['latency']['max_us']:.0f} us"
                     if established.get("latency") else f"established kept {row['kept'] * 100:5.1f} %")
        parts.append(f"storm {storm['received_pps'] / 1e6:.3f} Mpps")
    if row.get("installed") is not None:
        parts.append(f"{row['installed']} flows in the datapath")
    if row.get("connections") is not None:
        parts.append(f"{row['connections']} connections")
    if row.get("new_connections", 0) > 1:
        parts.append(f"{row['new_connections'] / 1e3:.0f} thousand new a second")
    if row.get("longest_iteration"):
        above, to = row["longest_iteration"]
        parts.append(f"longest iteration {f'up to {to}' if to else f'over {above}'} cycles")
    if row.get("changes"):
        parts.append(f"{row['changes']:.0f} rules changed a second")
    if "idle_alone" in row:
        parts.append("CPU %: " + ", ".join(f"{row[f'idle_{key}'] * 100:.2f} {what}" for key, what in IDLE))
    if "p50_1" in row:
        parts.append(", ".join(f"{key} pps: p50 {row[f'p50_{key}']:.1f} p99 {row[f'p99_{key}']:.1f} us" for key, _ in IDLE[1:]))
    for rate in row.get("latency_at", []):
        parts.append(f"{rate['asked'] / 1e3:.0f} kpps: p50 {rate['p50_us']:.2f} p99 {rate['p99_us']:.2f} us")
    parts.append(f"line {row['line_ns']:.0f} ns" if row.get("line_ns") else "line unknown")
    if row.get("disturbed", 0) > 0.05:
        # A tenth of the core in other hands exceeds the differences that are compared here.
        worthless = ": worthless" if row["disturbed"] > 0.1 else ""
        parts.append(f"disturbed {row['disturbed'] * 100:.0f} %{worthless}")
    return "  ".join(parts)


def latencies(contender, case, seconds, maximum):
    """p50 and p99 at fixed rates."""
    found = []
    for rate in RATES:
        asked = rate if rate > 1 else rate * maximum
        row = contender.measure(case, seconds, asked)
        if row.get("latency"):
            found.append({"asked": asked, "share": rate if rate <= 1 else None, "received": row["received_pps"],
                          "loss": row["loss"], "p50_us": row["latency"]["p50_us"], "p99_us": row["latency"]["p99_us"]})
    return found


def measure(contender, case, seconds):
    """One contender's turn."""
    contender.thaw()
    try:
        row = contender.idle(case, seconds) if case.idle else contender.measure(case, seconds)
        row["tso"] = case.tso
        if case.storm:
            row["kept"] = row["pairs"][0]["received_pps"] / case.established
        if case.latency:
            row["latency_at"] = latencies(contender, case, seconds, row["received_pps"])
        return row
    finally:
        contender.freeze()


def spread(values, form):
    """min, median, max."""
    if not values:
        return f"{'-':>24}"
    return " ".join(f"{value:{form}}" for value in (min(values), statistics.median(values), max(values)))


def ratios(rows, base, key):
    """Ratios within each round."""
    pairs = [(row.get(key), other.get(key)) for row, other in zip(rows, base or []) if row and other]
    return [a / b for a, b in pairs if a and b]


def added(rows, base):
    """Cycles per packet of each round, less those of the same round in `base`."""
    return [row["cycles"] - other["cycles"] for row, other in zip(rows, base or [])
            if row and other and row.get("cycles") and other.get("cycles")]


def table(case, every):
    results = every[case]
    print(f"\n{case.name}")
    print(f"  {'':11} {'Mpps min  median     max':>24}  {'cycles min median    max':>24}   "
          f"{'rate: x OVS (min-max)':>22}  {'x one copy':>10}  {'cycles: x OVS':>20}")
    ovs = results.get("ovs-tso" if case.tso else "ovs")
    floor = results.get("one-copy")
    for name, rows in results.items():
        good = [row for row in rows if row]
        if not good:
            continue
        pps = [row["received_pps"] / 1e6 for row in good]
        cycles = [row["cycles"] for row in good if row.get("cycles")]
        by_ovs, by_floor, fewer = (ratios(rows, base, key) for base, key in (
            (ovs, "received_pps"), (floor, "received_pps"), (ovs, "cycles")))

        def one(values):
            return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"
        print(f"  {name:11} {spread(pps, '7.3f'):>24}  {spread(cycles, '7.0f'):>24}   {one(by_ovs):>22}  "
              f"{f'{statistics.median(by_floor):.2f}' if by_floor else '-':>10}  {one(fewer):>20}")
    for name, rows in results.items():
        kept = [row["kept"] * 100 for row in rows if row and "kept" in row]
        if kept:
            print(f"  {name:11} established traffic kept, %: {spread(kept, '6.1f')}")
    plain, calm = every.get(case.plain(), {}), every.get(case.calm(), {})
    for name, rows in results.items():
        what = "tracking" if case.ct else "the tunnel" if case.tunnel else "recirculating"
        if (case.recirc or case.ct or case.tunnel) and not case.storm and added(rows, plain.get(name)):
            print(f"  {name:11} {what} adds, cycles: {spread(added(rows, plain.get(name)), '6.0f')}")
        if case.tunnel == "through" and added(rows, every.get(case.only_out(), {}).get(name)):
            print(f"  {name:11} coming out adds, cycles: {spread(added(rows, every[case.only_out()].get(name)), '6.0f')}")
        new = [row["new_connections"] / 1e3 for row in rows if row and case.new and "new_connections" in row]
        if new:
            print(f"  {name:11} new connections, thousand a second: {spread(new, '6.0f')}")
        rates = ratios(rows, calm.get(name), "received_pps")
        if case.changes and rates:
            rates = [rate * 100 for rate in rates]
            print(f"  {name:11} of the rate without changes, %: {spread(rates, '6.1f')}")
    for name, rows in results.items():
        for key, what in IDLE:
            share, p50, p99 = ([row[f"{kind}_{key}"] * scale for row in rows if row and f"{kind}_{key}" in row]
                               for kind, scale in (("idle", 100), ("p50", 1), ("p99", 1)))
            if share or p50:
                print(f"  {name:11} {what:14} CPU %: {spread(share, '7.2f')}   p50 us {spread(p50, '7.1f')}   p99 us {spread(p99, '7.1f')}")
    for name, rows in results.items():
        at = [row["latency_at"] for row in rows if row and row.get("latency_at")]
        for points in zip(*at):
            p50, p99 = ([point[key] for point in points] for key in ("p50_us", "p99_us"))
            asked = statistics.median(point["asked"] for point in points)
            print(f"  {name:11} at {asked / 1e3:7.0f} kpps: p50 us {spread(p50, '6.2f')}   p99 us {spread(p99, '7.2f')}")


def turns(args, made, pages, told=shown):
    """Sets the contenders up, has them take turns with the cases, and returns case -> contender -> rows. `pages` are the hugepages
    that this takes, `told` makes a line of a row. Those that cannot be set up are taken out of `made`."""
    results = {case: {one: [] for one, c in made.items() if c.able(case)} for case in args.cases}
    ports = max(case.ports for case in args.cases)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(Hugepages(pages))
        except Unavailable as why:
            sys.exit(f"bench: {why}")
        try:
            for which, contender in list(made.items()):
                try:
                    contender.setup(ports)
                except (Failed, AssertionError, OSError) as why:
                    print(f"{which} is not measured: {why}")
                    contender.close()
                    del made[which]
                else:
                    contender.freeze()
            for number in range(args.rounds):
                for case in args.cases:
                    for which, contender in made.items():
                        if which not in results[case]:
                            continue
                        try:
                            row = measure(contender, case, args.seconds)
                        except (Failed, AssertionError, OSError) as why:
                            print(f"  round {number + 1} {case.name:24} {which:11} failed: {why}", flush=True)
                            row = None
                        else:
                            print(f"  round {number + 1} {case.name:24} {which:11} {told(row)}", flush=True)
                        results[case][which].append(row)
        finally:
            for contender in made.values():
                contender.close()
    return results


def able_here():
    """Ends the program where nothing can be measured."""
    if os.geteuid() != 0:
        sys.exit("bench: hugepages and sockets of a switch need root")
    if (os.cpu_count() or 1) < 2:
        sys.exit("bench: two cores are needed, one for the generator and one for the switch")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def peer(names):
    """Debian's OVS-DPDK, if it is wanted and to be had."""
    if names and not any(one.startswith("ovs") for one in names):
        return None
    try:
        return fetch()
    except Unavailable as why:
        print(f"OVS-DPDK is not measured: {why}")
        return None


def hugepages(made):
    """Hugepages that these contenders and the generator need."""
    return GUEST_PAGES + DPDK_PAGES * sum(one.startswith("ovs") for one in made)


def main(name, doc, groups, quick):
    """The whole program: `name` is its name, `groups` has its cases by group, `quick` those of a short
    run."""
    args = parse(doc, groups, quick)
    able_here()
    names = args.only.split(",") if args.only else None
    made = contenders(daemon_path(), generator(), peer(names), names, any(case.tso for case in args.cases))
    print(f"{len(args.cases)} cases, {args.rounds} rounds of {args.seconds:g} s; generator on core {GENERATOR_CORE}, switch on core "
          f"{SWITCH_CORE}; Linux {platform.release()}", flush=True)
    results = turns(args, made, hugepages(made))
    for case in args.cases:
        table(case, results)
    print("\nCycles: busy cycles of the switch's core per packet. Ratios: median (min-max) of the ratios within each round.")
    write(args.json, name, f"{args.rounds} x {args.seconds:g} s",
          {case.name: rows for case, rows in results.items()}, rounds=args.rounds, seconds=args.seconds,
          cores={"generator": GENERATOR_CORE, "switch": SWITCH_CORE})
