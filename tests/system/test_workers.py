#!/usr/bin/env python3
"""Workers: queues are assigned, moved under traffic and shown; sleep; settings that make no sense."""

import json
import os
import random
import re
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import wait_for
from lab.sequence import Sequence, at_random
from lab.vhost import Load, heddle_path


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


def owners(sw):
    """The processor of each port's first queue."""
    core, found = None, {}
    for line in sw.appctl("dpif-netdev/pmd-rxq-show").splitlines():
        if "core_id" in line:
            core = int(line.split("core_id")[1].strip(" :\n"))
        elif "queue-id:  0" in line:
            found[line.split()[1]] = core
    return found


def config(sw, **settings):
    sw.vsctl("set", "Open_vSwitch", ".", *(f"other_config:{key.replace('_', '-')}={value}" for key, value in settings.items()))


def loaded(lab, names, *args, switch_args=()):
    """A switch with guests: each sends to the next named one, as fast as `args` allow, until the test has
    enough packets."""
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("one processor")
    sw = lab.switch(*switch_args)
    if sw.is_reference:
        raise Skip("the reference has no DPDK")
    lab.bridge(sw, "br0", "fail_mode=secure")
    config(sw, pmd_cpu_mask="0x3")
    # Numbers of ports follow their names, so that queues are taken in that order.
    for name in sorted(names):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dpdkvhostuserclient",
                 f"options:vhost-server-path={sw.dir}/{name}.sock")
    for a, b in zip(names[::2], names[1::2]):
        sw.ofctl("add-flow", "br0", f"in_port={a},actions=output:{b}")
        sw.ofctl("add-flow", "br0", f"in_port={b},actions=output:{a}")
    return sw, Load(lab, names, sw.dir, *args).measuring()


def nothing_unexplained(sw, result):
    """Missing packets were dropped by name, because a guest's ring was full, and for no other reason."""
    drops = json.loads(sw.appctl("heddle/stats"))["drops"]
    lost = result["sent_total"] - result["received_total"]
    named = {name: n for name, n in drops.items() if n}
    assert lost == named.pop("datapath_drop_tx_full", 0), (lost, drops)
    # Packets that guests send when they come, before rules.
    assert set(named) <= {"drop_action_of_pipeline", "datapath_drop_tx_down"}, named


@limit(450)
def scenario_a_loaded_worker_gives_a_queue_away(lab):
    """Automatic balancing: by `cycles`, both senders' queues begin at one worker, and one of them moves; nothing is lost in moving, or overtaken."""
    sw, load = loaded(lab, ["p1", "p3", "p2", "p4"], switch_args=["--enable-dummy"])
    before = owners(sw)
    assert before["p1"] == before["p2"] != before["p3"], before
    config(sw, pmd_auto_lb="true", pmd_auto_lb_load_threshold=0, pmd_auto_lb_rebal_interval=1)
    # The clock runs faster: workers are old enough at once, and then a minute's load is measured.
    sw.appctl("time/stop")
    sw.appctl("time/warp", "70000", "5000")
    began = time.monotonic()
    while (after := owners(sw))["p1"] == after["p2"]:
        assert load.running() and time.monotonic() < began + 150, (after, sw.appctl("dpif-netdev/pmd-rxq-show"))
        for _ in range(6):
            time.sleep(0.3)
            sw.appctl("time/warp", "2000")
    log = sw.log()
    assert "PMD auto load balance dry run. Requesting datapath reconfigure." in log
    assert "Performing pmd to rx queue assignment using cycles algorithm." in log
    nothing_unexplained(sw, load.finish())


