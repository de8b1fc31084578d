"""A camera, a listener and a caller on Cyclone DDS (PyPI cyclonedds 11.0.1), for the tests of the node's own DDS
client. Messages are made and read by PyPI rosbags 0.11.9. What was seen goes to standard output as JSON.

    python peer.py stream DOMAIN SECONDS RATE
    python peer.py depth DOMAIN COUNT RATE
    python peer.py motion DOMAIN COUNT RATE
    python peer.py room DOMAIN FOLDER COUNT RATE
    python peer.py listen DOMAIN SECONDS
    python peer.py services DOMAIN
    python peer.py list DOMAIN
"""

import json
import pathlib
import sys
import time
import uuid
from dataclasses import dataclass

import numpy as np
from cyclonedds.core import Policy, Qos
from cyclonedds.domain import DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import uint8
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

SERVICES = {
    "std_srvs/msg/Trigger_Request": "uint8 structure_needs_at_least_one_member",
    "std_srvs/msg/Trigger_Response": "bool success\nstring message",
    "lifecycle_msgs/msg/GetState_Request": "uint8 structure_needs_at_least_one_member",
    "lifecycle_msgs/msg/GetState_Response": "lifecycle_msgs/State current_state",
    "rcl_interfaces/msg/GetParameters_Request": "string[] names",
    "rcl_interfaces/msg/GetParameters_Response": "rcl_interfaces/ParameterValue[] values",
    "rcl_interfaces/msg/ListParameters_Request": "string[] prefixes\nuint64 depth",
    "rcl_interfaces/msg/ListParameters_Response": "rcl_interfaces/ListParametersResult result",
    "rcl_interfaces/msg/SetParameters_Request": "rcl_interfaces/Parameter[] parameters",
    "rcl_interfaces/msg/SetParameters_Response": "rcl_interfaces/SetParametersResult[] results",
    "rmw_dds_common/msg/Gid": "uint8[16] data",
    "rmw_dds_common/msg/NodeEntitiesInfo": "string node_namespace\nstring node_name\nrmw_dds_common/Gid[] reader_gid_seq\n"
    "rmw_dds_common/Gid[] writer_gid_seq",
    "rmw_dds_common/msg/ParticipantEntitiesInfo": "rmw_dds_common/Gid gid\n"
    "rmw_dds_common/NodeEntitiesInfo[] node_entities_info_seq",
}

store = get_typestore(Stores.ROS2_JAZZY)
for name, text in SERVICES.items():
    if name not in store.types:
        store.register(get_types_from_msg(text, name))


def make(kind, **values):
    return store.types[kind](**values)


def encode(message, kind):
    return bytes(store.serialize_cdr(message, kind))


def decode(data, kind):
    return store.deserialize_cdr(data, kind)


def raw_type(dds_name):
    """A type of this name that carries its CDR, header included, as it is."""

    class Raw(IdlStruct, typename=dds_name):
        unused: uint8
        cdr = b""

        def serialize(self, *_, **__):
            return self.cdr

        @classmethod
        def deserialize(cls, data, *_, **__):
            made = cls(unused=0)
            made.cdr = bytes(data)
            return made

    return dataclass(Raw)


RELIABLE = Policy.Reliability.Reliable(duration(milliseconds=100))
XCDR1 = Policy.DataRepresentation(use_cdrv0_representation=True)


def qos(depth, reliable=True, latched=False):
    durability = Policy.Durability.TransientLocal if latched else Policy.Durability.Volatile
    reliability = RELIABLE if reliable else Policy.Reliability.BestEffort
    return Qos(reliability, durability, Policy.History.KeepLast(depth), XCDR1)


