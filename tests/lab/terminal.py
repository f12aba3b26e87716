"""A terminal of any size with a program on it, and what is to be seen there.

The terminal implements the functions that screen programs need: addressing, overwriting, clearing, private modes. A
program that writes beyond the right edge or scrolls is reported. A frame is over when the cursor is hidden
(again), as Ratatui does each time.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unicodedata

from .shell import PATIENCE

_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


def width(text):
    return len(text) if text.isascii() else sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


class Terminal:
    """Runs argv; close() ends it."""

    def __init__(self, argv, columns=80, rows=24, env=None, stdin=True):
        self.columns, self.rows = columns, rows
        self.master, slave = pty.openpty()
        self._size()
        self.before = termios.tcgetattr(slave)
        self.slave = slave

        def own():
            os.setsid()
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)
        self.proc = subprocess.Popen(argv, stdin=slave if stdin else subprocess.DEVNULL, stdout=slave, stderr=slave,
                                     env={**os.environ, "TERM": "xterm", **(env or {})}, preexec_fn=own)
        # Characters by row and column; the second half of a wide one is "".
        self._cells = [[] for _ in range(rows)]
        self.modes = set()
        self.faults = []
        self.frames = 0
        self._at = (0, 0)
        self._raw = b""

    def _size(self):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", self.rows, self.columns, 0, 0))

    def resize(self, columns, rows):
        self.read(0.05)
        self.columns, self.rows = columns, rows
        self._cells = [row[:columns] for row in (self._cells + [[] for _ in range(rows)])[:rows]]
        self._size()
        # Output on its way was drawn for the previous size.
        end = time.monotonic() + PATIENCE
        while True:
            self.faults.clear()
            frames = self.frames
            while self.frames == frames and time.monotonic() < end:
                self.read(0.2)
            if not self.faults or time.monotonic() >= end:
                break

    @property
    def lines(self):
        return ["".join(row).rstrip() for row in self._cells]

    def press(self, keys):
        os.write(self.master, keys.encode())

    def read(self, seconds=0.3):
        """Reads the program's pending output, and its output of the next seconds."""
        end = time.monotonic() + seconds
        left = seconds
        # Pending output is read, however late it is.
        while left > 0:
            left = end - time.monotonic()
            if not select.select([self.master], [], [], max(0, left))[0]:
                break
            try:
                self._raw += os.read(self.master, 65536)
            except OSError:
                break
            self._draw()
        return self

    def _draw(self):
        try:
            text, self._raw = self._raw.decode(), b""
        except UnicodeDecodeError:
            return
        # A sequence that has not ended yet waits for its rest.
        start = text.rfind("\x1b")
        if start >= 0 and not _SEQUENCE.match(text, start):
            text, self._raw = text[:start], text[start:].encode()
        at = 0
        for found in _SEQUENCE.finditer(text):
            self._text(text[at:found.start()])
            at = found.end()
            self._sequence(*found.groups())
        self._text(text[at:])

    def _text(self, text):
        for char in text:
            row, column = self._at
            if char == "\r":
                self._at = (row, 0)
            elif char == "\n":
                if row + 1 >= self.rows:
                    self.faults.append("scrolled")
                self._at = (min(row + 1, self.rows - 1), column)
            else:
                cells, wide = self._cells[row], width(char)
                if column + wide > self.columns:
                    self.faults.append(f"row {row}: {''.join(cells)!r} and {char!r}: {self.columns} columns")
                cells.extend([" "] * (column + wide - len(cells)))
                if wide == 0:
                    # An accent, of the character before.
                    cells[column - 1] += char
                else:
                    cells[column:column + wide] = [char] + [""] * (wide - 1)
                self._at = (row, column + wide)

    def _sequence(self, private, numbers, letter):
        numbers = [int(n or 0) for n in numbers.split(";")]
        row, column = self._at
        if private:
            for n in numbers:
                (self.modes.add if letter == "h" else self.modes.discard)(n)
                self.frames += (n, letter) == (25, "l")
        elif letter == "H":
            row = (numbers[0] or 1) - 1
            if row >= self.rows:
                self.faults.append(f"row {row} of {self.rows}")
            self._at = (min(row, self.rows - 1), (numbers[1:] or [1])[0] - 1)
        elif letter == "K":
            self._cells[row] = [] if numbers[0] == 2 else self._cells[row][:column]
        elif letter == "J":
            if numbers[0] == 0:
                self._cells[row] = self._cells[row][:column]
            first = row + 1 if numbers[0] == 0 else 0
            self._cells[first:] = [[] for _ in self._cells[first:]]

    def text(self):
        return "\n".join(self.lines)

    def wait(self, words, timeout=PATIENCE):
        """Waits until the words (or words(text)) are to be seen."""
        ok = words if callable(words) else lambda text: words in text
        end = time.monotonic() + timeout
        while not ok(self.text()):
            assert time.monotonic() < end, f"{words} is not to be seen in\n{self.text()}"
            self.read(0.1)
        return self.text()

    def put_back(self):
        """Whether the terminal is in its initial state."""
        return termios.tcgetattr(self.slave) == self.before

    def end(self, timeout=PATIENCE):
        """Waits for the program's end; its status."""
        end = time.monotonic() + timeout
        while self.proc.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text()}"
            self.read(0.05)
        self.read(0.2)
        return self.proc.returncode

    def close(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGKILL)
            self.proc.wait(10)
        for fd in (self.master, self.slave):
            if fd is not None:
                os.close(fd)
        self.master = self.slave = None
