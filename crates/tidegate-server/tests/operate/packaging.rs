//! The files that containers are made and run from.

use clap::Parser;
use serde_json::Value;
use tidegate_server::cli::Arguments;
use tidegate_server::config::Config;

use crate::support::Server;
use crate::{at_root, read};

const MANIFESTS: [&str; 2] =
    ["packaging/kubernetes/deployment.yaml", "packaging/kubernetes/sidecar.yaml"];

/// Every document of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = read(file);
    let documents = serde_saphyr::from_multiple(&text);
    documents.unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The containers of a document that are ours, with the pod they are in.
fn ours(document: &Value) -> Vec<(&Value, &Value)> {
    let pod = &document["spec"]["template"]["spec"];
    let lists = [&pod["initContainers"], &pod["containers"]];
    let containers = lists.into_iter().filter_map(Value::as_array).flatten();
    containers.filter(|one| one["name"] == "tidegate").map(|one| (pod, one)).collect()
}

fn words(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|word| word.as_str().unwrap().into()).collect()
}

/// Panics unless `tidegate` with these arguments is a command.
pub(super) fn is_command(arguments: &[String]) {
    let line = ["tidegate".to_string()].into_iter().chain(arguments.iter().cloned());
    Arguments::try_parse_from(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
}

#[test]
fn every_manifest_is_a_list_of_objects_with_names() {
    let mut kinds = Vec::new();
    for document in MANIFESTS.iter().flat_map(|file| documents(file)) {
        for field in ["apiVersion", "kind"] {
            assert!(document[field].is_string(), "{document}");
        }
        assert!(document["metadata"]["name"].is_string(), "{document}");
        kinds.push(document["kind"].as_str().unwrap().to_string());
    }
    kinds.sort();
    let expected = [
        "ConfigMap",
        "ConfigMap",
        "Deployment",
        "Deployment",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Service",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn the_policies_in_manifests_are_good() {
    let mut count = 0;
    for document in MANIFESTS.iter().flat_map(|file| documents(file)) {
        if let Some(policy) = document["data"]["policy.yaml"].as_str() {
            let loaded = Config::load_str("policy.yaml", policy);
            let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
            assert!(!loaded.rules.is_empty() && loaded.warnings.is_empty());
            count += 1;
        }
    }
    assert_eq!(count, MANIFESTS.len());
}

#[test]
fn containers_start_with_flags_that_there_are_and_may_do_nothing_else() {
    for file in MANIFESTS {
        let documents = documents(file);
        let found: Vec<_> = documents.iter().flat_map(ours).collect();
        assert_eq!(found.len(), 1, "{file}");
        let (pod, container) = found[0];
        is_command(&words(&container["args"]));
        let (of_pod, own) = (&pod["securityContext"], &container["securityContext"]);
        // What the restricted profile of Kubernetes asks for.
        assert_eq!(of_pod["runAsNonRoot"], true, "{file}");
        assert_eq!(of_pod["seccompProfile"]["type"], "RuntimeDefault", "{file}");
        assert_eq!(own["allowPrivilegeEscalation"], false, "{file}");
        assert_eq!(own["capabilities"]["drop"][0], "ALL", "{file}");
        assert_eq!(own["readOnlyRootFilesystem"], true, "{file}");
        for mount in container["volumeMounts"].as_array().unwrap() {
            let volumes = pod["volumes"].as_array().unwrap();
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
        }
    }
}

/// The table of keys and what an attack may add; what the server may take to answer whoever waits.
const MEMORY_MIB: u64 = 256 + 64;
const DRAIN_SECONDS: u64 = 65;

#[test]
fn containers_have_room_for_the_table_and_time_to_drain() {
    for file in MANIFESTS {
        let documents = documents(file);
        let (pod, container) = documents.iter().flat_map(ours).next().unwrap();
        let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
        let limit: u64 = limit.strip_suffix("Mi").unwrap().parse().unwrap();
        assert!(limit > MEMORY_MIB, "{file}: {limit} MiB");
        let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace >= before + DRAIN_SECONDS + 5, "{file}: {grace} s, {before} s before");
    }
}

#[test]
fn probes_ask_what_is_answered() {
    let server = Server::start(&[], &[]);
    for (file, wanted) in MANIFESTS.into_iter().zip([2, 0]) {
        let documents = documents(file);
        let (_, container) = documents.iter().flat_map(ours).next().unwrap();
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
        let probes: Vec<_> = probes.iter().map(|name| &container[*name]).collect();
        let paths = probes.iter().filter_map(|probe| probe["httpGet"]["path"].as_str());
        let statuses: Vec<u16> = paths.map(|path| server.get(path).status).collect();
        assert_eq!(statuses, vec![200; wanted], "{file}");
        let commands = probes.iter().filter(|probe| probe["exec"].is_object());
        for command in commands.map(|probe| words(&probe["exec"]["command"])) {
            assert_eq!(command[0], "/tidegate");
            is_command(&command[1..]);
        }
    }
}

#[test]
fn the_image_copies_what_there_is_and_starts_with_flags_that_there_are() {
    let dockerfile = read("packaging/docker/Dockerfile");
    let rest_of = |start: &str| dockerfile.lines().find_map(|line| line.strip_prefix(start));
    let list = |text: &str| words(&serde_json::from_str(text).unwrap());
    is_command(&list(rest_of("CMD ").unwrap()));
    let (_, health) = rest_of("HEALTHCHECK ").unwrap().split_once("CMD ").unwrap();
    let health = list(health);
    assert_eq!(health[0], "/tidegate");
    is_command(&health[1..]);
    assert_eq!(list(rest_of("ENTRYPOINT ").unwrap()), ["/tidegate"]);
    let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY --from=build /src/"));
    let mut count = 0;
    for path in copied.filter_map(|line| line.split(' ').next()) {
        assert!(at_root(path).is_file(), "{path}");
        count += 1;
    }
    assert_eq!(count, 1);
    // What cargo wants to read of the workspace is not left out of what Docker is sent.
    let sent = read(".dockerignore");
    for member in ["Cargo.toml", "Cargo.lock", "crates", "xtask"] {
        assert!(sent.lines().any(|line| line == format!("!{member}")), "{member}");
    }
}
