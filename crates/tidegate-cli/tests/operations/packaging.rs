//! Dockerfile, Kubernetes manifests and chart.

use std::io::{ErrorKind, Write};
use std::process::{Command, Output};

use clap::Parser;
use serde_json::Value;
use tidegate_cli::Cli;
use tidegate_config::PolicyLoader;

use crate::{at_root, output_text, read};
use testkit::server::{ServerProcess, TempFolder};

const MANIFESTS: [&str; 2] =
    ["packaging/kubernetes/deployment.yaml", "packaging/kubernetes/sidecar.yaml"];

/// What the chart renders with all its optional parts.
const ALL_PARTS: &str = "packaging/helm/golden/all.yaml";

/// Helm and Python packages, if `interop/packaging/fetch` has downloaded them.
const TOOLS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../interop-clients/packaging");

/// Output of a command that finds [`TOOLS`]; `None` if its program is not installed.
fn run_with_tools(command: &mut Command) -> Option<Output> {
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{TOOLS}:{path}")).env("PYTHONPATH", format!("{TOOLS}/python"));
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{command:?}: {error}"),
    }
}

fn skipped(program: &str) {
    let line = format!("skipped: {program} is not installed; run interop/packaging/fetch");
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Every document of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = read(file);
    let documents = serde_saphyr::from_multiple(&text);
    documents.unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The containers of a document that run Tidegate, with their pod.
fn tidegate_containers(document: &Value) -> Vec<(&Value, &Value)> {
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
    Cli::try_parse_from(line).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
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
fn the_policies_in_manifests_are_valid() {
    let mut count = 0;
    for document in MANIFESTS.iter().flat_map(|file| documents(file)) {
        if let Some(policy) = document["data"]["policy.yaml"].as_str() {
            let loaded = PolicyLoader::load_str("policy.yaml", policy);
            let loaded = loaded.unwrap_or_else(|problems| panic!("{problems}"));
            assert!(!loaded.rules.is_empty() && loaded.warnings.is_empty());
            count += 1;
        }
    }
    assert_eq!(count, MANIFESTS.len());
}

#[test]
fn containers_use_existing_flags_and_the_restricted_profile() {
    for file in MANIFESTS {
        let documents = documents(file);
        let found: Vec<_> = documents.iter().flat_map(tidegate_containers).collect();
        assert_eq!(found.len(), 1, "{file}");
        let (pod, container) = found[0];
        is_command(&words(&container["args"]));
        let (of_pod, own) = (&pod["securityContext"], &container["securityContext"]);
        // Required by the restricted profile of Kubernetes.
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

/// The key table plus the growth under attack; the time for requests in flight.
const MEMORY_MIB: u64 = 256 + 64;
const DRAIN_SECONDS: u64 = 65;

#[test]
fn containers_have_room_for_the_table_and_time_to_drain() {
    for file in MANIFESTS {
        let documents = documents(file);
        let (pod, container) = documents.iter().flat_map(tidegate_containers).next().unwrap();
        let limit = container["resources"]["limits"]["memory"].as_str().unwrap();
        let limit: u64 = limit.strip_suffix("Mi").unwrap().parse().unwrap();
        assert!(limit > MEMORY_MIB, "{file}: {limit} MiB");
        let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
        let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
        assert!(grace >= before + DRAIN_SECONDS + 5, "{file}: {grace} s, {before} s before");
    }
}

#[test]
fn the_rendered_files_are_those_of_the_chart() {
    if run_with_tools(Command::new("helm").arg("version")).is_none() {
        skipped("helm");
        return;
    }
    let folder = TempFolder::new();
    let mut render = Command::new(at_root("packaging/helm/render"));
    let output = run_with_tools(render.env("OUT", folder.path(""))).unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
    for (name, file) in [("deployment.yaml", MANIFESTS[0]), ("all.yaml", ALL_PARTS)] {
        let rendered = std::fs::read_to_string(folder.path(name)).unwrap();
        assert!(rendered == read(file), "{file} is out of date: run packaging/helm/render");
    }
}

#[test]
fn helm_accepts_the_chart() {
    let chart = at_root("packaging/helm/tidegate");
    let values = at_root("packaging/helm/golden/all-values.yaml");
    let mut lint = Command::new("helm");
    lint.args(["lint", "--strict"]).arg(&chart).arg("--values").arg(values);
    let Some(output) = run_with_tools(&mut lint) else { return skipped("helm") };
    assert!(output.status.success(), "{}", output_text(&output));
    let mut wrong = Command::new("helm");
    wrong.args(["template", "--kube-version", "1.30.0", "--set", "replicas=many"]).arg(&chart);
    let output = run_with_tools(&mut wrong).unwrap();
    assert!(!output.status.success(), "the schema of the values refuses it");
    assert!(output_text(&output).contains("replicas"), "{}", output_text(&output));
}

#[test]
fn manifests_follow_the_schemas_of_kubernetes() {
    let mut version = Command::new("python3");
    version.args(["-m", "kubernetes_validate", "--version"]);
    if !run_with_tools(&mut version).is_some_and(|output| output.status.success()) {
        return skipped("kubernetes-validate");
    }
    for file in MANIFESTS.into_iter().chain([ALL_PARTS]) {
        for kubernetes in ["1.30", "1.37"] {
            let mut validate = Command::new("python3");
            validate.args(["-m", "kubernetes_validate", "--strict", "-k", kubernetes]);
            let output = run_with_tools(validate.arg(at_root(file))).unwrap();
            let text = output_text(&output);
            let passed = text.lines().filter(|line| line.contains(" passed for ")).count();
            // A ServiceMonitor is of the Prometheus operator and has no schema there.
            let monitors = text.matches("find schema for kind ServiceMonitor").count();
            assert_eq!(passed + monitors, documents(file).len(), "{file}, {kubernetes}: {text}");
        }
    }
}

#[test]
fn grafana_knows_every_field_of_the_dashboard() {
    let mut import = Command::new("python3");
    import.args(["-c", "import grafana_foundation_sdk"]);
    if !run_with_tools(&mut import).is_some_and(|output| output.status.success()) {
        return skipped("grafana-foundation-sdk");
    }
    let mut check = Command::new("python3");
    check.arg(at_root("interop/packaging/check_dashboard.py"));
    check.arg(at_root("packaging/grafana/tidegate.json"));
    let output = run_with_tools(&mut check).unwrap();
    assert!(output.status.success(), "{}", output_text(&output));
}

#[test]
fn every_optional_part_of_the_chart_uses_existing_flags() {
    let documents = documents(ALL_PARTS);
    let (_, container) = documents.iter().flat_map(tidegate_containers).next().unwrap();
    is_command(&words(&container["args"]));
    let kinds: Vec<_> = documents.iter().filter_map(|document| document["kind"].as_str()).collect();
    assert!(kinds.contains(&"HorizontalPodAutoscaler") && kinds.contains(&"ServiceMonitor"));
}

#[test]
fn the_chart_allows_more_egress_and_lets_nodes_drain_with_any_number_of_replicas() {
    let documents = documents(ALL_PARTS);
    let spec = |kind: &str| &documents.iter().find(|one| one["kind"] == kind).unwrap()["spec"];
    let budget = spec("PodDisruptionBudget");
    assert_eq!((&budget["maxUnavailable"], budget.get("minAvailable")), (&1.into(), None));
    let egress = spec("NetworkPolicy")["egress"].as_array().unwrap();
    assert_eq!(egress.last().unwrap()["to"][0]["ipBlock"]["cidr"], "10.1.0.0/16");
}

#[test]
fn the_chart_refuses_client_certificates_without_tls() {
    let mut template = Command::new("helm");
    template
        .args(["template", "--kube-version", "1.30.0", "x"])
        .arg(at_root("packaging/helm/tidegate"));
    template.args(["--set", "tls.clientCaSecret=clients"]);
    let Some(output) = run_with_tools(&mut template) else { return skipped("helm") };
    let text = output_text(&output);
    assert!(!output.status.success() && text.contains("needs tls.existingSecret"), "{text}");
}

/// Whether a command probes the listener that `serve` has for that: on any other, a flood delays
/// the probe.
fn probes_the_health_listener(probe: &[String], serve: &[String]) -> bool {
    let value = |words: &[String], flag: &str| {
        words.join(" ").replace('=', " ").split_once(flag).map(|(_, rest)| {
            rest.split_whitespace().next().unwrap_or_default().trim_start_matches("http://").into()
        })
    };
    let (server, health): (Option<String>, _) =
        (value(probe, "--server"), value(serve, "--health"));
    server.is_some() && server == health
}

#[test]
fn probes_use_existing_endpoints() {
    let server = ServerProcess::start(&[], &[]);
    for (file, wanted) in MANIFESTS.into_iter().zip([3, 0]) {
        let documents = documents(file);
        let (_, container) = documents.iter().flat_map(tidegate_containers).next().unwrap();
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
        let probes: Vec<_> = probes.iter().map(|name| &container[*name]).collect();
        let paths = probes.iter().filter_map(|probe| probe["httpGet"]["path"].as_str());
        let statuses: Vec<u16> = paths.map(|path| server.get(path).status).collect();
        assert_eq!(statuses, vec![200; wanted], "{file}");
        let commands = probes.iter().filter(|probe| probe["exec"].is_object());
        for command in commands.map(|probe| words(&probe["exec"]["command"])) {
            assert_eq!(command[0], "/tidegate");
            is_command(&command[1..]);
            assert!(probes_the_health_listener(&command, &words(&container["args"])), "{file}");
        }
    }
}

/// Redis and Valkey do not load a file without execute permission.
#[test]
fn packages_install_the_module_as_executable() {
    let manifest = read("crates/tidegate-cli/Cargo.toml");
    let assets = manifest.lines().filter(|line| line.contains("generated/libtidegate_module.so"));
    let modes: Vec<_> = assets.map(|line| line.contains("\"755\"")).collect();
    assert_eq!(modes, [true, true], "the Debian and the RPM package");
    assert!(read("packaging/build").contains("install --mode 755 \"${CARGO_TARGET_DIR:-target}"));
}

#[test]
fn the_image_copies_existing_files_and_uses_existing_flags() {
    let dockerfile = read("packaging/docker/Dockerfile");
    let rest_of = |start: &str| dockerfile.lines().find_map(|line| line.strip_prefix(start));
    let list = |text: &str| words(&serde_json::from_str(text).unwrap());
    is_command(&list(rest_of("CMD ").unwrap()));
    let (_, health) = rest_of("HEALTHCHECK ").unwrap().split_once("CMD ").unwrap();
    let health = list(health);
    assert_eq!(health[0], "/tidegate");
    is_command(&health[1..]);
    assert!(probes_the_health_listener(&health, &list(rest_of("CMD ").unwrap())));
    assert_eq!(list(rest_of("ENTRYPOINT ").unwrap()), ["/tidegate"]);
    let copied = dockerfile.lines().filter_map(|line| line.strip_prefix("COPY --from=build /src/"));
    let mut count = 0;
    for path in copied.filter_map(|line| line.split(' ').next()) {
        assert!(at_root(path).is_file(), "{path}");
        count += 1;
    }
    assert_eq!(count, 1);
    // The Docker context contains every file that cargo reads of the workspace.
    let sent = read(".dockerignore");
    for member in ["Cargo.toml", "Cargo.lock", "crates", "xtask"] {
        assert!(sent.lines().any(|line| line == format!("!{member}")), "{member}");
    }
}
