//! Requests of Envoy, as Protocol Buffers.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_fuzz::ServerFixture;
use tidegate_server::internal::transport::envoy::proto::RateLimitRequest;

thread_local! {
    static SERVER: OnceCell<ServerFixture> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    SERVER.with(|server| {
        let server = server.get_or_init(ServerFixture::new);
        let result = server.run(server.envoy.decide(&request)).expect("no request waits");
        if let Ok(response) = result {
            assert_eq!(response.statuses.len(), request.descriptors.len());
        }
    });
});
