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

LATER_HEAD = """{heading}

The suite of Open vSwitch {version}, with the database server and the clients of that version. Written by `{command}`;
`tests/conformance/{passing}` holds the tests that pass.
"""

SECTION = "Suite"
# The first part has no heading of its own; these begin the others.
FIRST, OTHERS = "", ("## System tests", "## Suite of ")


def short(version):
    """4.0 of 4.0.0."""
    return version.rpartition(".")[0]


def heading(section, version=None):
    """The page has one section for each run that writes it; `version` is that of a later suite."""
    return f"## {section} of Open vSwitch {short(version)}" if version else f"## {section}"


def command(version, *words):
    """The command that makes a section."""
    parts = [f"SUITE={short(version)}"] * bool(version) + [f"ARGS={word}" for word in words]
    return " ".join(["make conformance", *parts])


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


def write(path, suite, lists, results, later=False):
    """Writes the report of a whole run into its part of the page; `later`: the suite is a later one."""
    part = heading(SECTION, suite.version) if later else FIRST
    head = LATER_HEAD.format(heading=part, version=suite.version, command=command(suite.version), passing=lists.name)
    lines = [head if later else HEAD.format(version=suite.version), *table(suite, lists, results), ""]
    level = "###" if later else "##"
    rules = [(rule, sum(rule[2] == lists.reason(t) and t.starts_daemon for t in suite.tests)) for rule in lists.rules]
    reasons = collections.Counter()
    for test in suite.tests:
        if test.starts_daemon and (reason := lists.reason(test)):
            reasons[reason] += 1
    if rules and reasons:
        lines += [f"{level} Not applicable", "", "| tests | why |", "| ---: | --- |"]
        lines += [f"| {n} | {reason} |" for reason, n in reasons.most_common()]
        lines.append("")
    skipped = collections.Counter(r.test.file for r in results if r.verdict == "skipped")
    if skipped:
        lines += [f"{level} Skipped by the suite itself", "",
                  "They ask for something that this machine or Debian's build of the clients does not have: "
                  + ", ".join(f"{file} {n}" for file, n in sorted(skipped.items())) + ".", ""]
    failed = sorted((r.test.file, r.test.title) for r in results if r.verdict in ("failed", "limit"))
    if failed:
        lines += [f"{level} Failing", ""]
        last = None
        for file, title in failed:
            if file != last:
                lines += ["", f"#{level} {file}", ""]
                last = file
            lines.append(f"* {title}")
    put(path, part, lines)


def put(path, part, lines):
    """Writes one part of the page, which `part`, its heading, names. The others stay."""
    parts = {}
    if os.path.exists(path):
        with open(path) as file:
            name = FIRST
            for line in file.read().splitlines():
                if line.startswith(OTHERS):
                    name = line
                parts.setdefault(name, []).append(line)
    parts[part] = "\n".join(lines).splitlines()
    order = sorted(parts, key=lambda name: (name != FIRST, " of " in name, name))
    text = "\n\n".join("\n".join(parts[name]).strip() for name in order)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    with open(path, "w") as file:
        file.write(text + "\n")