@limit(450)
def scenario_everything_changes_under_traffic(lab):
    """Mask, modes, affinity, isolation, queues, other ports: at random while packets flow, which all arrive, in order."""
    names = ["p1", "p2", "p3", "p4"]
    sw, load = loaded(lab, names, "--rate", "20000", "--both")
    dice, changes = random.Random(7), 0

    def affinity():
        port = dice.choice(names)
        value = dice.choice(["0:0", "0:1", "0:7", "0:0,1:1", ""])
        sw.vsctl("set", "interface", port, f'other_config:pmd-rxq-affinity="{value}"')

    def port():
        sw.vsctl("--may-exist", "add-port", "br0", "other", "--", "set", "interface", "other", "type=internal")
        if dice.random() < 0.5:
            sw.vsctl("del-port", "other")
    kinds = [
        lambda: config(sw, pmd_cpu_mask=dice.choice(["1", "2", "3", "0x3", "ff", '""'])),
        lambda: config(sw, pmd_rxq_assign=dice.choice(["cycles", "roundrobin", "group"])),
        lambda: config(sw, pmd_rxq_isolate=dice.choice(["true", "false"])),
        lambda: config(sw, pmd_sleep_max=dice.choice(["0", "100", "1:50", '""'])),
        lambda: sw.appctl("dpif-netdev/pmd-rxq-rebalance"),
        affinity, port,
    ]
    over = time.monotonic() + 10
    while time.monotonic() < over or changes < 40:
        dice.choice(kinds)()
        changes += 1
    # Queues that no worker polls, because all are isolated, have to be emptied before the load ends.
    for name in names:
        sw.vsctl("remove", "interface", name, "other_config", "pmd-rxq-affinity")
    assert load.running()
    lab.trace.note(f"{changes} changes")
    nothing_unexplained(sw, load.finish())


def scenario_taps_move_too(lab):
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("moves what is not polled by workers there")
    lab.bridge(sw)
    config(sw, pmd_cpu_mask="0x3")
    pods = [lab.internal_pod(sw, name, f"10.1.0.{i}/24") for i, name in enumerate(("a", "b"), 1)]
    for ns, dev in zip(pods, ("a0", "b0")):
        # Room for packets while no worker runs.
        lab.net.ip(ns, "link", "set", dev, "txqueuelen", "10000")
    lab.net.ping(pods[0], "10.1.0.2")
    run = Sequence(lab, pods[0], pods[1], "10.1.0.2")
    seen = set()
    for i in range(40):
        core = i % 2
        sw.vsctl("set", "interface", "a0", f"other_config:pmd-rxq-affinity=0:{core}")
        seen.add(owners(sw)["a0"])
        if i % 8 == 0:
            config(sw, pmd_cpu_mask=("0x2", "0x3")[i % 16 > 0])
    run.finish()
    assert seen == {0, 1}, seen


@limit(420)
def scenario_balancing_takes_its_time(lab):
    """Automatic balancing by the wall clock: below the load threshold nothing moves, above it a queue does,
    unless that would improve nothing."""
    if not os.environ.get("HEDDLE_SLOW"):
        raise Skip("takes six minutes: with HEDDLE_SLOW=1")
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("one processor")
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("taps are not balanced there")
    lab.bridge(sw)
    config(sw, pmd_cpu_mask="0x3")
    pods = [lab.internal_pod(sw, f"p{i}", f"10.1.0.{i + 1}/24") for i in range(8)]
    for i, ns in enumerate(pods):
        lab.net.ip(ns, "link", "set", f"p{i}0", "txqueuelen", "10000")
    for i in range(0, 8, 2):
        lab.net.ping(pods[i], f"10.1.0.{i + 2}")

    def moved(seconds):
        """Whether a queue that has packets moves within that time."""
        was, over = owners(sw), time.monotonic() + seconds
        while time.monotonic() < over:
            time.sleep(2)
            if any(owners(sw)[name] != was[name] for name in names):
                return True
        return False
    senders = [f"p{i}0" for i in range(0, 8, 2)]
    on = owners(sw)
    first = senders[0]
    names = [first, next(name for name in senders[1:] if on[name] == on[first])]
    runs = [Sequence(lab, pods[int(name[1])], pods[int(name[1]) + 1], f"10.1.0.{int(name[1]) + 2}", gap=0.0003) for name in names]
    sw.appctl("vlog/set", "dpif_netdev:file:dbg")
    config(sw, pmd_auto_lb="true", pmd_auto_lb_rebal_interval=1, pmd_auto_lb_load_threshold=95, pmd_auto_lb_improvement_threshold=0)
    assert not moved(135) and "performing dry run" not in sw.log()
    config(sw, pmd_auto_lb_load_threshold=1, pmd_auto_lb_improvement_threshold=1)
    assert moved(70), sw.appctl("dpif-netdev/pmd-rxq-show")
    assert "threshold 1% is met" in sw.log()
    config(sw, pmd_auto_lb_improvement_threshold=50)
    # The load of the minute before is still that of one worker.
    assert not moved(130) and "threshold 50% is not met" in sw.log()
    after = owners(sw)
    assert after[names[0]] != after[names[1]], after
    for run in runs:
        run.finish()
        lab.trace.note(f"{run.sent} packets, the slowest took {run.slowest * 1000:.1f} ms")


