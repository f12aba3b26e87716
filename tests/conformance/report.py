"""What a run says: a table by file, and docs/conformance.md."""

import collections
import os

HEAD = """# Conformance

Open vSwitch's own test suite, run with `heddled` in the place of `ovs-vswitchd`. Written by `make conformance`
(`tests/conformance/run`); do not edit. The suite is that of Debian's package `openvswitch-source`
(Open vSwitch {version}); the database server and the command-line clients are Debian's, unchanged. A test counts when it
starts the switch daemon; the others test helper programs, the database or the clients alone, and would pass or
fail the same without `heddled`.

`tests/conformance/passing.txt` holds the tests that pass. One of them that fails makes `make conformance` fail.
Only a whole run writes this page; `make conformance ARGS="--files learn.at"` prints what it found. Most of what fails
needs what the [README](../README.md#what-does-not-work-yet) lists as missing: the names of the tests tell.
"""

# The page has two parts, each of which its own run writes.
SYSTEM = "## System tests"


def counts(results):
    """Number of results by verdict."""
    found = collections.Counter(r.verdict for r in results)
    return {verdict: found[verdict] for verdict in ("passed", "failed", "limit", "skipped")}


def by_file(suite, lists, results, selected=None):
    """{file: Counter} over all tests that start the daemon (or over `selected`)."""
    verdicts = {r.test.key: r.verdict for r in results}
    files = {}
    for test in selected if selected is not None else suite.tests:
        if not test.starts_daemon:
            continue
        count = files.setdefault(test.file, collections.Counter())
        count["tests"] += 1
        count["not applicable" if lists.reason(test) else verdicts.get(test.key, "not run")] += 1
    return files


def percent(count):
    judged = count["passed"] + count["failed"] + count["limit"]
    return f"{100 * count['passed'] // judged} %" if judged else "–"


def table(suite, lists, results, selected=None):
    """Lines of a Markdown table, the files with most tests first."""
    files = by_file(suite, lists, results, selected)
    total = sum(files.values(), collections.Counter())
    yield "| file | tests | passed | failed | skipped | not applicable | passed of judged |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for file, n in [*sorted(files.items(), key=lambda item: -item[1]["tests"]), ("**all**", total)]:
        yield (f"| {file} | {n['tests']} | {n['passed']} | {n['failed'] + n['limit']} | {n['skipped']} | "
               f"{n['not applicable']} | {percent(n)} |")


def write(path, suite, lists, results):
    """Writes the report of a whole run."""
    lines = [HEAD.format(version=suite.version), "## By file", "", *table(suite, lists, results), ""]
    rules = [(rule, sum(rule[2] == lists.reason(t) and t.starts_daemon for t in suite.tests)) for rule in lists.rules]
    reasons = collections.Counter()
    for test in suite.tests:
        if test.starts_daemon and (reason := lists.reason(test)):
            reasons[reason] += 1
    if rules and reasons:
        lines += ["## Not applicable", "", "| tests | why |", "| ---: | --- |"]
        lines += [f"| {n} | {reason} |" for reason, n in reasons.most_common()]
        lines.append("")
    skipped = collections.Counter(r.test.file for r in results if r.verdict == "skipped")
    if skipped:
        lines += ["## Skipped by the suite itself", "",
                  "They ask for something that this machine or Debian's build of the clients does not have: "
                  + ", ".join(f"{file} {n}" for file, n in sorted(skipped.items())) + ".", ""]
    failed = sorted((r.test.file, r.test.title) for r in results if r.verdict in ("failed", "limit"))
    if failed:
        lines += ["## Failing", ""]
        last = None
        for file, title in failed:
            if file != last:
                lines += ["", f"### {file}", ""]
                last = file
            lines.append(f"* {title}")
    put(path, "\n".join(lines), parts(path)[1])


def parts(path):
    """What of the page the run of the suite wrote, and what that of the system tests."""
    if not os.path.exists(path):
        return "", ""
    with open(path) as file:
        main, mark, system = file.read().partition(SYSTEM)
    return main, mark + system


def put(path, main, system):
    """Writes both parts."""
    both = [part.replace("\n\n\n", "\n\n").strip() for part in (main, system)]
    with open(path, "w") as file:
        file.write("\n\n".join(filter(None, both)) + "\n")
