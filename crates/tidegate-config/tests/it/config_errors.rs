//! Exact error messages for invalid policy files.

use tidegate_config::{PolicyLoader, Problems};

/// The name of the case, the file, and the whole output.
const CASES: &[(&str, &str, &str)] = &[
    (
        "an unknown unit is underlined in the limit",
        r#"rules:
  - name: login
    limits: ["sliding-log 5/parsec"]
"#,
        r#"
policy.yaml:3:29: unknown unit "parsec"; use us, ms, s, min, h, d, w or month
      limits: ["sliding-log 5/parsec"]
                              ^^^^^^
"#,
    ),
    (
        "a limit without quotes is underlined too",
        r"rules:
  - name: login
    limits:
      - 5.5/s
",
        r#"
policy.yaml:4:9: count "5.5" is not a whole number in plain digits; write 11/2s
        - 5.5/s
          ^^^
"#,
    ),
    (
        "a limit with escapes is underlined as a whole",
        r#"rules:
  - name: login
    limits: ["5\x2Fparsec"]
"#,
        r#"
policy.yaml:3:14: unknown unit "parsec"; use us, ms, s, min, h, d, w or month
      limits: ["5\x2Fparsec"]
               ^^^^^^^^^^^^^
"#,
    ),
    (
        "plans of other algorithms than the default plan",
        r#"rules:
  - name: api
    default_plan: free
    plans:
      free: ["10/m"]
      pro: ["fixed-window 100/m"]
"#,
        r#"
policy.yaml:6:12: plan "pro" has fixed-window, but plan "free" has token-bucket; use the same algorithms in the same order, so that a key that changes its plan keeps what was used
        pro: ["fixed-window 100/m"]
             ^^^^^^^^^^^^^^^^^^^^^^
"#,
    ),
    (
        "plans without a default, and a plan with a bad limit",
        r#"rules:
  - { name: a, plans: { free: ["1/s"] } }
  - { name: b, default_plan: x, plans: { free: ["1/s"] } }
  - { name: c, default_plan: free, plans: { free: ["1/parsec"] } }
"#,
        r#"
policy.yaml:2:13: default_plan is required with plans: the plan of requests that name none
    - { name: a, plans: { free: ["1/s"] } }
              ^
policy.yaml:3:30: the default plan "x" is not in plans; add it, or name another
    - { name: b, default_plan: x, plans: { free: ["1/s"] } }
                               ^
policy.yaml:4:55: unknown unit "parsec"; use us, ms, s, min, h, d, w or month
    - { name: c, default_plan: free, plans: { free: ["1/parsec"] } }
                                                        ^^^^^^
"#,
    ),
    (
        "plans beside limits, an empty plan, and settings without plans",
        r#"rules:
  - { name: a, limits: ["1/s"], default_plan: free, plans: { free: ["1/s"] } }
  - { name: b, default_plan: free, plans: { free: [] } }
  - { name: c, limits: ["1/s"], default_plan: free, plan: "query:x" }
  - { name: d, default_plan: free, plan: x-plan, plans: { free: ["1/s"], "a.b": ["1/s"] } }
"#,
        r#"
policy.yaml:2:24: limits and plans exclude each other; move the limits into a plan
    - { name: a, limits: ["1/s"], default_plan: free, plans: { free: ["1/s"] } }
                         ^^^^^^^
policy.yaml:3:51: a plan needs at least one limit, for example 100/s
    - { name: b, default_plan: free, plans: { free: [] } }
                                                    ^^
policy.yaml:4:47: default_plan has no effect without plans; add plans or remove it
    - { name: c, limits: ["1/s"], default_plan: free, plan: "query:x" }
                                                ^^^^
policy.yaml:4:59: plan has no effect without plans; add plans or remove it
    - { name: c, limits: ["1/s"], default_plan: free, plan: "query:x" }
                                                            ^^^^^^^^^
policy.yaml:5:42: plan must be header:NAME, for example header:x-plan
    - { name: d, default_plan: free, plan: x-plan, plans: { free: ["1/s"], "a.b": ["1/s"] } }
                                           ^^^^^^
"#,
    ),
    (
        "a zone that does not exist",
        r#"rules:
  - { name: quota, limits: ["fixed-window 1000/d tz Asia/Shangai"] }
"#,
        r#"
policy.yaml:2:53: unknown time zone "Asia/Shangai"; use an IANA name like Europe/Berlin
    - { name: quota, limits: ["fixed-window 1000/d tz Asia/Shangai"] }
                                                      ^^^^^^^^^^^^
"#,
    ),
    (
        "prices that do not fit",
        r#"money: { currency: usd, decimals: 9 }
prices:
  gpt-4.1: { input: 5000000000, output: 1.5 }
  "": { input: 1, output: 1 }
  o3: { output: 1, reasoning: -1, inputs: 2 }
rules: []
"#,
        r#"
policy.yaml:1:20: currency "usd"; use a code of three capital letters like USD
  money: { currency: usd, decimals: 9 }
                     ^^^
policy.yaml:1:35: 9 decimals; use 0 to 6
  money: { currency: usd, decimals: 9 }
                                    ^
policy.yaml:3:21: input must be a whole number from 0 to 4294967295, not "5000000000": one call costs at most 2^32 units; use fewer decimals in money
    gpt-4.1: { input: 5000000000, output: 1.5 }
                      ^^^^^^^^^^
policy.yaml:3:41: output must be a whole number from 0 to 4294967295, not "1.5"
    gpt-4.1: { input: 5000000000, output: 1.5 }
                                          ^^^
policy.yaml:4:3: model ""; use 1 to 128 bytes without control characters
    "": { input: 1, output: 1 }
    ^^
policy.yaml:5:31: reasoning must be a whole number from 0 to 4294967295, not "-1"
    o3: { output: 1, reasoning: -1, inputs: 2 }
                                ^^
policy.yaml:5:35: unknown field "inputs"; did you mean input?
    o3: { output: 1, reasoning: -1, inputs: 2 }
                                    ^^^^^^
"#,
    ),
    (
        "prices without a unit",
        r#"prices: { a: { input: 1, output: 1 } }
rules: []
"#,
        r#"
policy.yaml:1:9: prices need their unit; add money: { currency: USD, decimals: 6 }
  prices: { a: { input: 1, output: 1 } }
          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"#,
    ),
    (
        "limits that cannot count their unit",
        r#"rules:
  - { name: a, unit: money, limits: [sliding-log 100/d] }
  - { name: b, unit: tokens, limits: [5/s, concurrency 9] }
  - { name: c, unit: tokens, estimate: 6, limits: [fixed-window 5/s, fixed-window 9/m] }
  - { name: d, unit: tokens, estimate: 0, limits: [fixed-window 5/s] }
  - { name: e, unit: token, limits: [fixed-window 5/s] }
"#,
        r#"
policy.yaml:2:22: a sliding-log holds at most 1000000, too few for money: 1 USD in millionths; use fixed-window or sliding-window
    - { name: a, unit: money, limits: [sliding-log 100/d] }
                       ^^^^^
policy.yaml:3:22: a concurrency limit counts requests, not tokens; put it into a rule of its own
    - { name: b, unit: tokens, limits: [5/s, concurrency 9] }
                       ^^^^^^
policy.yaml:4:40: estimate 6; use 1 to 5, the smallest capacity of the rule: above it no reservation is ever granted
    - { name: c, unit: tokens, estimate: 6, limits: [fixed-window 5/s, fixed-window 9/m] }
                                         ^
policy.yaml:5:40: estimate 0; use 1 to 5, the smallest capacity of the rule: above it no reservation is ever granted
    - { name: d, unit: tokens, estimate: 0, limits: [fixed-window 5/s] }
                                         ^
policy.yaml:6:22: unit must be requests, tokens or money, not "token"; did you mean tokens?
    - { name: e, unit: token, limits: [fixed-window 5/s] }
                       ^^^^^
"#,
    ),
    (
        "an unknown field has a nearest name",
        r#"rules:
  - name: login
    limit: ["5/min"]
"#,
        r#"
policy.yaml:3:5: unknown field "limit"; did you mean limits?
      limit: ["5/min"]
      ^^^^^
"#,
    ),
    (
        "an unknown field far from all lists them",
        r#"rules:
  - name: login
    match: { colour: red }
    limits: ["5/min"]
"#,
        r#"
policy.yaml:3:14: unknown field "colour"; use header, host, method or path
      match: { colour: red }
               ^^^^^^
"#,
    ),
    (
        "a rule without a name",
        r#"rules:
  - limits: ["5/min"]
"#,
        r#"
policy.yaml:2:5: missing field name
    - limits: ["5/min"]
      ^^^^^^
"#,
    ),
    (
        "a rule without limits",
        r"rules:
  - name: login
    key: [client_ip]
",
        r#"
policy.yaml:2:11: a rule needs at least one limit, for example limits: ["100/s"]
    - name: login
            ^^^^^
"#,
    ),
    (
        "a name with a space",
        r#"rules:
  - name: log in
    limits: ["5/min"]
"#,
        r#"
policy.yaml:2:11: rule name "log in"; use 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first
    - name: log in
            ^^^^^^
"#,
    ),
    (
        "a reserved name",
        r#"rules:
  - name: adhoc
    limits: ["5/min"]
"#,
        r#"
policy.yaml:2:11: the name "adhoc" is reserved for ad-hoc limits; use another
    - name: adhoc
            ^^^^^
"#,
    ),
    (
        "two rules of one name",
        r#"rules:
  - name: api
    limits: ["5/min"]
  - name: web
    limits: ["5/min"]
  - name: api
    limits: ["6/min"]
"#,
        r#"
policy.yaml:6:11: duplicate rule "api", first defined at policy.yaml:2:11; rename one
    - name: api
            ^^^
"#,
    ),
    (
        "a path without a slash",
        r#"rules:
  - name: login
    match: { path: login }
    limits: ["5/min"]
"#,
        r"
policy.yaml:3:20: a path begins with a slash; write /login or /api/*
      match: { path: login }
                     ^^^^^
",
    ),
    (
        "an unknown key part",
        r#"rules:
  - name: login
    key: [client_ip, body:user]
    limits: ["5/min"]
"#,
        r#"
policy.yaml:3:22: unknown key "body:user"; use client_ip, header:NAME, query:NAME, cookie:NAME, path:NAME, bearer or instance
      key: [client_ip, body:user]
                       ^^^^^^^^^
"#,
    ),
    (
        "a key that names no segment",
        r#"rules:
  - name: user
    match: { path: "/users/{user}" }
    key: ["path:id"]
    limits: ["5/min"]
"#,
        r#"
policy.yaml:4:11: the key names path:id, but the path has no {id}; write it into match.path
      key: ["path:id"]
            ^^^^^^^^^
"#,
    ),
    (
        "a text where a list belongs",
        r"rules:
  - name: login
    key: client_ip
    limits: 5/min
",
        r#"
policy.yaml:3:10: key must be a list of strings, not "client_ip"; put it in brackets
      key: client_ip
           ^^^^^^^^^
policy.yaml:4:13: limits must be a list of strings, not "5/min"; put it in brackets
      limits: 5/min
              ^^^^^
"#,
    ),
    (
        "an unknown word",
        r#"rules:
  - name: login
    on_missing_key: shard
    limits: ["5/min"]
"#,
        r#"
policy.yaml:3:21: on_missing_key must be shared, deny or skip, not "shard"; did you mean shared?
      on_missing_key: shard
                      ^^^^^
"#,
    ),
    (
        "yes is not true",
        r"adhoc: yes
rules: []
",
        r#"
policy.yaml:1:8: adhoc must be true or false, not "yes"; did you mean true?
  adhoc: yes
         ^^^
"#,
    ),
    (
        "a field without a value",
        r"rules:
  - name: login
    limits:
    key: [client_ip]
",
        r"
policy.yaml:3:5: limits has no value; set one or remove it
      limits:
      ^^^^^^
",
    ),
    (
        "a network with bits beyond its prefix",
        r#"trusted_proxies: ["10.0.0.0/8", "192.168.1.1/16"]
rules:
  - name: login
    limits: ["5/min"]
    allow: [10.0.0.5/8, gold, 300.0.0.0/8]
"#,
        r#"
policy.yaml:1:33: 192.168.1.1/16 has bits beyond its prefix; write 192.168.0.0/16
  trusted_proxies: ["10.0.0.0/8", "192.168.1.1/16"]
                                  ^^^^^^^^^^^^^^^^
policy.yaml:5:13: 10.0.0.5/8 has bits beyond its prefix; write 10.0.0.0/8
      allow: [10.0.0.5/8, gold, 300.0.0.0/8]
              ^^^^^^^^^^
policy.yaml:5:31: "300.0.0.0/8" is not a network; use one like 10.0.0.0/8 or 2001:db8::/32
      allow: [10.0.0.5/8, gold, 300.0.0.0/8]
                                ^^^^^^^^^^^
"#,
    ),
    (
        "the override's key has another length",
        r#"rules:
  - name: api
    key: ["header:x-tenant", "header:x-user"]
    limits: ["5/min"]
    overrides: [{ key: acme, limits: ["10/min"] }]
"#,
        r#"
policy.yaml:5:24: the override's key has 1 part, but the rule's key has 2 parts
      overrides: [{ key: acme, limits: ["10/min"] }]
                         ^^^^
"#,
    ),
    (
        "two overrides for one address",
        r#"rules:
  - name: api
    key: [client_ip]
    limits: ["5/min"]
    overrides:
      - { key: "2001:db8::1", limits: ["10/min"] }
      - { key: "2001:db8::2", limits: ["20/min"] }
"#,
        r#"
policy.yaml:7:16: two overrides for one key; remove one (first at policy.yaml:6:16)
        - { key: "2001:db8::2", limits: ["20/min"] }
                 ^^^^^^^^^^^^^
"#,
    ),
    (
        "an override until an invalid date",
        r#"rules:
  - name: api
    limits: ["5/min"]
    overrides: [{ key: gold, limits: [], until: 2027-02-30 }]
"#,
        r"
policy.yaml:4:38: an override needs a limit; to exempt the key, add it to allow
      overrides: [{ key: gold, limits: [], until: 2027-02-30 }]
                                       ^^
policy.yaml:4:49: invalid time; use RFC 3339, for example 2027-01-01T00:00:00Z
      overrides: [{ key: gold, limits: [], until: 2027-02-30 }]
                                                  ^^^^^^^^^^
",
    ),
    (
        "a cost that is not a header",
        r#"rules:
  - name: api
    limits: ["5/min"]
    cost: 5
"#,
        r"
policy.yaml:4:11: cost must be header:NAME, for example header:x-cost
      cost: 5
            ^
",
    ),
    (
        "a share above one",
        r#"fallback_ratio: 1.5
on_store_failure: panic
rules:
  - { name: api, limits: ["5/min"], fallback_ratio: 0 }
"#,
        r#"
policy.yaml:1:17: expected a fraction above 0 and at most 1, for example 0.5
  fallback_ratio: 1.5
                  ^^^
policy.yaml:2:19: on_store_failure must be fallback, deny or allow, not "panic"
  on_store_failure: panic
                    ^^^^^
policy.yaml:4:53: expected a fraction above 0 and at most 1, for example 0.5
    - { name: api, limits: ["5/min"], fallback_ratio: 0 }
                                                      ^
"#,
    ),
    (
        "too many replicas",
        r#"confirmed_by: 9
rules:
  - { name: api, limits: ["5/min"] }
"#,
        r"
policy.yaml:1:15: 9 replicas; use at most 8, or 0 for none
  confirmed_by: 9
                ^
",
    ),
    (
        "half of what tls needs",
        r#"tls: { cert: f.pem }
rules:
  - { name: api, limits: ["5/min"] }
"#,
        r"
policy.yaml:1:8: missing field key
  tls: { cert: f.pem }
         ^^^^
",
    ),
    (
        "a field given twice",
        r#"rules:
  - name: api
    limits: ["5/min"]
    name: web
"#,
        r#"
policy.yaml:4:5: duplicate field "name", first in line 2; remove one
      name: web
      ^^^^
"#,
    ),
    (
        "a star without quotes",
        r#"rules:
  - name: api
    match: { host: *.example.com }
    limits: ["5/min"]
"#,
        r"
policy.yaml:3:20: invalid YAML: while parsing node, found unknown anchor; quote text that begins with * or &
      match: { host: *.example.com }
                     ^
",
    ),
    (
        "a tab",
        "rules:\n\t- name: api\n",
        r"
policy.yaml:2:2: invalid YAML: tabs disallowed within this context (block indentation); use spaces
   - name: api
   ^
",
    ),
    (
        "a bracket that is not closed",
        r#"rules:
  - name: api
    limits: ["5/min"
  - name: web
"#,
        r#"
policy.yaml:4:3: invalid YAML: "-" is only valid inside a block; close the bracket above
    - name: web
    ^
"#,
    ),
    (
        "a variable in brackets without quotes",
        r"rules:
  - name: api
    limits: [${LIMIT}]
",
        r"
policy.yaml:3:15: invalid YAML: while parsing a flow sequence, expected ',' or ']'; inside brackets, quote text with ${
      limits: [${LIMIT}]
                ^
",
    ),
    (
        "a variable that is not set",
        r#"namespace: "tg-${STAGE}"
rules:
  - { name: api, limits: ["${LIMIT}", "5/${unit}"] }
"#,
        r#"
policy.yaml:1:16: variable STAGE is not set; write $${STAGE} for the literal text
  namespace: "tg-${STAGE}"
                 ^^^^^^^^
policy.yaml:3:28: variable LIMIT is not set; write $${LIMIT} for the literal text
    - { name: api, limits: ["${LIMIT}", "5/${unit}"] }
                             ^^^^^^^^
policy.yaml:3:42: variables are ${NAME} with capitals, digits and _; write $${ for a literal ${
    - { name: api, limits: ["${LIMIT}", "5/${unit}"] }
                                           ^^^^^^^
"#,
    ),
    (
        "a secret is not shown",
        r"secrt: hunter2
store: redis//user:hunter3@host
rules: 5
",
        r#"
policy.yaml:1:1: unknown field "secrt"; did you mean secret?
  secrt: ***
  ^^^^^
policy.yaml:2:8: invalid store; expected memory or a URL like redis://127.0.0.1:6379
  store: ***@host
         ^^^^^^^^
policy.yaml:3:8: rules must be a list, not "5"
  rules: 5
         ^
"#,
    ),
    (
        "a secret is not shown in broken yaml",
        r"secret: hunter2
  more: hunter3
",
        r"
policy.yaml:2:7: invalid YAML: mapping values are not allowed in this context
  ***
  ^^^
",
    ),
    (
        "a password is not shown",
        r#"store: rdis://user:hunter2@host:6379
namespace: "a b"
"#,
        r#"
policy.yaml:1:8: unknown store type; did you mean redis://?
  store: rdis://user:***@host:6379
         ^^^^^^^^^^^^^^^^^^^^^^^^^
policy.yaml:2:12: invalid namespace; use 1 to 64 of A-Z a-z 0-9 _ . : -
  namespace: "a b"
             ^^^^^
"#,
    ),
    (
        "a deadline without a unit",
        r"store_deadline: 25
",
        r#"
policy.yaml:1:17: no unit after "25"; use us, ms, s, min, h, d, w or month
  store_deadline: 25
                  ^^
"#,
    ),
    (
        "a deadline that is too long",
        r"store_deadline: 2m
",
        r"
policy.yaml:1:17: out of range; use 1ms to 60s, for example 100ms
  store_deadline: 2m
                  ^^
",
    ),
    (
        "entries of the wrong type",
        r"rules: [login, 5, [], { name: api, limits: [{}] }]
",
        r#"
policy.yaml:1:9: an entry must be a map of fields, not "login"
  rules: [login, 5, [], { name: api, limits: [{}] }]
          ^^^^^
policy.yaml:1:16: an entry must be a map of fields, not "5"
  rules: [login, 5, [], { name: api, limits: [{}] }]
                 ^
policy.yaml:1:19: an entry must be a map of fields, not a list
  rules: [login, 5, [], { name: api, limits: [{}] }]
                    ^^
policy.yaml:1:45: an entry must be a string, not a map
  rules: [login, 5, [], { name: api, limits: [{}] }]
                                              ^^
"#,
    ),
    (
        "a file that is a list",
        r#"- name: api
  limits: ["5/min"]
"#,
        r"
policy.yaml:1:1: a policy must be a map; start with rules:
  - name: api
  ^^^^^^^^^^^
",
    ),
    (
        "two documents",
        r"rules: []
---
rules: []
",
        r"
policy.yaml:2:1: only one YAML document per file; use include
  ---
  ^^^
",
    ),
    (
        "an alias of itself",
        r"rules: &all
  - *all
",
        r"
policy.yaml:2:5: recursive alias; write the value out
    - *all
      ^^^^
",
    ),
    (
        "a tag",
        r#"rules:
  - !rule { name: api, limits: ["5/min"] }
"#,
        r#"
policy.yaml:2:5: YAML tags are not supported; remove the !tag
    - !rule { name: api, limits: ["5/min"] }
      ^
"#,
    ),
    (
        "an invalid method, host and header",
        r#"rules:
  - name: api
    match:
      method: [GET, "PO ST"]
      host: https://example.com
      header: { "x plan": "*" }
    limits: ["5/min"]
"#,
        r#"
policy.yaml:4:21: invalid method; expected one like GET or POST
        method: [GET, "PO ST"]
                      ^^^^^^^
policy.yaml:5:13: host must be a name; remove the scheme and the path
        host: https://example.com
              ^^^^^^^^^^^^^^^^^^^
policy.yaml:6:17: invalid header name; expected one like x-plan
        header: { "x plan": "*" }
                  ^^^^^^^^
"#,
    ),
    (
        "a default that does not fit a rule",
        r#"defaults: { key: ["path:id"], stop: maybe, colour: red }
rules:
  - { name: a, match: { path: "/a/{id}" }, limits: ["5/min"] }
  - { name: b, match: { path: /b }, limits: ["5/min"] }
"#,
        r#"
policy.yaml:1:19: the key names path:id, but the path has no {id}; write it into match.path (in rule "b")
  defaults: { key: ["path:id"], stop: maybe, colour: red }
                    ^^^^^^^^^
policy.yaml:1:37: stop must be true or false, not "maybe"
  defaults: { key: ["path:id"], stop: maybe, colour: red }
                                      ^^^^^
policy.yaml:1:44: unknown field "colour"; use fallback_ratio, key, lease, on_missing_key, on_store_failure or stop
  defaults: { key: ["path:id"], stop: maybe, colour: red }
                                             ^^^^^^
"#,
    ),
    (
        "several problems are reported in one pass",
        r#"namespace: tg
adhoc: 1
rules:
  - name: login
    limits: ["5/mn", "10/s brust 5"]
    on_missing_key: deny
  - name: -api
    key: [ip]
    limits: ["100/s"]
    lease: sometimes
  - limits: []
"#,
        r#"
policy.yaml:2:8: adhoc must be true or false, not "1"; did you mean true?
  adhoc: 1
         ^
policy.yaml:5:17: unknown unit "mn"; use us, ms, s, min, h, d, w or month
      limits: ["5/mn", "10/s brust 5"]
                  ^^
policy.yaml:5:28: unknown option "brust"; write 10/s burst 5
      limits: ["5/mn", "10/s brust 5"]
                             ^^^^^
policy.yaml:7:11: rule name "-api"; use 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first
    - name: -api
            ^^^^
policy.yaml:8:11: unknown key "ip"; use client_ip, header:NAME, query:NAME, cookie:NAME, path:NAME, bearer or instance
      key: [ip]
            ^^
policy.yaml:10:12: lease must be auto or a whole number from 0 to 4294967295, not "sometimes"
      lease: sometimes
             ^^^^^^^^^
policy.yaml:11:5: missing field name
    - limits: []
      ^^^^^^
policy.yaml:11:13: a rule needs at least one limit, for example limits: ["100/s"]
    - limits: []
              ^^
"#,
    ),
];

fn problems(text: &str) -> Problems {
    match PolicyLoader::load_str("policy.yaml", text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(problems) => problems,
    }
}

#[cfg(feature = "redis")]
#[test]
fn every_error_is_reported_with_its_position_and_a_remedy() {
    for (about, text, expected) in CASES {
        assert_eq!(problems(text).to_string(), expected.trim_matches('\n'), "{about}");
    }
}

#[test]
fn no_secret_is_printed() {
    for (about, text, _) in CASES {
        let problems = problems(text);
        assert!(!format!("{problems}{problems:?}").contains("hunter"), "{about}");
    }
}

#[test]
fn a_problem_names_its_field() {
    let text =
        "rules:\n  - { name: a, limits: [5/s] }\n  - { name: b, limits: [5/s, x], key: [y] }\n";
    let problems = problems(text);
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field()).collect();
    assert_eq!(fields, ["rules[1].limits[1]", "rules[1].key[0]"]);
    let first = problems.iter().next().unwrap();
    assert_eq!(
        (first.file(), first.line(), first.column()),
        (Some("policy.yaml"), Some(3), Some(30))
    );
}

#[test]
fn a_hundred_problems_are_reported_and_the_rest_counted() {
    let rules: String = (0..150).map(|i| format!("  - {{ name: r{i}, limits: [x] }}\n")).collect();
    let problems = problems(&format!("rules:\n{rules}"));
    assert_eq!((problems.iter().len(), problems.count()), (Problems::MAX, 150));
    assert!(problems.to_string().ends_with("\nand 50 more"));
}

#[cfg(feature = "redis")]
#[test]
fn a_secret_is_masked_at_every_position() {
    for text in [
        "secret: [hunter2]\n",
        "secret: {hunter2: hunter3}\n",
        "secret: |\n  hunter2\n  hunter3\nrules: 5\n",
        "secret: \"hunter2\n  hunter3\n",
        "{ secret: hunter2, rules: 5 }\n",
        "{ secret: \"hun\\\n  ter2 hunter3\", rules: 5 }\n",
        "? secret\n: hunter2\n? x\n",
        "namespace: &a hunter2 !\nsecret: *a\n",
        "secret: hunter2 # comment\nsecret: hunter3\n",
        "  secret: hunter2\n bad\n",
        "store: redis://u:hunter2@h?hunter3\nstore: x\n",
        "store: >\n  redis://u:hunter2@h\n  x y\nrules: 5",
        "store: \"rds://u:hunter2@h\"\n",
        "store: {a: redis://u:hunter2@h}\n",
        "stroe: redis://u:hunter2@h\n",
        "token: hunter2\n",
        "secret: !x hunter2\n",
        "secret: @hunter2\n",
        "secret: 'hunter2' hunter3\n",
        "secret: *hunter2\n",
        "rules: [{ name: \"a\nsecret: hunter2\", limits: [\"x\nsecret: hunter2 }] }]\n\", 5/s] }]\n",
        "rules: [{ name: \"secret: hunter2\", limits: [1/s], \"a secret: hunter2\": 5, key: secret: hunter2 }]\n",
        "rules: []\nsecret: \t- hunter2\n\t- x\n",
    ] {
        let problems = problems(text);
        let output = format!("{problems}{problems:?}");
        assert!(!output.contains("hunter"), "{text}\n{output}");
    }
}

#[test]
fn an_error_in_an_alias_is_reported_at_its_anchor() {
    let text = "rules:\n  - { name: a, limits: &l [5/s, 6/x] }\n  - name: b\n    limits: *l\n";
    assert_eq!(
        problems(text).to_string(),
        "policy.yaml:2:35: unknown unit \"x\"; use us, ms, s, min, h, d, w or month\n    \
         - { name: a, limits: &l [5/s, 6/x] }\n                                    ^"
    );
    let text = "rules:\n  - { name: a, limits: &l [5/s] }\n  - name: b b\n    limits: *l\n";
    assert!(problems(text).to_string().starts_with("policy.yaml:3:11: rule name \"b b\"; "));
    assert!(!problems(text).to_string().contains("in rule"));
}
