//! Loading of policy files, includes, variables and defaults.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use tidegate::pricing::ModelPrice;
use tidegate::{Cost, Unit};
use tidegate_config::{
    Environment, HeaderStyleSetting, LeaseSetting, LoadedPolicy, OnStoreFailureSetting, OneOrMany,
    PolicyLoader, Problems, RefundToken, RuleFile, ServerSettings, schema,
};

use crate::reference::{EXAMPLE, reference};

/// Files and variables in memory.
#[derive(Default)]
struct InMemoryFiles {
    files: HashMap<PathBuf, String>,
    variables: HashMap<String, String>,
}

impl InMemoryFiles {
    fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.into(), text.into());
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Result<LoadedPolicy, Problems> {
        PolicyLoader::load_from("main.yaml", self)
    }

    fn problems(&self) -> String {
        match self.load() {
            Ok(_) => panic!("accepted"),
            Err(problems) => problems.to_string(),
        }
    }
}

impl Environment for InMemoryFiles {
    fn read(&self, path: &Path, _: usize) -> io::Result<Vec<u8>> {
        let text = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(text.clone().into_bytes())
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        self.variables.get(name).map(OsString::from)
    }
}

fn names(loaded: &LoadedPolicy) -> Vec<&str> {
    loaded.policy.rules().iter().map(|rule| rule.name()).collect()
}

fn warnings(loaded: &LoadedPolicy) -> String {
    loaded.warnings.iter().map(|warning| format!("{warning}\n")).collect()
}

const CONTRACT: &str = r#"
store: memory                     # any --store value; flags win over the file
namespace: tg                     # prefix of every key in Redis
secret: ${TIDEGATE_SECRET}        # HMAC secret for hashing keys
trusted_proxies: ["127.0.0.0/8", "::1"]   # the default: loopback
adhoc: true
headers: draft-7                  # for clients of older drafts
refund_token: admin               # check (default) | admin
include: [more.yaml]              # optional; an unset ${VAR} is an error
on_store_failure: fallback        # fallback | deny | allow; per rule too
fallback_ratio: 0.5
rules:
  - name: login                                    # [A-Za-z0-9][A-Za-z0-9_.-]{0,63}
    match: { method: POST, path: /login }          # host, header too; {id} and * in paths; optional
    key: [client_ip]
    on_missing_key: shared                         # shared (default) | deny | skip
    limits: ["sliding-log 5/1m", "fixed-window 100/1d"]
    stop: false                                    # true: later rules are skipped
  - name: api
    key: ["header:x-api-key"]
    limits: ["100/s burst 200"]
    cost: "header:x-cost"
    shadow_limits: ["50/s"]
    lease: auto
    overrides: [{ key: gold-123, limits: ["1000/s"], until: 2100-01-01T00:00:00Z }]
    allow: ["10.0.0.0/8"]
    deny: []
"#;

#[test]
fn a_policy_of_all_fields_loads() {
    let more = "rules:\n  - { name: more, limits: [1/s], on_store_failure: deny }\n";
    let files = InMemoryFiles::default()
        .file("main.yaml", CONTRACT)
        .file("more.yaml", more)
        .variable("TIDEGATE_SECRET", "hunter2");
    let loaded = files.load().unwrap();
    assert_eq!(names(&loaded), ["login", "api", "more"]);
    assert_eq!(loaded.files, ["main.yaml", "more.yaml"].map(PathBuf::from));
    assert_eq!(loaded.settings.secret.as_ref().unwrap().expose(), "hunter2");
    assert_eq!(loaded.settings.store.as_ref().unwrap().expose(), "memory");
    assert_eq!(loaded.settings.headers, HeaderStyleSetting::Draft7);
    assert_eq!(loaded.settings.refund_token, RefundToken::Admin);
    let api = loaded.policy.rule("api").unwrap();
    assert_eq!(api.rule().limits().len(), 2);
    assert!(api.rule().limits()[1].is_shadow());
    let failures: Vec<_> = loaded.rules.iter().map(|rule| rule.on_store_failure).collect();
    assert_eq!(
        failures,
        [
            OnStoreFailureSetting::Fallback,
            OnStoreFailureSetting::Fallback,
            OnStoreFailureSetting::Deny
        ]
    );
    assert_eq!(loaded.rules[0].fallback_ratio.get(), 0.5);
    assert_eq!(loaded.rules[1].file.lease, Some(LeaseSetting::Auto(tidegate_config::Auto::Auto)));
    assert!(!format!("{loaded:?}").contains("hunter"), "no secret in any output");
    assert_eq!(warnings(&loaded), "");
}

