"""A standard input with given bytes, which may be a terminal."""

import io


class Stdin(io.TextIOWrapper):
    def __init__(self, data, terminal=False):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self.terminal = terminal

    def isatty(self):
        return self.terminal
