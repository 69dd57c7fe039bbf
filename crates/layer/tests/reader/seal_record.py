#!/usr/bin/env python3
"""Seals a record for the golden files, from docs/FORMAT.md alone.

    seal_record.py REPOSITORY CLUSTER KEY FILE IDENTITY   FILE becomes the object KEY below the cluster

The salt is random: no run makes the same bytes again.
"""

import os
import struct
import sys
from pathlib import Path

from checksums import xxh3
from read_layer import read_record
from unseal import CHUNK, Ring, aes256, aes256_keys, ghash, object_key


def aes256gcm_seal(key, nonce, associated, data):
    keys = aes256_keys(key)
    blocks = range(-(-len(data) // 16))
    stream = b"".join(aes256(keys, nonce + struct.pack(">I", 2 + n)) for n in blocks)
    sealed = bytes(a ^ b for a, b in zip(data, stream))
    h = int.from_bytes(aes256(keys, bytes(16)), "big")
    padded = associated + bytes(-len(associated) % 16) + sealed + bytes(-len(sealed) % 16)
    first = aes256(keys, nonce + struct.pack(">I", 1))
    lengths = struct.pack(">QQ", 8 * len(associated), 8 * len(data))
    tag = ghash(h, padded + lengths) ^ int.from_bytes(first, "big")
    return sealed + tag.to_bytes(16, "big")


def main(repository, cluster, key, file, identity):
    folder, raw = Path(repository) / cluster, Path(file).read_bytes()
    assert len(raw) <= CHUNK, "a record is one chunk"
    record = read_record((folder / "cluster").read_bytes(), "cluster", 2)
    ring = Ring(folder, record["sealing"]["seal_id"], Path(identity).read_text(), read_record)
    epoch, salt = max(ring.catalog), os.urandom(16)
    header = struct.pack("<8sIIBBHI16sI", b"PGSTSEAL", 1, CHUNK, 2, 1, 0, epoch, salt, 0) + bytes(12)
    secret, context = object_key(ring.catalog[epoch], 2, salt, ring.seal_id, key)
    sealed = aes256gcm_seal(secret, struct.pack("<QI", 0, 0), context + struct.pack("<QB", 0, 1), raw)
    word = struct.pack("<I", len(raw) | 1 << 31)
    place = folder / key
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("xb") as out:
        out.write(header + struct.pack("<Q", xxh3(header)))
        out.write(word + struct.pack("<Q", xxh3(word + sealed)) + sealed)


if __name__ == "__main__":
    main(*sys.argv[1:])
