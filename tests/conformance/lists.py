"""The two lists that are kept here: what passes, and what cannot be asked of this daemon.

Both name a test by its file and title, because numbers move with every version of the suite.
"""

import os

PASSING = "passing{}.txt"
NOT_APPLICABLE = "not-applicable.txt"


class Lists:
    """`passing`: set of keys. `rules`: (file, start of a title or `*`, reason)."""

    def __init__(self, directory, later=None):
        self.directory = directory
        self.name = PASSING.format(f"-{later}" if later else "")
        self.passing = {tuple(line.split("\t", 1)) for line in self._lines(self.name)}
        self.rules = [tuple(part.strip() for part in line.split("\t", 2)) for line in self._lines(NOT_APPLICABLE)]

    def _lines(self, name):
        path = os.path.join(self.directory, name)
        if not os.path.exists(path):
            return []
        with open(path) as file:
            return [line for line in file.read().splitlines() if line and not line.startswith("#")]

    def reason(self, test):
        """Why `test` says nothing about this daemon; None if it does. A title that ends in `*` is a prefix."""
        for file, title, reason in self.rules:
            if file not in ("*", test.file):
                continue
            if title == test.key[1] or (title.endswith("*") and test.key[1].startswith(title[:-1])):
                return reason
        return None

    def add(self, keys):
        """Adds what passes now, and writes the list."""
        self.passing.update(keys)
        with open(os.path.join(self.directory, self.name), "w") as file:
            file.write("# Tests of Open vSwitch's suite that heddled passes: file, title. Kept by run --update.\n")
            file.writelines(f"{name}\t{title}\n" for name, title in sorted(self.passing))