@limit(450)
def scenario_single_packets_wake_workers(lab):
    """One packet after a pause of any length; each arrives before the next is sent: none is left between
    arming and sleeping."""
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("its workers do not sleep")
    lab.bridge(sw)
    pods = [lab.internal_pod(sw, name, f"10.1.0.{i}/24") for i, name in enumerate(("a", "b"), 1)]
    lab.net.ping(pods[0], "10.1.0.2")
    guests = [f"{sw.dir}/{name}.sock" for name in ("g1", "g2")]
    for path in guests:
        name = os.path.basename(path)[:2]
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dpdkvhostuserclient",
                 f"options:vhost-server-path={path}")
    for sleep, ring in (('""', ()), ("60", ("--packed",)), ('""', ("--event-idx",)), ("200", ("--packed", "--event-idx"))):
        config(sw, pmd_sleep_max=sleep)
        run = Sequence(lab, pods[0], pods[1], "10.1.0.2", at_random(0.0004), alone=True)
        wait_for("600 packets", lambda: run.sent >= 600)
        run.finish()
        lab.trace.note(f"pmd-sleep-max={sleep}: {run.sent} packets, the slowest {run.slowest * 1e3:.2f} ms")
        if os.access(heddle_path(), os.X_OK):
            lab.trace.run(heddle_path(), "bench", "ping", *(f"--port=listen:{path}" for path in guests), "--count", "2000", "--pause",
                          "200", "--patience", "60", "--huge", "no", *ring, timeout=200)
    # Or nothing of this was about sleep.
    run = Sequence(lab, pods[0], pods[1], "10.1.0.2", at_random(0.0004), alone=True)
    wait_for("sleeps", lambda: sum(w["counters"]["sleeps"] for w in json.loads(sw.appctl("heddle/stats"))["workers"]) > 1000)
    run.finish()


