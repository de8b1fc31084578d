#!/usr/bin/env python3
"""Makes mini.golden.safetensors from the golden file that was computed with the bundled model (needs numpy).

    thin_golden.py FULL.safetensors

FULL holds PyTorch's outputs for two pairs of images: every pixel, descriptors at every second. Kept are, of pair 0,
every 4th pixel (descriptors every 8th) and the encoder's features; of pair 1, every 3rd pixel (descriptors every
12th), which meets every position in a patch of 16 pixels.
"""
import json
import pathlib
import struct
import sys

import numpy as np

KINDS = {"F32": np.float32, "U8": np.uint8}
# Of pixels, and of descriptors in FULL.
STRIDES = {"pair0": (4, 4), "pair1": (3, 6)}


def read(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__")
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        yield name, entry["dtype"], np.frombuffer(body[begin:end], KINDS[entry["dtype"]]).reshape(entry["shape"])


def main():
    header = {"__metadata__": {"source": "golden.safetensors of mast3r-mini, thinned by thin_golden.py", "compute": "PyTorch CPU fp32"}}
    bodies, offset = [], 0
    for name, kind, values in sorted(read(sys.argv[1])):
        pair, what = name.split(".", 1)
        stride, desc_stride = STRIDES[pair]
        if what.startswith("dec") or (pair == "pair1" and what.startswith("enc")):
            continue
        if what[:-1] == "desc":
            values = values[::desc_stride, ::desc_stride]
        elif not what.startswith(("image", "enc")):
            values = values[::stride, ::stride]
        body = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [offset, offset + len(body)]}
        bodies.append(body)
        offset += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out = pathlib.Path(__file__).with_name("mini.golden.safetensors")
    out.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))


if __name__ == "__main__":
    main()
