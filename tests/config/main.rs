//! Reading a configuration.

mod errors;
mod files;
mod keys;
