//! The playground, over real sockets.
use std::process::Command;

use serde_json::json;

use crate::console_keys::encode;
use testkit::server::{ServerProcess, ServerResponse, TempFolder};

const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'&</pre></script>";

#[test]
fn a_link_reproduces_what_is_seen_to_the_byte() {
    let server = start();
    let page = server.get("/playground");
    assert_eq!(page.status, 200);
    assert_eq!(page.body.matches("<svg xmlns").count(), 1);
    assert!(page.body.contains("200 of 200 in 10s") && page.body.contains("100 of 100 in 10s"));
    let link = link(&page);
    assert!(link.starts_with("/playground?limit=fixed-window+100%2F10s&"), "{link}");
    assert_eq!(server.get(&link).body, page.body);
    let path = "/playground?limit=10/s&traffic=poisson+12/s+keys+5+for+20s&seed=";
    let (one, other) = (server.get(&format!("{path}7")), server.get(&format!("{path}8")));
    assert_eq!(server.get(&self::link(&one)).body, one.body);
    assert_ne!(one.body, other.body, "another seed is another chance");
    let again = start().get(&self::link(&one)).body;
    assert_eq!(again, one.body, "on another server too");
}

#[test]
fn calls_that_reserve_have_a_table_of_their_own() {
    let server = start();
    let path = "/playground?limit=sliding-log+10000/1m&traffic=poisson+2/s+for+5m&calls=";
    let page = server.get(&format!("{path}estimate+800+cost+100..800+takes+2s..90s"));
    assert_eq!(page.status, 200, "{}", page.body);
    for method in ["reserve and commit", "refund the difference", "check before, charge after"] {
        assert!(page.body.contains(method), "{method}");
    }
    let command = text_of(&page.body, "<pre id=\"command\" tabindex=\"0\">");
    assert!(command.contains("--calls 'estimate 800 cost 100..800 takes 2s..90s'"), "{command}");
    assert_eq!(server.get(&link(&page)).body, page.body);
    let wrong = server.get(&format!("{path}estimate+800"));
    assert_eq!(wrong.status, 400);
    assert!(wrong.body.contains("estimate, cost and takes are required"), "{}", wrong.body);
    assert!(!server.get("/playground").body.contains("refund the difference"));
}

#[test]
fn limits_that_were_tried_are_set_on_a_rule_of_the_policy() {
    let text = "rules: [{ name: login, key: [client_ip], limits: [5/m], stop: true }]";
    let file = TempFolder::new().write("policy.yaml", text);
    let token = [("TIDEGATE_ADMIN_TOKEN", "admin-me")];
    let args = ["--config", file.to_str().unwrap(), "--console-host", "test"];
    let server = ServerProcess::start(&args, &token);
    let form = ("content-type", "application/x-www-form-urlencoded");
    let apply = |rule: &str, limits: &str, token: &str| {
        let body = format!("rule={rule}&limits={}&token={token}", encode(limits));
        server.request(
            "POST",
            "/playground/apply",
            &[form, ("sec-fetch-site", "same-origin")],
            &body,
        )
    };
    for (rule, limits, token, status) in [
        ("login", "7/m", "", 401),
        ("login", "7/m", "wrong", 403),
        ("missing", "7/m", "admin-me", 404),
        ("login", "7/parsec", "admin-me", 400),
        ("login", "", "admin-me", 400),
    ] {
        let refused = apply(rule, limits, token);
        assert_eq!(refused.status, status, "{rule} {limits} {token}: {}", refused.body);
    }
    let rule = || server.get("/v1/rules/login").json();
    assert_eq!((&rule()["limits"], &rule()["origin"]), (&json!(["5/m"]), &json!("file")));
    let done = apply("login", "7/m + fixed-window 50/d", "admin-me");
    assert_eq!((done.status, done.header("location")), (303, Some("/rule?name=login")));
    assert_eq!(rule()["limits"], json!(["7/m", "fixed-window 50/d"]));
    assert_eq!((&rule()["origin"], &rule()["stop"]), (&json!("runtime"), &json!(true)));
    assert!(server.get("/rule?name=login").body.contains("fixed-window 50/d"));
    assert!(server.get("/playground").body.contains("/playground/apply"));
    assert!(!start().get("/playground").body.contains("/playground/apply"), "without a token");
}

