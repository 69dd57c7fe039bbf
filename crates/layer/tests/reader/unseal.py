"""Opens what is sealed, from docs/FORMAT.md, section 14, alone.

The ciphers are written out, so that the standard library is enough: X25519
(RFC 7748), HKDF (RFC 5869), ChaCha20-Poly1305 (RFC 8439), AES-GCM (NIST SP
800-38D), Ed25519 (RFC 8032) and the age file format (age-encryption.org/v1).
All of it is slow, and none of it hides its secrets: it is for tests.
"""

import base64
import hashlib
import hmac
import struct

from checksums import blake3, xxh3

CHUNK = 16384


class Sealed(Exception):
    """What was read cannot be opened, or is not what was sealed there."""


def require(condition, complaint):
    if not condition:
        raise Sealed(complaint)


# --- ciphers -----------------------------------------------------------------

P = 2 ** 255 - 19


def x25519(scalar, point):
    k = bytearray(scalar)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    k = int.from_bytes(k, "little")
    u = int.from_bytes(point, "little") & (1 << 255) - 1
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for t in reversed(range(255)):
        bit = k >> t & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, (aa - bb) * (aa + 121665 * (aa - bb)) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def hkdf(key, salt, info):
    mixed = hmac.digest(salt or bytes(32), key, "sha256")
    return hmac.digest(mixed, info + b"\x01", "sha256")


def chacha20_block(key, counter, nonce):
    def rotate(value, by):
        return (value << by | value >> 32 - by) & 0xFFFFFFFF

    start = list(struct.unpack("<16I", b"expand 32-byte k" + key + struct.pack("<I", counter) + nonce))
    s = start[:]

    def quarter(a, b, c, d):
        for left, right, by in ((a, b, 16), (c, d, 12), (a, b, 8), (c, d, 7)):
            s[left] = s[left] + s[right] & 0xFFFFFFFF
            other = d if left == a else b
            s[other] = rotate(s[other] ^ s[left], by)

    for _ in range(10):
        for n in range(4):
            quarter(n, 4 + n, 8 + n, 12 + n)
        for n in range(4):
            quarter(n, 4 + (n + 1) % 4, 8 + (n + 2) % 4, 12 + (n + 3) % 4)
    return struct.pack("<16I", *(a + b & 0xFFFFFFFF for a, b in zip(s, start)))


