"""MASt3R-SLAM as the map and localisation of Nav2: one camera, a robot that drives to goals.

    ros2 launch mast3r_slam nav2.launch.py image:=/camera/image_raw camera_info:=/camera/camera_info

The node publishes /map, map -> odom and (unless odometry:=external) odom -> base_link, so neither AMCL nor map_server
runs. The robot's driver takes /cmd_vel, and robot_state_publisher or a static transform gives the camera's place on
base_link. odometry:=external: wheels or robot_localization (config/nav2/ekf.yaml) broadcast odom -> base_link.
"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PythonExpression
from launch_ros.actions import Node


def generate_launch_description():
    share = get_package_share_directory("mast3r_slam")
    bringup = get_package_share_directory("nav2_bringup")
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
            description="parameter file of Nav2",
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
    navigation = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(os.path.join(bringup, "launch", "navigation_launch.py")),
        launch_arguments={
            "params_file": LaunchConfiguration("nav2_params"),
            "use_sim_time": LaunchConfiguration("use_sim_time"),
        }.items(),
    )
    return LaunchDescription([*arguments, slam, navigation])
