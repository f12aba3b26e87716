#!/usr/bin/env python3
"""Workers: queues are assigned, moved and shown; `heddle top`."""

import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import main


def dummy_switch(lab):
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", "--dummy-numa=0,0,0,0", netns=False)
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x3", "--", "add-port", "br0", "p1", "--", "set",
             "interface", "p1", "type=dummy-pmd", "options:n_rxq=4")
    return sw


def places(sw):
    """(queue, core) of each queue."""
    core, found = None, []
    for line in sw.appctl("dpif-netdev/pmd-rxq-show").splitlines():
        if "core_id" in line:
            core = int(line.split("core_id")[1].strip(" :\n"))
        elif "queue-id:" in line:
            found.append((int(line.split("queue-id:")[1].split()[0]), core))
    return sorted(found)


def scenario_queues_move(lab):
    sw = dummy_switch(lab)
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-rxq-assign=roundrobin")
    assert places(sw) == [(0, 0), (1, 1), (2, 0), (3, 1)], places(sw)
    sw.vsctl("set", "interface", "p1", "other_config:pmd-rxq-affinity=0:1")
    assert places(sw) == [(0, 1), (1, 0), (2, 0), (3, 0)], places(sw)
    assert "requested" in sw.appctl("dpif-netdev/pmd-rxq-rebalance")
    sw.vsctl("set", "interface", "p1", "other_config:pmd-rxq-affinity=\"junk,0:1\"")
    assert places(sw) == [(0, 1), (1, 0), (2, 0), (3, 0)], places(sw)
    assert sw.log().count("p1: pmd-rxq-affinity: 'junk' is no pair queue:processor") == 1
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x4")
    assert places(sw) == [(q, 2) for q in range(4)], places(sw)


def scenario_sleep_settings(lab):
    sw = dummy_switch(lab)
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-sleep-max=\"50,1:30\"")
    shown = sw.appctl("dpif-netdev/pmd-sleep-show")
    assert shown == ("Default max sleep:   50 us\npmd thread numa_id 0 core_id 0:\n  max sleep:   50 us\n"
                     "pmd thread numa_id 0 core_id 1:\n  max sleep:   30 us\n"), shown
    for value, default in (("0", "   0 us (never sleeps)"), ("20000", "10000 us"), ("x", "   0 us (not set: sleeps until woken)")):
        sw.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-sleep-max={value}")
        shown = sw.appctl("dpif-netdev/pmd-sleep-show")
        assert shown.startswith(f"Default max sleep: {default}\n") and shown.count(default) == 3, shown
    assert "pmd-sleep-max: 'x' is not understood" in sw.log()


def scenario_masks_that_name_nothing(lab):
    sw = dummy_switch(lab)
    for mask, words in (("0xf0", "none of the processors that pmd-cpu-mask names can be used"), ("0", "names no processor")):
        sw.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={mask}")
        assert words in sw.log(), mask
        assert {core for _, core in places(sw)} == {0}, places(sw)


def scenario_statistics_and_top(lab):
    sw = dummy_switch(lab)
    sw.ofctl("add-flow", "br0", "actions=drop")
    for _ in range(5):
        sw.appctl("netdev-dummy/receive", "p1", "50540000000a50540000000908004500" + "00" * 40)
    stats = json.loads(sw.appctl("heddle/stats"))
    assert sum(w["counters"]["packets"] for w in stats["workers"]) == 5, stats
    assert [q["queue"] for q in stats["queues"] if q["port"] == "p1"] == [0, 1, 2, 3], stats
    heddle = os.path.join(os.path.dirname(os.path.realpath(sw.binary)), "heddle")
    if not os.path.exists(heddle):
        return  # Built apart from the daemon.
    socket = next(os.path.join(sw.dir, f) for f in os.listdir(sw.dir)
                  if f.endswith(".ctl") and not f.startswith("ovsdb"))
    text = subprocess.run([heddle, "top", "--once", "--interval", "0.2", "--target", socket], capture_output=True, text=True,
                          timeout=20, check=True).stdout
    assert "WORKER" in text and "p1" in text and "drop_action" in text, text


if __name__ == "__main__":
    main()
