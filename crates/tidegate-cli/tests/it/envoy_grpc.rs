//! The gRPC listener for Envoy, over real sockets.
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use testkit::envoy::{
    EnvoyClient, EnvoyInProcess, codes, descriptor, descriptor_with_hits, request,
};
use testkit::server::{ServerProcess, TEST_TIMEOUT, TempFolder, wait_until};
use tidegate_server::internal::transport::envoy::grpc::MAX_MESSAGE;
use tidegate_server::internal::transport::envoy::proto::{Code, RateLimitResponse};
use tokio::runtime::Runtime;
use tonic::Code as Grpc;
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use Code::{Ok as Within, OverLimit as Over};

const EDGE: &str = r#"
domain: edge
descriptors:
  - { key: two, rate_limit: { unit: day, requests_per_unit: 2 } }
  - { key: ten, rate_limit: { unit: day, requests_per_unit: 10 } }
  - { key: second, rate_limit: { unit: second, requests_per_unit: 1000 } }
  - { key: tokens, rate_limit: { unit: day, requests_per_unit: 1000 } }
"#;

/// A server with this file, and a client of its gRPC listener.
fn start(yaml: &str, arguments: &[&str]) -> (ServerProcess, TempFolder, Runtime, EnvoyClient) {
    let folder = TempFolder::new();
    folder.write("edge.yaml", yaml);
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&[&["--envoy-config", &path], arguments].concat(), &[]);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(EnvoyClient::connect(server.grpc));
    (server, folder, runtime, client)
}

#[test]
fn of_two_descriptors_one_is_full_and_the_other_is_not_charged() {
    let (server, _folder, runtime, client) = start(EDGE, &[]);
    let both = request("edge", &[descriptor(&[("ten", "x")]), descriptor(&[("two", "x")])]);
    // The HTTP listener serves HTTP/2 too.
    let same = runtime.block_on(EnvoyClient::connect(server.http));
    for (client, overall, each) in [
        (&client, Within, [(Within, 9), (Within, 1)]),
        (&same, Within, [(Within, 8), (Within, 0)]),
        (&client, Over, [(Within, 8), (Over, 0)]),
        (&same, Over, [(Within, 8), (Over, 0)]),
    ] {
        let response = runtime.block_on(client.should_rate_limit(&both)).unwrap();
        assert_eq!(codes(&response), (overall, each.to_vec()));
    }
    let metrics = server.get("/metrics").body;
    for line in [
        r#"tidegate_checks_total{rule="edge.two",outcome="allow",source="memory"} 2"#,
        r#"tidegate_checks_total{rule="edge.two",outcome="deny",source="memory"} 2"#,
        r#"tidegate_check_duration_seconds_count{listener="grpc"} 4"#,
        r#"tidegate_connections{listener="grpc"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    assert!(!metrics.contains("ratelimit_service"), "theirs only on request");
}

/// On a manual clock, so that the window of each call is known.
#[test]
fn sixty_four_callers_get_just_what_a_window_has() {
    const CALLERS: usize = 64;
    const CALLS: usize = 25;
    let runtime = Runtime::new().unwrap();
    let (address, clock) = runtime.block_on(testkit::envoy::listen(EnvoyInProcess::new(EDGE)));
    for window in 0..3 {
        let passed = runtime.block_on(async {
            let shared = EnvoyClient::connect(address).await;
            let callers = (0..CALLERS).map(|n| {
                let shared = shared.clone();
                tokio::spawn(async move {
                    // Some callers share a connection, as threads of one Envoy do.
                    let own = if n % 4 == 0 { EnvoyClient::connect(address).await } else { shared };
                    let message = request("edge", &[descriptor(&[("second", "x")])]);
                    let mut passed = Vec::new();
                    for _ in 0..CALLS {
                        let response = own.should_rate_limit(&message).await.unwrap();
                        if response.overall_code() == Within {
                            passed.push(response.statuses[0].limit_remaining);
                        }
                    }
                    passed
                })
            });
            let mut passed = Vec::new();
            for caller in callers.collect::<Vec<_>>() {
                passed.extend(caller.await.unwrap());
            }
            passed
        });
        let mut left = passed;
        left.sort_unstable();
        assert_eq!(left.len(), 1_000, "of {} in window {window}", CALLERS * CALLS);
        assert!(left.iter().copied().eq(0..1_000), "every response has another number");
        clock.advance(Duration::from_secs(1));
    }
}

#[test]
fn a_budget_of_tokens_stops_when_it_is_spent() {
    let (_server, _folder, runtime, client) = start(EDGE, &[]);
    let check = |hits| {
        let message = request("edge", &[descriptor_with_hits(&[("tokens", "alice")], hits)]);
        runtime.block_on(client.should_rate_limit(&message)).unwrap().overall_code()
    };
    let mut requests = 0;
    while check(0) == Within && requests < 100 {
        requests += 1;
        check(150);
    }
    assert_eq!(requests, 7, "the seventh was let in with 100 left");
    assert_eq!([check(0), check(150), check(0)], [Over; 3]);
}

#[test]
fn health_follows_the_store_and_the_end_of_the_server() {
    let (mut server, _folder, runtime, client) = start(EDGE, &[]);
    let of = |service: &str| HealthCheckRequest { service: service.into() };
    let check = |service: &str| -> Result<i32, Grpc> {
        let response = client.call("/grpc.health.v1.Health/Check", of(service));
        let response: Result<HealthCheckResponse, _> = runtime.block_on(response);
        response.map(|response| response.status).map_err(|status| status.code())
    };
    let serving = Ok(ServingStatus::Serving as i32);
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService", "store"] {
        assert_eq!(wait_until(|| Some(check(service)).filter(|s| *s == serving)), Some(serving));
    }
    assert_eq!(check("another"), Err(Grpc::NotFound));
    assert_eq!(server.get("/healthcheck").body, "OK");
    // A watch reports the shutdown, and does not delay it.
    let mut watching = runtime.block_on(async {
        let mut health = HealthClient::new(client.channel());
        health.watch(of("ratelimit")).await.unwrap().into_inner()
    });
    let first = runtime.block_on(watching.message()).unwrap().unwrap();
    assert_eq!(first.status, ServingStatus::Serving as i32);
    server.signal("TERM");
    let last = runtime.block_on(watching.message()).unwrap().unwrap();
    assert_eq!(last.status, ServingStatus::NotServing as i32);
    drop((watching, client));
    assert!(server.wait().is_some_and(|status| status.success()));
}

