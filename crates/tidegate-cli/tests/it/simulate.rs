//! `tidegate simulate`, `POST /v1/simulate`, and their guide.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::process::{CommandOutput, tidegate};
use testkit::server::{ServerProcess, TempFolder};

const BURSTS: &str = "burst 100 every 7s for 1m";

fn simulate(arguments: &[&str]) -> CommandOutput {
    tidegate(&[&["simulate"], arguments].concat(), &[])
}

// --- the command -------------------------------------------------------------------------------

#[test]
fn it_prints_a_table_with_a_row_for_each_limit() {
    let ran = simulate(&[
        "--limit",
        "fixed-window 100/10s",
        "--limit",
        "sliding-log 100/10s",
        "--traffic",
        BURSTS,
    ]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    let expected = "\
burst 100 every 7s for 1m
900 requests of 1 key in 1m, seed 1

limit                 admitted          denied  wait  worst window/bound
fixed-window 100/10s       600  66.6 %     300    3s   200 of 200 in 10s
sliding-log 100/10s        500  55.5 %     400    3s   100 of 100 in 10s
";
    assert_eq!(ran.stdout, expected);
}

#[test]
fn several_keys_several_limits_and_turns_have_columns_of_their_own() {
    let limits =
        ["--limit", "leaky-bucket 5/s capacity 9 queue", "--limit", "9/s + fixed-window 60/1m"];
    let ran = simulate(
        &[&limits[..], &["--traffic", "poisson 60/s keys 5 zipf 1.5 for 20s", "--seed", "3"]]
            .concat(),
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let head = ran.stdout.lines().nth(3).unwrap();
    for word in ["delay", "fair", "least", "most"] {
        assert!(head.contains(word), "{head}");
    }
    assert!(
        ran.stdout.contains("\n  9/s  ") && ran.stdout.contains("\n  fixed-window 60/m  "),
        "{}",
        ran.stdout
    );
}

#[test]
fn calls_that_reserve_are_compared_with_other_methods() {
    let calls = "estimate 800 cost 100..800 takes 2s..90s";
    let arguments = ["--limit", "sliding-log 10000/1m", "--traffic", "poisson 2/s for 10m"];
    let ran = simulate(&[&arguments[..], &["--calls", calls]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let worst = |method: &str| {
        let row = ran.stdout.lines().find(|line| line.contains(method)).unwrap();
        let (before, _) = row.split_once(" of 10,000 in 1m").unwrap();
        before.rsplit(' ').next().unwrap().replace(',', "").parse::<u64>().unwrap()
    };
    assert!(ran.stdout.contains(&format!("\n{calls}\n")), "{}", ran.stdout);
    assert!(worst("reserve and commit") <= 10_000, "{}", ran.stdout);
    assert!(worst("check before, charge after") > 10_000, "{}", ran.stdout);
    let wrong = simulate(&[&arguments[..], &["--calls", "estimate 800"]].concat());
    assert!(wrong.stderr.contains("write calls like estimate 800"), "{}", wrong.stderr);
    let server = ServerProcess::start(&[], &[]);
    let mut body = json!({
        "limits": ["sliding-log 10000/1m"], "traffic": "poisson 2/s for 10m", "calls": calls
    });
    let report = server.post("/v1/simulate", &body).json();
    let methods = report["limits"][0]["calls"].as_array().unwrap();
    let names: Vec<_> = methods.iter().map(|one| one["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["reserve", "refund_difference", "charge_after"]);
    assert_eq!(
        (&report["calls"], &methods[0]["worst"][0]),
        (&json!(calls), &json!(worst("reserve")))
    );
    body["calls"] = json!("cost 5");
    let refused = server.post("/v1/simulate", &body);
    assert_eq!((refused.status, &refused.json()["field"]), (400, &json!("calls")));
}

#[test]
fn the_same_seed_prints_the_same_bytes() {
    let folder = TempFolder::new();
    let run = |seed: &str, name: &str| {
        let path = folder.path(name);
        let arguments =
            ["--limit", "8/s", "--limit", "concurrency 3", "--hold", "150ms", "--seed", seed];
        let traffic =
            ["--traffic", "poisson 30/s keys 9 zipf 1.1 for 30s + ramp 0/s to 9/s", "--plot"];
        let json =
            simulate(&[&arguments[..], &traffic, &[path.to_str().unwrap(), "--json"]].concat());
        assert_eq!(json.code, Some(0), "{}", json.stderr);
        (json.stdout, std::fs::read_to_string(path).unwrap())
    };
    let (first, again, other) = (run("7", "a.svg"), run("7", "b.svg"), run("8", "c.svg"));
    assert_eq!(first, again);
    assert_ne!(first.0, other.0);
    assert_ne!(first.1, other.1);
}

#[test]
fn json_is_one_line_in_which_nothing_is_lost() {
    let ran = simulate(&[
        "--limit",
        "20/s",
        "--limit",
        "0/s",
        "--traffic",
        "poisson 40/s keys 3 for 10s",
        "--json",
    ]);
    assert_eq!((ran.code, ran.stdout.lines().count()), (Some(0), 1));
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let offered = report["offered"].as_u64().unwrap();
    let sum = |series: &Value| {
        series.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum(&report["offered_series"]), offered);
    for run in report["limits"].as_array().unwrap() {
        assert_eq!(run["admitted"].as_u64().unwrap() + run["denied"].as_u64().unwrap(), offered);
        assert_eq!(sum(&run["passed_series"]), run["admitted"].as_u64().unwrap());
        assert_eq!(sum(&run["denied_series"]), run["denied"].as_u64().unwrap());
    }
    assert_eq!(report["limits"][1]["never"], true);
    assert_eq!(report["limits"][1]["longest_wait_ms"], Value::Null);
    assert_eq!(report.get("svg"), None);
}

#[test]
fn errors_are_reported_with_position_and_exit_code_2() {
    for (arguments, message) in [
        (
            &["--limit", "5/s", "--traffic", "stedy 5/s for 1m"][..],
            "error: --traffic: unknown pattern \"stedy\"; write steady 5/s for 1m\n  stedy 5/s for 1m\n  ^^^^^\n",
        ),
        (
            &["--limit", "1/s + 5/parsec", "--traffic", "steady 5/s"],
            "error: --limit: unknown unit \"parsec\"; use us, ms, s, min, h, d, w or month\n  1/s + 5/parsec\n          ^^^^^^\n",
        ),
        (
            &["--limit", "concurrency 5", "--traffic", "steady 5/s"],
            "error: concurrency counts holders; set a hold time, for example --hold 200ms\n",
        ),
        (
            &["--limit", "5/s", "--traffic", "steady 5/s", "--hold", "1month"],
            "error: --hold: a month has no fixed length; use days\n",
        ),
        (
            &["--limit", "5/s", "--traffic", "steady 5/s", "--plot", "/nowhere/at/all.svg"],
            "error: cannot write /nowhere/at/all.svg: No such file or directory (os error 2)\n",
        ),
        (
            &["--limit", "5/s", "--traffic", "steady 1000000/s for 1h"],
            "error: --traffic: 3600000000 requests are too many; at most 10000000: lower a rate or shorten a span\n  \
             steady 1000000/s for 1h\n  ^^^^^^^^^^^^^^^^^^^^^^^\n",
        ),
    ] {
        let ran = simulate(arguments);
        assert_eq!((ran.code, &*ran.stderr, &*ran.stdout), (Some(2), message, ""), "{arguments:?}");
    }
    assert_eq!(simulate(&["--traffic", "steady 5/s"]).code, Some(2), "no limit");
    let help = simulate(&["--help"]);
    assert!(help.code == Some(0) && help.stdout.contains("Examples:"), "{}", help.stdout);
}

#[test]
fn a_closed_output_ends_the_command() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["simulate", "--limit", "5/s", "--traffic", "steady 9/s", "--json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

// --- pictures ----------------------------------------------------------------------------------

/// Checks that the text is one well-formed element with known entities, and returns the element
/// names.
fn well_formed(mut xml: &str) -> Result<Vec<String>, String> {
    let (mut open, mut all) = (Vec::new(), Vec::new());
    xml = xml.trim_end();
    while let Some(start) = xml.find('<') {
        let text = &xml[..start];
        if open.is_empty() && !text.is_empty() {
            return Err(format!("text outside: {text:?}"));
        }
        entities(text)?;
        let end = xml.find('>').ok_or("a tag without an end")?;
        let tag = &xml[start + 1..end];
        xml = &xml[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return Err(format!("</{name}> closes nothing"));
            }
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, mut attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("<{tag}> is no element"));
        }
        while !attributes.is_empty() {
            let (key, rest) = attributes.split_once("=\"").ok_or(format!("<{tag}>"))?;
            let (value, rest) = rest.split_once('"').ok_or(format!("<{tag}>"))?;
            entities(value)?;
            if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                return Err(format!("attribute {key:?}"));
            }
            attributes = rest.strip_prefix(' ').unwrap_or(rest);
        }
        all.push(name.to_string());
        if !closed {
            open.push(name.to_string());
        }
    }
    if open.is_empty() && xml.is_empty() {
        Ok(all)
    } else {
        Err(format!("open at the end: {open:?}"))
    }
}

fn entities(text: &str) -> Result<(), String> {
    for rest in text.split('&').skip(1) {
        let known =
            ["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|name| rest.starts_with(name));
        known.then_some(()).ok_or(format!("a bare & before {rest:?}"))?;
    }
    let control = text.contains(|c: char| c.is_control() && c != '\n');
    if control { Err(format!("{text:?}")) } else { Ok(()) }
}

#[test]
fn the_checker_knows_good_xml_from_bad() {
    assert_eq!(well_formed("<a x=\"1\"><b/>t&lt;</a>\n").unwrap(), ["a", "b"]);
    for bad in [
        "<a>",
        "<a></b>",
        "<a x=1></a>",
        "<a>&</a>",
        "<a/>t",
        "t<a/>",
        "<a x=\"<\"/",
        "</a>",
        "<a>\u{1b}</a>",
    ] {
        assert!(well_formed(bad).is_err(), "{bad}");
    }
}

#[test]
fn every_picture_is_well_formed_and_loads_nothing() {
    let folder = TempFolder::new();
    let path = folder.path("picture.svg");
    for (traffic, limits) in [
        ("steady 0/s for 1us", &["5/s"][..]),
        ("steady 1/us for 3us", &["sliding-log 2/us", "0/s"]),
        (
            "poisson 3/d keys 9 for 200d",
            &["fixed-window 5/d tz Asia/Shanghai", "fixed-window 9/month", "1/36500d"],
        ),
        (
            "burst 999 every 1s keys 50 zipf 0.5 for 3s",
            &["leaky-bucket 1/h capacity 500 queue", "concurrency 4", "3/s + 9/m + 99/h"],
        ),
    ] {
        let limits: Vec<&str> = limits.iter().flat_map(|limit| ["--limit", limit]).collect();
        let options = ["--hold", "1s", "--traffic", traffic, "--plot", path.to_str().unwrap()];
        let ran = simulate(&[&options[..], &limits].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let picture = std::fs::read_to_string(&path).unwrap();
        let names = well_formed(&picture).unwrap_or_else(|error| panic!("{traffic}: {error}"));
        assert_eq!(names[..3], ["svg", "title", "style"]);
        let known = ["svg", "title", "style", "rect", "text", "line", "path"];
        assert!(names.iter().all(|name| known.contains(&&**name)), "{names:?}");
        let plain = picture.replacen("http://www.w3.org/2000/svg", "", 1);
        for outside in ["http", "href", "url(", "@import", "NaN", "inf"] {
            assert!(!plain.contains(outside), "{traffic}: {outside}");
        }
        assert!(plain.contains("prefers-color-scheme:dark"));
    }
}

// --- the guide ---------------------------------------------------------------------------------

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Each command of the guide with its printed output.
fn shown() -> Vec<(String, Vec<String>)> {
    let guide = std::fs::read_to_string(root().join("docs/use/choosing-a-limit.md")).unwrap();
    let mut all = Vec::new();
    for block in guide.split("```console\n").skip(1) {
        let mut lines = block.split("\n```").next().unwrap().lines();
        let first = lines.next().unwrap().strip_prefix("$ ").unwrap();
        let mut command = first.to_string();
        while let Some(rest) = command.strip_suffix('\\') {
            command = format!("{rest}{}", lines.next().unwrap());
        }
        all.push((command, lines.map(String::from).collect()));
    }
    all
}

#[test]
fn the_guide_shows_what_its_commands_print_and_draw() {
    let bin = Path::new(env!("CARGO_BIN_EXE_tidegate")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let folder = TempFolder::new();
    std::fs::create_dir_all(folder.path("docs/images")).unwrap();
    let mut pictures = 0;
    for (command, lines) in shown() {
        assert!(command.starts_with("tidegate simulate "), "{command}");
        let mut shell = Command::new("sh");
        let output = shell
            .args(["-c", &command])
            .current_dir(folder.path(""))
            .env("PATH", &path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed.lines().collect::<Vec<_>>(), lines, "{command}");
        if let Some((_, file)) = command.split_once("--plot ") {
            let file = file.split(' ').next().unwrap();
            let [drawn, kept] = [folder.path(file), root().join(file)]
                .map(|path| std::fs::read_to_string(path).unwrap());
            assert!(
                drawn == kept,
                "{file} is not what its command draws; run docs/images/render-charts"
            );
            pictures += 1;
        }
    }
    let files = std::fs::read_dir(root().join("docs/images")).unwrap();
    let files =
        files.filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|e| e == "svg"));
    assert_eq!(pictures, files.count(), "every picture has its command");
}

#[test]
fn the_script_that_draws_the_guides_pictures_agrees() {
    let mut script = Command::new("sh");
    script.arg(root().join("docs/images/render-charts")).arg("--check");
    let output = script.env("TIDEGATE", env!("CARGO_BIN_EXE_tidegate")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

// --- the call ----------------------------------------------------------------------------------

#[test]
fn the_call_returns_what_the_command_prints() {
    let server = ServerProcess::start(&[], &[]);
    let limits = ["20/s burst 40", "sliding-window 90/10s + concurrency 9"];
    let traffic = "poisson 30/s keys 9 zipf 1.1 for 20s";
    let mut body = json!({ "limits": limits, "traffic": traffic, "seed": 9, "hold_ms": 200 });
    let response = server.post("/v1/simulate", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let options = ["--seed", "9", "--hold", "200ms", "--json", "--traffic", traffic];
    let ran = simulate(&[&options[..], &["--limit", limits[0], "--limit", limits[1]]].concat());
    assert_eq!(ran.stdout.trim_end(), response.body);

    body["plot"] = true.into();
    let drawn = server.post("/v1/simulate", &body).json();
    well_formed(drawn["svg"].as_str().unwrap()).unwrap();
}

#[test]
fn the_call_refuses_what_would_take_long_and_what_is_wrong() {
    let server = ServerProcess::start(&[], &[]);
    let good = json!({ "limits": ["5/s"], "traffic": "steady 9/s for 1s" });
    for (field, value, message, says) in [
        ("traffic", json!("stedy 5/s"), "traffic", "unknown pattern \"stedy\"; write steady 5/s"),
        (
            "traffic",
            json!("steady 200001/s for 1s"),
            "traffic",
            "200001 decisions exceed the maximum",
        ),
        ("traffic", json!("steady 5/s keys 10001"), "traffic", "10001 keys exceed the maximum"),
        ("traffic", json!("steady 1/us for 200d"), "traffic", "requests are too many"),
        ("limits", json!(["5/s", "5/parsec"]), "limits[1]", "unknown unit"),
        ("limits", json!([]), "limits", "0 candidates; use 1 to 16"),
        ("limits", json!(["concurrency 5"]), "hold_ms", "concurrency counts holders"),
        ("hold_ms", json!(0), "hold_ms", "use 1 to 86400000"),
        ("other", json!(0), "other", "unknown field"),
    ] {
        let mut body = good.clone();
        body[field] = value;
        let response = server.post("/v1/simulate", &body);
        assert_eq!(
            (response.status, response.json()["field"].as_str()),
            (400, Some(message)),
            "{}",
            response.body
        );
        assert!(response.json()["detail"].as_str().unwrap().contains(says), "{}", response.body);
    }
    // Sixteen limits share the budget of one call.
    let many = json!({ "limits": vec!["5/s"; 16], "traffic": "steady 20000/s for 1s" });
    assert_eq!(server.post("/v1/simulate", &many).status, 400);
}

#[test]
fn the_call_needs_the_token_and_does_not_keep_others_waiting() {
    let server = ServerProcess::start(&[], &[("TIDEGATE_TOKEN", "secret")]);
    let body = json!({ "limits": ["sliding-log 1000/1h"], "traffic": "steady 100000/s for 2s" });
    assert_eq!(server.post("/v1/simulate", &body).status, 401);
    let headers = [("content-type", "application/json"), ("x-tidegate-token", "secret")];
    std::thread::scope(|scope| {
        let send = || server.request("POST", "/v1/simulate", &headers, &body.to_string());
        let running: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
        // Other calls get responses while the one simulation runs.
        let check = json!({ "limit": "1000/s", "key": "k" }).to_string();
        for _ in 0..50 {
            assert_eq!(server.request("POST", "/v1/check", &headers, &check).status, 200);
        }
        for call in running {
            let response = call.join().unwrap();
            assert!([200, 503].contains(&response.status), "{}", response.body);
        }
    });
}
