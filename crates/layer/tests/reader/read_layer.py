#!/usr/bin/env python3
"""Restores a layer, from docs/FORMAT.md alone.

    read_layer.py REPOSITORY CLUSTER LABEL TARGET   restore into the new directory TARGET
    read_layer.py REPOSITORY CLUSTER wal FILE       write an archived file to standard output
    read_layer.py REPOSITORY CLUSTER record KEY     write a record, by its key below the cluster, to standard output

Of a sealed cluster with one more argument: a file with the age identity of a reader.

A second implementation, written to prove that the document is complete: it
shares no code with pgstrata and needs the standard library alone (and the module
`zstandard`, or Python 3.14, for objects compressed with Zstandard). It is slow
and holds everything in memory; it checks everything the document asks for.
"""

import json
import os
import struct
import sys
from pathlib import Path

from checksums import blake3, xxh3
from unseal import Ring, Sealed

BLOCK = 8192
MANIFEST_FIELDS = {
    "label", "layer_id", "parent", "cluster", "written_by", "started_at", "finished_at", "start_lsn",
    "stop_lsn", "timeline", "from_standby", "change_source", "tracker_token", "backup_label",
    "tablespace_map", "pg_control", "pg_control_size", "tablespaces", "index", "pack_count",
    "pack_bytes", "totals", "corrupt_pages", "encryption",
}


class Damaged(Exception):
    """What was read is not what a writer of version 1 writes."""


def require(condition, complaint):
    if not condition:
        raise Damaged(complaint)


# --- section 4: records ------------------------------------------------------


def read_record(data, kind, version=1):
    line, newline, body = data.partition(b"\n")
    expected = f"pgstrata {kind} {version} {len(body)} {blake3(body).hex()}".encode()
    require(newline and line == expected, f"{kind}: first line is {line!r}, expected {expected!r}")

    def unique(pairs):
        require(len(dict(pairs)) == len(pairs), f"{kind}: a field is there twice")
        return dict(pairs)

    return json.loads(body, object_pairs_hook=unique)


# --- section 5: frame --------------------------------------------------------


def lz4_block(data, length):
    out = bytearray()
    at = 0

    def extended(value):
        nonlocal at
        if value == 15:
            while True:
                more = data[at]
                at += 1
                value += more
                if more != 255:
                    break
        return value

    while True:
        token = data[at]
        at += 1
        literals = extended(token >> 4)
        require(at + literals <= len(data), "frame: LZ4 literals end too early")
        out += data[at:at + literals]
        at += literals
        if at == len(data):
            break
        offset = struct.unpack_from("<H", data, at)[0]
        at += 2
        count = extended(token & 15) + 4
        require(0 < offset <= len(out) and len(out) + count <= length, "frame: LZ4 match out of range")
        for _ in range(count):
            out.append(out[-offset])
    return bytes(out)


def zstandard_frame(data, length):
    try:
        from compression import zstd
        return zstd.decompress(data)
    except ImportError:
        import zstandard
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=length)


def read_frames(data):
    """Yields offset, checksum and contents of frames that lie back to back."""
    at = 0
    while at < len(data):
        require(len(data) - at >= 24, "frame: ends too early")
        magic, codec, cipher, reserved, raw_length, length, checksum = struct.unpack_from("<4sBBHIIQ", data, at)
        require(magic == b"PGSF" and cipher == 0 and reserved == 0, "frame: header makes no sense")
        require(0 < raw_length <= 1 << 20, "frame: holds too much or nothing")
        payload = data[at + 24:at + 24 + length]
        require(len(payload) == length, "frame: ends too early")
        require(xxh3(data[at:at + 16] + payload) == checksum, "frame: checksum does not match")
        if codec == 0:
            raw = payload
        else:
            require(length < raw_length and codec in (1, 2), "frame: header makes no sense")
            raw = (lz4_block if codec == 1 else zstandard_frame)(payload, raw_length)
        require(len(raw) == raw_length, "frame: decodes to another length")
        yield at, checksum, raw
        at += 24 + length


# --- sections 6 to 8: pack, index part, digest part --------------------------


def check_header(data, magic, number, layer_id):
    expected = magic + struct.pack("<II", 1, number) + layer_id
    require(data[:32] == expected, f"{magic.decode()} {number}: header is not that of the layer")


