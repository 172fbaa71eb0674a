//! What the layer allocates for a request that passes in memory.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tidegate::{Ask, Limiter, Memory, Rule};
use tidegate_model::Counting;
use tidegate_tower::{ClientIp, Everyone, KeyedRule, Peer, RateLimitLayer};
use tower::{Layer, Service};

#[global_allocator]
static COUNTING: Counting = Counting;

/// A service that allocates nothing: neither has an empty map of headers any memory, nor this body.
#[derive(Clone)]
struct Silent;

impl Service<Request<()>> for Silent {
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

/// The most allocations that any of some requests needs, once the keys are known.
fn most(layer: RateLimitLayer) -> u64 {
    let mut service = layer.any_body().layer(Silent);
    let addresses: Vec<IpAddr> = (0..100_u8)
        .flat_map(|nth| {
            let [v4, v6] = [Ipv4Addr::new(203, 0, 113, nth).to_ipv6_mapped(), v6(nth)];
            [v4.to_canonical(), v6.into()]
        })
        .collect();
    let mut most = 0;
    for round in 0..5 {
        for &address in &addresses {
            let mut request = Request::new(());
            request.extensions_mut().insert(Peer(address));
            let before = Counting::allocations();
            let answer = pin!(service.call(request));
            let response = match answer.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(response) => response.unwrap(),
                Poll::Pending => panic!("it waits"),
            };
            assert_eq!(response.status(), 200);
            drop(response);
            if round > 0 {
                most = most.max(Counting::allocations() - before);
            }
        }
    }
    most
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

/// What a check takes without the layer.
fn of_a_check(limits: &[&str]) -> u64 {
    let limiter = limiter(limits);
    limiter.check_now("known").unwrap();
    let before = Counting::allocations();
    limiter.check_now("known").unwrap();
    Counting::allocations() - before
}

// Slow to recover, so that a key that is known stays so: a new one may need a larger table.
const ONE: &[&str] = &["1000/h burst 1000000"];
const TWO: &[&str] = &["1000/h burst 1000000", "fixed-window 1000000/d"];

#[test]
fn without_headers_a_request_that_passes_needs_no_memory() {
    assert_eq!(most(by_address(ONE).without_headers()), 0);
    assert_eq!(most(by_address(ONE).shadow()), 0);
    assert_eq!(most(by_address(ONE).cost(|_| 3).without_headers()), 0);
    assert_eq!(most(by_address(TWO).without_headers()), of_a_check(TWO));
}

#[test]
fn with_headers_it_is_their_values_and_the_map_that_they_are_in() {
    // RateLimit, X-RateLimit-Remaining and X-RateLimit-Reset, each in just as many bytes as it has; the
    // others are made once for each limit. A map of headers has its entries and an index.
    const VALUES: u64 = 3;
    const MAP: u64 = 2;
    assert_eq!(most(by_address(ONE)), VALUES + MAP);
    // The policies of two limits are put together every time.
    assert_eq!(most(by_address(TWO)), VALUES + 1 + MAP + of_a_check(TWO));
}

#[test]
fn two_rules_with_keys_of_their_own_need_no_more_than_asking_both_does() {
    let rules = ["address", "all"].map(|name| Rule::new(name, [ONE[0].parse().unwrap()]).unwrap());
    let limiter = Limiter::with_rules(Memory::default(), rules).unwrap();
    let asks = [Ask::new("address", "known"), Ask::new("all", "known")];
    limiter.check_each(&asks).now().unwrap();
    let before = Counting::allocations();
    limiter.check_each(&asks).now().unwrap();
    let of_asking = Counting::allocations() - before;
    let keys = [KeyedRule::new("address", ClientIp::default()), KeyedRule::new("all", Everyone)];
    let layer = RateLimitLayer::rules(limiter, keys).unwrap().without_headers();
    assert_eq!(most(layer), of_asking);
}
