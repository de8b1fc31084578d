//! Properties of a setting other than its value: name, type, unit, range and documentation.

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key {
    /// Its dotted name in files, `tracking.Q_conf`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Empty if there is none.
    pub unit: &'static str,
    /// Its allowed values.
    pub range: Range,
    pub(super) doc: &'static str,
}

impl Key {
    /// Description of the setting, one or more sentences.
    pub fn doc(&self) -> &'static str {
        self.doc.trim_ascii()
    }

    /// Whether the setting is a path relative to the YAML file that sets it.
    pub fn is_beside_its_file(&self) -> bool {
        self.range == Range::PathBesideFile
    }
}

/// The type of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number of 0 or more.
    Whole,
    /// A floating-point number.
    Number,
    /// Text.
    Text,
    /// One of these words.
    Choice(&'static [&'static str]),
}

impl Kind {
    /// The type in words, for errors.
    pub fn words(self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Whole => "a whole number".into(),
            Self::Number => "a number".into(),
            Self::Text => "text (put it in quotes)".into(),
            Self::Choice([one, other]) => format!("{one} or {other}"),
            Self::Choice(names) => format!("one of {}", names.join(", ")),
        }
    }
}

/// The value of a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of 0 or more.
    Whole(usize),
    /// An f32 setting is converted through its shortest decimal text: 0.333, not
    /// 0.3330000042915344.
    Number(f64),
    /// Text.
    Text(String),
}

impl SettingValue {
    /// The value of a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(n) => Some(*n as f64),
            Self::Number(x) => Some(*x),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }
}

impl std::fmt::Display for SettingValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(b) => b.fmt(f),
            Self::Whole(n) => n.fmt(f),
            Self::Number(x) => write!(f, "{x:?}"),
            Self::Text(s) => s.fmt(f),
        }
    }
}

/// The allowed values of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Range {
    /// Anything its type allows.
    Any,
    /// Above zero.
    Positive,
    /// Zero or above.
    NotNegative,
    /// Every finite number.
    Finite,
    /// 0 to 1.
    Fraction,
    /// -0.1 to 0.1.
    Tenth,
    /// A whole number of at least this.
    AtLeast(usize),
    /// A whole number in a closed interval.
    Whole(usize, usize),
    /// A multiple of a patch's side, 16 or 14 pixels, in a closed interval.
    Patches(usize, usize),
    /// A file or folder, relative to the current folder.
    Path,
    /// A file or folder, relative to the YAML file that sets it, else to the current folder.
    PathBesideFile,
}

impl Range {
    /// Whether `value` is allowed.
    pub fn holds(self, value: f64) -> bool {
        let within = |low: usize, high: usize| (low as f64..=high as f64).contains(&value);
        match self {
            Self::Any | Self::Path | Self::PathBesideFile => true,
            Self::Positive => value.is_finite() && value > 0.0,
            Self::NotNegative => value.is_finite() && value >= 0.0,
            Self::Finite => value.is_finite(),
            Self::Fraction => (0.0..=1.0).contains(&value),
            Self::Tenth => (-0.1..=0.1).contains(&value),
            Self::AtLeast(low) => value >= low as f64,
            Self::Whole(low, high) => within(low, high),
            Self::Patches(low, high) => {
                within(low, high) && (value % 16.0 == 0.0 || value % 14.0 == 0.0)
            }
        }
    }

    /// The range in words, for errors.
    pub fn words(self) -> String {
        match self {
            Self::Any => "any value".into(),
            Self::Path | Self::PathBesideFile => "a path".into(),
            Self::Positive => "a number above 0".into(),
            Self::NotNegative => "a number of 0 or more".into(),
            Self::Finite => "a finite number".into(),
            Self::Fraction => "a fraction from 0 to 1".into(),
            Self::Tenth => "a number from -0.1 to 0.1".into(),
            Self::AtLeast(low) => format!("a whole number of {low} or more"),
            Self::Whole(low, high) => format!("a whole number from {low} to {high}"),
            Self::Patches(low, high) => {
                format!("a multiple of 16 (DUNE-MASt3R: 14) from {low} to {high}")
            }
        }
    }

    /// A compact form of the range, for tables. Empty if everything is allowed.
    pub fn short(self) -> String {
        match self {
            Self::Any | Self::Finite | Self::AtLeast(0) => String::new(),
            Self::Path | Self::PathBesideFile => "path".into(),
            Self::Positive => "> 0".into(),
            Self::NotNegative => "≥ 0".into(),
            Self::Fraction => "0 to 1".into(),
            Self::Tenth => "-0.1 to 0.1".into(),
            Self::AtLeast(low) => format!("≥ {low}"),
            Self::Whole(low, high) => format!("{low} to {high}"),
            Self::Patches(low, high) => {
                format!("multiple of 16 (DUNE-MASt3R: 14), {low} to {high}")
            }
        }
    }
}

/// A setting that is one of several words.
pub trait Choice: Copy + Sized + 'static {
    /// All of them, in the order of their declaration.
    const ALL: &'static [Self];
    /// Their names, in the same order.
    const NAMES: &'static [&'static str];

    /// Its name in files and on the command line.
    fn name(self) -> &'static str;
}

/// A type that a setting may have.
pub(super) trait SettingType {
    const KIND: Kind;

    fn value(&self) -> SettingValue;
}

impl SettingType for bool {
    const KIND: Kind = Kind::Bool;

    fn value(&self) -> SettingValue {
        SettingValue::Bool(*self)
    }
}

impl SettingType for usize {
    const KIND: Kind = Kind::Whole;

    fn value(&self) -> SettingValue {
        SettingValue::Whole(*self)
    }
}

impl SettingType for f32 {
    const KIND: Kind = Kind::Number;

    fn value(&self) -> SettingValue {
        SettingValue::Number(self.to_string().parse().unwrap_or(f64::NAN))
    }
}

impl SettingType for f64 {
    const KIND: Kind = Kind::Number;

    fn value(&self) -> SettingValue {
        SettingValue::Number(*self)
    }
}

impl SettingType for String {
    const KIND: Kind = Kind::Text;

    fn value(&self) -> SettingValue {
        SettingValue::Text(self.clone())
    }
}