def chacha20poly1305_open(key, nonce, sealed):
    data, tag = sealed[:-16], sealed[-16:]
    one_time = chacha20_block(key, 0, nonce)[:32]
    r = int.from_bytes(one_time[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF
    message = data + bytes(-len(data) % 16) + struct.pack("<QQ", 0, len(data))
    total = 0
    for at in range(0, len(message), 16):
        total = (total + int.from_bytes(message[at:at + 16] + b"\x01", "little")) * r % ((1 << 130) - 5)
    expected = (total + int.from_bytes(one_time[16:], "little")) % (1 << 128)
    require(expected.to_bytes(16, "little") == tag, "age file: tag does not match")
    stream = b"".join(chacha20_block(key, 1 + n, nonce) for n in range(-(-len(data) // 64)))
    return bytes(a ^ b for a, b in zip(data, stream))


def sbox():
    box, p, q = [0] * 256, 1, 1
    while True:
        p = p ^ p << 1 & 0xFF ^ (0x1B if p & 0x80 else 0)
        for by in (1, 2, 4):
            q ^= q << by & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        turned = q
        for by in (1, 2, 3, 4):
            turned ^= (q << by | q >> 8 - by) & 0xFF
        box[p] = turned ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return box


SBOX = sbox()


def aes256_keys(key):
    words = [list(key[n:n + 4]) for n in range(0, 32, 4)]
    constant = 1
    for n in range(8, 60):
        word = words[-1][:]
        if n % 8 == 0:
            word = [SBOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant <<= 1
        elif n % 8 == 4:
            word = [SBOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[n - 8], word)])
    return [sum(words[n:n + 4], []) for n in range(0, 60, 4)]


def aes256(keys, block):
    def double(byte):
        return byte << 1 & 0xFF ^ (0x1B if byte & 0x80 else 0)

    state = [a ^ b for a, b in zip(block, keys[0])]
    for number, key in enumerate(keys[1:], 1):
        state = [SBOX[byte] for byte in state]
        state = [state[(n + 4 * (n % 4)) % 16] for n in range(16)]
        if number < 14:
            mixed = []
            for at in range(0, 16, 4):
                a, b, c, d = state[at:at + 4]
                mixed += [
                    double(a) ^ double(b) ^ b ^ c ^ d, a ^ double(b) ^ double(c) ^ c ^ d,
                    a ^ b ^ double(c) ^ double(d) ^ d, double(a) ^ a ^ b ^ c ^ double(d),
                ]
            state = mixed
        state = [a ^ b for a, b in zip(state, key)]
    return bytes(state)


def ghash(h, data):
    total = 0
    for at in range(0, len(data), 16):
        total ^= int.from_bytes(data[at:at + 16], "big")
        product, shifted = 0, h
        for bit in reversed(range(128)):
            if total >> bit & 1:
                product ^= shifted
            shifted = shifted >> 1 ^ (0xE1 << 120 if shifted & 1 else 0)
        total = product
    return total


def aes256gcm_open(key, nonce, associated, sealed):
    data, tag = sealed[:-16], sealed[-16:]
    keys = aes256_keys(key)
    h = int.from_bytes(aes256(keys, bytes(16)), "big")
    padded = associated + bytes(-len(associated) % 16) + data + bytes(-len(data) % 16)
    lengths = struct.pack(">QQ", 8 * len(associated), 8 * len(data))
    first = aes256(keys, nonce + struct.pack(">I", 1))
    expected = ghash(h, padded + lengths) ^ int.from_bytes(first, "big")
    require(expected.to_bytes(16, "big") == tag, "tag does not match")
    blocks = range(-(-len(data) // 16))
    stream = b"".join(aes256(keys, nonce + struct.pack(">I", 2 + n)) for n in blocks)
    return bytes(a ^ b for a, b in zip(data, stream))


L = 2 ** 252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def ed25519_point(data):
    y = int.from_bytes(data, "little") & (1 << 255) - 1
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    require((x * x - square) % P == 0, "signature: not a point")
    if x & 1 != data[31] >> 7:
        x = P - x
    return x, y


def ed25519_add(one, other):
    (a, b), (c, d) = one, other
    t = D * a * b * c * d
    return ((a * d + b * c) * pow(1 + t, P - 2, P) % P, (b * d + a * c) * pow(1 - t, P - 2, P) % P)


def ed25519_times(point, factor):
    total = (0, 1)
    while factor:
        if factor & 1:
            total = ed25519_add(total, point)
        point, factor = ed25519_add(point, point), factor >> 1
    return total


def ed25519_verify(key, message, signature):
    base = ed25519_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    s = int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % L
    left = ed25519_times(base, s)
    right = ed25519_add(ed25519_point(signature[:32]), ed25519_times(ed25519_point(key), k))
    require(s < L and left == right, "signature does not match")


# --- age ---------------------------------------------------------------------


def bech32(text, prefix):
    """The bytes of a bech32 string, whose checksum is left to who made it."""
    text = text.lower()
    require(text.startswith(prefix + "1"), f"not {prefix}1...")
    value = bits = 0
    out = bytearray()
    for letter in text[len(prefix) + 1:-6]:
        value = value << 5 | "qpzry9x8gf2tvdw0s3jn54khce6mua7l".index(letter)
        bits += 5
        if bits >= 8:
            bits -= 8
            out.append(value >> bits & 0xFF)
            value &= (1 << bits) - 1
    return bytes(out)


def recipient_of(secret):
    return x25519(secret, b"\x09" + bytes(31))


def age_open(secret, data):
    def unpadded(text):
        return base64.b64decode(text + b"=" * (-len(text) % 4))

    head, found, rest = data.partition(b"\n--- ")
    require(found and head.startswith(b"age-encryption.org/v1\n"), "not an age file")
    mac, _, payload = rest.partition(b"\n")
    file_key = None
    lines = head.split(b"\n")[1:]
    while lines:
        words = lines.pop(0).split(b" ")
        require(words[0] == b"->", "age file: no stanza")
        body = b""
        while lines:
            line = lines.pop(0)
            body += line
            if len(line) < 64:
                break
        if words[1] == b"X25519":
            share = unpadded(words[2])
            wrap = hkdf(x25519(secret, share), share + recipient_of(secret), b"age-encryption.org/v1/X25519")
            file_key = chacha20poly1305_open(wrap, bytes(12), unpadded(body))
    require(file_key is not None, "age file: not for an X25519 recipient")
    expected = hmac.digest(hkdf(file_key, b"", b"header"), head + b"\n---", "sha256")
    require(expected == unpadded(mac), "age file: header was altered")
    require(len(payload) - 16 <= 65536 + 16, "age file: longer than any key")
    key = hkdf(file_key, payload[:16], b"payload")
    return chacha20poly1305_open(key, bytes(11) + b"\x01", payload[16:])


# --- sealed objects ----------------------------------------------------------


def object_key(shared, kind, salt, seal_id, name):
    info = b"pgstrata seal 1" + bytes([kind]) + seal_id + name.encode()
    return hkdf(shared, salt, info), blake3(info)


def open_chunks(key, data):
    secret, context = key
    out, number, last = b"", 0, False
    while data:
        require(not last, "goes on after its last chunk")
        word, checksum = struct.unpack_from("<IQ", data)
        last, length = bool(word >> 31), word & (1 << 31) - 1
        require(length == CHUNK if not last else length <= CHUNK, "length of a chunk")
        payload, data = data[12:12 + length + 16], data[12 + length + 16:]
        require(len(payload) == length + 16, "ends within a chunk")
        require(xxh3(struct.pack("<I", word) + payload) == checksum, "checksum of a chunk")
        associated = context + struct.pack("<QB", number, last)
        out += aes256gcm_open(secret, struct.pack("<QI", number, 0), associated, payload)
        number += 1
    require(last, "ends before its last chunk")
    return out


def split_header(data):
    """Class, epoch, salt, preface, chunks."""
    require(len(data) >= 64, "ends within its header")
    magic, version, chunk, kind, cipher, reserved, epoch, salt, preface = struct.unpack_from("<8sIIBBHI16sI", data)
    require(magic == b"PGSTSEAL" and version == 1 and chunk == CHUNK and cipher == 1, "is not sealed as it must be")
    require(reserved == 0 and data[44:56] == bytes(12) and epoch > 0 and preface <= 4096, "header makes no sense")
    (checksum,) = struct.unpack_from("<Q", data, 56)
    require(xxh3(data[:56] + data[64:64 + preface]) == checksum, "checksum of the header")
    return kind, epoch, salt, data[64:64 + preface], data[64 + preface:]


class Ring:
    """The epochs of a cluster, opened with the identity of a reader."""

    def __init__(self, folder, seal_id, identity, read_record):
        lines = [line for line in identity.splitlines() if line and not line.startswith("#")]
        own = bech32(lines[0], "age-secret-key-")
        self.seal_id = bytes.fromhex(seal_id)
        self.catalog, self.secret = {}, {}
        before = None
        number = 1
        while (place := folder / "key" / seal_id / f"{number:06}" / "epoch").exists():
            epoch = read_record(place.read_bytes(), "epoch")
            text = f"pgstrata epoch 1\n{epoch['recipient']}\n{epoch['verifying_key']}\n"
            if before is None:
                require(blake3(text.encode())[:16] == self.seal_id, "epoch 1: another seal id")
            else:
                fields = [seal_id, str(number), epoch["recipient"], epoch["verifying_key"]]
                self.check(before, "pgstrata epoch", fields, epoch["signature"])
            require(epoch["number"] == number and epoch["seal_id"] == seal_id, "epoch: another number or seal id")
            self.open_boxes(place.parent, epoch, own, read_record)
            before, number = epoch, number + 1
        require(before is not None, "there is no epoch")

    @staticmethod
    def check(epoch, kind, fields, signature):
        text = "".join(f"{field}\n" for field in [kind, *fields])
        ed25519_verify(bytes.fromhex(epoch["verifying_key"]), text.encode(), bytes.fromhex(signature))

    def open_boxes(self, place, epoch, own, read_record):
        for path in sorted(place.glob("*-" + epoch["verifying_key"][:8])):
            box = read_record(path.read_bytes(), "keybox")
            fields = [box["seal_id"], str(box["epoch"]), box["role"], box["recipient"], box["sealed"]]
            self.check(epoch, "pgstrata keybox", fields, box["signature"])
            if bech32(box["recipient"], "age") != recipient_of(own):
                continue
            text = age_open(own, bytes.fromhex(box["sealed"])).decode()
            secrets = dict(line.split(" ") for line in text.splitlines())
            self.catalog[epoch["number"]] = bytes.fromhex(secrets["catalog"])
            if "identity" in secrets:
                self.secret[epoch["number"]] = bech32(secrets["identity"], "age-secret-key-")

    def data_key(self, epoch, sealed):
        require(epoch in self.secret, f"epoch {epoch}: the identity is not that of a reader")
        return age_open(self.secret[epoch], sealed)

    def open_object(self, public, name, data):
        """An object of the layer with that public part of the manifest."""
        encryption, layer_id = public["encryption"], bytes.fromhex(public["layer_id"])
        kind, epoch, salt, preface, chunks = split_header(data)
        expected = 1 if name.rsplit("/", 1)[1].startswith("pack-") else 2
        require((kind, epoch, salt, preface) == (expected, encryption["epoch"], layer_id, b""), f"{name}: header")
        sealed = bytes.fromhex(encryption["data_key"])
        shared = self.data_key(epoch, sealed) if kind == 1 else self.catalog[epoch]
        return open_chunks(object_key(shared, kind, salt, self.seal_id, name), chunks)

    def open_manifest(self, public, without_sealed):
        """The record in a manifest; `without_sealed` is its object with nothing sealed."""
        encryption = public["encryption"]
        salt = bytes.fromhex(encryption["salt"])
        kind, epoch, found, preface, chunks = split_header(bytes.fromhex(public["sealed"]))
        require((kind, epoch, found, preface) == (2, encryption["epoch"], salt, b""), "manifest: header")
        name = f"layer/{public['label']}/manifest {blake3(without_sealed).hex()}"
        return open_chunks(object_key(self.catalog[epoch], 2, salt, self.seal_id, name), chunks)

    def open_record(self, name, data):
        """A record that is sealed as a whole."""
        kind, epoch, salt, preface, chunks = split_header(data)
        require((kind, preface) == (2, b""), f"{name}: header")
        return open_chunks(object_key(self.catalog[epoch], kind, salt, self.seal_id, name), chunks)

    def open_wal(self, file_name, data):
        kind, epoch, salt, preface, chunks = split_header(data)
        require(kind == (2 if file_name.endswith(".history") else 1), f"{file_name}: class")
        (length,) = struct.unpack_from("<I", preface)
        sealed, rest = preface[4:4 + length], preface[4 + length:]
        require(struct.unpack_from("<I", rest)[0] == len(rest) - 4, f"{file_name}: preface")
        name = f"wal/{file_name[:8]}/{file_name}"
        shared = self.catalog[epoch] if kind == 2 else self.data_key(epoch, sealed)
        raw = open_chunks(object_key(shared, kind, salt, self.seal_id, name), chunks)
        header = open_chunks(object_key(self.catalog[epoch], 2, salt, self.seal_id, name + " header"), rest[4:])
        require(raw[:128] == header, f"{file_name}: another header")
        return raw
