"""Gaps that a machine causes in a thread: a control for measurements of a worker's pauses.

A thread on the switch's core reads the clock and does nothing else, under SCHED_FIFO as the worker is. The
other core has the same load as beside the worker. A daemon loads the same rules from the same sender, but has
no worker on the first core. A process is busy as the generator is.
"""

import contextlib
import subprocess
import sys
import threading
import time

from lab.shell import Trace
from lab.switch import Switch
from programs import built
from vhost_switches import GENERATOR_CORE, SWITCH_CORE

BRIDGE = "br0"
RT_RUNTIME = "/proc/sys/kernel/sched_rt_runtime_us"


@contextlib.contextmanager
def real_time():
    """Lifts the limit on the time of threads under real-time policies."""
    with open(RT_RUNTIME) as file:
        before = file.read()
    with open(RT_RUNTIME, "w") as file:
        file.write("-1")
    try:
        yield
    finally:
        with open(RT_RUNTIME, "w") as file:
            file.write(before)


class Machine:
    """The daemon beside the thread."""

    def __init__(self, binary):
        self.switch = Switch(Trace(), binary, args=("--disable-system", "--enable-dummy"), prefix="heddle-bench-machine")
        self.started = False

    def setup(self):
        self.started = True
        self.switch.start_ovsdb()
        command = self.switch.command
        self.switch.command = lambda *args: ["taskset", "-c", str(GENERATOR_CORE), *command(*args)]
        self.switch.start_daemon(timeout=60)
        self.switch.vsctl("add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=dummy", "fail-mode=secure")

    def close(self):
        if self.started:
            self.switch.close()

    def phase(self, seconds, walls, work):
        """Pairs (length in microseconds, number of gaps at least that long) during `seconds` of `work`."""
        failed = []

        def beside():
            try:
                work(self.switch, BRIDGE)
            except Exception as error:  # noqa: BLE001 - reported at the end
                failed.append(error)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(PermissionError):
                stack.enter_context(real_time())
            busy = subprocess.Popen(["taskset", "-c", str(GENERATOR_CORE), sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
            thread = threading.Thread(target=beside)
            end = time.monotonic() + seconds
            gaps = subprocess.Popen([built("gaps"), str(SWITCH_CORE), ",".join(str(int(us * 1e3)) for us in walls)],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(gaps.wait)
            stack.callback(gaps.kill)
            thread.start()
            time.sleep(max(0, end - time.monotonic()))
            out, _ = gaps.communicate(timeout=60)
            thread.join()
        if failed:
            raise failed[0]
        return list(zip(walls, map(int, out.split())))
