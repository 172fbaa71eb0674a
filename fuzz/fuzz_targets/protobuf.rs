//! What Envoy asks, as Protocol Buffers.
#![no_main]

use std::cell::OnceCell;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use tidegate_fuzz::World;
use tidegate_server::envoy::proto::RateLimitRequest;

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = RateLimitRequest::decode(bytes) else { return };
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let answer = world.run(world.envoy.decide(&request)).expect("nobody waits");
        if let Ok(response) = answer {
            assert_eq!(response.statuses.len(), request.descriptors.len());
        }
    });
});
