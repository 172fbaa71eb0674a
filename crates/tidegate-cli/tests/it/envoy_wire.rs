//! Encoded messages against bytes made from Envoy's own definitions with the crate `envoy-types`.
use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Duration, Struct, Value};
use tidegate_server::internal::transport::envoy::proto::{
    Code, DescriptorStatus, Entry, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride,
    RateLimitRequest, RateLimitResponse, Unit,
};

const REQUEST: &str = "0a0465646765122e0a0e0a026970120831302e302e302e310a0a0a047061746812022f7812\
                       0508ac0210031a0708808080808020200112021a001803";
const RESPONSE: &str = "0802121b08021207080510071a016e1880d0acf30e2208080c1080cab5ee01120208011a14\
                        0a0f526174654c696d69742d4c696d697412013532100a0e0a016b120911000000000000f83f";

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[test]
fn a_request_is_read_as_envoy_writes_it() {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    let wanted = RateLimitRequest {
        domain: "edge".into(),
        descriptors: vec![
            RateLimitDescriptor {
                entries: vec![entry("ip", "10.0.0.1"), entry("path", "/x")],
                limit: Some(RateLimitOverride { requests_per_unit: 300, unit: Unit::Hour.into() }),
                hits_addend: Some(1 << 40),
                is_negative_hits: true,
            },
            // Absent is not zero.
            RateLimitDescriptor { hits_addend: Some(0), ..Default::default() },
        ],
        hits_addend: 3,
    };
    assert_eq!(RateLimitRequest::decode(&*bytes(REQUEST)).unwrap(), wanted);
    assert_eq!(wanted.encode_to_vec(), bytes(REQUEST));
}

#[test]
fn a_response_is_written_as_envoy_reads_it() {
    let number = Value { kind: Some(Kind::NumberValue(1.5)) };
    let response = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![
            DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    name: "n".into(),
                    requests_per_unit: 5,
                    unit: Unit::Week.into(),
                }),
                limit_remaining: 4_000_000_000,
                duration_until_reset: Some(Duration { seconds: 12, nanos: 500_000_000 }),
            },
            DescriptorStatus { code: Code::Ok.into(), ..Default::default() },
        ],
        response_headers_to_add: vec![HeaderValue {
            key: "RateLimit-Limit".into(),
            value: "5".into(),
        }],
        dynamic_metadata: Some(Struct { fields: BTreeMap::from([("k".into(), number)]) }),
    };
    assert_eq!(response.encode_to_vec(), bytes(RESPONSE));
    assert_eq!(RateLimitResponse::decode(&*bytes(RESPONSE)).unwrap(), response);
}