#[test]
fn a_server_without_its_store_is_ready_as_chosen() {
    let (serving, gone) = (ServingStatus::Serving as i32, ServingStatus::NotServing as i32);
    for (when, expected, healthcheck, readyz) in
        [("always", serving, 200, 200), ("store", gone, 500, 503)]
    {
        // No server listens there.
        let flags = ["--store", "redis://127.0.0.1:1", "--ready-when", when];
        let (server, _folder, runtime, client) = start(EDGE, &flags);
        let check = |service: &str| -> i32 {
            let request = HealthCheckRequest { service: service.into() };
            let response = client.call("/grpc.health.v1.Health/Check", request);
            let response: HealthCheckResponse = runtime.block_on(response).unwrap();
            response.status
        };
        assert!(wait_until(|| (check("store") == gone).then_some(())).is_some(), "{when}");
        assert_eq!(check(""), expected, "{when}");
        assert_eq!(server.get("/healthcheck").status, healthcheck, "{when}");
        assert_eq!(server.get("/readyz").status, readyz, "{when}");
    }
}

#[test]
fn reflection_lists_the_services_and_their_messages() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let (_server, _folder, runtime, client) = start(EDGE, &[]);
    let reflect = |kind: MessageRequest| -> ServerReflectionResponse {
        runtime.block_on(async {
            let mut reflection = ServerReflectionClient::new(client.channel());
            let message =
                ServerReflectionRequest { message_request: Some(kind), ..Default::default() };
            let message = tokio_stream::iter([message]);
            let mut responses =
                reflection.server_reflection_info(message).await.unwrap().into_inner();
            responses.message().await.unwrap().unwrap()
        })
    };
    let list = reflect(MessageRequest::ListServices(String::new())).message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = list else { panic!("{list:?}") };
    let names: Vec<_> = list.service.iter().map(|service| &*service.name).collect();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let symbol = "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus";
    let file = reflect(MessageRequest::FileContainingSymbol(symbol.into())).message_response;
    assert!(matches!(file, Some(MessageResponse::FileDescriptorResponse(_))), "{file:?}");
}

