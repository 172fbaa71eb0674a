//! Listeners of the probes alone and of the metrics alone.

use tokio::net::TcpListener;

use super::router::{HttpService, health_router, metrics_router};
use super::state::AppState;
use crate::observe::metrics::ListenerKind;
use crate::transport::listener::accept::Acceptor;
use crate::transport::listener::http_connection;

/// Serves `/healthz` and `/readyz` until the server drains.
pub(crate) async fn serve_health(acceptor: Acceptor, listener: TcpListener, app: AppState) {
    let router = health_router(app.clone());
    serve(acceptor, listener, app, router).await;
}

/// Serves `/metrics` until the server drains.
pub(crate) async fn serve_metrics(acceptor: Acceptor, listener: TcpListener, app: AppState) {
    let router = metrics_router(app.clone());
    serve(acceptor, listener, app, router).await;
}

async fn serve(acceptor: Acceptor, listener: TcpListener, app: AppState, router: HttpService) {
    let (drain, deadlines) = (app.drain.clone(), acceptor.deadlines);
    let metrics = app.service.metrics().clone();
    let serve = move |stream, drain| {
        let (open, router) = (metrics.connect(ListenerKind::Http), router.clone());
        // An error is that of a client that disconnects.
        async move { drop(http_connection::serve(stream, router, open, deadlines, drain).await) }
    };
    drop(app);
    acceptor.run(listener, drain, serve).await;
}
