//! Configuration files of envoyproxy/ratelimit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_config::envoy::EnvoyConfig;

fuzz_target!(|text: &str| {
    match EnvoyConfig::load_str("edge.yaml", text) {
        Ok(config) => {
            for domain in config.domains() {
                let entries = [("path", "/a/b"), ("method", "GET")];
                for found in [domain.find(&entries), domain.find(&entries[..1])] {
                    let Some(found) = found else { continue };
                    let subject = found.subject(&entries);
                    let len: usize = subject.key().parts().map(<[u8]>::len).sum();
                    assert!(len <= tidegate::Key::MAX_LEN);
                }
            }
        }
        Err(problems) => assert!(problems.count() > 0),
    }
});
