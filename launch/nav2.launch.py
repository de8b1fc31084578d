"""MASt3R-SLAM as the map and localisation of Nav2: one camera, a robot that drives to goals.

    ros2 launch mast3r_slam nav2.launch.py image:=/camera/image_raw camera_info:=/camera/camera_info

The node publishes /map, map -> odom and (unless odometry:=external) odom -> base_link, so neither AMCL nor map_server
runs. The robot's driver takes /cmd_vel, and robot_state_publisher or a static transform gives the camera's place on
base_link. odometry:=external: wheels or robot_localization (config/nav2/ekf.yaml) broadcast odom -> base_link.

Nav2's parameters are those of nav2_bringup (params/nav2_params.yaml), with those of nav2_params over them: its nodes do
not start without parameters of their own.
"""

import os
import tempfile

import yaml
from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PythonExpression
from launch_ros.actions import Node

# Nodes of Nav2 that take the robot's speed from odometry.
SPEED = ("controller_server", "bt_navigator", "velocity_smoother")


def over(below, above):
    """The values of `above`, and those of `below` that it lacks."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = {key: over(below.get(key), value) for key, value in above.items()}
    return merged | {key: value for key, value in below.items() if key not in above}


def parameters(defaults, ours, odometry):
    """Nav2's parameters: `ours` over `defaults`, with the topic of the odometry."""
    topic = {name: {"ros__parameters": {"odom_topic": odometry}} for name in SPEED}
    return over(over(defaults, topic), ours)


def navigation(context):
    bringup = get_package_share_directory("nav2_bringup")
    value = lambda name: LaunchConfiguration(name).perform(context)
    with open(os.path.join(bringup, "params", "nav2_params.yaml")) as file:
        defaults = yaml.safe_load(file)
    with open(value("nav2_params")) as file:
        ours = yaml.safe_load(file) or {}
    odometry = "/mast3r_slam/odometry" if value("odometry") == "camera" else value("odometry_topic")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix="nav2-", delete=False) as file:
        yaml.safe_dump(parameters(defaults, ours, odometry), file, sort_keys=False)
    return [
        IncludeLaunchDescription(
            PythonLaunchDescriptionSource(os.path.join(bringup, "launch", "navigation_launch.py")),
            launch_arguments={"params_file": file.name, "use_sim_time": value("use_sim_time")}.items(),
        )
    ]


def generate_launch_description():
    share = get_package_share_directory("mast3r_slam")
    arguments = [
        DeclareLaunchArgument("image", default_value="image", description="image topic"),
        DeclareLaunchArgument("camera_info", default_value="camera_info", description="camera_info topic"),
        DeclareLaunchArgument("use_depth", default_value="false", description="use the depth images of a sensor"),
        DeclareLaunchArgument("depth", default_value="depth", description="topic of registered depth images"),
        DeclareLaunchArgument("use_wheel_odometry", default_value="false", description="use wheel odometry"),
        DeclareLaunchArgument("odom", default_value="odom", description="topic of wheel odometry"),
        DeclareLaunchArgument("use_gyro", default_value="false", description="use the gyro of an IMU"),
        DeclareLaunchArgument("imu", default_value="imu", description="topic of the IMU"),
        DeclareLaunchArgument("odometry", default_value="camera", description="camera, or external"),
        DeclareLaunchArgument(
            "odometry_topic",
            default_value="/odometry/filtered",
            description="topic of the external odometry, from which Nav2 takes the robot's speed",
        ),
        DeclareLaunchArgument("map_path", default_value="", description="folder of the map that is saved"),
        DeclareLaunchArgument("load_map_on_start", default_value="false", description="continue the map in map_path"),
        DeclareLaunchArgument("localization_only", default_value="false", description="leave the map as it is"),
        DeclareLaunchArgument("use_sim_time", default_value="false", description="use the time on /clock"),
        DeclareLaunchArgument(
            "slam_params",
            default_value=os.path.join(share, "config", "nav2", "slam.yaml"),
            description="parameter file of MASt3R-SLAM",
        ),
        DeclareLaunchArgument(
            "nav2_params",
            default_value=os.path.join(share, "config", "nav2", "nav2.yaml"),
            description="parameter file of Nav2, over nav2_bringup's own",
        ),
    ]
    own_odometry = PythonExpression(["'", LaunchConfiguration("odometry"), "' == 'camera'"])
    slam = Node(
        package="mast3r_slam",
        executable="mast3r-slam",
        arguments=["node"],
        name="mast3r_slam",
        output="screen",
        parameters=[
            LaunchConfiguration("slam_params"),
            {
                "use_sim_time": LaunchConfiguration("use_sim_time"),
                "use_depth": LaunchConfiguration("use_depth"),
                "use_wheel_odometry": LaunchConfiguration("use_wheel_odometry"),
                "use_gyro": LaunchConfiguration("use_gyro"),
                "map_path": LaunchConfiguration("map_path"),
                "load_map_on_start": LaunchConfiguration("load_map_on_start"),
                "localization_only": LaunchConfiguration("localization_only"),
                "publish_odom_to_base_tf": own_odometry,
            },
        ],
        remappings=[
            ("image", LaunchConfiguration("image")),
            ("image/compressed", [LaunchConfiguration("image"), "/compressed"]),
            ("camera_info", LaunchConfiguration("camera_info")),
            ("depth", LaunchConfiguration("depth")),
            ("depth/compressedDepth", [LaunchConfiguration("depth"), "/compressedDepth"]),
            ("odom", LaunchConfiguration("odom")),
            ("imu", LaunchConfiguration("imu")),
            # RViz and Nav2 publish on this name.
            ("initial_pose", "/initialpose"),
        ],
    )
    return LaunchDescription([*arguments, slam, OpaqueFunction(function=navigation)])