def framed_object(data, magic, end_magic, number, layer_id):
    """Frames of a pack or index part by their offset in the object."""
    check_header(data, magic, number, layer_id)
    require(len(data) >= 32 + 24, f"{magic.decode()} {number}: ends too early")
    found_magic, count, reserved, checksum = struct.unpack("<8sIIQ", data[-24:])
    frames = {32 + at: (sum_, raw) for at, sum_, raw in read_frames(data[32:-24])}
    sums = b"".join(struct.pack("<Q", sum_) for sum_, _ in frames.values())
    require(found_magic == end_magic and reserved == 0, f"{magic.decode()} {number}: no trailer")
    require(count == len(frames), f"{magic.decode()} {number}: number of frames")
    require(xxh3(data[:32] + sums) == checksum, f"{magic.decode()} {number}: checksum does not match")
    return frames


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        require(self.at + count <= len(self.data), "index: an entry ends too early")
        self.at += count
        return self.data[self.at - count:self.at]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]

    def varint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                require(byte > 0 or shift == 0, "index: integer not in shortest form")
                require(value < 1 << 64, "index: integer too large")
                return value
            shift += 7

    def svarint(self):
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def runs(self, end):
        """Runs as (start, end), and the end of the last."""
        runs = []
        for _ in range(self.varint()):
            start = end + self.varint()
            end = start + self.varint() + 1
            runs.append((start, end))
        return runs, end


