"""MASt3R-SLAM on a live camera.

    ros2 launch mast3r_slam mast3r_slam.launch.py image:=/camera/image_raw camera_info:=/camera/camera_info

robot:=laptop, orin or thor selects a parameter file in config/ros; params_file:=FILE takes your own.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    share = get_package_share_directory("mast3r_slam")
    own = [os.path.join(share, "config", "ros", ""), LaunchConfiguration("robot"), ".yaml"]
    arguments = [
        DeclareLaunchArgument("robot", default_value="laptop", description="laptop, orin or thor"),
        DeclareLaunchArgument("params_file", default_value=own, description="parameter file of the node"),
        DeclareLaunchArgument("image", default_value="image", description="image topic"),
        DeclareLaunchArgument("camera_info", default_value="camera_info", description="camera_info topic"),
        DeclareLaunchArgument("use_depth", default_value="false", description="use the depth images of a sensor"),
        DeclareLaunchArgument("depth", default_value="depth", description="topic of registered depth images"),
        DeclareLaunchArgument("use_wheel_odometry", default_value="false", description="use wheel odometry"),
        DeclareLaunchArgument("odom", default_value="odom", description="topic of wheel odometry"),
        DeclareLaunchArgument("use_gyro", default_value="false", description="use the gyro of an IMU"),
        DeclareLaunchArgument("imu", default_value="imu", description="topic of the IMU"),
        DeclareLaunchArgument("namespace", default_value="", description="namespace of the node"),
        DeclareLaunchArgument("use_sim_time", default_value="false", description="use the time on /clock"),
        DeclareLaunchArgument("autostart", default_value="true", description="configure and activate at start"),
    ]
    node = Node(
        package="mast3r_slam",
        executable="mast3r-slam",
        arguments=["node"],
        name="mast3r_slam",
        namespace=LaunchConfiguration("namespace"),
        output="screen",
        parameters=[
            LaunchConfiguration("params_file"),
            {
                "use_sim_time": LaunchConfiguration("use_sim_time"),
                "use_depth": LaunchConfiguration("use_depth"),
                "use_wheel_odometry": LaunchConfiguration("use_wheel_odometry"),
                "use_gyro": LaunchConfiguration("use_gyro"),
                "autostart": LaunchConfiguration("autostart"),
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
        ],
    )
    return LaunchDescription([*arguments, node])
