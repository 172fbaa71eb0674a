//! `tidegate replay`: access logs through candidate policies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use tidegate_model::{BucketKind, CellEvent, ModelCell, Spec, TraceRng, WindowKind};

use testkit::server::TempFolder;

const START: u64 = 1_700_000_000;

/// Runs `tidegate replay`.
fn replay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("replay").args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The printed objects of a successful run.
fn objects(arguments: &[&str]) -> Vec<Value> {
    let output = replay(&[arguments, &["--json"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_type<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["type"] == kind).collect()
}

/// Denied requests by key.
fn denied_keys(objects: &[Value]) -> BTreeMap<String, u64> {
    let mut keys = BTreeMap::new();
    for denied in of_type(objects, "denied") {
        *keys.entry(denied["key"].as_str().unwrap().to_string()).or_default() += 1;
    }
    keys
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The error output of a failed run.
fn complaint(arguments: &[&str]) -> String {
    let output = replay(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A rule with these limits per `x-api-key` header.
fn policy(limits: &[String]) -> String {
    format!("rules: [{{ name: api, key: ['header:x-api-key'], limits: {limits:?} }}]\n")
}

/// A table of requests: microseconds, key and cost.
fn table(requests: &[(u64, usize, u64)]) -> String {
    let mut table = "time,method,path,header:x-api-key,cost\n".to_string();
    for (at, key, cost) in requests {
        writeln!(table, "{at},GET,/x,key-{key},{cost}").unwrap();
    }
    table
}

fn specs(rng: &mut TraceRng) -> Vec<Spec> {
    let count = 1 + rng.below(6);
    let period = [1_000_000, 3_000_000, 10_000_000, 60_000_000][rng.below(4) as usize];
    let size = [None, Some(1 + rng.below(9))][rng.below(2) as usize];
    let kind = [BucketKind::Token, BucketKind::Meter, BucketKind::Queue][rng.below(3) as usize];
    let window = [
        WindowKind::Aligned(period),
        WindowKind::FirstHit(period),
        WindowKind::Calendar(tidegate::CalendarUnit::Day),
    ][rng.below(3) as usize];
    let all = [
        Spec::Bucket { kind, count, period, size },
        Spec::Steps { count, period, every: period, burst: size },
        Spec::Fixed { count: count * 4, window },
        Spec::Log { count, window: period },
        Spec::SubWindows { count, window: period, precision: None },
        Spec::Approximate { count, window: period },
    ];
    let first = rng.below(6) as usize;
    let second = rng.below(6) as usize;
    if first == second { vec![all[first]] } else { vec![all[first], all[second]] }
}

/// Requests whose times sometimes step back, as in real logs.
fn requests(rng: &mut TraceRng, count: usize) -> Vec<(u64, usize, u64)> {
    let mut at = START * 1_000_000 + rng.below(1_000_000);
    let mut request = |_| {
        at += [0, 1, rng.below(2_000_000), rng.below(200_000)][rng.below(4) as usize];
        let back = if rng.below(8) == 0 { rng.below(3_000_000) } else { 0 };
        (at - back, rng.below(5) as usize, 1 + rng.below(8) / 6)
    };
    (0..count).map(&mut request).collect()
}

#[test]
fn it_decides_as_the_reference_model_does() {
    let folder = TempFolder::new();
    let (mut decisions, mut denials) = (0, 0);
    for seed in 0..40 {
        let mut rng = TraceRng::new(seed);
        let specs = specs(&mut rng);
        let requests = requests(&mut rng, 400);
        let limits: Vec<String> =
            specs.iter().map(|spec| spec.limit().unwrap().to_string()).collect();
        let config = folder.write("policy.yaml", &policy(&limits));
        let log = folder.write("log.csv", &table(&requests));
        let objects = objects(&[text(&log), "--config", text(&config), "--denials"]);

        let mut cells: BTreeMap<usize, Vec<ModelCell>> = BTreeMap::new();
        let (mut now, mut out_of_order) = (0, 0);
        let mut expected = BTreeSet::new();
        for (i, (at, key, cost)) in requests.iter().enumerate() {
            out_of_order += u64::from(*at < now);
            now = now.max(*at);
            let cells = cells
                .entry(*key)
                .or_insert_with(|| specs.iter().map(|spec| ModelCell::new(*spec)).collect());
            let (now, cost) = (i128::from(now), i128::from(*cost));
            if cells.iter().all(|cell| cell.at(now).fits(cost)) {
                cells.iter_mut().for_each(|cell| cell.push(now, CellEvent::Charge(cost)));
            } else {
                // The header row is line 1.
                expected.insert(i as u64 + 2);
            }
        }
        let denied = of_type(&objects, "denied");
        let lines: BTreeSet<u64> =
            denied.iter().map(|denied| denied["line"].as_u64().unwrap()).collect();
        assert_eq!(lines, expected, "seed {seed}, {limits:?}");
        let log = of_type(&objects, "log")[0];
        assert_eq!(log["out_of_order"], out_of_order, "seed {seed}");
        let rule = of_type(&objects, "rule")[0];
        assert_eq!(
            (&rule["matched"], &rule["denied"]),
            (&400.into(), &expected.len().into()),
            "seed {seed}"
        );
        (decisions, denials) = (decisions + requests.len(), denials + expected.len());
    }
    // The comparison needs both outcomes to be frequent.
    assert!(denials > decisions / 10 && denials < decisions * 9 / 10, "{denials} of {decisions}");
}

const BY_ADDRESS: &str = r#"
trusted_proxies: ["10.0.0.0/8"]
rules:
  - name: shop
    match: { method: GET, path: '/items/{id}', host: shop.example }
    key: [client_ip, "path:id", "query:q", "header:user-agent"]
    limits: ["fixed-window 2/1h"]
"#;

#[test]
fn every_format_gives_the_same_result() {
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", BY_ADDRESS);
    // Four requests of the same client, the last of another path.
    let paths = [
        "http://shop.example/items/7?q=a%20b",
        "http://shop.example/items/%37?q=a+b",
        "http://SHOP.example:80//items/7?q=a b&x",
        "http://shop.example/items/8?q=a b",
    ];
    let lines = |line: &dyn Fn(usize, &str) -> String| -> String {
        paths.iter().enumerate().map(|(i, path)| line(i, path) + "\n").collect()
    };
    let common = |i: usize, path: &str, rest: &str| {
        format!(
            r#"203.0.113.7 - frank [14/Nov/2023:22:13:2{i} +0000] "GET {path} HTTP/1.1" 200 5{rest}"#
        )
    };
    let logs = [
        ("combined", lines(&|i, path| common(i, path, r#" "-" "curl \"8\"""#))),
        (
            "nginx's packages",
            lines(&|i, path| {
                common(i, path, r#" "http://x/\x22" "curl \x228\x22" "6.6.6.6, 203.0.113.7""#)
                    .replacen("203.0.113.7", "10.1.2.3", 1)
            }),
        ),
        (
            "with the virtual host",
            lines(&|i, path| {
                let path = path
                    .split("example:80")
                    .last()
                    .unwrap()
                    .trim_start_matches("http://shop.example");
                format!("shop.example:443 {}", common(i, path, r#" "-" "curl \"8\"""#))
            }),
        ),
        (
            "json",
            lines(&|i, path| {
                serde_json::json!({ "start_time": format!("2023-11-14T22:13:2{i}.123Z"), "method": "GET",
                "path": path.split_once("example").unwrap().1.trim_start_matches(":80"), "authority": "shop.example",
                "user_agent": "curl \"8\"", "downstream_remote_address": "10.9.9.9:4711", "bytes_sent": 5,
                "x_forwarded_for": "6.6.6.6,203.0.113.7, 10.1.1.1", "response_flags": null, "labels": { "a": [1] } })
            .to_string()
            }),
        ),
        (
            "csv",
            "\u{feff}Timestamp,remote_addr,METHOD,uri,Host,\"header:User-Agent\",X-Forwarded-For\n"
                .to_string()
                + &lines(&|i, path| {
                    let path = path.split_once("example").unwrap().1.trim_start_matches(":80");
                    format!(
                        r#"170000000{i},"10.0.0.1",GET,{path},shop.example,"curl ""8""","6.6.6.6, 203.0.113.7""#
                    )
                }),
        ),
        (
            "tabs",
            "time\tclient_ip\tmethod\tpath\thost\tuser_agent\tnothing\r\n".to_string()
                + &lines(&|i, path| {
                    format!("2023-11-14 22:13:2{i}\t203.0.113.7\tGET\t{path}\t-\tcurl \"8\"\t\r")
                }),
        ),
    ];
    for (name, log) in logs {
        let log = folder.write("log", &log);
        let objects = objects(&[text(&log), "--config", text(&config), "--denials"]);
        let log = of_type(&objects, "log")[0];
        assert_eq!(
            (&log["requests"], &log["malformed"]),
            (&4.into(), &0.into()),
            "{name}: {objects:?}"
        );
        let denied = of_type(&objects, "denied");
        assert_eq!(denied.len(), 1, "{name}: {objects:?}");
        assert_eq!(denied[0]["key"], r#"203.0.113.7|7|a b|curl "8""#, "{name}");
        assert!(
            denied[0]["at"].as_str().unwrap().starts_with("2023-11-14T22:13:22"),
            "{name}: {denied:?}"
        );
        assert_eq!(of_type(&objects, "rule")[0]["matched"], 4, "{name}");
    }
}

#[test]
fn a_format_that_was_named_is_not_guessed() {
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", &policy(&["1/s".into()]));
    let log = folder.write("log", &table(&[(START, 1, 1)]));
    let (log, config) = (text(&log), text(&config));
    assert_eq!(of_type(&objects(&[log, "--config", config]), "log")[0]["format"], "csv");
    let printed = complaint(&[log, "--config", config, "--format", "json"]);
    assert!(
        printed.contains("none of 2 lines")
            && printed.contains("is valid json")
            && printed.contains("--format"),
        "{printed}"
    );
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

#[test]
fn packed_logs_and_standard_input_are_read_as_files_are() {
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", &policy(&["2/s".into()]));
    let requests: Vec<_> =
        (0..4_000).map(|i| (START * 1_000_000 + i * 100_000, (i % 3) as usize, 1)).collect();
    let table = table(&requests);
    let config = text(&config);
    let plain = folder.write("log.csv", &table);
    let expected = objects(&[text(&plain), "--config", config]);
    let expected: Vec<&Value> = expected.iter().filter(|object| object["type"] != "log").collect();
    assert_ne!(expected[0]["denied"], 0);

    // Concatenated files count as one, as rotated logs do.
    let (one, other) = table.split_at(table.find("\n").unwrap() + 1);
    let packed = [gzip(one.as_bytes()), gzip(other.as_bytes())].concat();
    let path = folder.path("log.gz");
    std::fs::write(&path, &packed).unwrap();
    let read = objects(&[text(&path), "--config", config]);
    assert_eq!(read.iter().filter(|object| object["type"] != "log").collect::<Vec<_>>(), expected);

    for input in [table.as_bytes(), &packed] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["replay", "-", "--json", "--config", config]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let bytes = input.to_vec();
        let writer = std::thread::spawn(move || stdin.write_all(&bytes));
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        let read: Vec<Value> = output
            .stdout
            .split(|b| *b == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        assert_eq!(read[0]["log"], "standard input");
        assert_eq!(
            read.iter().filter(|object| object["type"] != "log").collect::<Vec<_>>(),
            expected
        );
    }

    // A truncated log is reported as far as it goes, with a note.
    std::fs::write(&path, &packed[..packed.len() - 100]).unwrap();
    let read = objects(&[text(&path), "--config", config]);
    assert_eq!(read[0]["complete"], false);
    assert!(
        of_type(&read, "note")[0]["text"].as_str().unwrap().contains("is truncated"),
        "{read:?}"
    );
    std::fs::write(&path, &packed[..12]).unwrap();
    assert!(complaint(&[text(&path), "--config", config]).contains("cannot read"));
}

#[test]
fn malformed_lines_are_counted_and_a_few_are_shown_escaped() {
    let folder = TempFolder::new();
    let config =
        folder.write("policy.yaml", "rules: [{ name: all, key: [client_ip], limits: [1/h] }]");
    let good = r#"10.0.0.1 - - [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 5 "-" "-""#;
    let long = "x".repeat(200_000);
    let bad = [
        "\x1b[31mred\u{202e}".to_string(),
        good.replace("Nov", "Nev"),
        good.replace("GET / HTTP/1.1", "-"),
        good.replace("GET / HTTP/1.1", r"\x16\x03\x01"),
        long,
        good.replace("GET /", "GET items"),
        good[..50].to_string(),
    ];
    let log = folder.write("log", &format!("{good}\n{}\n\n{good}\n", bad.join("\n")));
    let read = objects(&[text(&log), "--config", text(&config)]);
    let counts = |name: &str| read[0][name].as_u64().unwrap();
    assert_eq!((counts("lines"), counts("requests"), counts("malformed")), (10, 2, 7));
    let examples = of_type(&read, "malformed");
    let lines: Vec<u64> =
        examples.iter().map(|example| example["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 3, 4, 5, 6]);
    assert_eq!(examples[0]["text"], r"\u{1b}[31mred\u{202e}");
    assert!(examples[4]["text"].as_str().unwrap().len() < 200);
    assert_eq!(read[2]["type"], "malformed", "{read:?}");
    let output = replay(&[text(&log), "--config", text(&config)]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        printed.contains("7 lines are malformed")
            && printed.contains(r"line 2: missing [time]: \u{1b}[31mred"),
        "{printed}"
    );
    assert!(
        !printed.contains('\x1b') && !printed.contains('█'),
        "plain where it is no terminal: {printed}"
    );
}

/// A mutated line.
fn mutated(line: &[u8], rng: &mut TraceRng) -> Vec<u8> {
    const BITS: [&[u8]; 16] = [
        b"\"",
        b"\\",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"\0",
        b"\xff\xfe",
        b" ",
        b"%",
        b"99999999999999999999",
        b"-",
        b"\x1b[2J",
        b"\\x",
        b"\xe2\x80\xae",
    ];
    let mut line = line.to_vec();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(line.len() as u64 + 1) as usize;
        let end = (at + rng.below(6) as usize).min(line.len());
        match rng.below(5) {
            0 => drop(line.drain(at..end)),
            1 => line.truncate(at),
            2 => drop(line.splice(at..end, BITS[rng.below(16) as usize].iter().copied())),
            3 => {
                let copy = line[at..end].to_vec();
                drop(line.splice(at..at, copy.repeat(1 + rng.below(40) as usize)));
            }
            _ if at < line.len() => line[at] = rng.below(256) as u8,
            _ => {}
        }
    }
    line
}

#[test]
fn hostile_logs_end_it_neither_early_nor_late_nor_large() {
    let folder = TempFolder::new();
    let config = folder.write(
        "policy.yaml",
        "rules:\n  - { name: a, match: { path: '/items/{id}' }, key: [client_ip, 'query:q', 'cookie:c', bearer, 'path:id'], \
         limits: ['3/s', sliding-log 5/m], shadow_limits: ['1/s'] }\n  - { name: b, key: ['header:user-agent'], limits: [2/s] }\n",
    );
    let json = r#"{"start_time":"2023-11-14T22:13:20.123Z","method":"GET","path":"/items/7?q=1","authority":"a.example","cookie":"c=1","authorization":"Bearer x","downstream_remote_address":"10.0.0.1:80","x_forwarded_for":"1.1.1.1","cost":2}"#;
    let csv = "1700000000.5,10.0.0.1,GET,/items/7?q=1,a.example,\"curl \"\"8\"\"\",c=1";
    let combined = r#"10.0.0.1 - - [14/Nov/2023:22:13:20 +0000] "GET /items/7?q=1 HTTP/1.1" 200 5 "-" "curl \"8\"""#;
    for (format, header, line) in [
        ("json", "", json),
        ("csv", "time,remote_addr,method,path,host,user_agent,cookie\n", csv),
        ("combined", "", combined),
    ] {
        for seed in 0..4 {
            let mut rng = TraceRng::new(seed);
            let mut log = header.as_bytes().to_vec();
            for i in 0..5_000 {
                match i % 5 {
                    0 => log.extend(line.as_bytes()),
                    _ => log.extend(mutated(line.as_bytes(), &mut rng)),
                }
                log.push(b'\n');
            }
            // A line that never ends.
            log.extend(vec![b'['; 3 << 20]);
            let path = folder.path("log");
            std::fs::write(&path, &log).unwrap();
            // Far less than keeping the input would take; heap arenas take address space.
            let script = "ulimit -v 1500000; exec \"$0\" replay \"$1\" --config \"$2\" --format \"$3\" --json --suggest 99 --denials";
            let mut command = Command::new("timeout");
            command.args([
                "60",
                "sh",
                "-c",
                script,
                env!("CARGO_BIN_EXE_tidegate"),
                text(&path),
                text(&config),
                format,
            ]);
            let output = command.stdin(Stdio::null()).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{format}, seed {seed}: {stderr}");
            for line in output.stdout.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
                let _: Value = serde_json::from_slice(line).expect("every line is an object");
            }
            let read = output
                .stdout
                .split(|b| *b == b'\n')
                .map(|line| serde_json::from_slice::<Value>(line).unwrap_or_default());
            let log = read.into_iter().find(|object| object["type"] == "log").unwrap();
            assert!(log["requests"].as_u64().unwrap() >= 1_000, "{format}, seed {seed}: {log}");
            assert!(log["malformed"].as_u64().unwrap() >= 100, "{format}, seed {seed}: {log}");
        }
    }
}

#[test]
fn one_line_from_the_future_does_not_make_an_instant_of_all_others() {
    const DAY: u64 = 86_400;
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", &policy(&["1/s".to_owned()]));
    // Seconds after the start, and the number of implausible lines.
    let cases: [(&[u64], u64, u64); 6] = [
        (&[0, 1, 2, 3 * DAY, 3, 4, 5], 1, 0),
        (&[3 * DAY, 0, 1, 2, 3], 1, 0),
        // Gaps are fine, and the last line affects no other.
        (&[0, 1, 3 * DAY, 3 * DAY + 1, 7 * DAY], 0, 0),
        (&[0, 1, 3 * DAY, 9 * DAY, 9 * DAY + 1], 0, 0),
        (&[0, 3 * DAY, 1, 5 * DAY, 2], 2, 0),
        // Less than a day back counts as a line written late.
        (&[DAY, 1, DAY + 1], 0, 1),
    ];
    for (times, malformed, out_of_order) in cases {
        let requests: Vec<_> = times.iter().map(|at| ((START + at) * 1_000_000, 1, 1)).collect();
        let log = folder.write("log.csv", &table(&requests));
        let message = objects(&[text(&log), "--config", text(&config), "--denials"]);
        let read = of_type(&message, "log")[0];
        let counts =
            ["requests", "malformed", "out_of_order"].map(|name| read[name].as_u64().unwrap());
        let expected = [times.len() as u64 - malformed, malformed, out_of_order];
        assert_eq!(counts, expected, "{times:?}: {read}");
        assert_eq!(of_type(&message, "denied").len() as u64, out_of_order, "{times:?}");
    }
    let newest_first: Vec<_> = (0..9).map(|i| ((START + 9 - i) * 1_000_000, 1, 1)).collect();
    let log = folder.write("log.csv", &table(&newest_first));
    let printed = replay(&[text(&log), "--config", text(&config)]).stdout;
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.contains("reverse it with tac"), "{printed}");
}

#[test]
fn two_policies_are_compared_request_by_request() {
    let folder = TempFolder::new();
    let strict = folder.write("strict.yaml", &policy(&["fixed-window 1/1h".into()]));
    let loose = "rules: [{ name: api, key: ['header:x-api-key'], limits: [fixed-window 3/1h], deny: [key-2] }]";
    let loose = folder.write("loose.yaml", loose);
    // Key 1 comes five times, key 2 twice, key 3 once.
    let requests = [1, 1, 2, 1, 3, 1, 2, 1].map(|key| (START * 1_000_000, key, 1));
    let log = folder.write("log.csv", &table(&requests));
    let (strict, loose) = (text(&strict), text(&loose));
    let read = objects(&[text(&log), "--config", strict, "--config", loose]);
    // Denied by both: the last two of key 1 and the second of key 2. By the strict one alone: two
    // more of key 1. By the loose one alone: the first of key 2.
    let comparison = of_type(&read, "comparison")[0];
    assert_eq!(comparison["denied_by_both"], 3);
    assert_eq!(comparison["denied_by_first_only"], 2);
    assert_eq!(comparison["denied_by_second_only"], 1);
    let only: Vec<_> = of_type(&read, "only_denied_key")
        .iter()
        .map(|o| (o["config"].clone(), o["key"].clone(), o["count"].clone()))
        .collect();
    assert_eq!(only[0], (strict.into(), "key-1".into(), 2.into()));
    assert_eq!(only.len(), 2);
    let output = replay(&[text(&log), "--config", strict, "--config", loose]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains(&format!("2 denied by {strict} and not by {loose}")), "{printed}");
    let printed =
        complaint(&[text(&log), "--config", strict, "--config", loose, "--config", loose]);
    assert!(printed.contains("at most two"), "{printed}");
}

#[test]
fn shadow_rules_and_lists_are_counted_separately() {
    let folder = TempFolder::new();
    let config = folder.write(
        "policy.yaml",
        "rules:\n  - { name: old, key: ['header:x-api-key'], limits: [fixed-window 3/1h], shadow_limits: [fixed-window 1/1h], \
         allow: [key-9], deny: [key-8] }\n  - { name: slots, limits: [concurrency 1], shadow: true }\n",
    );
    let requests = [1, 1, 1, 1, 9, 9, 8].map(|key| (START * 1_000_000, key, 1));
    let log = folder.write("log.csv", &table(&requests));
    let read = objects(&[text(&log), "--config", text(&config)]);
    let rule = of_type(&read, "rule")[0];
    for (field, count) in [
        ("matched", 7),
        ("denied", 2),
        ("allowed", 5),
        ("denied_by_list", 1),
        ("exempt", 2),
        ("would_deny", 2),
    ] {
        assert_eq!(rule[field], count, "{field}: {rule}");
    }
    assert_eq!(rule["limits"][0]["denied"], 1);
    assert_eq!(rule["limits"][1]["would_deny"], 2);
    assert_eq!(rule["never"], true);
    assert_eq!(rule["first_denial"], "2023-11-14T22:13:20Z");
    let would: Vec<_> = of_type(&read, "would_deny_key");
    assert_eq!((&would[0]["key"], &would[0]["count"]), (&"key-1".into(), &2.into()));
    let notes = of_type(&read, "note");
    assert!(
        notes.iter().any(|note| note["text"].as_str().unwrap().contains("concurrency")),
        "{notes:?}"
    );
    let buckets = of_type(&read, "bucket");
    assert_eq!(
        (&buckets[0]["requests"], &buckets[0]["denied"], &buckets[0]["would_deny"]),
        (&7.into(), &2.into(), &2.into())
    );
}

#[test]
fn a_suggested_limit_is_the_least_that_serves_so_many_keys() {
    let folder = TempFolder::new();
    let templates = [
        "10/s burst N",
        "4/10s burst N every 5s",
        "leaky-bucket 2/s capacity N",
        "leaky-bucket 2/s capacity N queue",
        "fixed-window N/10s",
        "fixed-window N/d tz Europe/Berlin",
        "fixed-window N/10s first-hit",
        "sliding-log N/10s",
        "sliding-window N/10s precision 1s",
        "sliding-window N/10s approximate",
    ];
    for (seed, template) in templates.iter().enumerate() {
        let mut rng = TraceRng::new(seed as u64);
        let mut at = START * 1_000_000;
        let requests: Vec<_> = (0..2_000)
            .map(|_| {
                at += rng.below(100_000);
                // Some keys are far more frequent than others.
                let most = 1 + rng.below(60);
                let key = rng.below(most) as usize;
                (at, key, 1 + rng.below(10) / 9 * 3)
            })
            .collect();
        let log = folder.write("log.csv", &table(&requests));
        let denied_at = |size: u64| {
            let limit = template.replace('N', &size.to_string());
            let config = folder.write("policy.yaml", &policy(&[limit]));
            denied_keys(&objects(&[text(&log), "--config", text(&config), "--denials"]))
        };
        let config = folder.write("policy.yaml", &policy(&[template.replace('N', "5")]));
        let read = objects(&[text(&log), "--config", text(&config), "--suggest", "90"]);
        let suggestion = of_type(&read, "suggestion")[0];
        let number = |field: &str| suggestion[field].as_u64().unwrap();
        let wanted = suggestion["need"]["wanted"].as_u64().unwrap();
        let (keys, above) = (number("keys"), number("keys_above"));
        assert_eq!(
            keys,
            requests.iter().map(|(_, key, _)| key).collect::<BTreeSet<_>>().len() as u64
        );
        let suggested: tidegate::Limit = suggestion["suggested"].as_str().unwrap().parse().unwrap();
        assert_eq!(
            suggested,
            template.replace('N', &wanted.to_string()).parse().unwrap(),
            "{template}"
        );
        assert!(above * 10 <= keys && above > 0, "{template}: {suggestion}");
        assert_eq!(denied_at(wanted).len() as u64, above, "{template}: {suggestion}");
        let fewer = denied_at(wanted - 1).len() as u64;
        assert!(
            fewer > above && fewer * 10 > keys,
            "{template}: {fewer} denied at one less, {suggestion}"
        );
        let max = suggestion["need"]["max"].as_u64().unwrap();
        assert_eq!((denied_at(max).len(), !denied_at(max - 1).is_empty()), (0, true), "{template}");
    }
}

#[test]
fn invalid_input_is_reported_with_a_remedy() {
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", &policy(&["1/s".into()]));
    let log = folder.write("log.csv", &table(&[(START, 1, 1)]));
    let bad = folder.write("bad.yaml", "rules: [{ name: api, limits: [5/parsec] }]");
    let none = folder.write("none.yaml", "rules: []");
    let empty = folder.write("empty.log", "\n\n");
    let prose = folder.write("prose.log", "It was a dark night,\nand there was no log.\n");
    let headless = folder.write("headless.csv", "1700000000,GET,/x\n");
    let missing = folder.path("missing.log");
    let (config, log) = (text(&config), text(&log));
    for (arguments, expected) in [
        (vec![text(&missing), "--config", config], "name an access log"),
        (vec![text(&empty), "--config", config], "is empty"),
        (vec![text(&prose), "--config", config], "set --format to"),
        (
            vec![text(&headless), "--config", config, "--format", "csv"],
            "for example time,method,path",
        ),
        (vec![log, "--config", text(&bad)], "unknown unit \"parsec\""),
        (vec![log, "--config", text(&none)], "no rules"),
        (vec![log, "--config", text(&missing)], "missing.log"),
        (vec![log], "--config"),
        (vec![log, "--config", config, "--suggest", "101"], "at most 100"),
        (vec![log, "--config", config, "--format", "xml"], "possible values"),
    ] {
        let complaint = complaint(&arguments);
        assert!(complaint.contains(expected), "{arguments:?}: {complaint}");
    }
}

#[test]
fn requests_without_a_key_are_noted_with_their_number() {
    let folder = TempFolder::new();
    let policy = "
rules:
  - { name: shared, key: ['header:x-api-key'], limits: [5/h] }
  - { name: denied, match: { path: /x }, key: ['cookie:sid'], on_missing_key: deny, limits: [5/h] }
";
    let policy = folder.write("policy.yaml", policy);
    let log = "time,method,path\n2026-01-01T00:00:00Z,GET,/x\n2026-01-01T00:00:01Z,GET,/y\n";
    let log = folder.write("log.csv", log);
    let output = replay(&[text(&log), "--config", text(&policy)]);
    let notes = String::from_utf8(output.stderr).unwrap();
    for note in [
        "rule \"shared\": requests without header x-api-key in this log: 2; they count as one key",
        "rule \"denied\": requests without cookie sid in this log: 1; they are denied",
    ] {
        assert!(notes.contains(note), "{note}:\n{notes}");
    }
}

#[test]
fn rules_that_match_nothing_are_pointed_at() {
    let folder = TempFolder::new();
    let other = folder
        .write("other.yaml", "rules: [{ name: login, match: { path: /login }, limits: [1/s] }]");
    let log = folder.write("log.csv", &table(&[(START, 1, 1)]));
    let output = replay(&[text(&log), "--config", text(&other)]);
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(
        printed.contains("no rule matches any of the 1 requests") && printed.contains("GET /x"),
        "{printed}"
    );
}

#[test]
fn a_closed_output_is_no_failure() {
    let folder = TempFolder::new();
    let config = folder.write("policy.yaml", &policy(&["1/h".into()]));
    let requests: Vec<_> = (0..20_000).map(|i| (START + i, 1, 1)).collect();
    let log = folder.write("log.csv", &table(&requests));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["replay", text(&log), "--config", text(&config), "--denials"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty());
}
