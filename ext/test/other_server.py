"""A server that is not as the tracker expects: its executable, changed.

The tracker must refuse it, and leave it working.
"""

import struct


class Executable:
    """An ELF file for a 64-bit machine, as far as it matters here."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.sections = self.read_sections()
        self.functions = dict(self.read_functions())

    def read_sections(self):
        """(type, address, offset, size, link) of each."""
        start, = struct.unpack_from("<Q", self.data, 40)
        size, count = struct.unpack_from("<HH", self.data, 58)
        found = []
        for at in range(start, start + size * count, size):
            _, kind, _, address, offset, length, link = struct.unpack_from("<IIQQQQI", self.data, at)
            found.append((kind, address, offset, length, link))
        return found

    def read_functions(self):
        """Name, address, size of each exported function."""
        table = next(s for s in self.sections if s[0] == 11)
        names = self.sections[table[4]][2]
        for at in range(table[2], table[2] + table[3], 24):
            name, info, _, _, address, size = struct.unpack_from("<IBBHQQ", self.data, at)
            if info & 15 == 2 and address:
                end = self.data.index(0, names + name)
                yield self.data[names + name:end].decode(), (address, size)

    def offset_of(self, address):
        for kind, start, offset, length, _ in self.sections:
            if kind == 1 and start <= address < start + length:
                return offset + address - start
        raise ValueError(f"no section has address {address:x}")

    def call_past_table(self, caller, callee):
        """Let one function call another directly, where it called something else."""
        address, size = self.functions[caller]
        target = self.functions[callee][0]
        start = self.offset_of(address)
        for at in range(start, start + size - 5):
            if self.data[at] == 0xE8:
                struct.pack_into("<i", self.data, at + 1, target - (address + at - start + 5))
                return
        raise ValueError(f"{caller}() calls nothing")

    def replace_in_tables(self, function, other):
        """In data, or in the relocations that make the data."""
        old = struct.pack("<Q", self.functions[function][0])
        new = struct.pack("<Q", self.functions[other][0])
        count = 0
        for kind, _, offset, length, _ in self.sections:
            # contents, relocations: not the symbols
            if kind not in (1, 4):
                continue
            at = self.data.find(old, offset, offset + length)
            while at >= 0:
                if (at - offset) % 8 == 0:
                    self.data[at:at + 8] = new
                    count += 1
                at = self.data.find(old, at + 1, offset + length)
        return count
