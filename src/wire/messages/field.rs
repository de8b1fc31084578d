//! How the types of a message's fields are spelt in `.msg` files.

use super::Definition;
use serde_bytes::{ByteBuf, Bytes};

/// A type that a field of a message may have.
pub trait Field {
    /// As `.msg` files spell it: `float64[9]`, `geometry_msgs/Point`.
    fn spelling() -> String;

    /// The definition of a message, or of the elements of an array of messages.
    fn part() -> Option<fn() -> Definition> {
        None
    }
}

macro_rules! primitives {
    ($($kind:ty = $name:literal),* $(,)?) => {$(
        impl Field for $kind {
            fn spelling() -> String {
                $name.to_owned()
            }
        }
    )*};
}

primitives! {
    bool = "bool",
    u8 = "uint8",
    i8 = "int8",
    i32 = "int32",
    u32 = "uint32",
    i64 = "int64",
    u64 = "uint64",
    f32 = "float32",
    f64 = "float64",
    String = "string",
    ByteBuf = "uint8[]",
    &Bytes = "uint8[]",
    // A covariance lies row after row in one array.
    [[f64; 6]; 6] = "float64[36]",
}

impl<T: Field> Field for Vec<T> {
    fn spelling() -> String {
        T::spelling() + "[]"
    }

    fn part() -> Option<fn() -> Definition> {
        T::part()
    }
}

impl<const N: usize> Field for [f64; N] {
    fn spelling() -> String {
        format!("{}[{N}]", f64::spelling())
    }
}
