//! Map files and reports.

mod files;
mod grid;
mod report;
mod splats;
mod streamed;