@limit(450)
def scenario_idle_times_and_limits_see_cached_traffic(lab):
    """`idle_timeout` and `max-idle` count from the last packet, whichever cache it hit; `flow-limit` and
    `emc-insert-inv-prob` hold."""
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("its caches are not so exact")
    lab.bridge(sw)
    pods = [lab.internal_pod(sw, name, f"10.1.0.{i}/24") for i, name in enumerate(("a", "b"), 1)]
    lab.net.ping(pods[0], "10.1.0.2")
    config(sw, max_idle=1000)

    def kept():
        """Returns None if this machine stood still for so long that the flows may really have been idle."""
        sw.ofctl("add-flow", "br0", "priority=9,udp,in_port=a0,idle_timeout=2,actions=NORMAL")
        run = Sequence(lab, pods[0], pods[1], "10.1.0.2", 0.01)
        wait_for("500 packets", lambda: run.sent >= 500)
        # Neither the rule nor the cached flow has been idle, though no packet but the first was translated for.
        rules = sw.ofctl("dump-flows", "br0")
        cached = [line for line in sw.appctl("dpctl/dump-flows").splitlines() if "proto=17" in line]
        wait_for("the end of others", lambda: int(json.loads(sw.appctl("heddle/stats"))["flows"]) <= 4)
        run.finish()
        if "idle_timeout=2" in rules and len(cached) == 1 and int(cached[0].split("packets:")[1].split(",")[0]) > 300:
            return True
        assert run.pause > 0.3, (rules, cached, run.pause)
        return None
    wait_for("a time without long pauses", kept, 150)
    wait_for("the cached flow's end", lambda: "proto=17" not in sw.appctl("dpctl/dump-flows"))
    wait_for("the rule's end", lambda: "idle_timeout=2" not in sw.ofctl("dump-flows", "br0"))
    # A flow for each port; no more are cached than may be.
    rules = "".join(f"priority=9,udp,tp_dst={port},actions=drop\n" for port in [*range(1000, 1200), 2000, 2007])
    sw.ofctl("add-flows", "br0", "-", stdin=rules)
    config(sw, max_idle=30000, flow_limit=10)
    sock = lab.net.socket(pods[0], lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    for port in range(1000, 1200):
        sock.sendto(b"x", ("10.1.0.2", port))
        time.sleep(0.001)
    stats = json.loads(sw.appctl("heddle/stats"))
    # Some entries are kept until the limit is reached; the remaining number depends on time.
    turned_away = sum(w["counters"]["limit_hits"] for w in stats["workers"])
    assert stats["flows"] <= 14 and 1 <= turned_away <= 195, stats
    config(sw, flow_limit=200000)
    for prob, least, most in ((1, 50, 420), (0, 0, 0)):
        config(sw, emc_insert_inv_prob=prob)
        for i in range(420):
            if i == 20:
                sw.appctl("dpif-netdev/pmd-stats-clear")
            sock.sendto(b"x", ("10.1.0.2", 2000 + i % 2 * 7))
            time.sleep(0.002)

        def hits():
            shown = sw.appctl("dpif-netdev/pmd-stats-show")
            return sum(int(line.split(":")[1]) for line in shown.splitlines() if "emc hits" in line)
        wait_for(f"hits with emc-insert-inv-prob={prob}", lambda: hits() >= least)
        assert hits() <= most, (prob, hits())
    sock.close()


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
    sw.vsctl("set", "interface", "p1", "other_config:pmd-rxq-affinity=\"0:1,9:0\"")
    assert sw.log().count("p1: pmd-rxq-affinity names queue 9, and there are 4 now") == 1
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=0x4")
    assert places(sw) == [(q, 2) for q in range(4)], places(sw)


def scenario_sleep_settings(lab):
    sw = dummy_switch(lab)
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-sleep-max=\"50,1:30\"")
    shown = sw.appctl("dpif-netdev/pmd-sleep-show")
    assert shown == ("Default max sleep:   50 us\npmd thread numa_id 0 core_id 0:\n  max sleep:   50 us\n"
                     "pmd thread numa_id 0 core_id 1:\n  max sleep:   30 us\n"), shown
    # The setting names a worker that does not exist: its sleep is not logged.
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-sleep-max=\"50,9:5\"")
    log = sw.log()
    assert "pmd-sleep-max names core 9, which has no PMD thread now" in log and "on core 9 pause" not in log, log
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


def scenario_settings_of_what_is_not_there(lab):
    """The settings change nothing, and the log reports that."""
    sw = dummy_switch(lab)
    if sw.is_reference:
        raise Skip("it has all of that")
    sw.vsctl("set", "interface", "p1", "cfm_mpid=1", "lldp:enable=true", "--", "set", "Open_vSwitch", ".",
             "other_config:heddle-light-sleep=perhaps")
    for words in ("interface p1: cfm_mpid is not supported yet", "interface p1: lldp is not supported yet",
                  "heddle-light-sleep=perhaps is neither true nor false: false is used"):
        assert sw.log().count(words) == 1, words


def scenario_workers_before_other_programs(lab):
    """`heddle-realtime` gives workers a real-time priority, new ones too, and takes it away."""
    sw = dummy_switch(lab)
    if sw.is_reference:
        raise Skip("it has no such setting")
    policies = lambda: set(each_worker(sw, lambda tid: os.sched_getscheduler(tid) & ~os.SCHED_RESET_ON_FORK).values())
    assert policies() == {os.SCHED_OTHER}, policies()
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:heddle-realtime=true")
    assert policies() == {os.SCHED_RR}, policies()
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:pmd-cpu-mask=1")
    assert policies() == {os.SCHED_RR}, policies()
    sw.vsctl("remove", "Open_vSwitch", ".", "other_config", "heddle-realtime")
    assert policies() == {os.SCHED_OTHER}, policies()


