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
        let (open, router) = (metrics.connect(ListenerKind::Http), router.clone());
        // An error is that of a client that disconnects.
        async move { drop(http_connection::serve(stream, router, open, deadlines, drain).await) }
    };
    acceptor.run(listener, drain, serve).await;
}
