//! The socket that clients connect to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::server::Connection;

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The path does not fit in a socket address (107 bytes).
    #[error("socket {}: the path is too long for a Unix socket (107 bytes at most); use a shorter one", path.display())]
    PathTooLong {
        /// Where.
        path: PathBuf,
    },
    /// Something that is not a socket has that name.
    #[error("socket {}: a {kind} is in the way; remove it or use another path", path.display())]
    InTheWay {
        /// Where.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// A server answers at that socket.
    #[error("socket {}: another server is listening there; stop it or use another path", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("socket {}: cannot {what}: {errno}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why not.
        errno: Errno,
    },
}

/// A listening Unix socket with mode 0600. Its name goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the name, so that only our own is removed.
    identity: (u64, u64),
}

impl Listener {
    /// Listens at `path`. A stale socket there (nobody listens) is replaced.
    ///
    /// # Errors
    /// See [`BindError`]; a live server's socket and things that are no sockets are left alone.
    pub fn bind(path: impl AsRef<Path>) -> Result<Self, BindError> {
        let path = path.as_ref();
        let address = SocketAddrUnix::new(path).map_err(|_| BindError::PathTooLong { path: path.to_owned() })?;
        let system = |what| move |errno| BindError::System { path: path.to_owned(), what, errno };
        let socket = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        };
        match rustix::fs::lstat(path) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(system("look at it")(errno)),
            Ok(stat) => {
                let kind = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Socket => None,
                    FileType::Symlink => Some("symbolic link"),
                    FileType::RegularFile => Some("regular file"),
                    FileType::Directory => Some("directory"),
                    _ => Some("special file"),
                };
                if let Some(kind) = kind {
                    return Err(BindError::InTheWay { path: path.to_owned(), kind });
                }
                let probe = socket().map_err(system("create a socket"))?;
                match rustix::net::connect(&probe, &address) {
                    // AGAIN: somebody listens, and the queue is full.
                    Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => {
                        return Err(BindError::InUse { path: path.to_owned() });
                    }
                    Err(Errno::CONNREFUSED | Errno::NOENT) => {}
                    // PROTOTYPE: a socket of another kind, somebody's all the same.
                    Err(errno) => return Err(system("find out whether a server is there")(errno)),
                }
                match rustix::fs::unlink(path) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(system("remove the stale socket")(errno)),
                }
            }
        }
        let fd = socket().map_err(system("create a socket"))?;
        // On Linux the name gets the mode of the socket's inode: no moment at which others could connect.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(system("set its mode"))?;
        rustix::net::bind(&fd, &address).map_err(system("bind it"))?;
        let stat = rustix::fs::lstat(path).map_err(system("look at it"))?;
        let listener = Self { fd, path: path.to_owned(), identity: (stat.st_dev, stat.st_ino) };
        rustix::net::listen(&listener.fd, 8).map_err(system("listen on it"))?;
        Ok(listener)
    }

    /// Readable when a client is waiting.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next client, if one is waiting. Whether it may stay is the caller's decision: [`Connection::refuse`] sends it away.
    ///
    /// # Errors
    /// The process is out of descriptors or memory; the client keeps waiting.
    pub fn accept(&self) -> io::Result<Option<Connection>> {
        Ok(self.accept_socket()?.map(Connection::new))
    }

    /// Like [`Listener::accept`], for clients that do not speak vfio-user: the socket as such, non-blocking.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn accept_socket(&self) -> io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if rustix::fs::lstat(&self.path).is_ok_and(|s| (s.st_dev, s.st_ino) == self.identity) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixStream;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_socket_is_private_and_goes_with_the_listener() {
        let dir = dir();
        let path = dir.path().join("s");
        let listener = Listener::bind(&path).unwrap();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert!(listener.accept().unwrap().is_none(), "nobody there, and no waiting");
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        assert!(listener.accept().unwrap().is_none());
        drop(listener);
        assert!(std::fs::symlink_metadata(&path).is_err());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = dir();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(std::fs::symlink_metadata(&path).is_ok(), "std leaves its socket behind");
        let first = Listener::bind(&path).unwrap();
        let text = Listener::bind(&path).unwrap_err().to_string();
        assert_eq!(
            text,
            format!("socket {}: another server is listening there; stop it or use another path", path.display())
        );
        UnixStream::connect(&path).unwrap();
        drop(first);
        drop(Listener::bind(&path).unwrap());
    }

    #[test]
    fn what_is_no_socket_stays() {
        let dir = dir();
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        let dangling = dir.path().join("dangling");
        symlink(dir.path().join("none"), &dangling).unwrap();
        let cases = [
            (&file, "regular file"),
            (&link, "symbolic link"),
            (&dangling, "symbolic link"),
            (&dir.path().to_owned(), "directory"),
        ];
        for (path, kind) in cases {
            let text = Listener::bind(path).unwrap_err().to_string();
            assert_eq!(
                text,
                format!("socket {}: a {kind} is in the way; remove it or use another path", path.display())
            );
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
        let long = dir.path().join("x".repeat(200));
        assert!(matches!(Listener::bind(&long), Err(BindError::PathTooLong { .. })));
        let nowhere = dir.path().join("no/such/dir");
        assert!(matches!(
            Listener::bind(&nowhere),
            Err(BindError::System { what: "bind it", errno: Errno::NOENT, .. })
        ));
    }

    #[test]
    fn anothers_socket_is_not_removed() {
        let dir = dir();
        let path = dir.path().join("s");
        let first = Listener::bind(&path).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let second = Listener::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(second.path()).unwrap();
    }
}
