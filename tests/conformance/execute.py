"""Runs tests of the suite, each in a process of its own with a time limit.

The suite's script runs one test per call here. That costs a fraction of a second, and a test that hangs ends
no other. Processes that a killed test leaves are found by their pid files and ended.
"""

import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import threading
import time

VERDICT = re.compile(r"^ *\d+: .*?(ok|FAILED \(.*\)|skipped \(.*\)|expected failure \(.*\)|unexpected pass)\s*$", re.M)


class Result:
    """One test's outcome: `verdict` is passed, failed, skipped or limit; `detail` is the place of the
    failure."""

    def __init__(self, test, verdict, detail, seconds, log):
        self.test, self.verdict, self.detail, self.seconds, self.log = test, verdict, detail, seconds, log


class Executor:
    """Runs tests in directories below `work`; keeps logs of those that fail in `keep`."""

    def __init__(self, suite, tools, work, keep, limit):
        self.suite, self.tools, self.work, self.keep, self.limit = suite, tools, work, keep, limit
        self.running = {}
        self.lock = threading.Lock()
        self.stopped = False

    def run(self, tests, jobs, tell):
        """Results of `tests` in the order in which they end; `tell` is called with each."""
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            futures = [pool.submit(self.one, test) for test in tests]
            results = []
            try:
                for future in concurrent.futures.as_completed(futures):
                    if result := future.result():
                        results.append(result)
                        tell(result)
            except BaseException:
                self.stop()
                for future in futures:
                    future.cancel()
                raise
        return results

    def stop(self):
        """Ends all running tests."""
        self.stopped = True
        with self.lock:
            running = list(self.running.items())
        for directory, process in running:
            end(process, directory)

    def one(self, test):
        if self.stopped:
            return None
        directory = os.path.join(self.work, str(test.number))
        os.makedirs(directory)
        self.configure(directory)
        began = time.monotonic()
        env = dict(os.environ, LC_ALL="C", OVS_CTL_TIMEOUT="30")
        # A script uses file names with its process id in the current directory. In a PID namespace each
        # script has the id 1.
        process = subprocess.Popen(self.command(directory, test), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace", env=env,
                                   start_new_session=True, cwd=directory)
        with self.lock:
            self.running[directory] = process
        try:
            output, _ = process.communicate(timeout=self.limit)
            late = False
        except subprocess.TimeoutExpired:
            end(process, directory)
            output, _ = process.communicate()
            late = True
        finally:
            with self.lock:
                self.running.pop(directory, None)
        leftovers(directory)
        seconds = time.monotonic() - began
        verdict, detail = ("limit", f"no end within {self.limit} s") if late else judge(output)
        log = None
        if verdict in ("failed", "limit"):
            log = self.preserve(test, directory, output)
        shutil.rmtree(directory, ignore_errors=True)
        return Result(test, verdict, detail, seconds, log)

    def command(self, directory, test):
        """The command line of a test. Behind the tools come the suite's own helpers that need no building."""
        return [self.suite.script, "-C", directory,
                f"AUTOTEST_PATH={self.tools}:{os.path.join(self.suite.directory, 'tests')}", str(test.number)]

    def configure(self, directory):
        """The suite reads its settings from the directory that it runs in: the source tree's, with absolute paths."""
        top = self.suite.directory
        tests = os.path.join(top, "tests")
        with open(os.path.join(directory, "atconfig"), "w") as file:
            file.write(f"at_testdir=tests\nabs_builddir='{tests}'\nat_srcdir='{tests}'\nabs_srcdir='{tests}'\n"
                       f"at_top_srcdir='{top}'\nabs_top_srcdir='{top}'\nat_top_build_prefix='{top}/'\n"
                       f"abs_top_builddir='{top}'\nat_top_builddir='{top}/'\nEXEEXT=''\nSHELL=/bin/bash\n")
        os.symlink(os.path.join(tests, "atlocal"), os.path.join(directory, "atlocal"))

    def preserve(self, test, directory, output):
        to = os.path.join(self.keep, str(test.number))
        shutil.rmtree(to, ignore_errors=True)
        os.makedirs(to)
        with open(os.path.join(to, "output.txt"), "w") as file:
            file.write(output)
        for path in glob.glob(os.path.join(directory, "*testsuite.dir", "*", "*")):
            if os.path.isfile(path) and os.path.getsize(path) < 4 << 20:
                shutil.copy(path, to)
        return to


def tell(result):
    """One line about a test that has ended."""
    mark = {"passed": "ok", "failed": "FAIL", "limit": "LIMIT", "skipped": "skip"}[result.verdict]
    where = f" ({result.detail})" if result.detail else ""
    print(f"{mark:5} {result.test.number:5} {result.test.file}: {result.test.title}{where} {result.seconds:.1f} s",
          flush=True)


def judge(output):
    """(verdict, detail) from the output of the suite's script for one test."""
    match = VERDICT.search(output)
    if not match:
        return "failed", "the suite said nothing about it"
    said = match.group(1)
    if said in ("ok", "unexpected pass"):
        return "passed", ""
    word, _, where = said.partition("(")
    where = where.rstrip(")")
    if word.startswith("skipped"):
        return "skipped", where
    return "failed", where


def end(process, directory):
    """Ends a test's session and the daemons that it detached."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    leftovers(directory)


def leftovers(directory):
    """Ends daemons whose pid files are below `directory` and that really run there."""
    for path in glob.glob(os.path.join(directory, "**", "*.pid"), recursive=True):
        try:
            with open(path) as file:
                pid = int(file.read().strip() or "0")
            if pid > 1 and below(os.readlink(f"/proc/{pid}/cwd"), directory):
                os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            continue


def sweep(directory):
    """Ends all processes that run below `directory`, such as daemons of interrupted tests."""
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and below(os.readlink(f"/proc/{entry}/cwd"), directory):
                os.kill(int(entry), signal.SIGKILL)
        except OSError:
            continue


def below(path, directory):
    return path == directory or path.startswith(directory + os.sep)
