//! The macros that turn one declaration of a setting into everything that is known about it.

/// Declares the struct of a section: each setting with its documentation, name, type, default, unit and range.
/// `as "NAME"` gives the key of the files where it differs from the field's name. Generates the struct, its
/// defaults, its list of [`Key`](super::Key)s and their values.
macro_rules! section {
    (
        $(#[doc = $about:literal])*
        $section:ident = $path:literal {
            $(
                $(#[doc = $doc:literal])*
                $field:ident $(as $key:literal)?: $kind:ty = $default:expr, $unit:literal, $range:expr;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $section {
            $(
                $(#[doc = $doc])*
                $(#[serde(rename = $key)])?
                pub $field: $kind,
            )*
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($field: $default),* }
            }
        }

        impl $section {
            /// The section's settings in the order of their declaration.
            pub(super) const KEYS: &'static [$crate::config::Key] = &[
                $($crate::config::Key {
                    name: concat!($path, ".", $crate::config::declare::name!($field $($key)?)),
                    kind: <$kind as $crate::config::key::SettingType>::KIND,
                    unit: $unit,
                    range: $range,
                    doc: concat!($($doc),*),
                },)*
            ];

            /// The value of each of [`Self::KEYS`].
            pub(super) fn values(&self) -> Vec<$crate::config::SettingValue> {
                vec![$($crate::config::key::SettingType::value(&self.$field)),*]
            }
        }
    };
}
pub(super) use section;

/// The key of a field in the files: the given one, or the field's name.
macro_rules! name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $key:literal) => {
        $key
    };
}
pub(super) use name;

/// Declares the top level: settings that belong to no section, then the sections.
macro_rules! root {
    (
        $(#[doc = $about:literal])*
        $root:ident {
            $(
                $(#[doc = $doc:literal])*
                $field:ident: $kind:ty = $default:expr, $unit:literal, $range:expr;
            )*
        }
        sections {
            $(
                $(#[doc = $section_doc:literal])*
                $section:ident: $section_kind:ident;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $root {
            $($(#[doc = $doc])* pub $field: $kind,)*
            $($(#[doc = $section_doc])* pub $section: $section_kind,)*
        }

        impl Default for $root {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($section: $section_kind::default(),)*
                }
            }
        }

        impl $root {
            /// Every setting, section by section in the order of their declaration.
            pub fn keys() -> impl Iterator<Item = &'static $crate::config::Key> {
                const TOP: &[$crate::config::Key] = &[
                    $($crate::config::Key {
                        name: stringify!($field),
                        kind: <$kind as $crate::config::key::SettingType>::KIND,
                        unit: $unit,
                        range: $range,
                        doc: concat!($($doc),*),
                    },)*
                ];
                TOP.iter()$(.chain($section_kind::KEYS))*
            }

            /// The value of each of [`Self::keys`].
            pub(super) fn values(&self) -> Vec<$crate::config::SettingValue> {
                let mut values = vec![$($crate::config::key::SettingType::value(&self.$field)),*];
                $(values.extend(self.$section.values());)*
                values
            }
        }
    };
}
pub(super) use root;

/// Declares a setting that is one of several words, with its default: the enum, its names in files and on the
/// command line, and the conversions between them.
macro_rules! choice {
    (
        $(#[doc = $about:literal])*
        $choice:ident = $default:ident {
            $(
                $(#[doc = $doc:literal])*
                $variant:ident = $name:literal,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, clap::ValueEnum,
        )]
        pub enum $choice {
            $(
                $(#[doc = $doc])*
                #[serde(rename = $name)]
                #[value(name = $name)]
                $variant,
            )*
        }

        impl Default for $choice {
            fn default() -> Self {
                Self::$default
            }
        }

        impl $crate::config::Choice for $choice {
            const ALL: &'static [Self] = &[$(Self::$variant),*];
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

        }

        impl $crate::config::key::SettingType for $choice {
            const KIND: $crate::config::Kind = $crate::config::Kind::Choice(<Self as $crate::config::Choice>::NAMES);

            fn value(&self) -> $crate::config::SettingValue {
                $crate::config::SettingValue::Text($crate::config::Choice::name(*self).to_owned())
            }
        }

        impl std::fmt::Display for $choice {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::config::Choice::name(*self))
            }
        }

        impl std::str::FromStr for $choice {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                use $crate::config::Choice;
                let found = Self::ALL.iter().find(|choice| choice.name() == text);
                found.copied().ok_or_else(|| format!("expected {}", Self::NAMES.join(", ")))
            }
        }
    };
}
pub(super) use choice;
