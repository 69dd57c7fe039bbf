"""XXH3-64 and BLAKE3 in plain Python: slow, short, and shared with nobody."""

import struct

M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF

# --- XXH3, 64 bits, seed 0 ---------------------------------------------------

PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


def swap64(value):
    return int.from_bytes(value.to_bytes(8, "little"), "big")


def rotate_left(value, by):
    return (value << by | value >> (64 - by)) & M64


def fold(left, right):
    product = left * right
    return (product ^ product >> 64) & M64


def avalanche(value):
    value = (value ^ value >> 37) * 0x165667919E3779F9 & M64
    return value ^ value >> 32


def avalanche_xxh64(value):
    value = (value ^ value >> 33) * PRIME64_2 & M64
    value = (value ^ value >> 29) * PRIME64_3 & M64
    return value ^ value >> 32


def mix16(data, at, secret):
    return fold(u64(data, at) ^ u64(SECRET, secret), u64(data, at + 8) ^ u64(SECRET, secret + 8))


def xxh3_short(data):
    n = len(data)
    if n > 8:
        low = u64(data, 0) ^ u64(SECRET, 24) ^ u64(SECRET, 32)
        high = u64(data, n - 8) ^ u64(SECRET, 40) ^ u64(SECRET, 48)
        return avalanche((n + swap64(low) + high + fold(low, high)) & M64)
    if n >= 4:
        value = u32(data, n - 4) + (u32(data, 0) << 32)
        value ^= u64(SECRET, 8) ^ u64(SECRET, 16)
        value ^= rotate_left(value, 49) ^ rotate_left(value, 24)
        value = value * 0x9FB21C651E98DF25 & M64
        value ^= (value >> 35) + n
        value = value * 0x9FB21C651E98DF25 & M64
        return value ^ value >> 28
    if n > 0:
        combined = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return avalanche_xxh64(combined ^ u32(SECRET, 0) ^ u32(SECRET, 4))
    return avalanche_xxh64(u64(SECRET, 56) ^ u64(SECRET, 64))


def xxh3_middle(data):
    n = len(data)
    acc = n * PRIME64_1
    if n <= 128:
        for i in reversed(range((n - 1) // 32 + 1)):
            acc += mix16(data, 16 * i, 32 * i) + mix16(data, n - 16 * (i + 1), 32 * i + 16)
        return avalanche(acc & M64)
    for i in range(8):
        acc += mix16(data, 16 * i, 16 * i)
    acc = avalanche(acc & M64)
    for i in range(8, n // 16):
        acc += mix16(data, 16 * i, 16 * (i - 8) + 3)
    acc += mix16(data, n - 16, 136 - 17)
    return avalanche(acc & M64)


def accumulate(acc, data, at, secret):
    values = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", SECRET, secret)
    for i in range(8):
        key = values[i] ^ keys[i]
        acc[i ^ 1] += values[i]
        acc[i] += (key & M32) * (key >> 32)
    for i in range(8):
        acc[i] &= M64


def xxh3_long(data):
    n = len(data)
    acc = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1]
    blocks = (n - 1) // 1024
    scramble = struct.unpack_from("<8Q", SECRET, 128)
    for block in range(blocks):
        for stripe in range(16):
            accumulate(acc, data, 1024 * block + 64 * stripe, 8 * stripe)
        for i in range(8):
            acc[i] = (acc[i] ^ acc[i] >> 47 ^ scramble[i]) * PRIME32_1 & M64
    for stripe in range((n - 1 - 1024 * blocks) // 64):
        accumulate(acc, data, 1024 * blocks + 64 * stripe, 8 * stripe)
    accumulate(acc, data, n - 64, 192 - 64 - 7)
    result = n * PRIME64_1
    for i in range(4):
        left = acc[2 * i] ^ u64(SECRET, 11 + 16 * i)
        right = acc[2 * i + 1] ^ u64(SECRET, 11 + 16 * i + 8)
        result += fold(left, right)
    return avalanche(result & M64)


def xxh3(data):
    if len(data) <= 16:
        return xxh3_short(data)
    if len(data) <= 240:
        return xxh3_middle(data)
    return xxh3_long(data)


# --- BLAKE3, no key, 32 bytes ------------------------------------------------

IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
    0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
MIXES = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8


def rotate_right(value, by):
    return value >> by | value << (32 - by) & M32


def compress(chaining, block, counter, length, flags):
    state = list(chaining) + list(IV[:4]) + [counter & M32, counter >> 32, length, flags]
    words = block
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(MIXES):
            for word, first, second in ((words[2 * i], 16, 12), (words[2 * i + 1], 8, 7)):
                state[a] = (state[a] + state[b] + word) & M32
                state[d] = rotate_right(state[d] ^ state[a], first)
                state[c] = (state[c] + state[d]) & M32
                state[b] = rotate_right(state[b] ^ state[c], second)
        words = [words[i] for i in PERMUTATION]
    return [state[i] ^ state[i + 8] for i in range(8)]


def chunk_value(data, number, root):
    chaining = IV
    blocks = [data[at:at + 64] for at in range(0, len(data), 64)] or [b""]
    for i, block in enumerate(blocks):
        flags = CHUNK_START if i == 0 else 0
        if i == len(blocks) - 1:
            flags |= CHUNK_END | (ROOT if root else 0)
        words = struct.unpack("<16I", block.ljust(64, b"\0"))
        chaining = compress(chaining, words, number, len(block), flags)
    return chaining


def tree_value(data, first_chunk, root):
    chunks = max(1, -(-len(data) // 1024))
    if chunks == 1:
        return chunk_value(data, first_chunk, root)
    left = 1 << (chunks - 1).bit_length() - 1
    children = tree_value(data[:left * 1024], first_chunk, False)
    children = children + tree_value(data[left * 1024:], first_chunk + left, False)
    return compress(IV, children, 0, 64, PARENT | (ROOT if root else 0))


def blake3(data):
    return struct.pack("<8I", *tree_value(data, 0, True))
