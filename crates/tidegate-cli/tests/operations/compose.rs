//! The demo in `compose.yaml`.

use serde_json::Value;
use tidegate_config::PolicyLoader;

use crate::packaging::is_command;
use crate::{at_root, read};

fn demo() -> Value {
    serde_saphyr::from_str(&read("compose.yaml")).unwrap()
}

#[test]
fn the_demo_mounts_existing_files_and_opens_ports_on_loopback_only() {
    let demo = demo();
    let (mut mounts, mut ports) = (0, 0);
    for (name, service) in demo["services"].as_object().unwrap() {
        for mount in service["volumes"].as_array().into_iter().flatten() {
            let (file, _) = mount.as_str().unwrap().split_once(':').unwrap();
            assert!(at_root(file).exists(), "{name}: {file}");
            mounts += 1;
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
            ports += 1;
        }
    }
    assert!(mounts >= 8 && ports >= 5, "{mounts} mounts, {ports} ports");
}

#[test]
fn the_demo_has_a_valid_policy_and_uses_existing_flags() {
    let policy = read("packaging/compose/policy.yaml");
    let loaded = PolicyLoader::load_str("policy.yaml", &policy);
    let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(loaded.rules.len(), 2);
    let load = &demo()["services"]["load"];
    let words = load["command"].as_array().unwrap().iter();
    is_command(&words.map(|word| word.as_str().unwrap().into()).collect::<Vec<String>>());
    // The token in nginx's configuration is that of the servers.
    let token = load["environment"]["TIDEGATE_TOKEN"].as_str().unwrap();
    assert!(read("packaging/compose/nginx.conf").contains(&format!("Bearer {token}")));
}
