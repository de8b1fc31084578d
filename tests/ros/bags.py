"""Writes and reads ROS 2 bags with PyPI rosbags 0.11.9, for the tests of reading and writing bags.

    python bags.py write < SPECIFICATION      (JSON; see `write`)
    python bags.py read PATH                  (a folder with metadata.yaml, or an .mcap file; prints JSON)
"""

import json
import pathlib
import sys

import numpy as np
from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import CompressionFormat, CompressionMode, Reader, StoragePlugin, Writer
from rosbags.rosbag2.storage_mcap import McapReader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

store = get_typestore(Stores.ROS2_JAZZY)
TYPES = {
    "image": "sensor_msgs/msg/Image",
    "compressed": "sensor_msgs/msg/CompressedImage",
    "info": "sensor_msgs/msg/CameraInfo",
    "text": "std_msgs/msg/String",
}


def make(kind, **values):
    return store.types[kind](**values)


def header(spec):
    sec, nanosec = divmod(spec["stamp"], 10**9)
    stamp = make("builtin_interfaces/msg/Time", sec=sec, nanosec=nanosec)
    return make("std_msgs/msg/Header", stamp=stamp, frame_id=spec.get("frame", "camera"))


def pattern(seed, length):
    i = np.arange(length, dtype=np.int64)
    return ((7 * i + 13 * seed + i // 11) % 251).astype(np.uint8)


def message(spec):
    if spec["type"] == "image":
        return make(
            TYPES["image"],
            header=header(spec),
            height=spec["height"],
            width=spec["width"],
            encoding=spec["encoding"],
            is_bigendian=spec.get("big", 0),
            step=spec["step"],
            data=pattern(spec["seed"], spec["length"]),
        )
    if spec["type"] == "compressed":
        data = np.frombuffer(pathlib.Path(spec["file"]).read_bytes(), dtype=np.uint8)
        return make(TYPES["compressed"], header=header(spec), format=spec["format"], data=data)
    if spec["type"] == "info":
        roi = make(
            "sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False
        )
        return make(
            TYPES["info"],
            header=header(spec),
            height=spec["height"],
            width=spec["width"],
            distortion_model=spec["model"],
            d=np.array(spec["d"], dtype=np.float64),
            k=np.array(spec["k"], dtype=np.float64),
            r=np.eye(3).flatten(),
            p=np.zeros(12),
            binning_x=0,
            binning_y=0,
            roi=roi,
        )
    return make(TYPES["text"], data=spec["text"])


def write(spec):
    """`path`, `storage` (MCAP, SQLITE3), `compression` (NONE, FILE, MESSAGE, STORAGE), `version`, and `messages`:
    each with `topic`, `type`, `log`, and what `message` reads of it."""
    writer = Writer(
        spec["path"], version=spec.get("version", 9), storage_plugin=StoragePlugin[spec["storage"]]
    )
    writer.set_compression(CompressionMode[spec["compression"]], CompressionFormat.ZSTD)
    forever = QosTime(2147483647, 4294967295)
    qos = Qos(
        QosHistory.KEEP_LAST, 10, QosReliability.RELIABLE, QosDurability.VOLATILE, forever, forever,
        QosLiveliness.AUTOMATIC, forever, avoid_ros_namespace_conventions=False,
    )
    with writer:
        connections = {}
        for one in spec["messages"]:
            topic, kind = one["topic"], TYPES[one["type"]]
            if topic not in connections:
                connections[topic] = writer.add_connection(
                    topic, kind, typestore=store, offered_qos_profiles=[qos]
                )
            data = store.serialize_cdr(message(one), kind)
            writer.write(connections[topic], one["log"], bytes(data))


def plain(value):
    """A message as JSON: long arrays as their length."""
    if hasattr(value, "__dataclass_fields__"):
        fields = [name for name in value.__dataclass_fields__ if name != "__msgtype__"]
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, np.ndarray):
        return {"length": len(value)} if len(value) > 64 else value.tolist()
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def definition_is_right(connection):
    """What the bag says of a type is what the type is, and so of every type in it."""
    said = get_types_from_msg(connection.msgdef.data, connection.msgtype)
    named = {kind: [(f[0], f[1]) for f in fields] for kind, (_, fields) in said.items()}
    true = {kind: [(f[0], f[1]) for f in store.fielddefs[kind][1]] for kind in said}
    return connection.msgtype in said and named == true


def read(path):
    path = pathlib.Path(path)
    reader = Reader(path) if path.is_dir() else McapReader(path)
    reader.open()
    topics = {}
    for connection in reader.connections:
        qos = connection.ext.offered_qos_profiles
        topics[connection.topic] = {
            "type": connection.msgtype,
            "count": connection.msgcount,
            "definition": definition_is_right(connection),
            "latched": [q.durability == QosDurability.TRANSIENT_LOCAL for q in qos],
            "messages": [],
        }
    every = reader.messages() if path.is_dir() else reader.messages(reader.connections, 0, 2**63 - 1)
    for connection, log, data in every:
        decoded = store.deserialize_cdr(data, connection.msgtype)
        topics[connection.topic]["messages"].append({"log": log, "message": plain(decoded)})
    reader.close()
    json.dump(topics, sys.stdout)


if sys.argv[1] == "write":
    write(json.load(sys.stdin))
else:
    read(sys.argv[2])