class Graph:
    def __init__(self, domain):
        self.participant = DomainParticipant(domain)
        self.types = {}

    def topic(self, dds_topic, dds_type):
        kind = self.types.setdefault(dds_type, raw_type(dds_type))
        return Topic(self.participant, dds_topic, kind), kind

    def writer(self, name, kind, policies):
        package, _, message = kind.split("/")
        topic, raw = self.topic("rt" + name, f"{package}::msg::dds_::{message}_")
        writer = DataWriter(self.participant, topic, qos=policies)

        def write(cdr):
            sample = raw(unused=0)
            sample.cdr = cdr
            writer.write(sample)

        return write

    def reader(self, name, kind, policies):
        package, _, message = kind.split("/")
        topic, _ = self.topic("rt" + name, f"{package}::msg::dds_::{message}_")
        reader = DataReader(self.participant, topic, qos=policies)

        def take():
            return [decode(s.cdr, kind) for s in reader.take(1000) if hasattr(s, "cdr")]

        return take

    def client(self, service, kind):
        """Calls a service as rmw_cyclonedds does: 16 bytes of client and number in front of the data."""
        package, _, base = kind.split("/")
        asks, ask_type = self.topic(f"rq{service}Request", f"{package}::srv::dds_::{base}_Request_")
        answers, _ = self.topic(f"rr{service}Reply", f"{package}::srv::dds_::{base}_Response_")
        writer = DataWriter(self.participant, asks, qos=qos(10))
        reader = DataReader(self.participant, answers, qos=qos(10))
        own = uuid.uuid4().bytes[:8]
        number = 0

        def call(**values):
            nonlocal number
            number += 1
            request = encode(make(f"{package}/msg/{base}_Request", **values), f"{package}/msg/{base}_Request")
            header = own + number.to_bytes(8, "little")
            deadline = time.monotonic() + 30
            while not writer.get_matched_subscriptions() or not reader.get_matched_publications():
                if time.monotonic() > deadline:
                    raise SystemExit(f"{service} was not discovered")
                time.sleep(0.01)
            sample = ask_type(unused=0)
            sample.cdr = request[:4] + header + request[4:]
            writer.write(sample)
            while time.monotonic() < deadline:
                for answer in reader.take(10):
                    if answer.cdr[4:20] == header:
                        data = answer.cdr[:4] + answer.cdr[20:]
                        return decode(data, f"{package}/msg/{base}_Response")
                time.sleep(0.002)
            raise SystemExit(f"{service} did not answer")

        return call


