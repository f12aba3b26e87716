"""The lists of this directory: tests that pass, tests that are not applicable, and why system tests fail.

They name a test by file and title, or by title, because numbers change with every version of the suite.
"""

import os

PASSING = "passing{}.txt"
NOT_APPLICABLE = "not-applicable.txt"
SYSTEM_REASONS = "system-reasons.txt"


def fits(rule, title):
    """Whether a rule names this title. A rule that ends in `*` names a prefix."""
    return rule == title or (rule.endswith("*") and title.startswith(rule[:-1]))


class Lists:
    """`passing`: set of keys. `rules`: (file, start of a title or `*`, reason). `system`: (title, reason)."""

    def __init__(self, directory, later=None, part=None):
        """later: a later version of the suite; part: a part of it with a list of its own."""
        self.directory = directory
        self.name = PASSING.format("".join(f"-{word}" for word in (later, part) if word))
        self.passing = {tuple(line.split("\t", 1)) for line in self._lines(self.name)}
        self.rules = [tuple(part.strip() for part in line.split("\t", 2)) for line in self._lines(NOT_APPLICABLE)]
        self.system = [tuple(part.strip() for part in line.split("\t", 1)) for line in self._lines(SYSTEM_REASONS)]

    def _lines(self, name):
        path = os.path.join(self.directory, name)
        if not os.path.exists(path):
            return []
        with open(path) as file:
            return [line for line in file.read().splitlines() if line and not line.startswith("#")]

    def reason(self, test):
        """The reason why `test` is not applicable; None if it is applicable."""
        for file, title, reason in self.rules:
            if file not in ("*", test.file):
                continue
            if fits(title, test.key[1]):
                return reason
        return None

    def system_reason(self, title):
        """The reason why a system test fails that passes with Open vSwitch."""
        return next((reason for rule, reason in self.system if fits(rule, title)), "not looked into yet")

    def add(self, keys):
        """Adds newly passing tests, and writes the list."""
        self.passing.update(keys)
        with open(os.path.join(self.directory, self.name), "w") as file:
            file.write("# Tests of Open vSwitch's suite that heddled passes: file, title. Kept by run --update.\n")
            file.writelines(f"{name}\t{title}\n" for name, title in sorted(self.passing))
