#!/usr/bin/env python3
"""The scheduling that packets' threads request: slices, the session's autogroup, nice values; what is refused."""

import contextlib
import ctypes
import os
import re
import struct
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.cgroups import homes
from lab.runner import Skip, main
from lab.shell import wait_for

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
SLICE_NS = 100_000
WAITED_FOR = ("pmd-c", "worker", "upcalls", "settler")
NO_AUTOGROUPS = "the kernel has none, or they are off"


def scheduling(tid):
    """(policy, nice value, slice in ns) of a thread."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(48)
    if libc.syscall(SCHED_GETATTR[os.uname().machine], tid, attributes, 48, 0):
        raise OSError(ctypes.get_errno(), "sched_getattr")
    _, policy, _, nice, _, runtime = struct.unpack_from("IIQiIQ", attributes)
    return policy, nice, runtime


def threads(sw, waited_for=True):
    """The scheduling of the threads that packets wait for, or of the others, by name."""
    found = {}
    for tid in os.listdir(f"/proc/{sw.pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{sw.pid}/task/{tid}/comm") as file:
                name = file.read().strip()
            if name.startswith(WAITED_FOR) == waited_for:
                found[name] = scheduling(int(tid))
    return found


def autogroup(pid):
    with open(f"/proc/{pid}/autogroup") as file:
        return int(file.read().split(" nice ")[1])


def lines(sw):
    return re.findall(r"\|dpif_netdev\|INFO\|(heddle-priority: .*)", sw.log())


def setting(sw, key, value):
    sw.vsctl("set", "open_vswitch", ".", f"other_config:{key}={value}")


def slices(sw):
    """The slice of an ordinary thread, and of those that packets wait for. Skips where the kernel has none."""
    default = scheduling(sw.pid)[2]
    if default == 0:
        raise Skip("slices came with Linux 6.12")
    return default, {ns for _, _, ns in threads(sw).values()}


def has_autogroups():
    """Whether a program of the caller's control group is in its session's autogroup."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            on = file.read().strip() == "1"
    except FileNotFoundError:
        return False
    with open("/proc/self/cgroup") as file:
        own = {line.split(":")[1]: line.rstrip("\n").split(":", 2)[2] for line in file}
    first = [path for names, path in own.items() if "cpu" in names.split(",")]
    return on and (first or [own.get("", "/")])[0] == "/" and not os.path.exists("/sys/fs/cgroup/cpu.weight")


def switch(lab, before=(), sees_groups=False):
    """A switch whose daemon is started by these words. `ip netns exec` hides control groups."""
    sw = lab.switch(start=False)
    if sw.is_reference:
        raise Skip("it has no such setting")
    sw.before = list(before)
    if sees_groups:
        command = sw.command
        sw.command = lambda *args: ["nsenter", f"--net=/run/netns/{sw.netns}", *command(*args)[4:]]
    sw.start()
    lab.bridge(sw)
    return sw


def packets_pass(lab, sw):
    a, _ = (lab.internal_pod(sw, pod, f"10.1.0.{i}/24") for i, pod in enumerate("ab", 1))
    lab.net.ping(a, "10.1.0.2", count=5)


def scenario_packets_threads_have_short_slices_and_the_session_a_large_share(lab):
    """Workers, new ones too, and the control threads that packets wait for. `heddle-priority=false` gives all
    back while the switch runs."""
    if not has_autogroups():
        raise Skip("no autogroups here")
    sw = switch(lab)
    default, short = slices(sw)
    assert short == {SLICE_NS}, threads(sw)
    assert {"upcalls", "settler"} < set(threads(sw)), threads(sw)
    assert {nice for _, nice, _ in threads(sw).values()} == {0}, threads(sw)
    others = threads(sw, waited_for=False)
    assert {ns for policy, _, ns in others.values() if policy == os.SCHED_OTHER} == {default}, others
    assert autogroup(sw.pid) == -20
    applies = "heddle-priority: PMD threads have slices of 100 us and autogroup nice -20"
    assert lines(sw) == [applies], lines(sw)
    packets_pass(lab, sw)

    setting(sw, "heddle-priority", "false")
    assert slices(sw)[1] == {default}, threads(sw)
    assert autogroup(sw.pid) == 0
    assert lines(sw)[1:] == ["heddle-priority: PMD threads have the scheduling of other programs"], lines(sw)

    setting(sw, "heddle-priority", "true")
    setting(sw, "pmd-cpu-mask", "0x1")
    assert {name for name in threads(sw) if name.startswith("pmd")} == {"pmd-c00"}, threads(sw)
    assert slices(sw)[1] == {SLICE_NS} and autogroup(sw.pid) == -20, threads(sw)
    # Another setting repeats no line.
    setting(sw, "max-idle", "9000")
    assert lines(sw)[2:] == [applies], lines(sw)


def scenario_a_worker_that_never_sleeps_takes_no_larger_share(lab):
    if not has_autogroups():
        raise Skip("no autogroups here")
    sw = switch(lab)
    setting(sw, "pmd-sleep-max", "0")
    assert slices(sw)[1] == {SLICE_NS} and autogroup(sw.pid) == 0, threads(sw)
    assert lines(sw)[1:] == ["heddle-priority: PMD threads have slices of 100 us; not more of the processors (pmd-sleep-max has "
                             "workers that never sleep)"], lines(sw)
    setting(sw, "pmd-sleep-max", "20")
    assert autogroup(sw.pid) == -20 and lines(sw)[2:] == lines(sw)[:1], lines(sw)