def stamp(nanos):
    return make("builtin_interfaces/msg/Time", sec=nanos // 10**9, nanosec=nanos % 10**9)


def nanos_of(header):
    return header.stamp.sec * 10**9 + header.stamp.nanosec


def header(nanos, frame):
    return make("std_msgs/msg/Header", stamp=stamp(nanos), frame_id=frame)


def static_transform(*on_camera):
    """The camera on the base, and frames at the camera."""
    vector = make("geometry_msgs/msg/Vector3", x=0.2, y=0.0, z=0.5)
    turn = make("geometry_msgs/msg/Quaternion", x=-0.5, y=0.5, z=-0.5, w=0.5)
    transform = make("geometry_msgs/msg/Transform", translation=vector, rotation=turn)
    stamped = make(
        "geometry_msgs/msg/TransformStamped", header=header(0, "base_link"), child_frame_id="camera", transform=transform
    )
    still = make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
    same = make("geometry_msgs/msg/Transform", translation=vector, rotation=still)
    others = [
        make("geometry_msgs/msg/TransformStamped", header=header(0, "camera"), child_frame_id=frame, transform=same)
        for frame in on_camera
    ]
    message = make("tf2_msgs/msg/TFMessage", transforms=[stamped, *others])
    return encode(message, "tf2_msgs/msg/TFMessage")


def camera_info(size=(640, 480), k=(500, 0, 320, 0, 500, 240, 0, 0, 1)):
    roi = make("sensor_msgs/msg/RegionOfInterest", x_offset=0, y_offset=0, height=0, width=0, do_rectify=False)
    info = make(
        "sensor_msgs/msg/CameraInfo",
        header=header(1, "camera"),
        height=size[1],
        width=size[0],
        distortion_model="plumb_bob",
        d=np.zeros(5),
        k=np.array(k, dtype=np.float64),
        r=np.eye(3).ravel(),
        p=np.zeros(12),
        binning_x=0,
        binning_y=0,
        roi=roi,
    )
    return encode(info, "sensor_msgs/msg/CameraInfo")


def image():
    made = make(
        "sensor_msgs/msg/Image",
        header=header(1, "camera"),
        height=480,
        width=640,
        encoding="rgb8",
        is_bigendian=0,
        step=1920,
        data=np.full(640 * 480 * 3, 90, dtype=np.uint8),
    )
    return bytearray(encode(made, "sensor_msgs/msg/Image"))


# What a reader keeps is enough for all that comes while this process does not get to look: what is tested is what
# arrives.
DEEP = 4000

LISTENED = {
    "tf": ("/tf", "tf2_msgs/msg/TFMessage", qos(DEEP)),
    "odometry": ("/mast3r_slam/odometry", "nav_msgs/msg/Odometry", qos(DEEP)),
    "pose": ("/mast3r_slam/pose", "geometry_msgs/msg/PoseWithCovarianceStamped", qos(DEEP)),
    "points": ("/mast3r_slam/points", "sensor_msgs/msg/PointCloud2", qos(DEEP)),
    "map_points": ("/mast3r_slam/map_points", "sensor_msgs/msg/PointCloud2", qos(DEEP, latched=True)),
    "path": ("/mast3r_slam/path", "nav_msgs/msg/Path", qos(1, latched=True)),
    "graph": ("/mast3r_slam/graph", "visualization_msgs/msg/MarkerArray", qos(1, latched=True)),
    "diagnostics": ("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray", qos(10)),
}


def revision(cloud):
    return int(np.frombuffer(bytes(cloud.data[24:28]), dtype="<u4")[0]) if cloud.width else -1


def seen(name, message):
    """What of a message goes into the report."""
    if name == "tf":
        return [[t.header.frame_id, t.child_frame_id, nanos_of(t.header)] for t in message.transforms]
    if name in ("points", "map_points"):
        return [revision(message), message.width, len(message.data)]
    if name == "path":
        return len(message.poses)
    if name == "graph":
        return [len(m.points) for m in message.markers]
    if name == "diagnostics":
        return {v.key: v.value for v in message.status[0].values} | {"message": message.status[0].message}
    return nanos_of(message.header)


def stream(domain, seconds, rate):
    graph = Graph(domain)
    takes = {name: graph.reader(*of) for name, of in LISTENED.items()}
    write_static = graph.writer("/tf_static", "tf2_msgs/msg/TFMessage", qos(1, latched=True))
    write_info = graph.writer("/camera_info", "sensor_msgs/msg/CameraInfo", qos(5))
    write_image = graph.writer("/image", "sensor_msgs/msg/Image", qos(5))
    report = {name: [] for name in LISTENED} | {"sent": []}

    def collect():
        for name, take in takes.items():
            report[name] += [seen(name, message) for message in take()]

    write_static(static_transform())
    info, pixels = camera_info(), image()
    # Until the node has been found and says so by its first diagnostics.
    deadline = time.monotonic() + 60
    while not report["diagnostics"]:
        if time.monotonic() > deadline:
            raise SystemExit("no diagnostics from the node")
        collect()
        time.sleep(0.05)
    # The diagnostics' writer has found us; the image's reader may take a little longer.
    time.sleep(1)
    write_info(info)
    time.sleep(0.5)
    start = time.monotonic()
    for k in range(int(seconds * rate)):
        while time.monotonic() < start + k / rate:
            collect()
            time.sleep(0.001)
        nanos = time.time_ns()
        pixels[4:8] = (nanos // 10**9).to_bytes(4, "little")
        pixels[8:12] = (nanos % 10**9).to_bytes(4, "little")
        write_info(info)
        write_image(bytes(pixels))
        report["sent"].append(nanos)
    # What is on its way, and the map's last state.
    quiet = time.monotonic() + 8
    while time.monotonic() < quiet:
        collect()
        time.sleep(0.01)
    late = Graph(domain)
    latched = {name: late.reader(*LISTENED[name]) for name in ("map_points", "path", "graph")}
    found = {name: [] for name in latched}
    until = time.monotonic() + 8
    while time.monotonic() < until:
        for name, take in latched.items():
            found[name] += [seen(name, message) for message in take()]
        collect()
        time.sleep(0.02)
    report["late"] = found
    print(json.dumps(report))


def depth(domain, count, rate):
    """Images, and depth images of another size a little before each."""
    graph = Graph(domain)
    take = graph.reader(*LISTENED["diagnostics"])
    found = []
    write_static = graph.writer("/tf_static", "tf2_msgs/msg/TFMessage", qos(1, latched=True))
    write_image = graph.writer("/image", "sensor_msgs/msg/Image", qos(5))
    write_depth = graph.writer("/depth", "sensor_msgs/msg/Image", qos(5))
    write_static(static_transform())

    def collect():
        found.extend(seen("diagnostics", message) for message in take())

    def until(what, done):
        deadline = time.monotonic() + 60
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what}: {found[-1:]}")
            collect()
            time.sleep(0.01)

    until("the node", lambda: found)
    time.sleep(1)
    pixels = image()
    values = np.full(320 * 240, 1500, dtype="<u2").view(np.uint8)
    for k in range(count):
        nanos = time.time_ns()
        sensor = make(
            "sensor_msgs/msg/Image",
            header=header(nanos - 2_000_000, "camera"),
            height=240,
            width=320,
            encoding="16UC1",
            is_bigendian=0,
            step=640,
            data=values,
        )
        write_depth(encode(sensor, "sensor_msgs/msg/Image"))
        pixels[4:8] = (nanos // 10**9).to_bytes(4, "little")
        pixels[8:12] = (nanos % 10**9).to_bytes(4, "little")
        write_image(bytes(pixels))
        time.sleep(1 / rate)
        collect()
    processed = lambda: sum(int(v) for k, v in found[-1].items() if k.startswith(("frames processed", "images dropped")))
    until("all images", lambda: processed() >= count)
    print(json.dumps(found[-1]))


def motion(domain, count, rate):
    """Images, with 50 poses by wheels and 200 rates of a gyro a second, of a robot that stands."""
    graph = Graph(domain)
    take = graph.reader(*LISTENED["diagnostics"])
    found = []
    write_static = graph.writer("/tf_static", "tf2_msgs/msg/TFMessage", qos(1, latched=True))
    write_image = graph.writer("/image", "sensor_msgs/msg/Image", qos(5))
    write_odometry = graph.writer("/odom", "nav_msgs/msg/Odometry", qos(50))
    write_imu = graph.writer("/imu", "sensor_msgs/msg/Imu", qos(200))
    write_static(static_transform("imu"))
    vector = lambda z: make("geometry_msgs/msg/Vector3", x=0.0, y=0.0, z=z)
    turn = make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
    point = make("geometry_msgs/msg/Point", x=1.0, y=2.0, z=0.0)
    pose = make("geometry_msgs/msg/Pose", position=point, orientation=turn)
    twist = make("geometry_msgs/msg/Twist", linear=vector(0.0), angular=vector(0.0))

    def collect():
        found.extend(seen("diagnostics", message) for message in take())

    def until(what, done):
        deadline = time.monotonic() + 60
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what}: {found[-1:]}")
            collect()
            time.sleep(0.01)

    def measure(k):
        nanos = time.time_ns()
        imu = make(
            "sensor_msgs/msg/Imu",
            header=header(nanos, "imu"),
            orientation=turn,
            orientation_covariance=np.zeros(9),
            angular_velocity=vector(0.001),
            angular_velocity_covariance=np.zeros(9),
            linear_acceleration=vector(9.81),
            linear_acceleration_covariance=np.zeros(9),
        )
        write_imu(encode(imu, "sensor_msgs/msg/Imu"))
        if k % 4 == 0:
            odometry = make(
                "nav_msgs/msg/Odometry",
                header=header(nanos, "odom"),
                child_frame_id="base_link",
                pose=make("geometry_msgs/msg/PoseWithCovariance", pose=pose, covariance=np.zeros(36)),
                twist=make("geometry_msgs/msg/TwistWithCovariance", twist=twist, covariance=np.zeros(36)),
            )
            write_odometry(encode(odometry, "nav_msgs/msg/Odometry"))

    until("the node", lambda: found)
    time.sleep(1)
    pixels = image()
    start = time.monotonic()
    sent = 0
    for k in range(int(200 * count / rate)):
        measure(k)
        if time.monotonic() - start >= sent / rate:
            nanos = time.time_ns()
            pixels[4:8] = (nanos // 10**9).to_bytes(4, "little")
            pixels[8:12] = (nanos % 10**9).to_bytes(4, "little")
            write_image(bytes(pixels))
            sent += 1
        collect()
        time.sleep(1 / 200)
    processed = lambda: sum(int(v) for k, v in found[-1].items() if k.startswith(("frames processed", "images dropped")))
    until("all images", lambda: processed() >= sent)
    print(json.dumps(found[-1]))


def room(domain, folder, count, rate):
    """The bundled sequence as compressed images; then the map is saved, begun anew, and gone on with."""
    graph = Graph(domain)
    node = "/mast3r_slam"
    wanted = ("tf", "pose", "map_points", "path", "diagnostics")
    takes = {name: graph.reader(*LISTENED[name]) for name in wanted}
    report = {name: [] for name in wanted} | {"sent": []}

    def collect():
        for name, take in takes.items():
            report[name] += [seen(name, message) for message in take()]

    def counted(key):
        last = report["diagnostics"][-1]
        return next(int(v) for k, v in last.items() if k.startswith(key))

    save = graph.client(f"{node}/save_map", "std_srvs/srv/Trigger")
    load = graph.client(f"{node}/load_map", "std_srvs/srv/Trigger")
    reset = graph.client(f"{node}/reset", "std_srvs/srv/Trigger")
    write_static = graph.writer("/tf_static", "tf2_msgs/msg/TFMessage", qos(1, latched=True))
    write_info = graph.writer("/camera_info", "sensor_msgs/msg/CameraInfo", qos(5))
    write_image = graph.writer("/image/compressed", "sensor_msgs/msg/CompressedImage", qos(5))
    write_static(static_transform())
    files = sorted(pathlib.Path(folder, "rgb").iterdir())[:count]
    values = dict(line.split("#")[0].split(":") for line in open(pathlib.Path(folder, "camera.yaml")) if ":" in line)
    fx, fy, cx, cy = (float(values[name]) for name in ("fx", "fy", "cx", "cy"))
    info = camera_info((int(float(values["width"])), int(float(values["height"]))), (fx, 0, cx, 0, fy, cy, 0, 0, 1))

    def show(file):
        nanos = time.time_ns()
        data = np.frombuffer(file.read_bytes(), dtype=np.uint8)
        message = make("sensor_msgs/msg/CompressedImage", header=header(nanos, "camera"), format="png", data=data)
        write_info(info)
        write_image(encode(message, "sensor_msgs/msg/CompressedImage"))
        report["sent"].append(nanos)

    def until(what, done, patience=120):
        deadline = time.monotonic() + patience
        while not done():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited in vain for {what}: {report['diagnostics'][-1:]}")
            collect()
            time.sleep(0.01)

    until("the node", lambda: report["diagnostics"], 60)
    time.sleep(2)
    start = time.monotonic()
    for k, file in enumerate(files):
        while time.monotonic() < start + k / rate:
            collect()
            time.sleep(0.005)
        show(file)
    until("all images", lambda: counted("frames processed") + counted("images dropped") >= len(files))
    until("the map", lambda: report["map_points"] and report["path"])
    report["processed"] = counted("frames processed")
    report["dropped"] = counted("images dropped")
    report["received"] = counted("images received")
    saved = save(structure_needs_at_least_one_member=0)
    report["saved"] = [bool(saved.success), saved.message]
    report["reset"] = bool(reset(structure_needs_at_least_one_member=0).success)
    show(files[0])
    until("the new map", lambda: counted("maps started") == 2 and counted("frames processed") > report["processed"])
    loaded = load(structure_needs_at_least_one_member=0)
    report["loaded"] = [bool(loaded.success), loaded.message]
    report["found_from"] = time.time_ns()
    # Each frame that is looked for is answered at a later one.
    for k in range(200):
        show(files[k % 3])
        collect()
        if any(at >= report["found_from"] for at in report["pose"]):
            break
        time.sleep(0.5)
    until("the third map", lambda: counted("maps started") == 3)
    print(json.dumps(report))


def listen(domain, seconds):
    """When diagnostics came, in seconds since the first, which is told at once. All else is subscribed to as well."""
    graph = Graph(domain)
    takes = {name: graph.reader(*of) for name, of in LISTENED.items()}
    take = takes.pop("diagnostics")
    start, came = None, []
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for _ in take():
            if start is None:
                start = time.monotonic()
                until = start + seconds
                print("heard", file=sys.stderr, flush=True)
            came.append(time.monotonic() - start)
        for other in takes.values():
            other()
        time.sleep(0.05)
    print(json.dumps(came))


def services(domain):
    graph = Graph(domain)
    node = "/mast3r_slam"
    state = graph.client(f"{node}/get_state", "lifecycle_msgs/srv/GetState")
    pause = graph.client(f"{node}/pause", "std_srvs/srv/Trigger")
    listed = graph.client(f"{node}/list_parameters", "rcl_interfaces/srv/ListParameters")
    get = graph.client(f"{node}/get_parameters", "rcl_interfaces/srv/GetParameters")
    put = graph.client(f"{node}/set_parameters", "rcl_interfaces/srv/SetParameters")

    def value(number):
        none = dict(bool_value=False, integer_value=0, string_value="", byte_array_value=np.zeros(0, np.uint8))
        arrays = dict(
            bool_array_value=np.zeros(0, np.bool_),
            integer_array_value=np.zeros(0, np.int64),
            double_array_value=np.zeros(0),
            string_array_value=[],
        )
        return make("rcl_interfaces/msg/ParameterValue", type=3, double_value=number, **none, **arrays)

    def parameter(name, number):
        return make("rcl_interfaces/msg/Parameter", name=name, value=value(number))

    report = {
        "state": state(structure_needs_at_least_one_member=0).current_state.label,
        "paused": bool(pause(structure_needs_at_least_one_member=0).success),
        "names": listed(prefixes=[], depth=0).result.names,
    }
    results = put(parameters=[parameter("max_rate", 7.5), parameter("nonsense", 1.0)]).results
    report["set"] = [[bool(r.successful), r.reason] for r in results]
    report["max_rate"] = float(get(names=["max_rate"]).values[0].double_value)
    print(json.dumps(report))


def nodes(domain):
    """Full names of the nodes in ros_discovery_info, with their numbers of readers and writers."""
    graph = Graph(domain)
    topic, _ = graph.topic("ros_discovery_info", "rmw_dds_common::msg::dds_::ParticipantEntitiesInfo_")
    reader = DataReader(graph.participant, topic, qos=qos(1, latched=True))
    found = {}
    until = time.monotonic() + 5
    while time.monotonic() < until:
        for sample in reader.take(100):
            info = decode(sample.cdr, "rmw_dds_common/msg/ParticipantEntitiesInfo")
            for node in info.node_entities_info_seq:
                full = node.node_namespace.rstrip("/") + "/" + node.node_name
                found[full] = [len(node.reader_gid_seq), len(node.writer_gid_seq)]
        time.sleep(0.05)
    print(json.dumps(found))


what, domain = sys.argv[1], int(sys.argv[2])
if what == "stream":
    stream(domain, float(sys.argv[3]), float(sys.argv[4]))
elif what == "depth":
    depth(domain, int(sys.argv[3]), float(sys.argv[4]))
elif what == "motion":
    motion(domain, int(sys.argv[3]), float(sys.argv[4]))
elif what == "room":
    room(domain, sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
elif what == "listen":
    listen(domain, float(sys.argv[3]))
elif what == "services":
    services(domain)
else:
    nodes(domain)
