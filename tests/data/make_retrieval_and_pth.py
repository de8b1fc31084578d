"""Makes the small checkpoints and retrieval files in pth/ and retrieval/ (needs numpy, not torch).

They follow the layouts of the official files: a torch zip archive (stored, or deflated here) whose
pickle calls torch._utils._rebuild_tensor_v2, and a plain pickle with a NumPy array. Values follow
closed formulas that the tests repeat. Run with NumPy 1 and with NumPy 2, whose array pickles differ:

    python make_retrieval_and_pth.py numpy1 && python make_retrieval_and_pth.py numpy2
"""
import argparse, collections, io, os, pathlib, pickle, struct, sys, types, zipfile
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))

torch = types.ModuleType("torch")
torch_utils = types.ModuleType("torch._utils")
for name in ("HalfStorage", "BFloat16Storage", "FloatStorage", "DoubleStorage", "LongStorage"):
    setattr(torch, name, type(name, (), {"__module__": "torch"}))


def _rebuild_tensor_v2(*_): raise NotImplementedError
def _rebuild_parameter(*_): raise NotImplementedError


for f in (_rebuild_tensor_v2, _rebuild_parameter):
    f.__module__ = "torch._utils"
    setattr(torch_utils, f.__name__, f)
torch._utils = torch_utils
sys.modules["torch"], sys.modules["torch._utils"] = torch, torch_utils


class Storage:
    def __init__(self, kind, data, elements):
        self.kind, self.data, self.elements = kind, data, elements


class Tensor:
    def __init__(self, storage, offset, shape, strides, parameter=False):
        self.args = (storage, offset, shape, strides)
        self.parameter = parameter

    def __reduce__(self):
        if self.parameter:
            return _rebuild_parameter, (Tensor(*self.args), True, collections.OrderedDict())
        return _rebuild_tensor_v2, (*self.args, False, collections.OrderedDict())


def dense(array, kind):
    strides = tuple(s // array.itemsize for s in array.strides)
    return Tensor(Storage(kind, array.tobytes(), array.size), 0, array.shape, strides)


def torch_save(path, obj, compression=zipfile.ZIP_STORED, byteorder=b"little"):
    storages = []

    class Pickler(pickle.Pickler):
        def persistent_id(self, o):
            if isinstance(o, Storage):
                if o not in storages:
                    storages.append(o)
                return ("storage", getattr(torch, o.kind), str(storages.index(o)), "cpu", o.elements)

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(obj)
    stem = os.path.splitext(os.path.basename(path))[0]
    with zipfile.ZipFile(path, "w", compression) as z:
        def put(name, data):
            info = zipfile.ZipInfo(f"{stem}/{name}", (1980, 1, 1, 0, 0, 0))
            info.compress_type = compression
            z.writestr(info, data)
        put("data.pkl", out.getvalue())
        put("byteorder", byteorder)
        for i, s in enumerate(storages):
            put(f"data/{i}", s.data)
        put("version", b"3\n")


C, K = 16, 24
i, j = np.meshgrid(np.arange(C), np.arange(C), indexing="ij")
mean = (np.arange(C, dtype=np.float64) / 7.0).reshape(1, C)
projection = ((i * 5 + j * 3) % 11 - 5) / 9.0
a, b = np.meshgrid(np.arange(K), np.arange(C), indexing="ij")
centroids = (((a * 7 + b * 13) % 17 - 8) / 4.0).astype(np.float32)


def codebook(name, protocol, array=centroids):
    data = {"type": "Codebook", "params": {"index": {"gpu_id": None}, "size": "64k"}, "state": {"centroids": array}}
    with open(f"{here}/retrieval/{name}.pkl", "wb") as f:
        pickle.dump(data, f, protocol=protocol)


if sys.argv[1] == "numpy1":
    assert np.__version__.startswith("1.")
    for p in (2, 4, 5):
        codebook(f"tiny_codebook_numpy1_protocol{p}", p)
    args = argparse.Namespace(hdims="", residual=0, nfeat=300, path=pathlib.PurePosixPath("a/b"), scale=np.float64(0.5))
    torch_save(f"{here}/retrieval/tiny_retrieval_trainingfree.pth",
               {"args": args, "model": collections.OrderedDict([
                   ("prewhiten.m", dense(mean, "DoubleStorage")), ("prewhiten.p", dense(projection, "DoubleStorage"))])})
    ramp = np.arange(24, dtype=np.float32)
    shared = Storage("FloatStorage", ramp.tobytes(), 24)
    bf16 = b"".join(struct.pack("<f", v)[2:] for v in (1.0, -2.0, 0.5))
    state = collections.OrderedDict([
        ("dense", Tensor(shared, 0, (4, 6), (6, 1))),
        ("transposed", Tensor(shared, 0, (6, 4), (1, 6))),
        ("window", Tensor(shared, 7, (2, 3), (6, 1))),
        ("row", Tensor(shared, 6, (1, 6), (99, 1))),
        ("scalar", Tensor(shared, 5, (), ())),
        ("empty", Tensor(shared, 0, (0, 3), (3, 1))),
        ("parameter", Tensor(shared, 12, (12,), (1,), True)),
        ("half", dense(np.array([1.5, -0.25], np.float16), "HalfStorage")),
        ("bfloat", Tensor(Storage("BFloat16Storage", bf16, 3), 0, (3,), (1,))),
        ("double", dense(np.array([1 / 3], np.float64), "DoubleStorage")),
    ])
    torch_save(f"{here}/pth/bare_stored.pth", state)
    torch_save(f"{here}/pth/bare_deflated.pth", state, zipfile.ZIP_DEFLATED)
    torch_save(f"{here}/pth/big_endian.pth", state, byteorder=b"big")
    torch_save(f"{here}/pth/long_tensor.pth", {"steps": Tensor(Storage("LongStorage", bytes(8), 1), 0, (), ())})
    torch_save(f"{here}/pth/outside.pth", {"w": Tensor(shared, 20, (5,), (1,))})
    torch_save(f"{here}/pth/repeated.pth", {"w": Tensor(shared, 0, (1 << 40, 24), (0, 1))})
    torch_save(f"{here}/pth/not_a_dict.pth", [1, 2])
else:
    assert np.__version__.startswith("2.")
    for p in (4, 5):
        codebook(f"tiny_codebook_numpy2_protocol{p}", p)
    codebook("codebook_float64", 4, centroids.astype(np.float64))
    codebook("codebook_nan", 4, np.where(a == 3, np.float32(np.nan), centroids))
    codebook("codebook_columns", 4, np.asfortranarray(centroids))
