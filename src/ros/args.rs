//! ROS command-line arguments: `--ros-args -r image:=/camera/image_raw -p device:=cuda
//! --params-file robot.yaml`.

use crate::wire::names::Remap;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The contents of `--ros-args`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RosArgs {
    /// In order; the first matching rule applies.
    pub remaps: Vec<Remap>,
    /// Parameter values and parameter files, in order; later ones take precedence.
    pub parameters: Vec<ParameterSource>,
}

/// Source of parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum ParameterSource {
    /// `-p [node:]name:=value`
    Assignment {
        /// The node it applies to; `None` for all nodes.
        node: Option<String>,
        name: String,
        /// The value, parsed as YAML.
        value: Value,
    },
    /// `--params-file`
    File(PathBuf),
}

/// Invalid command line or parameter file.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// An option is missing its value.
    #[error("{option} requires {expected}")]
    Missing {
        option: String,
        expected: &'static str,
    },
    /// The value of an option is invalid.
    #[error("{option} expects {expected}, found {found:?}")]
    Malformed {
        option: String,
        expected: &'static str,
        found: String,
    },
    /// An unknown option.
    #[error("{0:?} is not a supported --ros-args option (-r, -p, --params-file, --log-level)")]
    Unknown(String),
    /// A parameter file cannot be read.
    #[error("cannot read the parameter file {path}: {cause}")]
    File { path: PathBuf, cause: String },
}

impl RosArgs {
    /// Splits `args` into program arguments and ROS arguments, the latter between `--ros-args` and
    /// `--` (or the end).
    pub fn split(args: &[String]) -> (Vec<String>, Vec<String>) {
        let (mut ros, mut own) = (Vec::new(), Vec::new());
        let mut inside = false;
        for arg in args {
            match (inside, arg.as_str()) {
                (_, "--ros-args") => inside = true,
                (true, "--") => inside = false,
                (true, _) => ros.push(arg.clone()),
                (false, _) => own.push(arg.clone()),
            }
        }
        (ros, own)
    }

    /// Parses the arguments between `--ros-args` and `--`.
    ///
    /// # Errors
    /// Errors name the option and the expected value.
    pub fn parse(args: &[String]) -> Result<Self, ArgsError> {
        let mut out = Self::default();
        let mut rest = args.iter();
        while let Some(option) = rest.next() {
            let mut value = |expected| {
                rest.next().ok_or_else(|| ArgsError::Missing {
                    option: option.clone(),
                    expected,
                })
            };
            match option.as_str() {
                "-r" | "--remap" => {
                    let text = value("a rule such as image:=/camera/image_raw")?;
                    out.remaps.push(remap(option, text)?);
                }
                "-p" | "--param" => {
                    let text = value("an assignment such as device:=cuda")?;
                    out.parameters.push(assignment(option, text)?);
                }
                "--params-file" => {
                    let path = value("a YAML file")?;
                    out.parameters.push(ParameterSource::File(path.into()));
                }
                // Logging and security are configured elsewhere, but launch files may pass these
                // options.
                "--log-level" | "--log-config-file" | "--log-file-name" | "-e" | "--enclave" => {
                    value("a value")?;
                }
                "--enable-rosout-logs"
                | "--disable-rosout-logs"
                | "--enable-stdout-logs"
                | "--disable-stdout-logs"
                | "--enable-external-lib-logs"
                | "--disable-external-lib-logs" => {}
                _ => return Err(ArgsError::Unknown(option.clone())),
            }
        }
        Ok(out)
    }

    /// Parameters for the node `name` with full name `full_name`, in order; later ones take
    /// precedence.
    ///
    /// # Errors
    /// A file that cannot be read or is not a parameter file.
    pub fn parameters_of(
        &self,
        name: &str,
        full_name: &str,
    ) -> Result<Vec<(String, Value)>, ArgsError> {
        let mut out = Vec::new();
        for source in &self.parameters {
            match source {
                ParameterSource::Assignment {
                    node,
                    name: parameter,
                    value,
                } => {
                    if node.as_deref().is_none_or(|n| n == name || n == full_name) {
                        out.push((parameter.clone(), value.clone()));
                    }
                }
                ParameterSource::File(path) => out.extend(read(path, full_name)?),
            }
        }
        Ok(out)
    }
}

fn remap(option: &str, text: &str) -> Result<Remap, ArgsError> {
    let (node, from, to) = rule(option, text, "a rule such as image:=/camera/image_raw")?;
    Ok(Remap { node, from, to })
}

fn assignment(option: &str, text: &str) -> Result<ParameterSource, ArgsError> {
    let expected = "an assignment such as device:=cuda";
    let (node, name, text) = rule(option, text, expected)?;
    // Text that is not valid YAML (`C:\map`) is taken as a string.
    let value = match serde_saphyr::from_str::<Value>(&text) {
        Ok(value) if !text.is_empty() => value,
        _ => Value::String(text),
    };
    Ok(ParameterSource::Assignment { node, name, value })
}

/// `[node:]left:=right`.
fn rule(
    option: &str,
    text: &str,
    expected: &'static str,
) -> Result<(Option<String>, String, String), ArgsError> {
    let malformed = || ArgsError::Malformed {
        option: option.to_owned(),
        expected,
        found: text.to_owned(),
    };
    let (left, right) = text.split_once(":=").ok_or_else(malformed)?;
    let (node, left) = match left.split_once(':') {
        // `rostopic://name` does not have a node prefix.
        Some((_, rest)) if rest.starts_with("//") => (None, left),
        Some((node, left)) => (Some(node.to_owned()), left),
        None => (None, left),
    };
    if left.is_empty() {
        return Err(malformed());
    }
    Ok((node, left.to_owned(), right.to_owned()))
}

