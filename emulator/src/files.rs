//! Folders of results, written all or nothing, never over an input and never through a link.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Why a folder of results was not written. The folder is then unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// A result would overwrite an input.
    #[error(
        "{path}: the result would overwrite an input, {input}, which has this name or is linked to it: name another \
         folder"
    )]
    Input {
        /// The result.
        path: String,
        /// The input, as it was named.
        input: String,
    },
    /// A result would replace something that is not a file.
    #[error("{path}: there is a folder of that name: remove it, or name another folder")]
    Folder {
        /// The result.
        path: String,
    },
    /// The name of a result leads out of the folder.
    #[error("`{name}` is not a file name: it must have one part")]
    Name {
        /// The name.
        name: String,
    },
    /// The operating system reported an error.
    #[error("{path}: {source}; no file of {folder} was changed")]
    Io {
        /// What it refused.
        path: String,
        /// The folder of results.
        folder: String,
        /// Why.
        source: io::Error,
    },
}

/// The identity of the file at a path, after following links.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity(#[cfg(unix)] (u64, u64), #[cfg(not(unix))] PathBuf);

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            fs::metadata(path).ok().map(|about| Identity((about.dev(), about.ino())))
        }
        #[cfg(not(unix))]
        path.canonicalize().ok().map(Identity)
    }
}

/// Files to be written to a folder together. Until [`OutputFolder::commit`] they are in a folder of their own inside
/// it, which is deleted if commit is never called.
///
/// # Example
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let (folder, launch) = (folder.path(), folder.path().join("launch.toml"));
/// use silumin_emulator::files::OutputFolder;
///
/// let mut out = OutputFolder::open(&folder.join("results"), [launch.as_path()])?;
/// out.add("c.bin", &[1, 2, 3])?;
/// out.commit()?;
/// assert_eq!(std::fs::read(folder.join("results/c.bin"))?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OutputFolder {
    folder: PathBuf,
    inputs: Vec<(PathBuf, Identity)>,
    staged: TempDir,
    names: Vec<String>,
}

impl OutputFolder {
    /// Opens the folder and creates it if needed. No file of `inputs` will be overwritten.
    ///
    /// # Errors
    /// [`OutputError::Io`].
    pub fn open<'p>(folder: &Path, inputs: impl IntoIterator<Item = &'p Path>) -> Result<Self, OutputError> {
        let failed = |source| io_error(folder, folder, source);
        fs::create_dir_all(folder).map_err(failed)?;
        let staged = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(folder).map_err(failed)?;
        let inputs = inputs.into_iter().filter_map(|path| Some((path.to_owned(), Identity::of(path)?)));
        Ok(OutputFolder { folder: folder.to_owned(), inputs: inputs.collect(), staged, names: Vec::new() })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a file. A file that is an input and already has these bytes is skipped.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn add(&mut self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        if Path::new(name).file_name().is_none_or(|file| file != name) {
            return Err(OutputError::Name { name: name.to_owned() });
        }
        let target = self.folder.join(name);
        if let Some(input) = self.input(&target) {
            return match fs::read(&target) {
                Ok(there) if there == bytes => Ok(()),
                _ => Err(input),
            };
        }
        let path = self.staged.path().join(name);
        fs::write(&path, bytes).map_err(|source| io_error(&target, &self.folder, source))?;
        if !self.names.iter().any(|n| n == name) {
            self.names.push(name.to_owned());
        }
        Ok(())
    }

    /// The error if a result's path is an input, under any name.
    fn input(&self, target: &Path) -> Option<OutputError> {
        let identity = Identity::of(target)?;
        let (input, _) = self.inputs.iter().find(|(_, of)| *of == identity)?;
        Some(OutputError::Input { path: target.display().to_string(), input: input.display().to_string() })
    }

    /// Moves all files to their places and replaces files of the same names. A link is replaced itself, not the file
    /// that it leads to.
    ///
    /// # Errors
    /// [`OutputError`]; then what was there is there again.
    pub fn commit(self) -> Result<(), OutputError> {
        for name in &self.names {
            let target = self.folder.join(name);
            if let Some(error) = self.input(&target) {
                return Err(error);
            }
            if fs::symlink_metadata(&target).is_ok_and(|about| about.is_dir()) {
                return Err(OutputError::Folder { path: target.display().to_string() });
            }
        }
        let before = self.staged.path().join("before");
        let make = fs::create_dir(&before);
        make.map_err(|source| io_error(&before, &self.folder, source))?;
        for (n, name) in self.names.iter().enumerate() {
            if let Err(source) = self.place(name, &before) {
                self.names[..n].iter().for_each(|name| self.restore(name, &before));
                return Err(io_error(&self.folder.join(name), &self.folder, source));
            }
        }
        Ok(())
    }

    /// Moves an existing file of the name aside, and the new file to its place.
    fn place(&self, name: &str, before: &Path) -> io::Result<()> {
        let (target, aside) = (self.folder.join(name), before.join(name));
        match fs::rename(&target, &aside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            Ok(()) | Err(_) => {}
        }
        fs::rename(self.staged.path().join(name), &target).inspect_err(|_| self.restore(name, before))
    }

    /// Undoes [`Self::place`] as far as possible.
    fn restore(&self, name: &str, before: &Path) {
        let target = self.folder.join(name);
        if fs::rename(before.join(name), &target).is_err() {
            let _ = fs::remove_file(&target);
        }
    }
}