class Entry:
    def __init__(self, cursor, last_path):
        shared = cursor.varint()
        require(shared <= len(last_path), "index: a path shares more than there is")
        self.raw_path = last_path[:shared] + cursor.take(cursor.varint())
        self.path = self.raw_path.decode("utf-8")
        self.kind = cursor.take(1)[0]
        self.mode = cursor.varint()
        self.modified = cursor.svarint()
        self.size = cursor.varint()
        self.identity = cursor.u64()
        self.inherit_limit = cursor.varint()
        self.content_digest = cursor.take(32) if self.kind == 2 else None
        self.read_frames(cursor)
        self.zero_runs, _ = cursor.runs(0)
        self.digest_checksum = None
        if self.kind == 1 and self.stored_pages():
            self.digest_checksum = cursor.u64()
        require(cursor.at == len(cursor.data), f"{self.path}: entry is longer than its contents")
        self.check()

    def read_frames(self, cursor):
        self.frames = []
        pack = expected = block = 0
        for _ in range(cursor.varint()):
            step = cursor.svarint()
            pack += step
            offset = (cursor.svarint() + (0 if step else expected)) % (1 << 64)
            length = cursor.varint()
            checksum = cursor.u64()
            runs, block = cursor.runs(block)
            require(runs, f"{self.path}: a frame without blocks")
            self.frames.append((pack, offset, length, checksum, runs))
            expected = offset + length

    def blocks(self):
        return -(-self.size // BLOCK)

    def page_length(self, block):
        return max(0, min(BLOCK, self.size - block * BLOCK))

    def stored_pages(self):
        return sum(end - start for *_, runs in self.frames for start, end in runs)

    def check(self):
        parts = self.path.split("/")
        require(len(self.raw_path) <= 4096 and "\0" not in self.path, f"{self.path!r}: not a plain path")
        require(not {"", ".", ".."} & set(parts), f"{self.path!r}: not a plain relative path")
        require(self.kind in (0, 1, 2) and self.mode <= 0o7777, f"{self.path}: kind or mode")
        require(self.inherit_limit <= self.blocks() < 1 << 32, f"{self.path}: inherit limit or size")
        require(self.kind or not (self.size or self.frames or self.zero_runs), f"{self.path}: directory with contents")
        seen = set()
        for runs in [runs for *_, runs in self.frames] + [self.zero_runs]:
            for start, end in runs:
                require(end <= self.blocks(), f"{self.path}: block beyond the end")
                require(seen.isdisjoint(range(start, end)), f"{self.path}: a block twice")
                seen.update(range(start, end))


# --- section 10: overlay -----------------------------------------------------


def is_abandoned(data):
    """Whether a record in the manifest's place says that there is no layer."""
    if not data.startswith(b"pgstrata abandoned "):
        return False
    read_record(data, "abandoned")
    return True


# Sections of the public part of the manifest of a sealed layer that its manifest has too.
PUBLIC_FIELDS = {
    "label", "layer_id", "parent", "written_by", "started_at", "finished_at", "pack_count", "pack_bytes",
}


def open_manifest(data, ring):
    """The public part of a sealed manifest, and the record that is sealed in it."""
    public = read_record(data, "manifest", 4)
    require(set(public) == PUBLIC_FIELDS | {"replaces", "inputs", "index", "encryption", "sealed"}, "manifest: fields")
    body = data.partition(b"\n")[2].replace(public["sealed"].encode(), b"")
    line = f"pgstrata manifest 4 {len(body)} {blake3(body).hex()}\n".encode()
    return public, ring.open_manifest(public, line + body)


class Layer:
    def __init__(self, folder, label, ring):
        self.folder, self.ring = folder / label, ring
        self.object = (self.folder / "manifest").read_bytes()
        require(not is_abandoned(self.object), f"{label}: no layer, it was abandoned or removed")
        self.public, record = (None, self.object) if ring is None else open_manifest(self.object, ring)
        versions = [version for version in (1, 2, 3) if record.startswith(b"pgstrata manifest %d " % version)]
        require(versions, f"{label}: version of the manifest")
        (version,) = versions
        self.manifest = read_record(record, "manifest", version)
        for field in PUBLIC_FIELDS if ring else ():
            require(self.manifest[field] == self.public[field], f"{label}: {field} is not that of the public part")
        merged = version == 2 or version == 3 and "replaces" in self.manifest
        fields = MANIFEST_FIELDS | ({"replaces", "inputs"} if merged else set()) | ({"beside"} if version == 3 else set())
        require(set(self.manifest) == fields, f"{label}: fields of the manifest")
        require(not merged or self.manifest["replaces"] and self.manifest["inputs"], f"{label}: merged out of nothing")
        require(version != 3 or set(self.manifest["beside"]) == {"layer", "reason"}, f"{label}: what lies beside it")
        require(self.manifest["encryption"] is None, f"{label}: encrypted")
        require(self.manifest["label"] == label, f"{label}: is {self.manifest['label']}")
        require(self.manifest["cluster"]["block_size"] == BLOCK, f"{label}: block size")
        self.layer_id = bytes.fromhex(self.manifest["layer_id"])
        self.packs = [self.read_pack(number) for number in range(self.manifest["pack_count"])]
        self.entries = {}
        for number, part in enumerate(self.manifest["index"]):
            self.read_part(number, part)

    def read_object(self, name):
        data = (self.folder / name).read_bytes()
        if self.ring is None:
            return data
        return self.ring.open_object(self.public, f"layer/{self.folder.name}/{name}", data)

    def read_pack(self, number):
        data = self.read_object(f"pack-{number:06}")
        return framed_object(data, b"PGSTPACK", b"PGSPEND1", number, self.layer_id)

    def read_part(self, number, part):
        data = self.read_object(f"index-{number:06}")
        require(len(data) == part["index_bytes"], f"index {number}: length")
        require(blake3(data).hex() == part["index_digest"], f"index {number}: digest")
        frames = framed_object(data, b"PGSTINDX", b"PGSXEND1", number, self.layer_id)
        digests = self.read_object(f"digest-{number:06}")
        check_header(digests, b"PGSTDGST", number, self.layer_id)
        require(len(digests) == part["digest_bytes"], f"digest {number}: length")
        stream = Cursor(b"".join(raw for _, raw in frames.values()))
        last_path, count, digest_at = b"", 0, 32
        while stream.at < len(stream.data):
            entry = Entry(Cursor(stream.take(stream.varint())), last_path)
            require(count > 0 or entry.path == part["first_path"], f"index {number}: first path")
            newest = max(self.entries, key=lambda path: path.encode(), default="").encode()
            require(entry.raw_path > newest, f"{entry.path}: not in order")
            if entry.digest_checksum is not None:
                entry.digests = digests[digest_at:digest_at + 8 * entry.stored_pages()]
                digest_at += len(entry.digests)
                require(xxh3(entry.digests) == entry.digest_checksum, f"{entry.path}: page digests")
            self.entries[entry.path] = entry
            last_path, count = entry.raw_path, count + 1
        require(count == part["entries"] and digest_at == len(digests), f"index {number}: counts")

    def pages(self, entry):
        """Pages the layer itself has of a file, by block."""
        pages = {block: bytes(entry.page_length(block)) for start, end in entry.zero_runs for block in range(start, end)}
        ordinal = 0
        for pack, offset, length, checksum, runs in entry.frames:
            require(0 <= pack < len(self.packs) and offset in self.packs[pack], f"{entry.path}: no such frame")
            found, raw = self.packs[pack][offset]
            require(found == checksum, f"{entry.path}: another frame than the index says")
            blocks = [block for start, end in runs for block in range(start, end)]
            require(len(raw) == sum(map(entry.page_length, blocks)), f"{entry.path}: length of a frame")
            for k, block in enumerate(blocks):
                pages[block] = raw[BLOCK * k:BLOCK * (k + 1)]
                if entry.kind == 1:
                    digest = struct.unpack_from("<Q", entry.digests, 8 * ordinal)[0]
                    require(digest == xxh3(pages[block]), f"{entry.path}: digest of block {block}")
                ordinal += 1
        return pages


def standing_for(folder, parent):
    """The label of the layer that `parent` names, or of a merged one that replaces it."""
    named = folder / parent["label"] / "manifest"
    if named.exists() and not is_abandoned(named.read_bytes()):
        return parent["label"]
    for manifest in sorted(folder.glob("*/manifest")):
        data = manifest.read_bytes()
        for version in (2, 4):
            is_one = data.startswith(b"pgstrata manifest %d " % version)
            if is_one and parent in read_record(data, "manifest", version)["replaces"]:
                return manifest.parent.name
    raise Damaged(f"{parent['label']}: is not there, and nothing replaces it")


def read_chain(folder, label, ring):
    chain = [Layer(folder, label, ring)]
    while (parent := chain[-1].manifest["parent"]) is not None:
        chain.append(Layer(folder, standing_for(folder, parent), ring))
        itself = {"label": chain[-1].manifest["label"], "manifest_digest": blake3(chain[-1].object).hex()}
        stands_for = [itself, *chain[-1].manifest.get("replaces", [])]
        require(parent in stands_for, f"{parent['label']}: another parent")
        first, last = chain[0].manifest["cluster"], chain[-1].manifest["cluster"]
        require(first["system_identifier"] == last["system_identifier"], f"{parent['label']}: another cluster")
    return chain


def contents(chain, path):
    newest = chain[0].entries[path]
    wanted, found = set(range(newest.blocks())), {}
    for depth, layer in enumerate(chain):
        entry = layer.entries[path]
        for block, page in layer.pages(entry).items():
            if block in wanted:
                found[block] = page
                wanted.remove(block)
        if not wanted:
            break
        damage = f"{path}: block {min(wanted)} has no source"
        require(max(wanted) < entry.inherit_limit and depth + 1 < len(chain), damage)
        parent = chain[depth + 1].entries.get(path)
        require(parent is not None and parent.kind == entry.kind, damage)
        whole = parent.blocks() if parent.size == entry.size else parent.size // BLOCK
        require(max(wanted) < whole, damage)
    data = b"".join(found[block] for block in range(newest.blocks()))
    require(len(data) == newest.size, f"{path}: size")
    require(newest.kind != 2 or blake3(data) == newest.content_digest, f"{path}: digest")
    return data


def restore(chain, target):
    target.mkdir(mode=0o700)
    for path, entry in chain[0].entries.items():
        place = target / path
        if entry.kind == 0:
            place.mkdir()
        else:
            place.write_bytes(contents(chain, path))
        os.chmod(place, entry.mode)
        os.utime(place, (entry.modified, entry.modified))
    manifest = chain[0].manifest
    (target / "backup_label").write_text(manifest["backup_label"], newline="")
    if manifest["tablespace_map"] is not None:
        (target / "tablespace_map").write_text(manifest["tablespace_map"], newline="")
    control = bytes.fromhex(manifest["pg_control"]).ljust(manifest["pg_control_size"], b"\0")
    (target / "global").mkdir(exist_ok=True)
    (target / "global" / "pg_control").write_bytes(control)


# --- section 9: WAL object ---------------------------------------------------


def read_wal(data, name, system_identifier):
    require(len(data) >= 144, f"{name}: ends too early")
    fields = struct.unpack_from("<8sIIQQ32s48sQQ", data)
    magic, version, count, identifier, raw_length, digest, found_name, reserved, checksum = fields
    require(magic == b"PGSTWAL1" and version == 1 and reserved == 0, f"{name}: header")
    require(xxh3(data[:120]) == checksum, f"{name}: checksum of the header")
    require(found_name == name.encode().ljust(48, b"\0"), f"{name}: is another file")
    require(identifier == system_identifier, f"{name}: of another cluster")
    frames = list(read_frames(data[128:-16]))
    sums = b"".join(struct.pack("<Q", sum_) for _, sum_, _ in frames)
    require(data[-16:] == b"PGSWEND1" + struct.pack("<Q", xxh3(data[:128] + sums)), f"{name}: trailer")
    raw = b"".join(raw for *_, raw in frames)
    require(len(frames) == count and len(raw) == raw_length and blake3(raw) == digest, f"{name}: contents")
    return raw


# --- sections 3 and 4: marks, and WAL that was given up ----------------------


def lsn(text):
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def read_marks(folder, label, now):
    """The last pin that holds at `now`, and the annotations."""
    pin, annotations = None, {}
    for number, path in enumerate(sorted((folder / "mark" / label).iterdir())):
        mark = read_record(path.read_bytes(), "mark")
        require(set(mark) == {"layer", "number", "says", "host", "pid", "marked_at", "written_by"}, f"{path}: fields")
        require(mark["layer"]["label"] == label and mark["number"] == number == int(path.name), f"{path}: place")
        ((word, says),) = mark["says"].items()
        if word == "pin":
            pin = says
        elif word == "unpin":
            pin = None
        elif says["value"] is None:
            annotations.pop(says["key"], None)
        else:
            require(word == "annotate", f"{path}: {word}")
            annotations[says["key"]] = says["value"]
    holds = pin is not None and (pin["until"] is None or now <= pin["until"])
    return {"pin": pin if holds else None, "annotations": annotations}


def promised_from(folder):
    """The LSN from which the archive promises to have no hole, on whatever timeline."""
    promised = 0
    for path in folder.glob("wal-released/*"):
        data = path.read_bytes()
        version = 2 if data.startswith(b"pgstrata released 2 ") else 1
        released = read_record(data, "released", version)
        timelines = released.get("timelines", [])
        require((version == 2) == bool(timelines), f"{path}: timelines")
        require(timelines == sorted(set(timelines)) and 0 not in timelines, f"{path}: timelines")
        before = lsn(released["wal_before"])
        require(int(path.name, 16) == before, f"{path}: place")
        promised = max(promised, before)
    return promised


def goes(data, timeline, number, segment_size):
    """Whether a verdict removes a segment of the archive."""
    version = 2 if data.startswith(b"pgstrata verdict 2 ") else 1
    verdict = read_record(data, "verdict", version)
    kept = verdict.get("wal_kept", [])
    require((version == 2) == bool(kept), "verdict: WAL that stays")
    before = verdict["wal_before"]
    if before is None or number >= lsn(before) // segment_size:
        return False
    for found in kept:
        first = lsn(found["start_lsn"]) // segment_size
        last = max(first, (lsn(found["stop_lsn"]) - 1) // segment_size)
        if found["timeline"] == timeline and first <= number <= last:
            return False
    return True


def show_kept(folder, label, now):
    """One JSON document for the tests."""
    size = 16 << 20
    shown = read_marks(folder, label, now)
    shown["promised_from"] = promised_from(folder)
    (verdict,) = folder.glob("removal/*/verdict")
    data = verdict.read_bytes()
    shown["stays"] = [[t, n] for t in (1, 2) for n in range(24) if not goes(data, t, n, size)]
    print(json.dumps(shown, sort_keys=True))


def main(repository, cluster, label, target, identity=None):
    folder = Path(repository) / cluster
    if label.startswith("kept:"):
        show_kept(folder, label.removeprefix("kept:"), target)
        return
    data = (folder / "cluster").read_bytes()
    version = next((v for v in (2, 3) if data.startswith(b"pgstrata cluster %d " % v)), 1)
    record = read_record(data, "cluster", version)
    require(record["name"] == cluster and record["format"] == version, "cluster: another name or format")
    ring = None
    if record.get("sealing") is not None:
        require(identity is not None, "cluster: is sealed, and no identity was given")
        ring = Ring(folder, record["sealing"]["seal_id"], Path(identity).read_text(), read_record)
    if label == "wal":
        data = (folder / "wal" / target[:8] / target).read_bytes()
        data = data if ring is None else ring.open_wal(target, data)
        sys.stdout.buffer.write(read_wal(data, target, record["system_identifier"]))
        return
    if label == "record":
        data = (folder / target).read_bytes()
        data = ring.open_record(target, data) if ring is not None and data.startswith(b"PGSTSEAL") else data
        read_record(data, target.split("/")[0])
        sys.stdout.buffer.write(data)
        return
    chain = read_chain(folder / "layer", label, ring)
    require(chain[0].manifest["cluster"]["system_identifier"] == record["system_identifier"], "another cluster")
    restore(chain, Path(target))


if __name__ == "__main__":
    if len(sys.argv) not in (5, 6):
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (Damaged, Sealed, OSError) as error:
        sys.exit(f"read_layer: {error}")
