//! Names in the ROS graph: validation, expansion, remapping.

/// An invalid ROS name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a valid {what}: {reason}")]
pub struct NameError {
    pub name: String,
    pub what: &'static str,
    pub reason: &'static str,
}

fn refuse<T>(name: &str, what: &'static str, reason: &'static str) -> Result<T, NameError> {
    let name = name.to_owned();
    Err(NameError { name, what, reason })
}

/// Rejects invalid node names.
pub fn check_node_name(name: &str) -> Result<(), NameError> {
    const WHAT: &str = "node name";
    if name.is_empty() {
        return refuse(name, WHAT, "it is empty");
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        return refuse(name, WHAT, "it begins with a digit");
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return refuse(name, WHAT, "only letters, digits and _ are allowed");
    }
    Ok(())
}

/// Rejects names that are not valid absolute names, such as `/part/part`.
pub fn check_absolute(name: &str, what: &'static str) -> Result<(), NameError> {
    let Some(rest) = name.strip_prefix('/') else {
        return refuse(name, what, "it does not begin with /");
    };
    for part in rest.split('/') {
        if part.is_empty() {
            return refuse(name, what, "a component is empty");
        }
        if part.starts_with(|c: char| c.is_ascii_digit()) {
            return refuse(name, what, "a component begins with a digit");
        }
        if !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return refuse(name, what, "only letters, digits, _ and / are allowed");
        }
        if part.contains("__") {
            return refuse(name, what, "__ is not allowed");
        }
    }
    Ok(())
}

/// A command-line remapping rule `from:=to`, for one node if it names one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remap {
    /// The node it applies to; `None` for all nodes.
    pub node: Option<String>,
    /// The name to replace, as written.
    pub from: String,
    /// The replacement, as written.
    pub to: String,
}

/// A node's own name, and remapping rules for the names it uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNames {
    name: String,
    namespace: String,
    remaps: Vec<Remap>,
}

impl NodeNames {
    /// A node `name` in `namespace` (`/` or `/a/b`), unless overridden by the rules `__node` (or
    /// `__name`) and `__ns`.
    pub fn new(name: &str, namespace: &str, remaps: &[Remap]) -> Result<Self, NameError> {
        let own: Vec<&Remap> = remaps
            .iter()
            .filter(|r| r.node.as_deref().is_none_or(|n| n == name))
            .collect();
        let rule = |keys: &[&str]| {
            let found = own.iter().find(|r| keys.contains(&r.from.as_str()));
            found.map(|r| r.to.clone())
        };
        let node = rule(&["__node", "__name"]).unwrap_or_else(|| name.to_owned());
        let namespace = rule(&["__ns"]).unwrap_or_else(|| namespace.to_owned());
        check_node_name(&node)?;
        if namespace != "/" {
            check_absolute(&namespace, "namespace")?;
        }
        let special = |r: &&&Remap| !r.from.starts_with("__");
        Ok(Self {
            name: node,
            namespace,
            remaps: own.iter().filter(special).map(|r| (*r).clone()).collect(),
        })
    }

    /// The node name without namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `/` or `/a/b`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The full name, `/a/b/name`.
    pub fn full(&self) -> String {
        join(&self.namespace, &self.name)
    }

    /// The absolute name after expansion and remapping.
    pub fn resolve(&self, name: &str) -> Result<String, NameError> {
        let full = self.expand(name)?;
        for rule in &self.remaps {
            if self.expand(&rule.from)? == full {
                return self.expand(&rule.to);
            }
        }
        Ok(full)
    }

    fn expand(&self, name: &str) -> Result<String, NameError> {
        let name = name.strip_prefix("rostopic://").unwrap_or(name);
        let name = name.strip_prefix("rosservice://").unwrap_or(name);
        let full = match name.strip_prefix('~') {
            Some(rest) => match rest.strip_prefix('/') {
                Some(rest) => join(&self.full(), rest),
                None => return refuse(name, "topic or service name", "/ must follow ~"),
            },
            None if name.starts_with('/') => name.to_owned(),
            None => join(&self.namespace, name),
        };
        check_absolute(&full, "topic or service name")?;
        Ok(full)
    }
}

fn join(namespace: &str, name: &str) -> String {
    match namespace {
        "/" => format!("/{name}"),
        _ => format!("{namespace}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remap(from: &str, to: &str) -> Remap {
        Remap {
            node: None,
            from: from.into(),
            to: to.into(),
        }
    }

    #[test]
    fn short_names_expand_as_in_rcl() {
        let names = NodeNames::new("slam", "/robot", &[]).unwrap();
        assert_eq!(names.full(), "/robot/slam");
        for (short, full) in [
            ("image", "/robot/image"),
            ("~/odometry", "/robot/slam/odometry"),
            ("/tf", "/tf"),
        ] {
            assert_eq!(names.resolve(short).as_deref(), Ok(full));
        }
        let root = NodeNames::new("slam", "/", &[]).unwrap();
        assert_eq!(
            root.resolve("image/compressed").as_deref(),
            Ok("/image/compressed")
        );
        assert_eq!(root.full(), "/slam");
    }

    #[test]
    fn rules_match_full_names_whatever_form_they_are_written_in() {
        let rules = [
            remap("image", "camera/image_raw"),
            remap("/robot/slam/odometry", "/odom"),
            remap("__ns", "/robot"),
            Remap {
                node: Some("other".into()),
                ..remap("camera_info", "/wrong")
            },
        ];
        let names = NodeNames::new("slam", "/", &rules).unwrap();
        assert_eq!(
            names.resolve("image").as_deref(),
            Ok("/robot/camera/image_raw")
        );
        assert_eq!(names.resolve("~/odometry").as_deref(), Ok("/odom"));
        assert_eq!(
            names.resolve("camera_info").as_deref(),
            Ok("/robot/camera_info")
        );
        let renamed = NodeNames::new("slam", "/", &[remap("__node", "mono")]).unwrap();
        assert_eq!(renamed.resolve("~/pose").as_deref(), Ok("/mono/pose"));
    }

    #[test]
    fn names_that_ros_refuses_are_refused() {
        let names = NodeNames::new("slam", "/", &[]).unwrap();
        for bad in ["", "a//b", "a/", "1a", "a__b", "a-b", "~x", "/"] {
            assert!(names.resolve(bad).is_err(), "{bad:?}");
        }
        assert!(NodeNames::new("1slam", "/", &[]).is_err());
        assert!(NodeNames::new("slam", "robot", &[]).is_err());
    }
}
