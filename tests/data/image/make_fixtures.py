"""Writes resample.txt, undistort.txt and encoding.txt, what Pillow 11 and OpenCV 4 make of procedural images.

    python3 -m venv /tmp/v && /tmp/v/bin/pip install 'pillow==11.*' 'opencv-python-headless==4.11.0.86'
    /tmp/v/bin/python tests/data/image/make_fixtures.py

The images are an integer formula that tests/image/*.rs computes too; results are kept as a hash
(64-bit FNV-1a of the bytes) and a few pixels.
"""

import pathlib

import cv2
import numpy as np
import PIL
from PIL import Image

HERE = pathlib.Path(__file__).parent
M32 = np.uint64(0xFFFFFFFF)


def scene(width, height, grey):
    """Tiles of 64 pixels: saw-tooth ramps, noise, hard black and white stripes."""
    y, x, c = np.meshgrid(
        np.arange(height, dtype=np.uint64),
        np.arange(width, dtype=np.uint64),
        np.arange(3, dtype=np.uint64),
        indexing="ij",
    )
    if grey:
        c = np.zeros_like(c)
    ramp = (x * 7 + y * 13 + c * 29 + (x * y >> np.uint64(3))) & np.uint64(255)
    n = (x * 374761393 + y * 668265263 + c * 1442695041) & M32
    n ^= n >> np.uint64(13)
    n = (n * 1274126177) & M32
    noise = n >> np.uint64(24)
    stripes = ((x // 5 + y // 3 + c) & np.uint64(1)) * 255
    tile = (x // 64 + y // 64) % 3
    return np.where(tile == 0, ramp, np.where(tile == 1, noise, stripes)).astype(np.uint8)


def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def samples(image):
    """`x,y=r,g,b` of five pixels."""
    h, w = image.shape[:2]
    out = []
    for k in range(5):
        x, y = (w * (2 * k + 1) // 10 + 3 * k) % w, (h * (9 - 2 * k) // 10 + k) % h
        out.append("%d,%d=%d,%d,%d" % (x, y, *image[y, x]))
    return " ".join(out)


SIZES = [(640, 480), (752, 480), (739, 458), (1280, 720), (1920, 1080), (640, 360), (848, 480),
         (480, 640), (512, 512), (700, 700), (320, 240), (512, 384), (397, 301), (101, 67)]


def resampled(image, size, filter_, grey):
    pil = Image.fromarray(image[..., 0] if grey else image)
    return np.asarray(pil.resize(size, filter_).convert("RGB"))


def target(w1, h1, long_side):
    s = max(w1, h1)
    return tuple(int(round(x * long_side / s)) for x in (w1, h1))


def resample_fixture():
    lines = ["# Pillow %s" % PIL.__version__,
             "# resize: input, output, filter, colour, hash, pixels",
             "# network: input, long side, output, colour, hash, pixels"]
    filters = {"bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}
    for w1, h1 in SIZES:
        for grey in (False, True):
            image = scene(w1, h1, grey)
            colour = "grey" if grey else "rgb"
            w, h = target(w1, h1, 512)
            for name, f in filters.items():
                out = resampled(image, (w, h), f, grey)
                lines.append("resize %d %d %d %d %s %s %016x %s" % (
                    w1, h1, w, h, name, colour, fnv(out.tobytes()), samples(out)))
            for long_side in (512, 256, 224):
                w, h = target(w1, h1, long_side)
                f = filters["lanczos" if max(w1, h1) > long_side else "bicubic"]
                out = resampled(image, (w, h), f, grey)
                cx, cy = w // 2, h // 2
                halfw, halfh = (2 * cx) // 16 * 8, (2 * cy) // 16 * 8
                if w == h:
                    halfh = int(3 * halfw / 4) // 8 * 8
                out = out[cy - halfh:cy + halfh, cx - halfw:cx + halfw]
                lines.append("network %d %d %d %d %d %s %016x %s" % (
                    w1, h1, long_side, 2 * halfw, 2 * halfh, colour, fnv(out.tobytes()), samples(out)))
    (HERE / "resample.txt").write_text("\n".join(lines) + "\n")


CAMERAS = {
    # name: model, width, height, fx, fy, cx, cy, coefficients
    "freiburg1": ("plumb_bob", 640, 480, 517.3, 516.5, 318.6, 255.3,
                  [0.2624, -0.9531, -0.0054, 0.0026, 1.1633]),
    "freiburg2": ("plumb_bob", 640, 480, 520.9, 521.0, 325.1, 249.7,
                  [0.2312, -0.7849, -0.0033, -0.0001, 0.9172]),
    "freiburg3": ("plumb_bob", 640, 480, 535.4, 539.2, 320.1, 247.6, [0.0, 0.0, 0.0, 0.0, 0.0]),
    "euroc": ("plumb_bob", 752, 480, 458.654, 457.296, 367.215, 248.375,
              [-0.28340811, 0.07395907, 0.00019359, 1.76187114e-05, 0.0]),
    "small": ("plumb_bob", 97, 71, 80.0, 82.0, 45.0, 37.5, [-0.31, 0.11, 0.001, -0.002, -0.01]),
    "rational": ("rational_polynomial", 320, 240, 205.3, 205.1, 161.7, 122.9,
                 [0.52, 0.11, 0.0003, -0.0002, 0.004, 0.86, 0.24, 0.02]),
    "fisheye": ("equidistant", 320, 240, 140.0, 141.0, 158.2, 121.3,
                [-0.013, 0.021, -0.016, 0.004]),
}


def undistort_fixture():
    lines = ["# OpenCV %s" % cv2.__version__,
             "# camera: name, model, size, fx fy cx cy, coefficients",
             "# matrix: name, centred, new fx fy cx cy (alpha = 0; for equidistant simply chosen)",
             "# map: name, centred, then u,v=x,y; remap: name, centred, hash, pixels"]
    for name, (model, w, h, fx, fy, cx, cy, d) in CAMERAS.items():
        k = np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=np.float64)
        dist = np.array(d, dtype=np.float64)
        lines.append("camera %s %s %d %d %r %r %r %r %s" % (
            name, model, w, h, fx, fy, cx, cy, " ".join(repr(v) for v in d)))
        for centred in (0, 1):
            if model == "equidistant":
                new = np.array([[120.0, 0, w / 2.0], [0, 121.0, h / 2.0 - centred], [0, 0, 1]])
                mx, my = cv2.fisheye.initUndistortRectifyMap(k, dist, np.eye(3), new, (w, h), cv2.CV_32FC1)
            else:
                new, _ = cv2.getOptimalNewCameraMatrix(
                    k, dist, (w, h), 0, (w, h), centerPrincipalPoint=bool(centred))
                mx, my = cv2.initUndistortRectifyMap(k, dist, None, new, (w, h), cv2.CV_32FC1)
            lines.append("matrix %s %d %r %r %r %r" % (
                name, centred, *(float(v) for v in (new[0, 0], new[1, 1], new[0, 2], new[1, 2]))))
            at = [(0, 0), (w - 1, 0), (0, h - 1), (w - 1, h - 1), (w // 2, h // 2), (w // 3, h // 5), (w * 6 // 7, h * 3 // 4)]
            lines.append("map %s %d %s" % (name, centred, " ".join(
                "%d,%d=%r,%r" % (u, v, float(mx[v, u]), float(my[v, u])) for u, v in at)))
            out = cv2.remap(scene(w, h, False), mx, my, cv2.INTER_LINEAR)
            lines.append("remap %s %d %016x %s" % (name, centred, fnv(out.tobytes()), samples(out)))
    (HERE / "undistort.txt").write_text("\n".join(lines) + "\n")


def encoding_fixture():
    """Raw data are the bytes of a scene, as many as are needed; Bayer without the outermost pixels,
    which OpenCV repeats and we mirror."""
    w, h = 118, 86
    data = scene(w, h, False).reshape(-1)
    lines = ["# OpenCV %s" % cv2.__version__, "# encoding, width, height, left out at each side, hash"]
    two, plane = data[:2 * w * h].reshape(h, w, 2), data[:w * h].reshape(h, w)
    for name, raw, code, cut in [
        ("yuv422", two, cv2.COLOR_YUV2RGB_UYVY, 0),
        ("yuv422_yuy2", two, cv2.COLOR_YUV2RGB_YUY2, 0),
        ("nv12", data[:w * h * 3 // 2].reshape(h * 3 // 2, w), cv2.COLOR_YUV2RGB_NV12, 0),
        ("bayer_rggb8", plane, cv2.COLOR_BayerRGGB2RGB, 1),
        ("bayer_grbg8", plane, cv2.COLOR_BayerGRBG2RGB, 1),
        ("bayer_gbrg8", plane, cv2.COLOR_BayerGBRG2RGB, 1),
        ("bayer_bggr8", plane, cv2.COLOR_BayerBGGR2RGB, 1),
    ]:
        out = cv2.cvtColor(np.ascontiguousarray(raw), code)[cut:h - cut, cut:w - cut]
        lines.append("%s %d %d %d %016x" % (name, w, h, cut, fnv(out.tobytes())))
    (HERE / "encoding.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    resample_fixture()
    undistort_fixture()
    encoding_fixture()
