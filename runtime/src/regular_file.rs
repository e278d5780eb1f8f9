//! Reading files that a user or another machine names: only regular files, only up to a limit.
//!
//! A pipe would block, `/dev/zero` never ends, and a huge file would fill memory before its first byte is checked.
//! [`open`], [`read`] and [`read_text`] refuse all of these.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Longest settings file that is read: a configuration, a space of knobs. They usually have a kilobyte.
pub const SETTINGS_LIMIT: u64 = 1 << 20;

/// Why a file was not read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The operating system reported an error.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// The path is a directory, a pipe, a device or a socket.
    #[error("{} is {kind}: name a regular file of at most {limit} bytes", .path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
        /// The kind of file, with its article.
        kind: &'static str,
        /// Longest file that is read, in bytes.
        limit: u64,
    },
    /// The file exceeds the limit.
    #[error("{} has {found} bytes, and at most {limit} are read: is it the right file?", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        found: u64,
        /// Longest file that is read, in bytes.
        limit: u64,
    },
    /// The file is not UTF-8 text.
    #[error("{}: byte {position} is not UTF-8 text: is it the right file?", .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first invalid byte.
        position: usize,
    },
}

/// Opens a regular file of at most `limit` bytes. It never blocks: a pipe is refused whether or not it has a writer.
/// Links are followed.
///
/// # Errors
///
/// [`ReadError`].
pub fn open(path: &Path, limit: u64) -> Result<(File, Metadata), ReadError> {
    let io = |source| ReadError::Io { path: path.to_owned(), source };
    let judge = |facts: Metadata| match (facts.is_file(), facts.len()) {
        (false, _) => {
            Err(ReadError::NotRegular { path: path.to_owned(), kind: kind(facts.file_type()), limit })
        }
        (true, found) if found > limit => Err(ReadError::TooLong { path: path.to_owned(), found, limit }),
        (true, _) => Ok(facts),
    };
    // Before it is opened, for opening a device can have effects.
    judge(std::fs::metadata(path).map_err(io)?)?;
    let mut options = File::options();
    options.read(true);
    // Somebody may put a pipe in its place meanwhile: opening that does not wait either.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let file = options.open(path).map_err(io)?;
    let facts = judge(file.metadata().map_err(io)?)?;
    Ok((file, facts))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// [`ReadError`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let io = |source| ReadError::Io { path: path.to_owned(), source };
    let (file, facts) = open(path, limit)?;
    let mut bytes = Vec::new();
    let length = usize::try_from(facts.len()).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(length).map_err(|_| io(io::ErrorKind::OutOfMemory.into()))?;
    // One that grows meanwhile is not read for ever.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(io)?;
    match bytes.len() as u64 {
        found if found > limit => Err(ReadError::TooLong { path: path.to_owned(), found, limit }),
        _ => Ok(bytes),
    }
}

/// Reads a regular text file of at most `limit` bytes.
///
/// # Errors
///
/// [`ReadError`].
pub fn read_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    String::from_utf8(read(path, limit)?).map_err(|error| ReadError::NotText {
        path: path.to_owned(),
        position: error.utf8_error().valid_up_to(),
    })
}

/// Opens or creates a file of the program's own, for locking or for setting its times or length. A link in its place
/// is refused, so no user with access to the folder can redirect it; so is everything but a regular file.
///
/// # Errors
///
/// The system's; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub(crate) fn open_own(path: &Path, create: bool) -> io::Result<File> {
    let not_own = || {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is a link, a pipe or the like, and no file of silumin's",
        )
    };
    let mut options = File::options();
    options.append(true).create(create);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits().cast_signed());
    }
    // Where the system has no such flag a link is looked for before; it also says so in words, and opens no device.
    if std::fs::symlink_metadata(path).is_ok_and(|facts| !facts.is_file()) {
        return Err(not_own());
    }
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_own()) }
}

fn kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let special: [(bool, &str); 4] = [
            (kind.is_fifo(), "a pipe"),
            (kind.is_char_device(), "a device"),
            (kind.is_block_device(), "a block device"),
            (kind.is_socket(), "a socket"),
        ];
        if let Some((_, name)) = special.into_iter().find(|(is, _)| *is) {
            return name;
        }
    }
    if kind.is_dir() { "a directory" } else { "no regular file" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn regular_files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "tile = 1").unwrap();
        assert_eq!(read_text(&path, 8).unwrap(), "tile = 1");
        let error = read(&path, 7).unwrap_err();
        assert!(matches!(error, ReadError::TooLong { found: 8, limit: 7, .. }), "{error}");
        fs::write(&path, b"ok\xff").unwrap();
        assert!(matches!(read_text(&path, 8), Err(ReadError::NotText { position: 2, .. })));
        assert!(matches!(read(&folder.path().join("none"), 8), Err(ReadError::Io { .. })));
        // Ten gigabytes that take no room on the disk.
        fs::File::create(&path).unwrap().set_len(10 << 30).unwrap();
        let error = read(&path, SETTINGS_LIMIT).unwrap_err().to_string();
        assert!(error.contains("10737418240 bytes") && error.contains("1048576"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn own_files_are_no_links() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link, pipe, none] =
            ["target", "link", "pipe", "none"].map(|name| folder.path().join(name));
        fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("made"), &none).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for path in [&link, &none, &pipe, &folder.path().to_owned()] {
            let error = open_own(path, true).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        }
        assert!(!folder.path().join("made").exists(), "a link to nowhere makes nothing");
        open_own(&target, false).unwrap();
        open_own(&folder.path().join("new"), true).unwrap();
        assert!(open_own(&folder.path().join("other"), false).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn pipes_devices_and_directories_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        let cases: [(&Path, &str); 4] = [
            (&pipe, "a pipe"),
            (Path::new("/dev/zero"), "a device"),
            (&link, "a device"),
            (folder.path(), "a directory"),
        ];
        for (path, kind) in cases {
            let start = std::time::Instant::now();
            let error = read(path, SETTINGS_LIMIT).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains("1048576 bytes"), "{error}");
            assert!(start.elapsed() < std::time::Duration::from_secs(1));
        }
    }
}
