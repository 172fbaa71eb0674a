//! Listening sockets that the service manager passes to the process (`LISTEN_FDS`). It keeps them
//! open while one process replaces another, so new connections wait instead of being refused.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};

use listenfd::ListenFd;
use socket2::SockRef;
use tokio::net::TcpListener;
use tracing::info;

use super::accept::{BACKLOG, listen};

/// The sockets that no listener has yet. A listener uses the one of its address: neither their
/// order nor their names matter.
#[derive(Default)]
pub(crate) struct InheritedSockets(Vec<StdTcpListener>);

impl InheritedSockets {
    /// Only the first call in a process gets them. An error if one is not a TCP socket.
    pub(crate) fn from_env() -> io::Result<Self> {
        let mut passed = ListenFd::from_env();
        let sockets = (0..passed.len()).filter_map(|nth| passed.take_tcp_listener(nth).transpose());
        sockets.collect::<io::Result<_>>().map(Self)
    }

    /// The address of a socket that none of the listeners has: its connections would never be
    /// accepted.
    pub(crate) fn unused(&self, listeners: &[Option<SocketAddr>]) -> Option<SocketAddr> {
        let mut addresses = self.0.iter().filter_map(|socket| socket.local_addr().ok());
        addresses.find(|address| !listeners.contains(&Some(*address)))
    }

    /// Listens on an address, with the inherited socket if there is one.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> io::Result<TcpListener> {
        let is_same = |socket: &StdTcpListener| socket.local_addr().is_ok_and(|own| own == address);
        let Some(nth) = self.0.iter().position(is_same) else { return listen(address) };
        let socket = self.0.swap_remove(nth);
        info!(%address, "using a socket of the service manager");
        socket.set_nonblocking(true)?;
        // Most service managers have done so already.
        SockRef::from(&socket).listen(BACKLOG.cast_signed())?;
        TcpListener::from_std(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_listener_gets_the_socket_of_its_address() {
        let [first, second] = [0, 1].map(|_| StdTcpListener::bind("127.0.0.1:0").unwrap());
        let [one, two] = [&first, &second].map(|socket| socket.local_addr().unwrap());
        let mut sockets = InheritedSockets(vec![first, second]);
        assert_eq!(sockets.unused(&[None, Some(two)]), Some(one));
        assert_eq!(sockets.unused(&[Some(two), Some(one)]), None);
        let listener = sockets.listen(two).expect("the address is in use by its own socket");
        assert_eq!(listener.local_addr().unwrap(), two);
        assert_eq!(sockets.0.len(), 1);
        assert!(listen(one).is_err(), "still bound");
    }
}
