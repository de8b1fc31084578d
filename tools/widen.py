#!/usr/bin/env python3
"""Writes the bundled model as a network of the official model's size: what it costs is the official
model's, what it computes is (to about 1 %) the bundled model's. So the whole of SLAM can be timed at
that size on a recorded sequence, tracking and closing loops, where random weights would be lost.

    cargo run --release -p tools --bin random_weights -- random.safetensors
    tools/widen.py engines/mast3r-mini random.safetensors OUT_FOLDER
    mast3r-slam run SEQUENCE --weights OUT_FOLDER/wide.safetensors --codebook OUT_FOLDER/codebook.safetensors \\
        --config config/mini_512.yaml

A stream of 192 channels x becomes E x, whose first 192 channels are x. Normalisation of a layer needs
the mean and the variance of the whole to be those of x: for the decoder (768) E repeats x four times;
for the encoder (1024) five times, and 64 more channels are mean(x) + V (x - mean(x)), with V's rows
sqrt(3) long, orthogonal, and orthogonal to 1 in both directions: the same mean, and the same variance
but for a random part of about 1 %. Every layer reads the first 192 channels and writes E times what
the small one writes; the blocks that the small model lacks compute, and write nothing. The rest
of the heads is filled with zeros. The codebook reads the first 192 channels too.
"""
import json
import sys
from pathlib import Path

import numpy as np

KINDS = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


def read(path, shapes_only=False):
    """Tensors (or their shapes) and metadata of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = b"" if shapes_only else file.read()
    metadata = header.pop("__metadata__", {})
    if shapes_only:
        return {name: tuple(t["shape"]) for name, t in header.items()}, metadata
    tensors = {}
    for name, t in header.items():
        begin, end = t["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], KINDS[t["dtype"]]).reshape(t["shape"])
    return tensors, metadata


def write(path, tensors, metadata):
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def pad(tensor, shape):
    """Zeros around it; the tensor is their first corner."""
    wide = np.zeros(shape, np.float32)
    wide[tuple(slice(n) for n in tensor.shape)] = tensor
    return wide


def embedding(narrow, wide, noise):
    """E: `wide` rows, `narrow` columns."""
    copies, rest = divmod(wide, narrow)
    parts = [np.eye(narrow)] * copies
    if rest:

        def at_right_angles_to_one(n):
            return np.linalg.qr(np.hstack([np.ones((n, 1)), noise.normal(size=(n, rest - 1))]))[0][:, 1:]

        spread = np.sqrt(rest * (narrow - 1) / (narrow * (rest - 1)))
        varied = spread * at_right_angles_to_one(rest) @ at_right_angles_to_one(narrow).T
        parts.append(np.full((rest, narrow), 1 / narrow) + varied)
    return np.vstack(parts)


def narrow_name(name):
    """The narrow network's tensor that stands at `name`. Its decoder has 10 blocks, and the head reads
    what leaves the 5th, the 7th and the last; of the wide one's 12 the head reads the 6th, 9th and last."""
    stack, _, rest = name.partition(".")
    if not stack.startswith("dec_blocks"):
        return name
    block, _, rest = rest.partition(".")
    block = [0, 1, 2, 3, 4, None, 5, 6, None, 7, 8, 9][int(block)]
    return None if block is None else f"{stack}.{block}.{rest}"


def widen(name, small, shape, streams):
    """The tensor `name` at its wide shape; `small` is None in a block that the small model lacks."""
    decoder = name.startswith(("dec", "downstream"))
    parts = name.split(".")
    into_stream = (
        name.startswith(("patch_embed", "decoder_embed"))
        or parts[-2] == "proj"
        or (len(parts) > 2 and parts[-3] == "mlp" and parts[-2] == "fc2")
    )
    if "norm" in parts[-2]:
        if small is None:
            return np.full(shape, float(parts[-1] == "weight"), np.float32)
        # Of what leaves the encoder, retrieval takes the length: every copy counts.
        return np.resize(small, shape).astype(np.float32)
    if into_stream:
        if small is None:
            return np.zeros(shape, np.float32)
        rows = streams["decoder" if decoder else "encoder"]
        flat = rows @ small.astype(np.float64).reshape(small.shape[0], -1)
        return pad(flat.reshape(rows.shape[0], *small.shape[1:]), shape)
    if small is None:
        inputs = int(np.prod(shape[1:]))
        return streams["noise"].normal(size=shape, scale=inputs**-0.5 if len(shape) > 1 else 0.02).astype(np.float32)
    if parts[-2] == "qkv":
        three = small.reshape(3, -1, *small.shape[1:])
        return pad(three, (3, shape[0] // 3, *shape[1:])).reshape(shape)
    if name.endswith("head_local_features.fc1.weight"):
        # Beside each other: the encoder's channels, then the decoder's.
        encoder, half = streams["encoder"].shape[0], small.shape[1] // 2
        wide = np.zeros(shape, np.float32)
        wide[: small.shape[0], :half] = small[:, :half]
        wide[: small.shape[0], encoder : encoder + half] = small[:, half:]
        return wide
    return pad(small, shape)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    bundled, template, out = (Path(p) for p in sys.argv[1:])
    small, _ = read(bundled / "model.safetensors")
    shapes, _ = read(template, shapes_only=True)
    noise = np.random.default_rng(1)
    narrow = small["enc_norm.weight"].size
    streams = {
        "encoder": embedding(narrow, shapes["enc_norm.weight"][0], noise),
        "decoder": embedding(narrow, shapes["dec_norm.weight"][0], noise),
        "noise": noise,
    }
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: widen(name, small.get(narrow_name(name)), shape, streams) for name, shape in shapes.items()}
    write(out / "wide.safetensors", tensors, {})

    codebook, metadata = read(bundled / "codebook.safetensors")
    about = json.loads(metadata["mast3r_slam_codebook"])
    dim = shapes["enc_norm.weight"][0]
    about.update(dim=dim, weights_hash="")
    wide = {
        "mean": pad(codebook["mean"], (dim,)),
        "projection": pad(codebook["projection"], (dim, dim)),
        "centroids": pad(codebook["centroids"], (about["words"], dim)),
    }
    write(out / "codebook.safetensors", wide, {"mast3r_slam_codebook": json.dumps(about)})


if __name__ == "__main__":
    main()
