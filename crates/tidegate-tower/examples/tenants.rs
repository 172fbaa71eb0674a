//! Limits per tenant by plan, counted in Redis: two servers share the counts, and a tenant that
//! changes plans keeps its usage.
//!
//! `cargo run -p tidegate-tower --example tenants [-- redis://127.0.0.1:6379]`

use std::collections::HashMap;
use std::error::Error;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use tidegate::{Limiter, Rule};
use tidegate_redis::Redis;
use tidegate_tower::{Claim, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The authenticated tenant.
#[derive(Clone)]
struct Tenant {
    name: String,
    plan: Arc<Rule>,
}

/// Limits that depend on the tenant.
fn limited(limiter: Limiter) -> RateLimitLayer {
    let by_tenant = Claim::new(|tenant: &Tenant| tenant.name.clone());
    RateLimitLayer::per_request_rule(limiter, by_tenant, |request| {
        request.extensions.get::<Tenant>().map(|tenant| tenant.plan.clone())
    })
}

fn app(accounts: Accounts, limiter: Limiter) -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(limited(limiter))
        // The layer added last runs first: the tenant is known to the layer above.
        .layer(from_fn_with_state(accounts, authenticate))
}

/// Stands for a table of tenants and their plans.
#[derive(Clone, Default)]
struct Accounts(Arc<RwLock<HashMap<String, Arc<Rule>>>>);

impl Accounts {
    fn set(&self, tenant: &str, plan: &Arc<Rule>) {
        let mut plans = self.0.write().unwrap_or_else(PoisonError::into_inner);
        plans.insert(tenant.into(), plan.clone());
    }

    fn plan(&self, tenant: &str) -> Option<Arc<Rule>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned()
    }
}

/// Stands for the verification of a token.
async fn authenticate(
    State(accounts): State<Accounts>,
    mut request: Request,
    next: Next,
) -> std::result::Result<Response, StatusCode> {
    let name = request.headers().get("x-tenant").and_then(|name| name.to_str().ok());
    let name = name.ok_or(StatusCode::UNAUTHORIZED)?.to_string();
    let plan = accounts.plan(&name).ok_or(StatusCode::UNAUTHORIZED)?;
    request.extensions_mut().insert(Tenant { name, plan });
    Ok(next.run(request).await)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("TIDEGATE_REDIS_URL").ok());
    let url = url.unwrap_or("redis://127.0.0.1:6379".into());
    // Plans of one name share their counts.
    let plan =
        |limit: &str| Ok::<_, Box<dyn Error>>(Arc::new(Rule::per_call("plan", [limit.parse()?])?));
    let (free, gold) = (plan("fixed-window 3/h first-hit")?, plan("fixed-window 6/h first-hit")?);

    let accounts = Accounts::default();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let engine = Redis::builder(&url).deadline(Duration::from_secs(1)).build()?;
        // A request without a plan is denied.
        let no_plan = Rule::new("no-plan", ["0/s".parse()?])?;
        let limiter = Limiter::with_rules(engine, [no_plan])?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        servers.push(listener.local_addr()?);
        let app = app(accounts.clone(), limiter);
        tokio::spawn(async move { axum::serve(listener, app).await });
    }

    // A new tenant in every run, so that usage starts at zero.
    let tenant = format!("acme-{:x}", RandomState::new().hash_one("tenants"));
    for (name, plan, requests) in
        [("free", &free, 4), ("gold", &gold, 2), ("free", &free, 1), ("gold", &gold, 2)]
    {
        accounts.set(&tenant, plan);
        for request in 0..requests {
            let server = request % 2;
            println!("{name}, server {server}: {}", send(servers[server], &tenant).await?);
        }
    }
    Ok(())
}

/// Sends one request. Returns status and `RateLimit` header of the response.
async fn send(address: SocketAddr, tenant: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET / HTTP/1.1\r\nhost: demo\r\nx-tenant: {tenant}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let shown = |line: &&str| line.starts_with("HTTP/") || line.starts_with("ratelimit:");
    Ok(response.lines().filter(shown).collect::<Vec<_>>().join("  "))
}