def scenario_real_time_workers_get_their_slices_back(lab):
    sw = switch(lab)
    slices(sw)
    setting(sw, "heddle-realtime", "true")
    setting(sw, "heddle-priority", "false")
    setting(sw, "heddle-priority", "true")
    policies = {name: policy & ~os.SCHED_RESET_ON_FORK for name, (policy, _, _) in threads(sw).items() if name.startswith("worker")}
    assert set(policies.values()) == {os.SCHED_RR}, policies
    setting(sw, "heddle-realtime", "false")
    assert slices(sw)[1] == {SLICE_NS}, threads(sw)


def scenario_a_daemon_without_the_right_has_slices_only(lab):
    """Without CAP_SYS_NICE, the log has one line with the refusals, and packets are forwarded."""
    sw = switch(lab, ["setpriv", "--inh-caps=-sys_nice", "--bounding-set=-sys_nice"])
    assert slices(sw)[1] == {SLICE_NS}, threads(sw)
    line, = lines(sw)
    assert line.startswith("heddle-priority: PMD threads have slices of 100 us; not autogroup nice -20 ("), line
    assert re.search(r", not nice -10 \((Operation not permitted|Permission denied)\)$", line), line
    assert {nice for _, nice, _ in threads(sw).values()} == {0}, threads(sw)
    packets_pass(lab, sw)


def scenario_a_kernel_without_autogroups(lab):
    """Threads get a nice value instead, also in a container without `/proc/self/autogroup`."""
    switches_off = "mount --bind /dev/null /proc/sys/kernel/sched_autogroup_enabled && exec \"$@\""
    if not has_autogroups():
        switches_off = "exec \"$@\""
    sw = switch(lab, ["unshare", "-m", "sh", "-c", switches_off, "sh"])
    default, short = slices(sw)
    assert short == {SLICE_NS}, threads(sw)
    if has_autogroups():
        assert lines(sw) == ["heddle-priority: PMD threads have slices of 100 us and nice -10; not autogroup nice -20 "
                             f"({NO_AUTOGROUPS})"], lines(sw)
        assert autogroup(sw.pid) == 0
    assert {nice for _, nice, _ in threads(sw).values()} == {-10}, threads(sw)
    packets_pass(lab, sw)
    setting(sw, "heddle-priority", "false")
    assert {(nice, ns) for _, nice, ns in threads(sw).values()} == {(0, default)}, threads(sw)


def scenario_a_session_of_several_programs_is_not_raised(lab):
    """A daemon in the foreground of a script leaves the script's other programs as they are."""
    if not has_autogroups():
        raise Skip("no autogroups here")
    sw = lab.switch(start=False)
    if sw.is_reference:
        raise Skip("it has no such setting")
    sw.start_ovsdb()
    own = autogroup("self")
    process = subprocess.Popen(sw.command(), env=os.environ | sw.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for("the log's line", lambda: os.path.exists(sw.logfile) and lines(sw))
        sw.pid = process.pid
        assert lines(sw) == ["heddle-priority: PMD threads have slices of 100 us and nice -10; not autogroup nice -20 "
                             "(the session has other programs)"], lines(sw)
        assert autogroup(process.pid) == autogroup("self") == own
    finally:
        sw.pid = None
        process.terminate()
        process.wait(20)


def scenario_a_control_group_counts_instead_and_its_limit_is_logged(lab):
    """In a control group with the controller `cpu`, autogroups have no effect. A limit is logged once."""
    home, limits = cpu_hierarchy()
    path = f"{home}/heddle-priority-{os.getpid()}"
    os.mkdir(path)
    # The daemon ends before: the last cleanup is the first to run.
    lab.cleanups.append(lambda: wait_for("the control group to be empty", lambda: removed(path)))
    lab.cleanups.append(lambda: [sw.stop_daemon() for sw in lab.switches])
    for name, value in limits.items():
        with open(f"{path}/{name}", "w") as file:
            file.write(value)
    sw = switch(lab, ["sh", "-c", f"echo $$ >{path}/cgroup.procs && exec \"$@\"", "sh"], sees_groups=True)
    name = os.path.basename(path)
    line, = lines(sw)
    assert re.fullmatch(r"heddle-priority: PMD threads have (slices of 100 us and )?nice -10; not autogroup nice -20 \(control "
                        rf"group \S*/{name}: its cpu.weight counts instead\).*", line), line
    warning = f"/{name} may use 150000 us of the processors in 100000 us (cpu.max)"
    assert sw.log().count(warning) == 1, sw.log()
    setting(sw, "heddle-priority", "false")
    setting(sw, "heddle-priority", "true")
    assert sw.log().count(warning) == 1, sw.log()
    packets_pass(lab, sw)


def cpu_hierarchy():
    """The caller's group in the hierarchy of the controller `cpu`, and the files of a limit. Skips without one."""
    for home in homes():
        if os.path.exists(f"{home}/cpu.cfs_quota_us") or os.path.exists(f"{home}/cpu.shares"):
            return home, {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
        with contextlib.suppress(OSError), open(f"{home}/cgroup.subtree_control") as file:
            if "cpu" in file.read().split():
                return home, {"cpu.max": "150000 100000"}
    raise Skip("no control groups with the controller cpu here")


def removed(path):
    try:
        os.rmdir(path)
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