#[test]
fn what_is_copied_does_the_same() {
    let server = start();
    let page = server.get(
        "/playground?limit=20/s+%2B+fixed-window+600/1m&limit=concurrency+5&traffic=poisson+30/s+for+20s&seed=3&hold=150ms",
    );
    assert_eq!(page.status, 200, "{}", page.body);
    let command = text_of(&page.body, "<pre id=\"command\" tabindex=\"0\">");
    assert!(
        command.contains("--limit '20/s + fixed-window 600/m'")
            && command.contains("--hold '150ms'"),
        "{command}"
    );
    let binary = env!("CARGO_BIN_EXE_tidegate");
    let command = command.replacen("tidegate simulate", &format!("'{binary}' simulate"), 1);
    let ran = Command::new("sh").args(["-c", &command]).output().unwrap();
    let message = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let rows: Vec<&str> = message.lines().filter(|line| line.contains(" %  ")).collect();
    assert_eq!(rows.len(), 2, "{message}");
    for row in rows {
        let (before, _) = row.split_once(" %").unwrap();
        let admitted = before.split_whitespace().rev().nth(1).unwrap();
        let cell = format!("<td class=\"number\">{admitted}</td>");
        assert!(page.body.contains(&cell), "{admitted} of {row}");
    }
    let policy = text_of(&page.body, "<pre id=\"policy-1\" tabindex=\"0\">");
    let file = testkit::server::TempFolder::new().write("copied.yaml", &policy);
    let checked = Command::new(binary).args(["validate", file.to_str().unwrap()]).output().unwrap();
    assert!(checked.status.success(), "{policy}: {}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn errors_are_reported_with_position_and_suggestion() {
    let server = start();
    for (query, id, expected) in [
        ("limit=10/sec0nds&traffic=steady+1/s", "limit-1", "unknown unit"),
        ("limit=10/s&limit=10/s+%2B+5/sec0nds&traffic=steady+1/s", "limit-2", "unknown unit"),
        ("limit=10/s&traffic=stedy+120/s+for+60s", "traffic", "unknown pattern"),
        ("limit=10/s&traffic=", "traffic", "empty text"),
        ("traffic=steady+1/s", "limit-1", "expected a limit"),
        ("limit=10/s&traffic=steady+1/s&seed=one", "seed", "whole number"),
        ("limit=concurrency+5&traffic=steady+1/s", "hold", "needs a hold time"),
        ("limit=10/s&traffic=steady+1/s&hold=2d", "hold", "1us to 1d"),
        (
            "limit=1/s&limit=2/s&limit=3/s&limit=4/s&limit=5/s&traffic=steady+1/s",
            "limit-4",
            "at most 4",
        ),
    ] {
        let page = server.get(&format!("/playground?{query}"));
        assert_eq!(page.status, 400, "{query}");
        let fault = page.body.split(&format!("id=\"{id}-wrong\"")).nth(1).unwrap();
        let fault = fault.split("</div>").next().unwrap();
        assert!(fault.contains(expected), "{query}: {fault}");
        let part = server.get(&format!("/playground?part&{query}"));
        assert!(
            part.status == 200 && !part.body.contains("<html") && part.body.contains(fault),
            "{query}"
        );
    }
    let page = server.get("/playground?limit=10/s+%2B+5/sec0nds&limit=3/s&traffic=steady+1/s").body;
    assert!(page.contains("10/s + 5/sec0nds\n         ^^^^^^^"), "{page}");
    let instead = "/playground?limit=10%2Fs+%2B+5%2Fs&amp;limit=3%2Fs&amp;traffic=steady+1%2Fs";
    assert!(page.contains(&format!("href=\"{instead}\"")), "{page}");
    assert_eq!(server.get(&instead.replace("&amp;", "&")).status, 200);
}

#[test]
fn the_part_is_what_the_page_shows() {
    let server = start();
    let query = "limit=10/s&traffic=burst+40+every+5s+for+20s";
    let page = server.get(&format!("/playground?{query}")).body;
    let part = server.get(&format!("/playground?part&{query}")).body;
    let outcome = &part[part.find("<div id=\"outcome\">").unwrap()..];
    assert!(page.contains(outcome) && outcome.contains("<svg"), "{part}");
}

#[test]
fn too_much_work_is_refused_and_not_begun() {
    let server = start();
    for (traffic, expected) in [
        ("steady 1000000/s for 30d", "too many"),
        ("steady 10000/s for 1m", "decisions exceed the maximum"),
        ("steady 10/s keys 20000 for 1m", "keys exceed the maximum"),
    ] {
        let page = server.get(&format!("/playground?limit=10/s&traffic={}", encode(traffic)));
        assert_eq!(page.status, 400, "{traffic}");
        assert!(page.body.contains(expected), "{traffic}: {}", page.body);
    }
    let long = server.get(&format!("/playground?limit=10/s&traffic={}", "a".repeat(5_000)));
    assert_eq!(long.status, 400);
}

#[test]
fn hostile_text_stays_text() {
    let server = start();
    let text = encode(HOSTILE);
    for query in [
        format!("limit={text}&traffic=steady+1/s"),
        format!("limit=1/s&traffic={text}"),
        format!("limit=1/s&traffic=steady+1/s&seed={text}"),
        format!("limit=1/s&traffic=steady+1/s&hold={text}"),
    ] {
        let page = server.get(&format!("/playground?{query}"));
        assert_eq!(page.status, 400, "{query}");
        assert!(page.body.contains("&lt;img src=x onerror=alert(1)&gt;"), "{}", page.body);
        let part = server.get(&format!("/playground?part&{query}"));
        assert!(part.body.contains("class=\"wrong\""), "{query}: {}", part.body);
        for body in [page.body, part.body] {
            assert!(!body.contains("<img") && !body.contains("</pre></script>"), "{body}");
        }
    }
}

fn start() -> ServerProcess {
    ServerProcess::start(&["--console-host", "test"], &[])
}

fn link(page: &ServerResponse) -> String {
    let link = page.body.split("<a id=\"link\" href=\"").nth(1).expect("there is a link");
    link.split('"').next().unwrap().replace("&amp;", "&")
}

/// The text of an element, as copied by a user.
fn text_of(page: &str, begins: &str) -> String {
    let text = page.split(begins).nth(1).unwrap_or_else(|| panic!("no {begins} in {page}"));
    let text = text.split("</pre>").next().unwrap();
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}
