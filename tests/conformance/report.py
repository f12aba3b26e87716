"""The report of a run: a table by file, and docs/conformance.md."""

import collections
import os
import re

# The page's first part, before the parts of the runs.
INTRO = """# Conformance

Open vSwitch's own tests, run with `heddled` in the place of `ovs-vswitchd`: two suites, each of two versions.
`make conformance` (`tests/conformance/run`) writes this page, a part in each whole run; do not edit.

| part | command |
| --- | --- |
"""

HEAD = """{heading}

The suite of Open vSwitch {version}, {whose}.
Written by `{command}`.
A test counts if it starts the switch daemon. Other tests are for helper programs, the database or the clients
alone, and have the same result without `heddled`.

`tests/conformance/{passing}` holds the tests that pass. If one of them fails, the command fails.
Most of the other tests need a feature that the [README](../README.md#what-does-not-work-yet) lists as
missing, or compare texts that changed between versions.
"""
OWN_TOOLS = "with the database server and the clients of that version"
DEBIANS_TOOLS = "of Debian's `openvswitch-source`, with Debian's database server and clients"

SECTION = "Suite"
WRITTEN_BY = re.compile(r"Written by `(.*?)`")


def short(version):
    """4.0 of 4.0.0."""
    return version.rpartition(".")[0]


def heading(section, version):
    """The page has one part for each run that writes it."""
    return f"## {section} of Open vSwitch {short(version)}"


def command(later, *words):
    """The command that makes a part; `later`: the version, unless it is Debian's."""
    suite = [f"SUITE={short(later)}"] if later else []
    return " ".join(["make conformance", *suite, *(f"ARGS={word}" for word in words)])


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
    part = heading(SECTION, suite.version)
    lines = [HEAD.format(heading=part, version=suite.version, command=command(later and suite.version), passing=lists.name,
                         whose=OWN_TOOLS if later else DEBIANS_TOOLS), *table(suite, lists, results), ""]
    rules = [(rule, sum(rule[2] == lists.reason(t) and t.starts_daemon for t in suite.tests)) for rule in lists.rules]
    reasons = collections.Counter()
    for test in suite.tests:
        if test.starts_daemon and (reason := lists.reason(test)):
            reasons[reason] += 1
    if rules and reasons:
        lines += ["### Not applicable", "", "| tests | why |", "| ---: | --- |"]
        lines += [f"| {n} | {reason} |" for reason, n in reasons.most_common()]
        lines.append("")
    skipped = collections.Counter(r.test.file for r in results if r.verdict == "skipped")
    if skipped:
        lines += ["### Skipped by the suite itself", "",
                  "They need features that this machine or Debian's build of the clients does not have: "
                  + ", ".join(f"{file} {n}" for file, n in sorted(skipped.items())) + ".", ""]
    failed = sorted((r.test.file, r.test.title) for r in results if r.verdict in ("failed", "limit"))
    if failed:
        lines += ["### Failing", ""]
        last = None
        for file, title in failed:
            if file != last:
                lines += ["", f"#### {file}", ""]
                last = file
            lines.append(f"* {title}")
    put(path, part, lines)


def put(path, part, lines):
    """Writes one part of the page, which `part`, its heading, names. The others stay."""
    parts = {}
    if os.path.exists(path):
        name = None
        with open(path) as file:
            for line in file.read().splitlines():
                if line.startswith("## "):
                    name = line
                if name:
                    parts.setdefault(name, []).append(line)
    parts[part] = lines
    # Sorted by version, the suite before the system tests. Parts of an older form have no version: dropped.
    known = sorted((name.rpartition(" ")[2], name) for name in parts if " of Open vSwitch " in name)
    rows = [f"| [{name[3:]}](#{anchor(name)}) | `{_command_in(parts[name])}` |" for _, name in known]
    text = INTRO + "\n".join(rows) + "\n\n" + "\n\n".join("\n".join(parts[name]).strip() for _, name in known)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    with open(path, "w") as file:
        file.write(text + "\n")


def anchor(name):
    """The anchor of a heading, for links."""
    return "".join(c for c in name[3:].lower().replace(" ", "-") if c.isalnum() or c == "-")


def _command_in(lines):
    """The command that a part names."""
    return next((m.group(1) for line in lines if (m := WRITTEN_BY.search(line))), "")