/// The parameters in a file for the node with this full name.
fn read(path: &Path, full_name: &str) -> Result<Vec<(String, Value)>, ArgsError> {
    let fail = |cause: String| ArgsError::File {
        path: path.to_owned(),
        cause,
    };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let root: Value = serde_saphyr::from_str(&text).map_err(|e| fail(e.to_string()))?;
    let Value::Object(_) = root else {
        return Err(fail(EXPECTED.into()));
    };
    let mut out = Vec::new();
    collect(&root, "", full_name, &mut out).map_err(fail)?;
    Ok(out)
}

const EXPECTED: &str =
    "expected a node's name (or /**), below it ros__parameters, and below that the parameters";

fn collect(
    level: &Value,
    prefix: &str,
    full_name: &str,
    out: &mut Vec<(String, Value)>,
) -> Result<(), String> {
    let Value::Object(nodes) = level else {
        return Err(EXPECTED.into());
    };
    for (key, inner) in nodes {
        if key == "ros__parameters" {
            if fits(prefix, full_name) {
                flatten("", inner, out)?;
            }
            continue;
        }
        let name = key.trim_matches('/');
        collect(inner, &format!("{prefix}/{name}"), full_name, out)?;
    }
    Ok(())
}

/// Whether a name matches a pattern: `*` matches one component, `**` any number.
fn fits(pattern: &str, full_name: &str) -> bool {
    fn parts<'a>(pattern: &[&'a str], name: &[&'a str]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            (["**", rest @ ..], _) => (0..=name.len()).any(|k| parts(rest, &name[k..])),
            (["*", rest @ ..], [_, name @ ..]) => parts(rest, name),
            ([first, rest @ ..], [own, name @ ..]) => first == own && parts(rest, name),
            _ => false,
        }
    }
    let pattern: Vec<&str> = pattern.split('/').filter(|p| !p.is_empty()).collect();
    let name: Vec<&str> = full_name.split('/').filter(|p| !p.is_empty()).collect();
    parts(&pattern, &name)
}

/// Nested parameters get dotted names.
fn flatten(prefix: &str, value: &Value, out: &mut Vec<(String, Value)>) -> Result<(), String> {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, inner)| {
            let name = match prefix {
                "" => key.clone(),
                _ => format!("{prefix}.{key}"),
            };
            flatten(&name, inner, out)
        }),
        _ if prefix.is_empty() => Err("ros__parameters does not contain named parameters".into()),
        _ => {
            out.push((prefix.to_owned(), value.clone()));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn strings(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn what_launch_writes_is_understood() {
        let line = strings(
            "--weights w.pth --ros-args -r __node:=mono -r image:=/cam/image_raw -p max_rate:=15.0 \
             -p mono:device:=cuda --params-file p.yaml --log-level info -- rest",
        );
        let (ros, own) = RosArgs::split(&line);
        assert_eq!(own, strings("--weights w.pth rest"));
        let args = RosArgs::parse(&ros).unwrap();
        assert_eq!(args.remaps.len(), 2);
        assert_eq!(
            (args.remaps[1].from.as_str(), args.remaps[1].to.as_str()),
            ("image", "/cam/image_raw")
        );
        assert_eq!(
            args.parameters,
            [
                ParameterSource::Assignment {
                    node: None,
                    name: "max_rate".into(),
                    value: json!(15.0)
                },
                ParameterSource::Assignment {
                    node: Some("mono".into()),
                    name: "device".into(),
                    value: json!("cuda")
                },
                ParameterSource::File("p.yaml".into()),
            ]
        );
    }

    #[test]
    fn nonsense_is_refused_with_the_option() {
        for (line, part) in [
            ("-r", "-r requires"),
            ("-p x", "-p expects"),
            ("-r :=x", "-r expects"),
            ("--frobnicate", "--frobnicate"),
        ] {
            let text = RosArgs::parse(&strings(line)).unwrap_err().to_string();
            assert!(text.contains(part), "{line}: {text}");
        }
    }

    #[test]
    fn files_hold_for_the_nodes_they_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.yaml");
        let text = "/**:\n  ros__parameters:\n    use_sim_time: true\n    a.b: 1\n\
                    slam:\n  ros__parameters: {device: cpu}\n\
                    robot:\n  slam:\n    ros__parameters: {max_rate: 5.0, nested: {x: [1, 2]}}\n\
                    /*/other:\n  ros__parameters: {device: cuda}\n";
        std::fs::write(&path, text).unwrap();
        let args = RosArgs {
            parameters: vec![ParameterSource::File(path)],
            ..Default::default()
        };
        let of = |name: &str, full: &str| {
            let mut all = args.parameters_of(name, full).unwrap();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            all.into_iter()
                .map(|(k, v)| format!("{k}={v}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            of("slam", "/slam"),
            "a.b=1 device=\"cpu\" use_sim_time=true"
        );
        assert_eq!(
            of("slam", "/robot/slam"),
            "a.b=1 max_rate=5.0 nested.x=[1,2] use_sim_time=true"
        );
        assert_eq!(
            of("other", "/any/other"),
            "a.b=1 device=\"cuda\" use_sim_time=true"
        );
    }

    #[test]
    fn an_invalid_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (k, text) in ["just text", "slam: {ros__parameters: 3}", "slam: 3", ": ["]
            .iter()
            .enumerate()
        {
            let path = folder.path().join(format!("{k}.yaml"));
            std::fs::write(&path, text).unwrap();
            let args = RosArgs {
                parameters: vec![ParameterSource::File(path.clone())],
                ..Default::default()
            };
            let error = args.parameters_of("slam", "/slam").unwrap_err().to_string();
            assert!(error.contains(&*path.to_string_lossy()), "{text}: {error}");
        }
    }
}
