#!/usr/bin/env python3
"""The node against a sourced ROS 2: topics, transforms, parameters, services, lifecycle.

    source /opt/ros/jazzy/setup.bash
    RMW_IMPLEMENTATION=rmw_cyclonedds_cpp python3 tests/ros/smoke.py target/release/mast3r-slam assets/room_loop [--client r2r]

Needs rclpy, tf2_ros_py, NumPy and Pillow. Ends with 1 and the reason at the first thing that is not as it should be.
"""

import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from nav_msgs.msg import Odometry, Path
from PIL import Image as Pillow
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import CameraInfo, Image
from std_srvs.srv import Trigger
from tf2_ros import Buffer, TransformListener

NAME = "/mast3r_slam"
LATCHED = QoSProfile(depth=10, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class Camera:
    """Publishes a sequence in TUM layout, one image a second, again and again."""

    def __init__(self, node, folder):
        self.node, self.folder = node, pathlib.Path(folder)
        lines = (self.folder / "rgb.txt").read_text().splitlines()
        self.files = [line.split()[1] for line in lines if line and not line.startswith("#")]
        lines = (self.folder / "camera.yaml").read_text().splitlines()
        pairs = (line.split(":") for line in lines if ":" in line and not line.startswith("#"))
        self.camera = {key.strip(): float(value) for key, value in pairs}
        self.images = node.create_publisher(Image, "/image", qos_profile_sensor_data)
        self.infos = node.create_publisher(CameraInfo, "/camera_info", qos_profile_sensor_data)
        self.sent, self.stamps = 0, set()
        node.create_timer(1.0, self.send)

    def send(self):
        pixels = np.asarray(Pillow.open(self.folder / self.files[self.sent % len(self.files)]).convert("RGB"))
        self.sent += 1
        image = Image(height=pixels.shape[0], width=pixels.shape[1], encoding="rgb8", step=3 * pixels.shape[1])
        image.header.frame_id, image.header.stamp = "camera", self.node.get_clock().now().to_msg()
        image.data = pixels.tobytes()
        c = self.camera
        info = CameraInfo(header=image.header, width=image.width, height=image.height, distortion_model="plumb_bob", d=[0.0] * 5)
        info.k = [c["fx"], 0.0, c["cx"], 0.0, c["fy"], c["cy"], 0.0, 0.0, 1.0]
        self.stamps.add(stamp(image))
        self.infos.publish(info)
        self.images.publish(image)


def stamp(message):
    return message.header.stamp.sec, message.header.stamp.nanosec


def wait(node, what, done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            sys.exit(f"FAILED: {what} did not come within {seconds:.0f} s")
        rclpy.spin_once(node, timeout_sec=0.1)
    print("ok:", what, flush=True)


def call(node, kind, name, request=None):
    client = node.create_client(kind, f"{NAME}/{name}")
    if not client.wait_for_service(20.0):
        sys.exit(f"FAILED: there is no service {name}")
    future = client.call_async(request or kind.Request())
    wait(node, f"an answer of {name}", future.done)
    return future.result()


def expect(what, found, expected):
    if found != expected:
        sys.exit(f"FAILED: {what} is {found!r}, expected {expected!r}")
    print("ok:", what, "is", expected, flush=True)


def check(node, folder):
    camera = Camera(node, folder)
    odometry, paths, diagnostics = [], [], []
    node.create_subscription(Odometry, f"{NAME}/odometry", odometry.append, 10)
    node.create_subscription(DiagnosticArray, "/diagnostics", diagnostics.append, 10)
    buffer = Buffer()
    listener = TransformListener(buffer, node)
    wait(node, "three odometry messages", lambda: len(odometry) >= 3, 180.0)
    expect("odometry of stamps that no image has", [m for m in odometry if stamp(m) not in camera.stamps], [])
    last = Time.from_msg(odometry[-1].header.stamp)
    wait(node, "map -> odom -> camera", lambda: buffer.can_transform("map", "camera", last))
    node.create_subscription(Path, f"{NAME}/path", paths.append, LATCHED)
    wait(node, "the path for a late joiner", lambda: paths)
    wait(node, "diagnostics", lambda: diagnostics)
    expect("the node in the graph", [n for n, ns in node.get_node_names_and_namespaces()].count("mast3r_slam"), 1)

    value = call(node, GetParameters, "get_parameters", GetParameters.Request(names=["max_rate"])).values[0]
    expect("max_rate", value.double_value, 0.0)
    for rate, good in ((5.0, True), (-1.0, False)):
        one = Parameter("max_rate", value=rate).to_parameter_msg()
        result = call(node, SetParameters, "set_parameters", SetParameters.Request(parameters=[one])).results[0]
        expect(f"whether max_rate = {rate} is taken", result.successful, good)
    for service in ("pause", "resume", "reset"):
        expect(f"{service}'s success", call(node, Trigger, service).success, True)
    count = len(odometry)
    wait(node, "odometry after the reset", lambda: len(odometry) > count, 120.0)

    # As a lifecycle manager asks: by id alone.
    T = Transition
    for step in (T.TRANSITION_DEACTIVATE, T.TRANSITION_CLEANUP, T.TRANSITION_CONFIGURE, T.TRANSITION_ACTIVATE):
        request = ChangeState.Request(transition=T(id=step))
        expect(f"transition {step}'s success", call(node, ChangeState, "change_state", request).success, True)
    expect("the state", call(node, GetState, "get_state").current_state.label, "active")
    count = len(odometry)
    wait(node, "odometry after that life", lambda: len(odometry) > count, 120.0)
    del listener


def main():
    program, folder, *client = sys.argv[1:]
    arguments = [program, "node", *client, "--ros-args", "-p", "autosaves:=0", "-p", "base_frame:=''"]
    slam = subprocess.Popen(arguments)
    try:
        rclpy.init()
        check(rclpy.create_node("smoke"), folder)
    finally:
        slam.send_signal(signal.SIGINT)
        code = slam.wait(30.0)
    expect("the node's exit status", code, 0)


if __name__ == "__main__":
    main()
