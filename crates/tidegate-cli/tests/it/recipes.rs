//! The recipes in `examples/recipes`: the commands of each README run with the recipe's own files
//! and real programs, and print what the README shows. The test of `outgoing-calls` is in that
//! folder.
use std::fs;
use std::path::{Path, PathBuf};

use testkit::console_blocks::{ConsoleBlocks, has_programs};
use testkit::proxy::traefik_path;
use testkit::real_envoy::envoy_path;

const TIDEGATE: u16 = 8080;
const GRPC: u16 = 8081;
const SERVICE: u16 = 9000;
const PROXY: u16 = 8000;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/recipes")
}

/// Runs a recipe, unless one of the programs is missing.
fn run(
    name: &str,
    programs: &[&str],
    ports: &[u16],
    adapt: impl Fn(ConsoleBlocks) -> ConsoleBlocks,
) {
    if has_programs(&[&["curl", "python3"], programs].concat()) {
        let readme = fs::read_to_string(folder().join(name).join("README.md")).unwrap();
        adapt(ConsoleBlocks::new(ports).files(&folder().join(name))).run(&readme);
    }
}

fn unchanged(blocks: ConsoleBlocks) -> ConsoleBlocks {
    blocks
}

#[test]
fn login_counts_failed_attempts_per_account_and_address() {
    run("login", &[], &[TIDEGATE, SERVICE], unchanged);
}

#[test]
fn api_plans_limit_each_customer_by_plan() {
    run("api-plans", &["openssl"], &[TIDEGATE, SERVICE], unchanged);
}

#[test]
fn concurrency_limits_reports_in_progress() {
    run("concurrency", &[], &[TIDEGATE], unchanged);
}

#[test]
fn background_jobs_are_postponed_and_charged_once() {
    run("background-jobs", &[], &[TIDEGATE], unchanged);
}

#[test]
fn the_llm_gateway_charges_what_was_used() {
    // A minute may end during the test.
    let adapt = |blocks: ConsoleBlocks| blocks.replace("policy.yaml", "/m\"", "/d\"");
    run("llm-gateway", &[], &[TIDEGATE, SERVICE, PROXY], adapt);
}

#[test]
fn nginx_limits_each_address_over_one_connection() {
    // On a busy machine, a second may be too short.
    let adapt = |blocks: ConsoleBlocks| blocks.replace("site.conf", "_timeout 1s", "_timeout 60s");
    run("nginx", &["nginx"], &[TIDEGATE, SERVICE, PROXY], adapt);
}

#[test]
fn caddy_limits_each_address() {
    run("caddy", &["caddy"], &[TIDEGATE, SERVICE, PROXY], unchanged);
}

#[test]
fn traefik_limits_each_address() {
    let Some(traefik) = traefik_path() else { return };
    let adapt = |blocks: ConsoleBlocks| blocks.program("traefik", &traefik);
    run("traefik", &[], &[TIDEGATE, SERVICE, PROXY], adapt);
}

#[test]
fn envoy_limits_each_address() {
    let Some(envoy) = envoy_path() else { return };
    // With 0.15 s, Envoy would forward a request that a busy machine decides too late.
    let adapt = |blocks: ConsoleBlocks| {
        blocks.replace("envoy.yaml", "timeout: 0.15s", "timeout: 60s").program("envoy", &envoy)
    };
    run("envoy", &[], &[TIDEGATE, GRPC, SERVICE, PROXY], adapt);
}

#[test]
fn every_recipe_is_listed_and_tested_and_its_policy_is_valid() {
    let source = include_str!("recipes.rs");
    let index = include_str!("../../../../examples/recipes/README.md");
    let entries = fs::read_dir(folder()).unwrap().map(Result::unwrap);
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        let name = entry.file_name().into_string().unwrap();
        assert!(index.contains(&format!("[{name}]({name})")), "the index does not list {name}");
        let is_tested = source.contains(&format!("run(\"{name}\", "));
        let has_own_test = entry.path().join("tests/readme.rs").is_file();
        assert!(is_tested || has_own_test, "no test runs {name}");
        let policy = entry.path().join("policy.yaml");
        if policy.is_file() {
            let checked = testkit::process::tidegate(&["validate", policy.to_str().unwrap()], &[]);
            assert_eq!(checked.code, Some(0), "{name}: {}", checked.stderr);
        }
    }
}
