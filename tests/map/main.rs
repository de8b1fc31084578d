//! Map files and reports.

mod files;
mod grid;
mod report;
mod saved;
mod splats;
mod streamed;
