//! Overhead of the layer over a bare axum handler, compared with `tower_governor`.
//!
//! `cargo bench -p tidegate-tower --bench layer` prints medians over interleaved rounds; `--
//! tidegate` runs only the contenders whose name contains that text.
#![expect(clippy::unwrap_used, reason = "a benchmark")]

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::Request;
use tidegate::{Clock, Limiter, Memory, Rule, SystemClock};
use tidegate_model::CountingAllocator;
use tidegate_tower::{ClientIp, Header, KeyedRule, RateLimitLayer};
use tower::Service;
use tower::layer::util::Identity;
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const ADDRESSES: u32 = 1_000;
const REQUESTS: u32 = 20_000;
const ROUNDS: usize = 15;

struct Contender {
    name: &'static str,
    app: Router,
    nanos: Vec<f64>,
    allocations: f64,
}

fn main() {
    // `cargo test --benches` only checks that it runs.
    let is_test = std::env::args().any(|argument| argument == "--test");
    let (requests, rounds) = if is_test { (2_000, 1) } else { (REQUESTS, ROUNDS) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    // Initializes the clock before anything is measured.
    SystemClock.now();
    let mut contenders = contenders();
    contenders.retain(|one| only.as_ref().is_none_or(|only| one.name.contains(only.as_str())));
    for round in 0..=rounds {
        for contender in &mut contenders {
            let before = (SystemClock.elapsed(), CountingAllocator::allocations());
            runtime.block_on(run(&mut contender.app, requests));
            let nanos = SystemClock.elapsed().saturating_sub(before.0).get() * 1_000;
            // The first round warms up.
            if round > 0 {
                contender.nanos.push(nanos as f64 / f64::from(requests));
                let count = CountingAllocator::allocations() - before.1;
                contender.allocations = count as f64 / f64::from(requests);
            }
        }
    }
    report(&mut contenders);
}

async fn run(app: &mut Router, requests: u32) {
    for i in 0..requests {
        let address = SocketAddr::from(((0x0a00_0000 + i % ADDRESSES).to_be_bytes(), 80));
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(ConnectInfo(address));
        let response = Service::call(app, request).await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
    }
}

fn contenders() -> Vec<Contender> {
    let bare = || Router::new().route("/", get(|| async { "hello" }));
    let limiter = || {
        let limit = "100/s burst 1000000".parse().unwrap();
        Limiter::new(Memory::default(), limit)
    };
    let two_rules = || {
        let limits = ["100/s burst 1000000".parse().unwrap()];
        let rules = ["address", "tenant"].map(|name| Rule::new(name, limits.clone()).unwrap());
        let keys = [
            KeyedRule::new("address", ClientIp::default()),
            KeyedRule::new("tenant", Header::from_static("x-tenant")),
        ];
        let limiter = Limiter::with_rules(Memory::default(), rules).unwrap();
        RateLimitLayer::rules(limiter, keys).unwrap()
    };
    let governor = || {
        let mut builder = GovernorConfigBuilder::default();
        builder.per_millisecond(10).burst_size(1_000_000);
        builder
    };
    let without_headers = Arc::new(governor().finish().unwrap());
    let with_headers = Arc::new(governor().use_headers().finish().unwrap());
    let tidegate = RateLimitLayer::new(limiter(), ClientIp::default());
    [
        ("bare handler", bare()),
        ("a layer that does nothing", bare().layer(Identity::new())),
        ("tidegate, without headers", bare().layer(tidegate.clone().without_headers())),
        ("tower_governor, without headers", bare().layer(GovernorLayer::new(without_headers))),
        ("tidegate, five headers", bare().layer(tidegate)),
        ("tower_governor, three headers", bare().layer(GovernorLayer::new(with_headers))),
        ("tidegate, two rules, five headers", bare().layer(two_rules())),
    ]
    .map(|(name, app)| Contender { name, app, nanos: Vec::new(), allocations: 0.0 })
    .into()
}

fn report(contenders: &mut [Contender]) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:36} {:>9} {:>9} {:>12}", "", "ns", "added ns", "allocations").unwrap();
    let mut bare = None;
    for contender in contenders {
        contender.nanos.sort_by(f64::total_cmp);
        let median = contender.nanos[contender.nanos.len() / 2];
        let bare = *bare.get_or_insert(median);
        let Contender { name, allocations, .. } = contender;
        let added = median - bare;
        writeln!(out, "{name:36} {median:9.0} {added:9.0} {allocations:12.1}").unwrap();
    }
}
