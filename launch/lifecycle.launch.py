"""MASt3R-SLAM led by Nav2's lifecycle manager.

    ros2 launch mast3r_slam lifecycle.launch.py image:=/camera/image_raw camera_info:=/camera/camera_info

The node makes no bond, so the manager's bond_timeout is 0.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    arguments = [
        DeclareLaunchArgument("image", default_value="image", description="topic of the images"),
        DeclareLaunchArgument("camera_info", default_value="camera_info", description="topic of the calibration"),
    ]
    slam = Node(
        package="mast3r_slam",
        executable="mast3r-slam",
        arguments=["node"],
        name="mast3r_slam",
        output="screen",
        parameters=[{"autostart": False}],
        remappings=[
            ("image", LaunchConfiguration("image")),
            ("camera_info", LaunchConfiguration("camera_info")),
        ],
    )
    manager = Node(
        package="nav2_lifecycle_manager",
        executable="lifecycle_manager",
        name="lifecycle_manager_slam",
        output="screen",
        parameters=[{"autostart": True, "node_names": ["mast3r_slam"], "bond_timeout": 0.0}],
    )
    return LaunchDescription([*arguments, slam, manager])
