"""Makes a failing case small: packets, flows, ports, patches, match fields and actions go one by one.

`fails(case)` runs the case and returns whether it still fails in the same way. The result fails; taking away
any one part that was tried within the time does not.
"""

import copy
import time


def _without(case, key, index):
    smaller = copy.deepcopy(case)
    del smaller[key][index]
    return smaller


def _port_removals(case):
    used = {packet["port"] for packet in case["packets"]}
    for index, port in enumerate(case["ports"]):
        if port["name"] not in used:
            yield _without(case, "ports", index)


def _bridge_removals(case):
    for index, bridge in enumerate(case["bridges"]):
        name = bridge["name"]
        if case.get("tunnels") or len(case["bridges"]) == 1:
            continue
        if not any(name == port["bridge"] for port in case["ports"]) and \
                not any(name in patch["bridges"] for patch in case["patches"]):
            smaller = _without(case, "bridges", index)
            for key in ("flows", "groups", "meters"):
                smaller[key] = [row for row in case.get(key, []) if row["bridge"] != name]
            yield smaller


def _inner_removals(case):
    for key, parts in (("flows", ("match", "actions", "extra")), ("ports", ("settings",)), ("bridges", ("settings",))):
        for index, row in enumerate(case[key]):
            for part in parts:
                for at in range(len(row[part])):
                    if str(row[part][at]).startswith("other_config:hwaddr"):
                        continue  # else it is made up, and differs
                    if part == "actions" and len(row[part]) == 1:
                        continue
                    smaller = copy.deepcopy(case)
                    del smaller[key][index][part][at]
                    yield smaller


def candidates(case):
    """Cases that lack one part of this one, the big parts first."""
    for key in ("packets", "flows", "groups", "meters", "patches", "tunnels"):
        for index in reversed(range(len(case.get(key, [])))):
            yield _without(case, key, index)
    yield from _port_removals(case)
    yield from _bridge_removals(case)
    yield from _inner_removals(case)


def minimise(case, fails, seconds=60):
    end = time.monotonic() + seconds
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for smaller in candidates(case):
            if time.monotonic() > end:
                break
            if fails(smaller):
                case, progress = smaller, True
                break
    return case