#[test]
fn bad_input_is_refused_and_affects_no_other_caller() {
    let (server, _folder, runtime, client) = start(EDGE, &[]);
    let ten = descriptor(&[("ten", "x")]);
    let long = "x".repeat(MAX_MESSAGE);
    for (message, code, wanted) in [
        (request("", std::slice::from_ref(&ten)), Grpc::InvalidArgument, "domain"),
        (request("edge", &[]), Grpc::InvalidArgument, "descriptor"),
        (request("edge", &vec![ten.clone(); 65]), Grpc::InvalidArgument, "at most 64"),
        (request("edge", &[descriptor(&[("ten", &long)])]), Grpc::OutOfRange, "too large"),
    ] {
        let status = runtime.block_on(client.should_rate_limit(&message)).unwrap_err();
        assert!(status.code() == code && status.message().contains(wanted), "{status:?}");
    }
    // A domain that is not UTF-8: 0xff in field 1.
    let status = runtime.block_on(raw(&client, b"\x0a\x01\xff")).unwrap_err();
    assert_eq!(status.code(), Grpc::Internal, "{status:?}");
    // Half a message, and an unknown field.
    let status = runtime.block_on(raw(&client, b"\x0a\x05ed")).unwrap_err();
    assert_eq!(status.code(), Grpc::Internal, "{status:?}");
    let known = b"\x0a\x04edge\x12\x0a\x0a\x08\x0a\x03ten\x12\x01x\xf8\x7f\x01";
    let response = runtime.block_on(raw(&client, known)).unwrap();
    assert_eq!(codes(&response), (Within, vec![(Within, 9)]), "nothing was charged before");
    let nowhere = runtime.block_on(client.call::<_, RateLimitResponse>(
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        request("edge", std::slice::from_ref(&ten)),
    ));
    assert_eq!(nowhere.unwrap_err().code(), Grpc::Unimplemented);
    let unknown = client.call::<_, RateLimitResponse>("/some.Service/Call", request("edge", &[]));
    assert_eq!(runtime.block_on(unknown).unwrap_err().code(), Grpc::Unimplemented);
    for noise in
        [&b"\x00\x01\x02\x03"[..], b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"]
    {
        for address in [server.grpc, server.http] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
            stream.write_all(noise).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
    let response = runtime.block_on(client.should_rate_limit(&request("edge", &[ten]))).unwrap();
    assert_eq!(codes(&response), (Within, vec![(Within, 8)]));
}

/// Sends these bytes as the message.
async fn raw(client: &EnvoyClient, message: &[u8]) -> Result<RateLimitResponse, tonic::Status> {
    #[derive(Default)]
    struct Bytes;
    impl tonic::codec::Encoder for Bytes {
        type Item = Vec<u8>;
        type Error = tonic::Status;
        fn encode(
            &mut self,
            item: Vec<u8>,
            out: &mut tonic::codec::EncodeBuf<'_>,
        ) -> Result<(), tonic::Status> {
            use bytes::BufMut;
            out.put_slice(&item);
            Ok(())
        }
    }
    struct Codec;
    impl tonic::codec::Codec for Codec {
        type Encode = Vec<u8>;
        type Decode = RateLimitResponse;
        type Encoder = Bytes;
        type Decoder = <tonic_prost::ProstCodec<RateLimitResponse, RateLimitResponse> as tonic::codec::Codec>::Decoder;
        fn encoder(&mut self) -> Bytes {
            Bytes
        }
        fn decoder(&mut self) -> Self::Decoder {
            tonic_prost::ProstCodec::<RateLimitResponse, RateLimitResponse>::default().decoder()
        }
    }
    let mut grpc = tonic::client::Grpc::new(client.channel());
    grpc.ready().await.unwrap();
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
    let response = grpc.unary(tonic::Request::new(message.to_vec()), path, Codec).await?;
    Ok(response.into_inner())
}

#[test]
fn a_token_guards_checks_and_not_health() {
    let folder = TempFolder::new();
    folder.write("edge.yaml", EDGE);
    let path = folder.path("").to_str().unwrap().to_string();
    let server = ServerProcess::start(&["--envoy-config", &path], &[("TIDEGATE_TOKEN", "s3cr3t")]);
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(EnvoyClient::connect(server.grpc));
    let message = request("edge", &[descriptor(&[("ten", "x")])]);
    let shut = runtime.block_on(client.should_rate_limit(&message)).unwrap_err();
    assert_eq!(shut.code(), Grpc::Unauthenticated, "{shut:?}");
    let wrong = runtime
        .block_on(client.clone().with_token("wrong").should_rate_limit(&message))
        .unwrap_err();
    assert_eq!(wrong.code(), Grpc::Unauthenticated);
    let open =
        runtime.block_on(client.clone().with_token("s3cr3t").should_rate_limit(&message)).unwrap();
    assert_eq!(codes(&open), (Within, vec![(Within, 9)]));
    let health = HealthCheckRequest::default();
    let health = client.call::<_, HealthCheckResponse>("/grpc.health.v1.Health/Check", health);
    assert!(runtime.block_on(health).is_ok());
    let json = r#"{"domain":"edge","descriptors":[{"entries":[{"key":"ten","value":"x"}]}]}"#;
    assert_eq!(server.request("POST", "/json", &[], json).status, 401);
    let token = [("x-tidegate-token", "s3cr3t")];
    assert_eq!(server.request("POST", "/json", &token, json).status, 200);
    assert_eq!(server.get("/healthcheck").status, 200);
}

#[test]
fn files_are_reloaded_during_checks() {
    let (server, folder, runtime, client) = start(EDGE, &[]);
    let message = request("edge", &[descriptor(&[("two", "x")])]);
    let limit = || {
        let response = runtime.block_on(client.should_rate_limit(&message)).unwrap();
        response.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
    };
    assert_eq!(limit(), Some(2));
    folder.write("edge.yaml", &EDGE.replace("requests_per_unit: 2 ", "requests_per_unit: 7 "));
    assert!(wait_until(|| (limit() == Some(7)).then_some(())).is_some(), "{:?}", server.log());
    // A second file, and a faulty one: the last valid files stay active.
    folder.write("more.yaml", "{ domain: more, descriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 3 } }] }");
    let more = request("more", &[descriptor(&[("k", "x")])]);
    let knows = || {
        let response = runtime.block_on(client.should_rate_limit(&more)).unwrap();
        response.statuses[0].current_limit.is_some()
    };
    assert!(wait_until(|| knows().then_some(())).is_some(), "{:?}", server.log());
    folder.write(
        "more.yaml",
        "{ domain: more, descriptors: [{ key: k, rate_limit: { unit: parsec } }] }",
    );
    let failed = || server.get("/healthz").json()["policy"]["error"].as_str().map(str::to_string);
    let error = wait_until(failed).unwrap();
    assert!(error.contains("parsec"), "{error}");
    assert!(knows());
    std::fs::remove_file(folder.path("more.yaml")).unwrap();
    assert!(wait_until(|| (!knows()).then_some(())).is_some(), "{:?}", server.log());
}

#[test]
fn their_names_are_counted_on_request() {
    let (server, _folder, runtime, client) = start(EDGE, &["--envoy-stats"]);
    let check = |message| {
        runtime.block_on(client.should_rate_limit(&message)).map(|response| response.overall_code())
    };
    for _ in 0..3 {
        check(request("edge", &[descriptor(&[("two", "x")])])).unwrap();
    }
    check(request("edge", &[descriptor_with_hits(&[("ten", "x")], 9)])).unwrap();
    check(request("", &[])).unwrap_err();
    let metrics = server.get("/metrics").body;
    let counted: BTreeMap<&str, &str> = metrics
        .lines()
        .filter(|line| line.starts_with("ratelimit_service"))
        .filter_map(|line| line.rsplit_once(' '))
        .collect();
    let name = |stat: &str, key: &str| {
        format!(r#"ratelimit_service_rate_limit_{stat}{{domain="edge",key1="{key}"}}"#)
    };
    for (stat, key, count) in [
        ("total_hits", "two", "3"),
        ("over_limit", "two", "1"),
        ("within_limit", "two", "2"),
        ("near_limit", "two", "1"),
        ("shadow_mode", "two", "0"),
        ("total_hits", "ten", "9"),
        ("near_limit", "ten", "1"),
    ] {
        assert_eq!(counted.get(&*name(stat, key)), Some(&count), "{stat} {key}: {counted:?}");
    }
    let error = r#"ratelimit_service_should_rate_limit_error{err_type="service_error"}"#;
    assert_eq!(counted.get(error), Some(&"1"));
}