#[test]
fn the_example_in_the_reference_loads_without_warnings() {
    let files =
        InMemoryFiles::default().file("main.yaml", EXAMPLE).variable("TIDEGATE_SECRET", "x");
    let loaded = files.load().unwrap();
    assert_eq!(names(&loaded), ["login", "profile", "api", "customer", "tokens", "spend"]);
    assert_eq!(warnings(&loaded), "");
    assert_eq!(loaded.rules[0].on_store_failure, OnStoreFailureSetting::Deny);
}

#[test]
fn plans_are_read_and_written_in_canonical_form() {
    let text = r#"{ "name": "api", "plans": { "pro": ["60/60s"], "free": ["1/s"] },
        "plan": "header:X-Plan", "default_plan": "free" }"#;
    let loaded = RuleFile::from_json(text).unwrap().load(&ServerSettings::default()).unwrap();
    let plans: Vec<(&str, String)> = loaded
        .rule
        .plans()
        .map(|(name, rule)| (name, rule.limits()[0].limit().to_string()))
        .collect();
    assert_eq!(plans, [("free", "1/s".into()), ("pro", "60/m".into())], "the default plan first");
    assert_eq!(
        serde_json::to_string(&loaded.file).unwrap(),
        r#"{"name":"api","plans":{"free":["1/s"],"pro":["60/m"]},"plan":"header:x-plan","default_plan":"free"}"#
    );
}

