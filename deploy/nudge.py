#!/usr/bin/env python3
"""Changes every weight by at most its last bit: nudge.py MODEL.safetensors OUT.safetensors SEED.

MODEL has tensors of binary16, OUT the same ones in binary32, each weight multiplied by 1 + e with |e| <= 2^-23. How far
that moves a trajectory shows how well two builds can agree that add the same numbers in another order.
"""

import json
import random
import struct
import sys
import zlib


def main(source, target, seed):
    with open(source, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    out, parts, end = {}, [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            out[name] = tensor
            continue
        if tensor["dtype"] != "F16":
            sys.exit(f"{source}: {name} is {tensor['dtype']}, expected F16")
        begin, stop = tensor["data_offsets"]
        raw = data[begin:stop]
        # Tensors that are the same stay the same.
        numbers = random.Random(f"{seed} {zlib.crc32(raw)}")
        values = struct.unpack(f"<{len(raw) // 2}e", raw)
        nudged = [value * (1 + (numbers.random() - 0.5) * 2**-22) for value in values]
        parts.append(struct.pack(f"<{len(nudged)}f", *nudged))
        out[name] = {"dtype": "F32", "shape": tensor["shape"], "data_offsets": [end, end + len(parts[-1])]}
        end += len(parts[-1])
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(parts)


if len(sys.argv) != 4:
    sys.exit(__doc__)
main(*sys.argv[1:])
