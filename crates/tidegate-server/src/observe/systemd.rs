//! Notifications to systemd (`sd_notify`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// The state of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotifyState {
    /// The listeners are bound and the policy is loaded.
    Ready,
    /// The policy is being reloaded; requests are served meanwhile.
    Reloading,
    /// The server drains and exits.
    Stopping,
}

impl NotifyState {
    const fn message(self) -> &'static str {
        match self {
            Self::Ready => "READY=1",
            Self::Reloading => "RELOADING=1",
            Self::Stopping => "STOPPING=1",
        }
    }
}

/// The environment variable for the socket.
pub(crate) const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends the state, if the socket is set. A failure is only logged.
pub fn notify(state: NotifyState) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE).filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, state.message()) {
        warn!(%error, state = state.message(), "cannot notify the service manager");
    }
}

fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let sender = UnixDatagram::unbound()?;
    // Never block on a receiver that does not read.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), &address(socket)?)?;
    Ok(())
}

/// A path, or an abstract name after an `@`.
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