#[test]
fn a_file_on_the_disk_loads_with_its_includes() {
    let dir = std::env::temp_dir().join(format!("tidegate-config-{}", std::process::id()));
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    let main = dir.join("main.yaml");
    std::fs::write(&main, "include: [sub/a.yaml]\n").unwrap();
    std::fs::write(dir.join("sub/a.yaml"), "include: [b.yaml]\n").unwrap();
    std::fs::write(dir.join("sub/b.yaml"), "rules: [{ name: b, limits: [1/s] }]\n").unwrap();
    let loaded = PolicyLoader::load(&main).unwrap();
    assert_eq!(names(&loaded), ["b"]);
    std::fs::write(dir.join("sub/b.yaml"), "include: [../sub/../main.yaml]\n").unwrap();
    let cyclic = PolicyLoader::load(&main).unwrap_err();
    assert!(cyclic.to_string().contains("include cycle: "), "{cyclic}");
    assert_eq!(cyclic.files().len(), 3);
    let missing = PolicyLoader::load(dir.join("none.yaml")).unwrap_err().to_string();
    assert!(missing.contains("none.yaml: cannot be read: "), "{missing}");
    let padding = "#".repeat(PolicyLoader::MAX_BYTES + 1);
    std::fs::write(&main, padding).unwrap();
    let long = PolicyLoader::load(&main).unwrap_err().to_string();
    assert!(
        long.ends_with("main.yaml: file larger than 1 MiB; split it and use include"),
        "{long}"
    );
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn rules_of_included_files_come_after_in_order() {
    let files = InMemoryFiles::default()
        .file("main.yaml", "include: [a.yaml, b.yaml]\nrules: [{ name: main, limits: [1/s] }]")
        .file("a.yaml", "include: [c.yaml]\nrules: [{ name: a, limits: [1/s] }]")
        .file("b.yaml", "rules: [{ name: b, limits: [1/s] }]")
        .file("c.yaml", "rules: [{ name: c, limits: [1/s] }]");
    assert_eq!(names(&files.load().unwrap()), ["main", "a", "c", "b"]);
}

#[test]
fn a_bad_include_is_reported_at_its_position() {
    let main = "include: [a.yaml]\n";
    let files =
        InMemoryFiles::default().file("main.yaml", main).file("a.yaml", "include: [main.yaml]\n");
    assert_eq!(
        files.problems(),
        "a.yaml:1:11: include cycle: main.yaml -> a.yaml -> main.yaml\n  \
         include: [main.yaml]\n            ^^^^^^^^^"
    );
    let files = InMemoryFiles::default().file("main.yaml", main);
    assert_eq!(
        files.problems(),
        "main.yaml:1:11: a.yaml: cannot be read: entity not found\n  include: [a.yaml]\n            ^^^^^^"
    );
    let twice = InMemoryFiles::default()
        .file("main.yaml", "include: [a.yaml, a.yaml]\n")
        .file("a.yaml", "rules: []\n");
    assert_eq!(
        twice.problems(),
        "main.yaml:1:19: file included twice, first at main.yaml:1:11; remove one\n  \
         include: [a.yaml, a.yaml]\n                    ^^^^^^"
    );
    let files =
        InMemoryFiles::default().file("main.yaml", main).file("a.yaml", "adhoc: true\nfoo: 1\n");
    assert_eq!(
        files.problems(),
        "a.yaml:1:1: adhoc is only allowed in the main file; included files may have rules, defaults and include\n  \
         adhoc: true\n  ^^^^^\n\
         a.yaml:2:1: unknown field \"foo\"; use adhoc, confirmed_by, defaults, deny_cache, fallback_ratio, headers, include, memory, money, namespace, \
         on_store_failure, prices, refund_token, retry_jitter, rules, secret, store, store_deadline, tls or trusted_proxies\n  foo: 1\n  ^^^"
    );
}

#[test]
fn includes_are_bounded() {
    let mut deep = InMemoryFiles::default().file("main.yaml", "include: [f1.yaml]");
    for i in 1..20 {
        deep = deep.file(&format!("f{i}.yaml"), &format!("include: [f{}.yaml]", i + 1));
    }
    let problems = deep.problems();
    assert!(
        problems.starts_with(
            "f8.yaml:1:11: includes nested more than 8 deep: main.yaml -> f1.yaml -> "
        ),
        "{problems}"
    );
    let all: Vec<String> = (0..150).map(|i| format!("f{i}.yaml")).collect();
    let mut wide =
        InMemoryFiles::default().file("main.yaml", &format!("include: [{}]", all.join(", ")));
    for name in &all {
        wide = wide.file(name, "rules: []");
    }
    let problems = wide.problems();
    assert!(problems.contains("more than 100 files: main.yaml -> f99.yaml"), "{problems}");
}

#[test]
fn two_files_cannot_have_a_rule_of_one_name() {
    let rule = "rules: [{ name: api, limits: [1/s] }]";
    let files = InMemoryFiles::default()
        .file("main.yaml", &format!("include: [a.yaml]\n{rule}"))
        .file("a.yaml", rule);
    let problems = files.problems();
    assert!(
        problems.starts_with(
            "a.yaml:1:17: duplicate rule \"api\", first defined at main.yaml:2:17; rename one\n"
        ),
        "{problems}"
    );
}

#[test]
fn variables_are_filled_in_as_text() {
    let main = r#"
namespace: ${NAME}-x
secret: "$${NOT} ${SECRET}"
adhoc: ${ADHOC}
fallback_ratio: ${RATIO}
rules:
  - { name: api, limits: ["${COUNT}/s"], deny: ["${LIST}", "$x $$ $${"] }
"#;
    let files = InMemoryFiles::default()
        .file("main.yaml", main)
        .variable("NAME", "tg")
        .variable("SECRET", "a: [b\nc: ${NAME}")
        .variable("ADHOC", "false")
        .variable("RATIO", "0.25")
        .variable("COUNT", "7")
        .variable("LIST", "a, b]\nstop: true");
    let loaded = files.load().unwrap();
    assert_eq!(loaded.settings.namespace.as_deref(), Some("tg-x"));
    let secret = loaded.settings.secret.as_ref().unwrap().expose();
    assert_eq!(secret, "${NOT} a: [b\nc: ${NAME}", "a value is not filled in again");
    assert!(!loaded.settings.adhoc);
    assert_eq!(loaded.settings.fallback_ratio.get(), 0.25);
    let api = &loaded.rules[0].file;
    assert_eq!(api.limits, ["7/s"]);
    assert_eq!(api.deny, ["a, b]\nstop: true", "$x $$ ${"]);
}

#[test]
fn the_value_of_a_variable_is_never_printed() {
    let main = r#"
store: ${V}
namespace: ${V}
trusted_proxies: ["${V}"]
adhoc: ${V}
fallback_ratio: ${V}
on_store_failure: ${V}
include: ["${V}"]
defaults: { key: ["${V}"], lease: "${V}" }
rules:
  - name: ${V}
    match: { method: "${V}", path: "${V}", host: "${V}" }
    key: ["${V}"]
    on_missing_key: ${V}
    limits: ["${V}"]
    shadow_limits: ["x ${V}"]
    cost: ${V}
    stop: ${V}
    overrides: [{ key: ["${V}", "b"], limits: ["${V}"], until: "${V}" }]
    allow: ["10.0.0.1/${V}"]
"#;
    let files = InMemoryFiles::default().file("main.yaml", main).variable("V", "hunter 2/8");
    let problems = files.problems();
    assert!(!problems.contains("hunter"), "{problems}");
    let limit = "main.yaml:15:14: invalid limit after substitution; the value is \
                 not shown\n      limits: [\"${V}\"]\n               ^^^^^^";
    assert!(problems.contains(limit), "{problems}");
    let rules = "rules: [{ name: hunter, limits: [1/s] }, { name: \"${V}\", limits: [1/s] }]";
    let files = InMemoryFiles::default().file("main.yaml", rules).variable("V", "hunter");
    assert!(files.problems().starts_with(
        "main.yaml:1:50: after substitution this has the same name as the rule at main.yaml:1:17; \
         rename one\n"
    ));
}

#[test]
fn an_unset_variable_is_reported_once_without_its_consequences() {
    let main = "rules: [{ name: \"${NAME}\", limits: [\"${LIMIT}\"] }]";
    let files = InMemoryFiles::default().file("main.yaml", main);
    let problems = files.load().unwrap_err();
    assert_eq!(problems.count(), 2, "{problems}");
}

#[test]
fn a_text_that_is_not_a_file_reads_neither_files_nor_variables() {
    let problems =
        PolicyLoader::load_str("sent", "include: [Cargo.toml]\nnamespace: ${PATH}\n").unwrap_err();
    assert_eq!(
        problems.to_string(),
        "sent:1:11: Cargo.toml: cannot be read: other files cannot be read here\n  include: [Cargo.toml]\n  \
         \x20         ^^^^^^^^^^\n\
         sent:2:12: variable PATH is not set; write $${PATH} for the literal text\n  \
         namespace: ${PATH}\n             ^^^^^^^"
    );
}

#[test]
fn rules_inherit_the_nearest_default() {
    let files = InMemoryFiles::default()
        .file(
            "main.yaml",
            "on_store_failure: allow\ninclude: [a.yaml]\n\
             defaults: { key: [client_ip], on_missing_key: skip, stop: true, fallback_ratio: 0.1 }\n\
             rules:\n  - { name: all, limits: [1/s] }\n  \
             - { name: own, limits: [1/s], key: [], stop: false, fallback_ratio: 0.2 }\n",
        )
        .file(
            "a.yaml",
            "defaults: { key: [bearer], on_store_failure: deny }\nrules: [{ name: a, limits: [1/s] }]",
        );
    let loaded = files.load().unwrap();
    let rule = |name: &str| loaded.rules.iter().find(|rule| rule.file.name == name).unwrap();
    let json = |name: &str| serde_json::to_string(&rule(name).file).unwrap();
    assert_eq!(
        json("all"),
        r#"{"name":"all","key":["client_ip"],"on_missing_key":"skip","limits":["1/s"],"stop":true,"fallback_ratio":0.1}"#
    );
    assert_eq!(
        json("own"),
        r#"{"name":"own","on_missing_key":"skip","limits":["1/s"],"fallback_ratio":0.2}"#
    );
    assert_eq!(
        json("a"),
        r#"{"name":"a","key":["bearer"],"on_missing_key":"skip","limits":["1/s"],"stop":true,"on_store_failure":"deny","fallback_ratio":0.1}"#
    );
    assert_eq!(rule("all").on_store_failure, OnStoreFailureSetting::Allow);
    assert_eq!(rule("a").on_store_failure, OnStoreFailureSetting::Deny);
}

#[test]
fn anchors_and_merges_work() {
    let text = "rules:\n  - &first { name: a, limits: &l [1/s], key: [bearer] }\n  \
                - { <<: *first, name: b }\n  - { name: c, limits: *l }\n";
    let loaded = PolicyLoader::load_str("p", text).unwrap();
    assert_eq!(names(&loaded), ["a", "b", "c"]);
    assert_eq!(loaded.rules[1].file.key, loaded.rules[0].file.key);
}

#[test]
fn a_probable_error_is_a_warning_with_its_position() {
    let text = r#"rules:
  - { name: all, limits: [1/s], stop: true }
  - name: late
    limits: ["1/s"]
    shadow_limits: ["concurrency 5"]
    key: [client_ip, bearer]
    deny: [alice, 10.0.0.0/8]
"#;
    let loaded = PolicyLoader::load_str("p", text).unwrap();
    assert_eq!(
        warnings(&loaded),
        r#"p:3:11: warning: rule "late" can never match a request: "all" before it matches everything that it does, and stops; move it up
    - name: late
            ^^^^
p:5:21: warning: rule "late" has a concurrency limit; it is ignored for forward-auth requests; use reserve and cancel
      shadow_limits: ["concurrency 5"]
                      ^^^^^^^^^^^^^^^
p:7:12: warning: never matches: not a network, and the rule's key has 2 parts
      deny: [alice, 10.0.0.0/8]
             ^^^^^
"#
    );
    let empty = PolicyLoader::load_str("p", "rules: []\n").unwrap();
    assert_eq!(
        warnings(&empty),
        "p:1:1: warning: no rules: nothing is limited\n  rules: []\n  ^\n"
    );
}

#[test]
fn a_policy_without_rules_is_refused_unless_it_says_so() {
    let expected =
        "p:1:1: no rules: nothing would be limited; if that is intended, write rules: []";
    for text in ["", "\n\n", "# nothing\n", "---\n", "store: memory\n", "defaults: {}\n"] {
        let refused = PolicyLoader::load_str("p", text).unwrap_err().to_string();
        assert!(refused.starts_with(expected), "{text:?}: {refused}");
    }
    PolicyLoader::load_str("p", "rules:\n").unwrap_err();
    assert_eq!(PolicyLoader::load_str("p", "store: memory\nrules: []").unwrap().rules.len(), 0);
}

#[test]
fn a_file_that_is_not_utf_8_or_has_other_line_ends_has_positions_too() {
    struct Bytes(&'static [u8]);
    impl Environment for Bytes {
        fn read(&self, _: &Path, _: usize) -> io::Result<Vec<u8>> {
            Ok(self.0.to_vec())
        }
        fn variable(&self, _: &str) -> Option<OsString> {
            None
        }
    }
    let problems = |bytes| PolicyLoader::load_from("p", &Bytes(bytes)).unwrap_err().to_string();
    assert_eq!(
        problems(b"rules:\n  - \xff\n"),
        "p:2:5: not UTF-8; save the file as UTF-8\n    - \u{fffd}\n      ^"
    );
    let tail = ":3: unknown field \"x\"; use ";
    assert!(
        problems(b"rules:\r\n- x: 1\r\n  name: a\r\n  limits: [1/s]")
            .starts_with(&format!("p:2{tail}"))
    );
    assert!(problems("rules:\r- x: 1\r  name: ä\r".as_bytes()).starts_with(&format!("p:2{tail}")));
    let marked = "\u{feff}rules:\n- { name: a, limits: [x] }\n".as_bytes();
    assert!(problems(marked).starts_with("p:2:23: "), "{}", problems(marked));
}

#[test]
fn a_rule_survives_a_round_trip_through_json() {
    let text = r#"{
        "name": "api", "match": { "method": ["get", "POST"], "path": "/a/{id}/", "host": "API.example.com",
        "header": { "X-Plan": "free*" } }, "key": ["header:X-Key", "path:id"], "on_missing_key": "deny",
        "limits": ["token-bucket 60/60s burst 20"], "shadow_limits": ["10/1s"], "stop": false,
        "cost": "header:X-Cost", "lease": 5, "shadow": true, "unit": "tokens", "estimate": 7,
        "overrides": [{ "key": ["a", "b"], "limits": ["5/s"], "until": "2027-01-01T02:00:00+02:00" }],
        "allow": ["10.0.0.0/8"], "on_store_failure": "allow", "fallback_ratio": 0.25
    }"#;
    let rule = RuleFile::from_json(text).unwrap();
    assert_eq!(rule, serde_json::from_str(text).unwrap(), "serde reads the same");
    let loaded = rule.load(&ServerSettings::default()).unwrap();
    let canonical = serde_json::to_string(&loaded.file).unwrap();
    assert_eq!(
        canonical,
        r#"{"name":"api","match":{"method":["GET","POST"],"path":"/a/{id}","host":"api.example.com","header":{"x-plan":"free*"}},"key":["header:x-key","path:id"],"on_missing_key":"deny","limits":["60/m burst 20"],"shadow_limits":["10/s"],"shadow":true,"cost":"header:x-cost","unit":"tokens","estimate":7,"lease":5,"overrides":[{"key":["a","b"],"limits":["5/s"],"until":"2027-01-01T00:00:00Z"}],"allow":["10.0.0.0/8"],"on_store_failure":"allow","fallback_ratio":0.25}"#
    );
    let reloaded =
        RuleFile::from_json(&canonical).unwrap().load(&ServerSettings::default()).unwrap();
    assert_eq!(reloaded.file, loaded.file);
    let minimal = RuleFile::from_json(r#"{ "limits": ["5/s"] }"#).unwrap();
    assert_eq!(minimal.name, "", "the name is in the path of the request");
    let named = RuleFile { name: "x".into(), ..minimal };
    assert_eq!(serde_json::to_string(&named).unwrap(), r#"{"name":"x","limits":["5/s"]}"#);
    assert!(named.load(&ServerSettings::default()).is_ok());
    assert_eq!(OneOrMany::from(vec!["a".to_string()]), OneOrMany::One("a".into()));
}

#[test]
fn prices_load_with_their_unit() {
    let text = "money: { currency: JPY, decimals: 2 }\nprices:\n  a.b/c-1:latest: { input: 1, cached_input: 2, \
                cache_write: 3, output: 4, reasoning: 5 }\n  \"*\": { input: 0, output: 4294967295 }\n\
                rules: [{ name: spend, unit: money, estimate: 5, limits: [fixed-window 5/d] }]";
    let loaded = PolicyLoader::load_str("policy.yaml", text).unwrap();
    let prices = loaded.settings.prices.unwrap();
    assert_eq!((prices.unit().currency(), prices.unit().decimals()), ("JPY", 2));
    let all = ModelPrice {
        cached_input: Some(2),
        cache_write: Some(3),
        reasoning: Some(5),
        ..ModelPrice::new(1, 4)
    };
    assert_eq!(prices.find("a.b/c-1:latest"), Some(("a.b/c-1:latest", &all)));
    assert_eq!(prices.find("else"), Some(("*", &ModelPrice::new(0, u32::MAX))));
    let spend = loaded.policy.rule("spend").unwrap();
    assert_eq!((spend.unit(), spend.estimate()), (Some(Unit::Money), Some(Cost::from(5))));
    let without = PolicyLoader::load_str("policy.yaml", "rules: []").unwrap();
    assert_eq!(without.settings.prices, None);
}

#[test]
fn a_bad_rule_in_json_is_reported_by_its_fields() {
    let problems = |text: &str| match RuleFile::from_json(text) {
        Ok(rule) => rule.load(&ServerSettings::default()).unwrap_err().to_string(),
        Err(problems) => problems.to_string(),
    };
    assert_eq!(problems("{"), "invalid JSON at line 1 column 1");
    assert_eq!(problems("[]"), "this must be a map of fields, not a list");
    assert_eq!(
        problems(r#"{ "name": ["x"], "limit": [], "stop": "true", "key": null, "lease": -1 }"#),
        "key: key has no value; set one or remove it\n\
         lease: lease must be auto or a whole number from 0 to 4294967295, not \"-1\"\n\
         limit: unknown field \"limit\"; did you mean limits?\n\
         name: name must be a string, not a list\n\
         stop: stop must be true or false, not \"true\"; did you mean true?"
    );
    assert_eq!(
        problems(r#"{ "limits": ["5/s", "5/parsec"], "cost": "x", "overrides": [{}] }"#),
        "overrides[0].key: missing field key\noverrides[0].limits: missing field limits"
    );
    assert_eq!(
        problems(r#"{ "limits": ["5/s", "5/parsec"], "cost": "x" }"#),
        "name: rule name \"\"; use 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first\n\
         limits[1]: unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month\n\
         cost: cost must be header:NAME, for example header:x-cost"
    );
}

#[test]
fn the_schema_and_the_reference_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference");
    let pretty = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    let pages = [("policy.schema.json", pretty), ("policy.md", reference())];
    for (name, made) in pages {
        let path = docs.join(name);
        if std::env::var_os("TIDEGATE_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let same = match name.ends_with(".json") {
            true => serde_json::from_str(&committed).ok() == Some(schema()),
            false => committed == made,
        };
        assert!(same, "docs/reference/{name} is out of date; run this test with TIDEGATE_BLESS=1");
    }
}

#[test]
fn the_schema_describes_every_field() {
    let root = schema();
    assert_eq!(root["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for object in
        [&root, &root["$defs"]["Rule"], &root["$defs"]["Match"], &root["$defs"]["Override"]]
    {
        assert_eq!(object["additionalProperties"], false);
        for (name, property) in object["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{name}");
        }
    }
}
