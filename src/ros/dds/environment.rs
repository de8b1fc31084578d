//! ROS environment variables that configure communication.

use std::fmt;

/// Convention for correlating service requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mapping {
    /// `rmw_fastrtps_cpp`, `rmw_fastrtps_dynamic_cpp`: RTPS sample identities.
    FastDds,
    /// `rmw_cyclonedds_cpp`: a 16-byte header before the data.
    Cyclone,
}

/// Discovery range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// This machine only.
    Localhost,
    /// Anywhere multicast reaches.
    Subnet,
}

/// Communication settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// `ROS_DOMAIN_ID`, 0 to 232.
    pub domain: u16,
    /// `ROS_LOCALHOST_ONLY=1`, or `ROS_AUTOMATIC_DISCOVERY_RANGE`.
    pub reach: Reach,
    /// `RMW_IMPLEMENTATION`; if unset, each request is answered by the convention of its sender's
    /// DDS.
    pub mapping: Option<Mapping>,
    /// Size of an endpoint id in graph messages: 24 up to Humble (by `ROS_DISTRO`), 16 since.
    pub gid_bytes: usize,
}

/// An environment variable has an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} is {found:?}, expected {expected}")]
pub struct EnvironmentError {
    pub variable: &'static str,
    pub found: String,
    pub expected: &'static str,
}

impl Environment {
    /// Reads the environment of the process.
    pub fn read() -> Result<Self, EnvironmentError> {
        Self::from(&|name| std::env::var(name).ok())
    }

    /// Reads any set of variables. Empty ones count as unset.
    pub fn from(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, EnvironmentError> {
        let set = |name: &str| variable(name).filter(|text| !text.is_empty());
        let refuse = |variable, found: String, expected| {
            Err(EnvironmentError {
                variable,
                found,
                expected,
            })
        };
        let domain = match set("ROS_DOMAIN_ID") {
            None => 0,
            Some(text) => match text.trim().parse() {
                Ok(domain @ 0..=232) => domain,
                _ => return refuse("ROS_DOMAIN_ID", text, "a whole number from 0 to 232"),
            },
        };
        // As in rcl, the older variable takes precedence if set to 1.
        let reach = match set("ROS_AUTOMATIC_DISCOVERY_RANGE") {
            _ if set("ROS_LOCALHOST_ONLY").as_deref() == Some("1") => Reach::Localhost,
            None => Reach::Subnet,
            Some(text) => match text.as_str() {
                "LOCALHOST" => Reach::Localhost,
                "SUBNET" | "SYSTEM_DEFAULT" => Reach::Subnet,
                _ => {
                    let expected =
                        "LOCALHOST, SUBNET or SYSTEM_DEFAULT (OFF is not supported by this client)";
                    return refuse("ROS_AUTOMATIC_DISCOVERY_RANGE", text, expected);
                }
            },
        };
        let mapping = match set("RMW_IMPLEMENTATION") {
            None => None,
            Some(text) => match text.as_str() {
                "rmw_fastrtps_cpp" | "rmw_fastrtps_dynamic_cpp" => Some(Mapping::FastDds),
                "rmw_cyclonedds_cpp" => Some(Mapping::Cyclone),
                _ => {
                    let expected = "rmw_fastrtps_cpp, rmw_fastrtps_dynamic_cpp or rmw_cyclonedds_cpp; for another \
                                    RMW build the node with the feature r2r";
                    return refuse("RMW_IMPLEMENTATION", text, expected);
                }
            },
        };
        let old = ["foxy", "galactic", "humble"];
        let gid_bytes = match set("ROS_DISTRO") {
            Some(distro) if old.contains(&distro.as_str()) => 24,
            _ => 16,
        };
        Ok(Self {
            domain,
            reach,
            mapping,
            gid_bytes,
        })
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reach = match self.reach {
            Reach::Localhost => "this machine only",
            Reach::Subnet => "the local network",
        };
        let mapping = match self.mapping {
            None => "by each caller's DDS",
            Some(Mapping::FastDds) => "by the Fast DDS convention",
            Some(Mapping::Cyclone) => "by the Cyclone DDS convention",
        };
        write!(f, "domain {}, {reach}, services {mapping}", self.domain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        Environment::from(&|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn nothing_set_means_the_defaults_of_ros() {
        let defaults = with(&[]).unwrap();
        assert_eq!(
            defaults,
            Environment {
                domain: 0,
                reach: Reach::Subnet,
                mapping: None,
                gid_bytes: 16
            }
        );
        assert_eq!(
            with(&[("ROS_DOMAIN_ID", ""), ("ROS_LOCALHOST_ONLY", "0")]),
            Ok(defaults)
        );
    }

    #[test]
    fn each_variable_is_obeyed() {
        let all = with(&[
            ("ROS_DOMAIN_ID", "42"),
            ("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST"),
            ("RMW_IMPLEMENTATION", "rmw_cyclonedds_cpp"),
            ("ROS_DISTRO", "humble"),
        ])
        .unwrap();
        assert_eq!(
            (all.domain, all.reach, all.gid_bytes),
            (42, Reach::Localhost, 24)
        );
        assert_eq!(all.mapping, Some(Mapping::Cyclone));
        let old = with(&[
            ("ROS_LOCALHOST_ONLY", "1"),
            ("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET"),
        ]);
        assert_eq!(old.unwrap().reach, Reach::Localhost);
        let fast = with(&[
            ("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp"),
            ("ROS_DISTRO", "jazzy"),
        ])
        .unwrap();
        assert_eq!((fast.mapping, fast.gid_bytes), (Some(Mapping::FastDds), 16));
    }

    #[test]
    fn nonsense_names_the_variable() {
        for (name, value) in [
            ("ROS_DOMAIN_ID", "233"),
            ("ROS_DOMAIN_ID", "-1"),
            ("ROS_DOMAIN_ID", "x"),
            ("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF"),
            ("RMW_IMPLEMENTATION", "rmw_zenoh_cpp"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
    }
}
