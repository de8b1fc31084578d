"""MASt3R-SLAM on a bag that is played with simulated time.

    ros2 launch mast3r_slam replay.launch.py bag:=FOLDER image:=/camera/image_raw camera_info:=/camera/camera_info
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration


def generate_launch_description():
    share = get_package_share_directory("mast3r_slam")
    arguments = [
        DeclareLaunchArgument("bag", description="bag, a folder or a file"),
        DeclareLaunchArgument("rate", default_value="1.0", description="playback rate"),
    ]
    slam = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(share, "launch", "mast3r_slam.launch.py")),
        launch_arguments={"use_sim_time": "true"}.items(),
    )
    play = ExecuteProcess(
        cmd=["ros2", "bag", "play", LaunchConfiguration("bag"), "--clock", "--rate", LaunchConfiguration("rate")],
        output="screen",
    )
    return LaunchDescription([*arguments, slam, play])
