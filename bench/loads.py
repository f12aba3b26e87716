"""Programs that keep the processors busy beside a measurement, and the processor time that they get.

Each program is in a session of its own, as services, pods and terminals are: the kernel then shares the
processors among the sessions first.
"""

import contextlib
import os
import shutil
import subprocess
import time

BUSY = [["sh", "-c", "while :; do :; done"]] * 4
# Name -> the programs. Two for each of two processors where the program itself is the load.
LOADS = {
    "idle": [],
    "busy": BUSY,
    "memory": [["stress-ng", "--quiet", "--vm", "2", "--vm-bytes", "64m"]] * 2,
    "calls": [["stress-ng", "--quiet", "--get", "2"]] * 2,
}
TITLES = {"idle": "an idle machine", "busy": "beside four busy programs", "memory": "beside `stress-ng --vm` (memory)",
          "calls": "beside `stress-ng --get` (system calls)"}
SETTLE_SECONDS = 0.5


def able(load):
    """Whether the programs of a load are installed."""
    return all(shutil.which(argv[0]) for argv in LOADS[load])


class Load:
    """The programs of a load, for the length of a with-block."""

    def __init__(self, name):
        self.name, self.processes = name, []

    def __enter__(self):
        for argv in LOADS[self.name]:
            self.processes.append(subprocess.Popen(argv, start_new_session=True, stdin=subprocess.DEVNULL,
                                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(SETTLE_SECONDS)
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()

    def each(self):
        """(process, fields of its `stat` after the name) of the programs and their children."""
        sessions = {process.pid for process in self.processes}
        for pid in filter(str.isdigit, os.listdir("/proc") if sessions else ()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
                if int(fields[3]) in sessions:
                    yield int(pid), fields

    @contextlib.contextmanager
    def confined(self, cores):
        """They run on these processors only, for the length of a with-block."""
        before = os.sched_getaffinity(0)
        self.move(cores)
        try:
            yield
        finally:
            self.move(before)

    def move(self, cores):
        for pid, _ in self.each():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(pid, cores)

    def seconds(self):
        """Processor time that the programs have used so far, with that of their children."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self.each()) / os.sysconf("SC_CLK_TCK")

    def share(self, work):
        """Processors that the programs get while `work` runs, and its result."""
        time0, used0 = time.monotonic(), self.seconds()
        result = work()
        return (self.seconds() - used0) / (time.monotonic() - time0), result
