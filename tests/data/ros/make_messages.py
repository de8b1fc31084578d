"""Writes messages.json: one message of each type that the node uses, with arbitrary values, as JSON and as
the CDR that rosbags 0.11.9 makes of it (in hexadecimal, little-endian, without encapsulation header).

    python make_messages.py > messages.json
"""

import json
import random

import numpy as np
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

SERVICES = {
    "std_srvs/msg/Trigger_Request": "uint8 structure_needs_at_least_one_member",
    "std_srvs/msg/Trigger_Response": "bool success\nstring message",
    "lifecycle_msgs/msg/ChangeState_Request": "lifecycle_msgs/Transition transition",
    "lifecycle_msgs/msg/ChangeState_Response": "bool success",
    "lifecycle_msgs/msg/GetState_Response": "lifecycle_msgs/State current_state",
    "lifecycle_msgs/msg/GetAvailableStates_Response": "lifecycle_msgs/State[] available_states",
    "lifecycle_msgs/msg/GetAvailableTransitions_Response": "lifecycle_msgs/TransitionDescription[] available_transitions",
    "rcl_interfaces/msg/GetParameters_Request": "string[] names",
    "rcl_interfaces/msg/GetParameters_Response": "rcl_interfaces/ParameterValue[] values",
    "rcl_interfaces/msg/GetParameterTypes_Request": "string[] names",
    "rcl_interfaces/msg/GetParameterTypes_Response": "uint8[] types",
    "rcl_interfaces/msg/DescribeParameters_Request": "string[] names",
    "rcl_interfaces/msg/DescribeParameters_Response": "rcl_interfaces/ParameterDescriptor[] descriptors",
    "rcl_interfaces/msg/ListParameters_Request": "string[] prefixes\nuint64 depth",
    "rcl_interfaces/msg/ListParameters_Response": "rcl_interfaces/ListParametersResult result",
    "rcl_interfaces/msg/SetParameters_Request": "rcl_interfaces/Parameter[] parameters",
    "rcl_interfaces/msg/SetParameters_Response": "rcl_interfaces/SetParametersResult[] results",
    "rcl_interfaces/msg/SetParametersAtomically_Request": "rcl_interfaces/Parameter[] parameters",
    "rcl_interfaces/msg/SetParametersAtomically_Response": "rcl_interfaces/SetParametersResult result",
}

MESSAGES = [
    "sensor_msgs/msg/Image",
    "sensor_msgs/msg/CompressedImage",
    "sensor_msgs/msg/CameraInfo",
    "sensor_msgs/msg/PointCloud2",
    "geometry_msgs/msg/PoseWithCovarianceStamped",
    "tf2_msgs/msg/TFMessage",
    "nav_msgs/msg/Odometry",
    "nav_msgs/msg/Path",
    "visualization_msgs/msg/MarkerArray",
    "diagnostic_msgs/msg/DiagnosticArray",
    "rosgraph_msgs/msg/Clock",
    "rcl_interfaces/msg/ParameterEvent",
    "lifecycle_msgs/msg/TransitionEvent",
]

# Types that were added later stand at the end, so that the earlier ones keep their values.
LATER = ["nav_msgs/msg/OccupancyGrid", "map_msgs/msg/OccupancyGridUpdate", "sensor_msgs/msg/Imu"]
# map_msgs is not part of rosbags.
UPDATE = "std_msgs/Header header\nint32 x\nint32 y\nuint32 width\nuint32 height\nint8[] data"

rng = random.Random(5)
store = get_typestore(Stores.ROS2_JAZZY)


def base(kind):
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "string":
        return "".join(rng.choice("abcdefg ") for _ in range(rng.randrange(9)))
    if kind in ("float32", "float64"):
        return rng.randrange(-600, 600) / 64
    if kind in ("byte", "octet", "char"):
        return rng.randrange(128)
    bits = int("".join(c for c in kind if c.isdigit()))
    if kind.startswith("u"):
        return rng.randrange(1 << bits)
    return rng.randrange(-(1 << (bits - 1)), 1 << (bits - 1))


def several(inner, count):
    kind, data = inner
    name = data[0] if kind == 1 else None
    if name and name not in ("string", "bool"):
        made = [base(name) for _ in range(count)]
        numpy_name = {"byte": "uint8", "octet": "uint8", "char": "uint8"}.get(name, name)
        return np.array(made, dtype=numpy_name), made
    if name == "bool":
        made = [base(name) for _ in range(count)]
        return np.array(made, dtype=np.bool_), made
    both = [make(inner) for _ in range(count)]
    return [b[0] for b in both], [b[1] for b in both]


def make(field):
    kind, data = field
    kind = int(kind)
    if kind == 1:
        value = base(data[0])
        return value, value
    if kind == 2:
        return message(data)
    inner, count = data
    inner = (int(inner[0]), inner[1])
    if kind == 3:
        return several(inner, count)
    return several(inner, rng.randrange(4))


def message(name):
    values, plain = {}, {}
    for field, definition in store.fielddefs[name][1]:
        values[field], plain[field] = make(definition)
    return store.types[name](**values), plain


for name, text in SERVICES.items():
    store.register(get_types_from_msg(text, name))

store.register(get_types_from_msg(UPDATE, "map_msgs/msg/OccupancyGridUpdate"))

out = []
for name in MESSAGES + list(SERVICES) + LATER:
    for _ in range(3):
        made, plain = message(name)
        cdr = bytes(store.serialize_cdr(made, name))
        assert cdr[:4] == b"\x00\x01\x00\x00"
        shown = name.replace("/msg/", "/srv/") if name in SERVICES else name
        out.append({"type": shown, "values": plain, "cdr": cdr[4:].hex()})
print(json.dumps(out, indent=0))
