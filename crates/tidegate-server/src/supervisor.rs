//! What the program that has started the server is told about it, if it wants to know: systemd's protocol
//! of notifications.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// How the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Its doors are open, and its policy is in force.
    Ready,
    /// It reads its policy again, and answers meanwhile.
    Reloading,
    /// It answers whoever has asked, and ends.
    Stopping,
}

impl State {
    const fn message(self) -> &'static str {
        match self {
            Self::Ready => "READY=1",
            Self::Reloading => "RELOADING=1",
            Self::Stopping => "STOPPING=1",
        }
    }
}

/// The variable that names the socket to tell it on.
pub const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells it, if somebody wants to know. A server goes on when nobody listens.
pub fn tell(state: State) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, state.message()) {
        warn!(%error, state = state.message(), "cannot tell the service manager");
    }
}

fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    // A full socket is somebody's who does not listen.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), &address(socket)?)?;
    Ok(())
}

/// A path, or behind an `@` a name that is in no folder.
fn address(socket: &OsStr) -> io::Result<SocketAddr> {
    match socket.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', name @ ..] => {
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)
        }
        _ => SocketAddr::from_pathname(socket),
    }
}