def each_worker(sw, what):
    """Names of the daemon's workers, with the result of a function of their thread numbers."""
    tasks = f"/proc/{sw.pid}/task"
    names = {}
    for tid in os.listdir(tasks):
        try:
            with open(f"{tasks}/{tid}/comm") as file:
                name = file.read().strip()
            if name.startswith(("pmd-c", "worker")):
                names[name] = what(int(tid))
        except (FileNotFoundError, ProcessLookupError):
            pass  # the thread has ended
    return names


def threads(sw):
    """Names of the daemon's workers, with the processors that each may run on."""
    return each_worker(sw, lambda tid: sorted(os.sched_getaffinity(tid)))


@limit(450)
def scenario_workers_go_by_their_processors_with_a_mask_or_without(lab):
    """`dpctl/dump-flows` and `pmd-stats-show` use the same names of workers. A mask of the processors that
    they have anyway pins them, and they keep their caches; without it they are free again."""
    sw = lab.switch()
    if sw.is_reference:
        raise Skip("its main thread polls taps")
    lab.bridge(sw)
    a, b = (lab.internal_pod(sw, name, f"10.1.0.{i}/24", mac=f"02:00:00:00:00:0{i}") for i, name in enumerate("ab", 1))
    # Otherwise the kernel would sometimes probe the neighbour, which is a flow more.
    for ns, dev, i in ((a, "a0", 2), (b, "b0", 1)):
        lab.net.ip(ns, "neigh", "replace", f"10.1.0.{i}", "lladdr", f"02:00:00:00:00:0{i}", "dev", dev, "nud", "permanent")
    lab.net.ping(a, "10.1.0.2")
    sw.appctl("revalidator/pause")  # or they may be idle for too long
    cores = re.findall(r"core_id (\d+):", sw.appctl("dpif-netdev/pmd-stats-show"))

    def flows():
        heading, found = None, {}
        for line in sw.appctl("dpctl/dump-flows").splitlines():
            if "flow-dump from" in line:
                heading = line
            else:
                found.setdefault(heading, []).append(re.sub(", packets:.*", "", line))
        return found
    lab.net.ping(a, "10.1.0.2")
    before = flows()
    assert before and set(before) <= {f"flow-dump from pmd on cpu core: {core}" for core in cores}, before
    alone = [line for core in cores for line in sw.appctl("dpctl/dump-flows", f"pmd={core}").splitlines()]
    assert len(alone) == sum(map(len, before.values())) > 0, alone
    assert sw.appctl("dpctl/dump-flows", "pmd=-1") == ""
    free = threads(sw)
    assert sorted(free) == [f"worker{i}" for i in range(len(cores))], free
    assert len(free) < 2 or all(len(cpus) > 1 for cpus in free.values()), free
    mask = sum(1 << int(core) for core in cores)
    sw.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={mask:x}")
    wait_for("their places", lambda: threads(sw) == {f"pmd-c{int(core):02}": [int(core)] for core in cores})
    assert flows() == before, (flows(), before)
    sw.vsctl("remove", "Open_vSwitch", ".", "other_config", "pmd-cpu-mask")
    wait_for("their freedom", lambda: threads(sw) == free)
    assert flows() == before, (flows(), before)
    lab.net.ping(a, "10.1.0.2")
    assert "destroyed" not in sw.log()


@limit(450)
def scenario_a_reached_flow_limit_is_told(lab):
    sw = dummy_switch(lab)
    sw.ofctl("add-flow", "br0", "priority=1,actions=drop")
    sw.ofctl("add-flow", "br0", "priority=2,udp,tp_dst=1,actions=drop")
    assert sw.appctl("coverage/read-counter", "upcall_flow_limit_hit") == "0\n"
    sw.appctl("upcall/set-flow-limit", "1")
    for port in (2, 4, 8, 16):
        sw.appctl("netdev-dummy/receive", "p1", "in_port(1),eth(src=50:54:00:00:00:05,dst=50:54:00:00:00:07),eth_type(0x0800),"
                  f"ipv4(src=10.0.0.1,dst=10.0.0.2,proto=17,tos=0,ttl=64,frag=no),udp(src=8,dst={port})")
    assert sw.appctl("coverage/read-counter", "upcall_flow_limit_hit") == "3\n"
    wait_for("a warning", lambda: "|WARN|upcall: datapath reached the limit of 1 flows" in sw.log())


