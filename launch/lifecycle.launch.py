"""MASt3R-SLAM managed by Nav2's lifecycle manager.

    ros2 launch mast3r_slam lifecycle.launch.py image:=/camera/image_raw camera_info:=/camera/camera_info

The other arguments of mast3r_slam.launch.py (robot, params_file, namespace, use_sim_time) work too.
The node makes no bond, so the manager's bond_timeout is 0.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node


def generate_launch_description():
    share = get_package_share_directory("mast3r_slam")
    slam = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(share, "launch", "mast3r_slam.launch.py")),
        launch_arguments={"autostart": "false"}.items(),
    )
    manager = Node(
        package="nav2_lifecycle_manager",
        executable="lifecycle_manager",
        name="lifecycle_manager_slam",
        namespace=LaunchConfiguration("namespace"),
        output="screen",
        parameters=[
            {
                "autostart": True,
                "node_names": ["mast3r_slam"],
                "bond_timeout": 0.0,
                "use_sim_time": LaunchConfiguration("use_sim_time"),
            }
        ],
    )
    return LaunchDescription([slam, manager])
