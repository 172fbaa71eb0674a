//! Mutated Envoy messages, in protobuf and JSON, with a fixed seed. Other inputs are mutated in
//! `resp_fuzz`, `http_bad_input`, `config_fuzz`, `envoy_config_fuzz` and the core's `notation`.

use prost::Message;
use tidegate_model::TraceRng;
use tidegate_server::internal::transport::envoy::json::RateLimitRequestBody;
use tidegate_server::internal::transport::envoy::proto::{
    RateLimitOverride, RateLimitRequest, Unit,
};
use tokio::runtime::Runtime;

use testkit::envoy::{EnvoyInProcess, descriptor, descriptor_with_hits, request};
use testkit::process::print_figure;

const SEED: u64 = 0x6e_6f69_7365;
const CASES: usize = 30_000;

const LIMITS: &str = r#"
domain: d
descriptors:
  - { key: ten, rate_limit: { unit: minute, requests_per_unit: 10 } }
  - key: path
    value: "/a/*"
    allow_override: true
    limits: [10/s, "fixed-window 3/1d"]
    descriptors: [{ key: method, shadow_mode: true, limit: 1/s }]
  - { key: free, rate_limit: { unlimited: true } }
"#;

pub(crate) fn seeds() -> Vec<RateLimitRequest> {
    let mut limited = descriptor(&[("path", "/a/b")]);
    limited.limit = Some(RateLimitOverride { requests_per_unit: 42, unit: Unit::Minute.into() });
    let mut back = descriptor_with_hits(&[("ten", "x")], 3);
    back.is_negative_hits = true;
    vec![
        request("d", &[descriptor(&[("ten", "x")]), descriptor_with_hits(&[("ten", "y")], 300)]),
        request(
            "d",
            &[descriptor(&[("path", "/a/b"), ("method", "GET")]), descriptor(&[("free", "")])],
        ),
        RateLimitRequest { hits_addend: 7, ..request("d", &[limited, back]) },
        request("elsewhere", &[descriptor(&[]), descriptor(&[("k", &"v".repeat(300))])]),
    ]
}

pub(crate) fn mutate(bytes: &mut Vec<u8>, rng: &mut TraceRng) {
    let at = rng.index(bytes.len() + 1);
    let end = (at + rng.index(16)).min(bytes.len());
    match rng.index(6) {
        0 if !bytes.is_empty() => {
            let at = rng.index(bytes.len());
            bytes[at] ^= 1 << rng.index(8);
        }
        1 => drop(bytes.drain(at..end)),
        2 => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece.repeat(1 + rng.index(70)));
        }
        3 => bytes.truncate(at),
        // Varints at the limits of integers.
        4 => drop(
            bytes.splice(
                at..end,
                rng.pick(&[&[0xff; 9][..], &[0xff, 0xff, 0xff, 0xff, 0x0f], &[0x80; 10], &[0]])
                    .iter()
                    .copied(),
            ),
        ),
        _ => drop(
            bytes.splice(
                at..at,
                rng.pick(&[
                    &b"\x12\x00"[..],
                    b"\x0a\x01d",
                    b"\x18\x00",
                    b"\x20\x01",
                    b"\xf8\x7f\x01",
                ])
                .iter()
                .copied(),
            ),
        ),
    }
}

#[test]
fn no_mutated_message_panics_or_gets_a_response_without_a_status_per_descriptor() {
    let runtime = Runtime::new().unwrap();
    let envoy = EnvoyInProcess::new(LIMITS);
    let mut rng = TraceRng::new(SEED);
    let seeds: Vec<Vec<u8>> = seeds().iter().map(Message::encode_to_vec).collect();
    let (mut decoded, mut decided) = (0, 0);
    for case in 0..CASES {
        let mut bytes = seeds[rng.index(seeds.len())].clone();
        for _ in 0..=rng.index(3) {
            mutate(&mut bytes, &mut rng);
        }
        let Ok(request) = RateLimitRequest::decode(&*bytes) else { continue };
        decoded += 1;
        if let Ok(response) = runtime.block_on(envoy.limits.decide(&request)) {
            decided += 1;
            assert_eq!(
                response.statuses.len(),
                request.descriptors.len(),
                "case {case} of seed {SEED}"
            );
            let most = response.statuses.iter().filter_map(|status| {
                Some(
                    status
                        .limit_remaining
                        .saturating_sub(status.current_limit.as_ref()?.requests_per_unit),
                )
            });
            assert!(most.clone().all(|over| over == 0), "case {case} of seed {SEED}: {response:?}");
        }
    }
    print_figure(format_args!(
        "noise: {CASES} mutated messages, {decoded} could be read, {decided} decided"
    ));
    assert!(decided > CASES / 20 && decoded < CASES, "{decoded} {decided}");
}

#[test]
fn no_mutated_envoy_json_panics() {
    let whole = r#"{"domain":"d","descriptors":[{"entries":[{"key":"ten","value":"x"}],"limit":{"requestsPerUnit":"5","unit":"MINUTE"},"hitsAddend":2,"isNegativeHits":false}],"hits_addend":"3"}"#;
    let runtime = Runtime::new().unwrap();
    let envoy = EnvoyInProcess::new(LIMITS);
    let mut rng = TraceRng::new(SEED);
    let mut decided = 0;
    for _ in 0..CASES {
        let mut bytes = whole.as_bytes().to_vec();
        for _ in 0..=rng.index(2) {
            mutate(&mut bytes, &mut rng);
        }
        let Ok(body) = serde_json::from_slice::<RateLimitRequestBody>(&bytes) else { continue };
        decided += usize::from(runtime.block_on(envoy.limits.decide(&body.into())).is_ok());
    }
    print_figure(format_args!("noise: {CASES} mutated JSON bodies of Envoy's, {decided} decided"));
    assert!(decided > CASES / 100, "{decided}");
}
