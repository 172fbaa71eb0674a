//! Listener of the probes alone. On threads of its own, it replies while others are flooded.

use tokio::net::TcpListener;

use super::router::health_router;
use super::state::AppState;
use crate::observe::metrics::ListenerKind;
use crate::transport::listener::accept::Acceptor;
use crate::transport::listener::http_connection;

/// Serves `/healthz` and `/readyz` until the server drains.
pub(crate) async fn serve_health(acceptor: Acceptor, listener: TcpListener, app: AppState) {
    let (drain, deadlines) = (app.drain.clone(), acceptor.deadlines);
    let metrics = app.service.metrics().clone();
    let router = health_router(app);
    let serve = move |stream, drain| {
        let open = metrics.connect(ListenerKind::Http);
        let connection = http_connection::serve(stream, router.clone(), open, deadlines, drain);
        // An error is that of a client that disconnects.
        async move { drop(connection.await) }
    };
    acceptor.run(listener, drain, serve).await;
}
