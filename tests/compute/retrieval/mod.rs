//! Place recognition.

mod files;
mod search;
