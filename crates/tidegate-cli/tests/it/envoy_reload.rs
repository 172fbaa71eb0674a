//! Changes of a folder with envoyproxy/ratelimit's configuration.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::server::TempFolder;
use tidegate_config::envoy::{EnvoyConfig, EnvoyLoadOptions};
use tidegate_server::internal::policy::files::RecordingReader;

#[test]
fn a_change_in_the_folder_is_seen_and_read_the_way_kubernetes_makes_it() {
    let folder = TempFolder::new();
    let load = || {
        let reader = RecordingReader::default();
        let config =
            EnvoyConfig::load_from(folder.path(""), &EnvoyLoadOptions::default(), &reader).unwrap();
        (config, reader.into_versions())
    };
    write(&folder, "..1/a.yaml", &one("a", "1/s"));
    symlink("..1", folder.path("..data")).unwrap();
    symlink("..data/a.yaml", folder.path("a.yaml")).unwrap();
    let (config, mut seen) = load();
    let limit = |config: &EnvoyConfig| limit_of(config, "a.k");
    assert_eq!(limit(&config), "1/s");
    assert!(seen.next_change().is_none());

    write(&folder, "..2/a.yaml", &one("a", "2/s"));
    symlink("..2", folder.path("..data_tmp")).unwrap();
    fs::rename(folder.path("..data_tmp"), folder.path("..data")).unwrap();
    assert!(seen.next_change().is_some(), "the symlink was swapped");
    let (config, mut seen) = load();
    assert_eq!(limit(&config), "2/s");
    assert!(seen.next_change().is_none());

    write(&folder, "b.yaml", &one("b", "1/s"));
    assert!(seen.next_change().is_some(), "a file has come");
    let (config, mut seen) = load();
    assert_eq!(domains(&config), ["a", "b"]);

    fs::remove_file(folder.path("b.yaml")).unwrap();
    assert!(seen.next_change().is_some(), "a file has gone");
    let (config, mut seen) = load();
    assert_eq!(domains(&config), ["a"]);
    write(&folder, "sub/c.yaml", &one("c", "1/s"));
    assert!(seen.next_change().is_some(), "a folder has come");
    assert_eq!(domains(&load().0), ["a", "c"]);
}

fn write(folder: &TempFolder, path: &str, text: &str) {
    let path = folder.path(path);
    fs::create_dir_all(path.parent().expect("a folder around")).expect("a folder");
    fs::write(path, text).expect("a file");
}

fn one(domain: &str, limit: &str) -> String {
    format!("{{ domain: {domain}, descriptors: [{{ key: k, limit: {limit} }}] }}")
}

fn domains(config: &EnvoyConfig) -> Vec<&str> {
    let mut names: Vec<&str> = config.domains().map(|domain| domain.name()).collect();
    names.sort_unstable();
    names
}

fn limit_of(config: &EnvoyConfig, name: &str) -> String {
    let leaf = config.leaves().find(|leaf| leaf.stat_name() == name).expect("a leaf");
    leaf.rule().expect("a rule").limits()[0].limit().to_string()
}
