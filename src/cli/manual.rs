//! Man pages and completions of shells, made from the command line's own description.

use super::{Cli, CliError, Finished};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// Write man pages (man1/) and completions of bash, zsh, fish and PowerShell (completions/) into a folder.
#[derive(Debug, Clone, Args)]
pub struct ManualArgs {
    /// The folder, which is created.
    pub folder: PathBuf,
}

const SHELLS: [Shell; 4] = [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::PowerShell];

/// Runs the sub-command.
pub fn run(args: &ManualArgs) -> Result<Finished, CliError> {
    write(&args.folder).map_err(|cause| CliError::OutputFolder {
        path: args.folder.clone(),
        cause,
    })?;
    Ok(Finished::Done)
}

fn write(folder: &Path) -> std::io::Result<()> {
    let (pages, completions) = (folder.join("man1"), folder.join("completions"));
    std::fs::create_dir_all(&pages)?;
    std::fs::create_dir_all(&completions)?;
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &pages)?;
    let mut command = Cli::command();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut command, "mast3r-slam", &completions)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_completions_name_the_commands() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(read("man1/mast3r-slam.1").contains("mast3r\\-slam\\-run"));
        assert!(read("man1/mast3r-slam-run.1").contains("save\\-map"));
        for file in [
            "mast3r-slam.bash",
            "_mast3r-slam",
            "mast3r-slam.fish",
            "_mast3r-slam.ps1",
        ] {
            let text = read(&format!("completions/{file}"));
            assert!(text.contains("save-map"), "{file}");
        }
    }
}