fn io_error(path: &Path, folder: &Path, source: io::Error) -> OutputError {
    OutputError::Io { path: path.display().to_string(), folder: folder.display().to_string(), source }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn write(folder: &Path, input: &Path, files: &[&str]) -> Result<(), OutputError> {
        let mut out = OutputFolder::open(folder, [input])?;
        files.iter().try_for_each(|name| out.add(name, b"new"))?;
        out.commit()
    }

    #[test]
    fn inputs_are_found_under_all_their_names() {
        let top = tempfile::tempdir().unwrap();
        let (input, out) = (top.path().join("input"), top.path().join("out"));
        fs::write(&input, "old").unwrap();
        fs::create_dir(&out).unwrap();
        fs::write(out.join("a"), "old").unwrap();
        fs::hard_link(&input, out.join("hard")).unwrap();
        symlink(&input, out.join("soft")).unwrap();
        symlink("soft", out.join("softer")).unwrap();
        for name in ["hard", "soft", "softer"] {
            let error = write(&out, &input, &["a", name, "z"]).unwrap_err();
            assert!(matches!(&error, OutputError::Input { .. }), "{error}");
            assert!(
                error.to_string().contains(name) && error.to_string().contains("another folder"),
                "{error}"
            );
            assert_eq!(fs::read(&input).unwrap(), b"old");
            assert_eq!(fs::read(out.join("a")).unwrap(), b"old");
            assert_eq!(names(&out), ["a", "hard", "soft", "softer"]);
        }
        // The folder itself reached through a link.
        let by_link = top.path().join("link");
        symlink(&out, &by_link).unwrap();
        assert!(matches!(write(&by_link, &out.join("a"), &["a"]), Err(OutputError::Input { .. })));
    }

    #[test]
    fn links_are_replaced_and_not_followed() {
        let top = tempfile::tempdir().unwrap();
        let (precious, out) = (top.path().join("precious"), top.path().join("out"));
        fs::write(&precious, "old").unwrap();
        fs::create_dir(&out).unwrap();
        symlink(&precious, out.join("a")).unwrap();
        symlink(top.path().join("nowhere"), out.join("b")).unwrap();
        fs::hard_link(&precious, out.join("c")).unwrap();
        write(&out, Path::new("none"), &["a", "b", "c"]).unwrap();
        for name in ["a", "b", "c"] {
            assert_eq!(fs::read(out.join(name)).unwrap(), b"new");
            assert!(fs::symlink_metadata(out.join(name)).unwrap().is_file());
        }
        assert_eq!(fs::read(&precious).unwrap(), b"old");
        assert_eq!(names(top.path()), ["out", "precious"]);
        assert_eq!(names(&out), ["a", "b", "c"]);
    }

    #[test]
    fn all_files_are_written_or_none() {
        let top = tempfile::tempdir().unwrap();
        let out = top.path();
        fs::write(out.join("a"), "old").unwrap();
        fs::create_dir(out.join("m")).unwrap();
        fs::write(out.join("m/inside"), "old").unwrap();
        let error = write(out, Path::new("none"), &["a", "b", "m", "z"]).unwrap_err();
        assert!(matches!(error, OutputError::Folder { .. }), "{error}");
        assert_eq!(fs::read(out.join("a")).unwrap(), b"old");
        assert_eq!(names(out), ["a", "m"]);
        for name in ["", ".", "..", "x/y", "../x", "/x", "x/"] {
            assert!(
                matches!(write(out, Path::new("none"), &[name]), Err(OutputError::Name { .. })),
                "{name}"
            );
        }
        // One that goes wrong in the middle: what came before it is undone.
        let mut staged = OutputFolder::open(out, []).unwrap();
        for name in ["a", "b", "c"] {
            staged.add(name, b"new").unwrap();
        }
        fs::remove_file(staged.staged.path().join("c")).unwrap();
        assert!(matches!(staged.commit(), Err(OutputError::Io { .. })));
        assert_eq!(fs::read(out.join("a")).unwrap(), b"old");
        assert_eq!(names(out), ["a", "m"]);
    }
}
