//! Allocations of the layer for an admitted request, on the memory engine.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tidegate::{Limiter, Memory, Rule, RuleCheck};
use tidegate_model::CountingAllocator;
use tidegate_tower::{ClientIp, Global, KeyedRule, Peer, RateLimitLayer};
use tower::{Layer, Service};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

/// A service that allocates nothing: an empty header map and this body need no memory.
#[derive(Clone)]
struct NonAllocatingService;

impl Service<Request<()>> for NonAllocatingService {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Empty::new())))
    }
}

/// The maximum number of allocations of one request, once the keys are known.
fn max_allocations(layer: RateLimitLayer) -> u64 {
    let mut service = layer.any_body().layer(NonAllocatingService);
    let addresses: Vec<IpAddr> = (0..100_u8)
        .flat_map(|nth| {
            let [v4, v6] = [Ipv4Addr::new(203, 0, 113, nth).to_ipv6_mapped(), v6(nth)];
            [v4.to_canonical(), v6.into()]
        })
        .collect();
    let mut max_allocations = 0;
    for round in 0..5 {
        for &address in &addresses {
            let mut request = Request::new(());
            request.extensions_mut().insert(Peer(address));
            let before = CountingAllocator::allocations();
            let response_future = pin!(service.call(request));
            let response = match response_future.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(response) => response.unwrap(),
                Poll::Pending => panic!("it waits"),
            };
            assert_eq!(response.status(), 200);
            drop(response);
            if round > 0 {
                max_allocations = max_allocations.max(CountingAllocator::allocations() - before);
            }
        }
    }
    max_allocations
}

fn v6(nth: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, nth.into(), 1, 2, 3, 4)
}

fn limiter(limits: &[&str]) -> Limiter {
    let rule = Rule::new("api", limits.iter().map(|limit| limit.parse().unwrap())).unwrap();
    Limiter::with_rules(Memory::default(), [rule]).unwrap()
}

fn by_address(limits: &[&str]) -> RateLimitLayer {
    RateLimitLayer::new(limiter(limits), ClientIp::default())
}

/// Allocations of a check without the layer.
fn check_allocations(limits: &[&str]) -> u64 {
    let limiter = limiter(limits);
    limiter.check_now("known").unwrap();
    let before = CountingAllocator::allocations();
    limiter.check_now("known").unwrap();
    CountingAllocator::allocations() - before
}

// Slow to recover, so that a known key stays in the table: a new key may grow it.
const ONE: &[&str] = &["1000/h burst 1000000"];
const TWO: &[&str] = &["1000/h burst 1000000", "fixed-window 1000000/d"];

#[test]
fn without_headers_a_request_that_passes_needs_no_memory() {
    assert_eq!(max_allocations(by_address(ONE).without_headers()), 0);
    assert_eq!(max_allocations(by_address(ONE).shadow()), 0);
    assert_eq!(max_allocations(by_address(ONE).cost(|_| 3).without_headers()), 0);
    assert_eq!(max_allocations(by_address(TWO).without_headers()), check_allocations(TWO));
}

#[test]
fn with_headers_a_request_allocates_only_their_values_and_the_map() {
    // `RateLimit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`: one allocation each. The other
    // values are built once per limit. A header map allocates its entries and an index.
    const VALUES: u64 = 3;
    const MAP: u64 = 2;
    assert_eq!(max_allocations(by_address(ONE)), VALUES + MAP);
    // The policies of two limits are joined for each response.
    assert_eq!(max_allocations(by_address(TWO)), VALUES + 1 + MAP + check_allocations(TWO));
}

#[test]
fn two_rules_with_different_keys_need_no_more_than_checking_both() {
    let rules = ["address", "all"].map(|name| Rule::new(name, [ONE[0].parse().unwrap()]).unwrap());
    let limiter = Limiter::with_rules(Memory::default(), rules).unwrap();
    let checks = [RuleCheck::new("address", "known"), RuleCheck::new("all", "known")];
    limiter.check_each(&checks).now().unwrap();
    let before = CountingAllocator::allocations();
    limiter.check_each(&checks).now().unwrap();
    let check_allocations_of_both = CountingAllocator::allocations() - before;
    let keys = [KeyedRule::new("address", ClientIp::default()), KeyedRule::new("all", Global)];
    let layer = RateLimitLayer::rules(limiter, keys).unwrap().without_headers();
    assert_eq!(max_allocations(layer), check_allocations_of_both);
}