def scenario_settings_that_make_no_sense(lab):
    """Each is logged once and has no effect; all other settings hold."""
    sw = dummy_switch(lab)
    rubbish = {
        "pmd-cpu-mask": ("3g", "Invalid cpu mask: g"), "pmd-rxq-assign": ("best", "Defaulting to 'cycles'"),
        "pmd-rxq-isolate": ("perhaps", "pmd-rxq-isolate=perhaps is neither true nor false"),
        "pmd-auto-lb": ("on", "pmd-auto-lb=on is neither"), "pmd-auto-lb-rebal-interval": ("20001", "from 0 to 20000: 1 is used"),
        "pmd-auto-lb-load-threshold": ("101", "load-threshold=101 is not a number from 0 to 100: 95 is used"),
        "pmd-auto-lb-improvement-threshold": ("-1", "threshold=-1 is not a number from 0 to 100: 25 is used"),
        "pmd-sleep-max": ("1:x", "pmd-sleep-max: '1:x' is not understood"),
        "emc-insert-inv-prob": ("99999999999", "emc-insert-inv-prob=99999999999 is not a number from 0 to 4294967295: the default is used"), "max-idle": ("soon", "max-idle=soon is not"),
        "flow-limit": ("-5", "flow-limit=-5 is not"), "n-handler-threads": ("few", "n-handler-threads=few is not"),
    }
    sw.vsctl("set", "Open_vSwitch", ".", *(f'other_config:{key}="{value}"' for key, (value, _) in rubbish.items()))
    log = sw.log()
    assert [words for _, words in rubbish.values() if log.count(words) != 1] == [], log
    assert "(limit 200000)" in sw.appctl("upcall/show")
    # A valid setting beside it is applied; and a change elsewhere does not repeat the warning.
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:flow-limit=7000", "--", "set", "interface", "p1", "options:n_rxq=lots",
             "other_config:pmd-rxq-affinity=\"0\"")
    assert "(limit 7000)" in sw.appctl("upcall/show")
    log = sw.log()
    assert log.count("p1: options:n_rxq=lots is no number of queues: 1 is used") == 1, log
    assert log.count("p1: pmd-rxq-affinity: '0' is no pair") == 1, log
    sw.vsctl("set", "bridge", "br0", "other_config:x=y")
    log = sw.log()
    assert [words for _, words in rubbish.values() if log.count(words) != 1] == [], log
    assert places(sw) == [(0, 0)], places(sw)
    sw.appctl("netdev-dummy/receive", "p1", "50540000000a50540000000908004500" + "00" * 40)
    assert "packets received: 1\n" in sw.appctl("dpif-netdev/pmd-stats-show")


def scenario_statistics(lab):
    sw = dummy_switch(lab)
    sw.ofctl("add-flow", "br0", "actions=drop")
    for _ in range(5):
        sw.appctl("netdev-dummy/receive", "p1", "50540000000a50540000000908004500" + "00" * 40)
    stats = json.loads(sw.appctl("heddle/stats"))
    assert sum(w["counters"]["packets"] for w in stats["workers"]) == 5, stats
    assert [q["queue"] for q in stats["queues"] if q["port"] == "p1"] == [0, 1, 2, 3], stats
    if not os.access(heddle_path(), os.X_OK):
        return  # Built apart from the daemon.
    text = subprocess.run([heddle_path(), "top", "--once", "--interval", "0.2", "--target", sw.ctl], capture_output=True, text=True,
                          timeout=60, check=True).stdout
    assert "WORKER" in text and "p1" in text and "drop_action" in text, text


if __name__ == "__main__":
    main()
