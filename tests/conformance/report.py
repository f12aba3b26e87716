"""The report of a run: a table by file, and the pages docs/conformance*.md."""

import collections
import glob
import os
import re

# A page has a part for each run: the suite, and the system tests.
INTRO = """# Conformance with Open vSwitch {version}

Open vSwitch's own tests, run with `heddled` in the place of `ovs-vswitchd`. Whole runs of
`tests/conformance/run` write this page: do not edit. [Conformance](conformance.md) explains it.
"""

HEAD = """{heading}

The suite of Open vSwitch {version}, {whose}.
Written by `{command}`; `tests/conformance/{passing}` has the tests that pass.
"""
OWN_TOOLS = "with the database server and the clients of that version"
DEBIANS_TOOLS = "of Debian's `openvswitch-source`, with Debian's database server and clients"

SECTION = "Suite"
WRITTEN_BY = re.compile(r"Written by `(.*?)`")
# The tables of docs/conformance.md have the last row of each part's table.
INDEX = re.compile(r"<!-- totals: (\w+) -->.*?<!-- end -->", re.DOTALL)


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
    put(path, part, lines)


def put(path, part, lines):
    """Writes one part of a page, which `part`, its heading, names. The others stay."""
    parts = parts_of(path) if os.path.exists(path) else {}
    parts[part] = lines
    version = part.rpartition(" ")[2]
    text = INTRO.format(version=version) + "\n" + "\n\n".join("\n".join(parts[name]).strip() for name in sorted(parts))
    with open(path, "w") as file:
        file.write(re.sub(r"\n{3,}", "\n\n", text) + "\n")
    totals(os.path.dirname(path))


def parts_of(path):
    """{heading: lines} of a page."""
    parts, name = {}, None
    with open(path) as file:
        for line in file.read().splitlines():
            if line.startswith("## "):
                name = line
            if name:
                parts.setdefault(name, []).append(line)
    return parts


def totals(directory):
    """Writes the totals of all pages into conformance.md beside them."""
    index = os.path.join(directory, "conformance.md")
    if not os.path.exists(index):
        return
    pages = sorted(glob.glob(os.path.join(directory, "conformance-*.md")))

    def table_of(match):
        rows = []
        for page in pages:
            for name, lines in parts_of(page).items():
                if name[3:].split(" ")[0].lower() != match[1]:
                    continue
                head = next(line for line in lines if line.startswith("| "))
                if not rows:
                    columns = head.split(" | ")[1:]
                    rows = [f"| part | command | {' | '.join(columns)}", "| --- | --- |" + " ---: |" * len(columns)]
                last = next(line for line in lines if line.startswith("| **all** |"))
                link = f"[{name[3:]}]({os.path.basename(page)}#{anchor(name)})"
                rows.append(f"| {link} | `{_command_in(lines)}` |{last.removeprefix('| **all** |')}")
        return "\n".join([f"<!-- totals: {match[1]} -->", *rows, "<!-- end -->"])

    with open(index) as file:
        text = file.read()
    with open(index, "w") as file:
        file.write(INDEX.sub(table_of, text))


def anchor(name):
    """The anchor of a heading, for links."""
    return "".join(c for c in name[3:].lower().replace(" ", "-") if c.isalnum() or c == "-")


def _command_in(lines):
    """The command that a part names."""
    return next((m.group(1) for line in lines if (m := WRITTEN_BY.search(line))), "")
