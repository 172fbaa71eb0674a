//! The console in a real browser.

use serde_json::{Value, json};

use testkit::browser::Browser;
use testkit::server::{ServerProcess, TempFolder};

const POLICY: &str = "
rules:
  - name: login
    key: [client_ip]
    limits: [\"sliding-log 5/1m\"]
  - name: api
    limits: [\"100/s\"]
    shadow_limits: [\"1/min\"]
";
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

fn send_checks(server: &ServerProcess, rule: &str, key: &str, times: usize) {
    for _ in 0..times {
        server.post("/v1/check", &json!({ "rule": rule, "key": key }));
    }
}

#[test]
fn the_console_lives_in_a_real_browser() {
    let Some(browser) = Browser::start() else { return };
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    let at = |path: &str| format!("http://{}{path}", server.http);
    browser.resize(1_280, 900);
    live_moves(&browser, &server, &at("/"));
    focus_and_typing_survive(&browser, &server);
    rules_are_looked_at_while_typing(&browser, &at("/rules"));
    a_hostile_key_is_drawn_as_text(&browser, &server, &at("/keys?rule=login&key="));
    the_playground_draws_while_typing(&browser, &at("/playground"));
    night_is_dark(&browser, &at("/"));
    let pages = ["/", "/rules", "/keys?rule=login&key=k", "/playground"].map(at);
    narrow_screens_need_no_scrolling_sideways(&browser, &pages);
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

/// Numbers update under traffic, and a hostile key stays text.
fn live_moves(browser: &Browser, server: &ServerProcess, url: &str) {
    send_checks(server, "api", "before", 3);
    browser.open(url);
    browser.wait_for("return document.getElementById('following').textContent === 'live'");
    send_checks(server, "login", HOSTILE, 9);
    browser.wait_for(
        "return document.getElementById('denials').innerText.includes('onerror=alert(1)')",
    );
    browser.wait_for("return document.getElementById('keys').innerText.includes('0 of 5')");
    browser.wait_for(
        "return !!document.querySelector('#to-login') && !!document.querySelector('.flow .denied')",
    );
    assert_eq!(browser.run("return document.querySelectorAll('img').length"), 0);
    let allowed = "return document.querySelector('#flow .big').innerText";
    let before = browser.run(allowed);
    for _ in 0..3 {
        send_checks(server, "api", "k", 40);
        browser.wait_for(&format!("{allowed} !== {before}"));
    }
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

/// Updates do not reset the input of a user.
fn focus_and_typing_survive(browser: &Browser, server: &ServerProcess) {
    browser.run("document.getElementById('to-api').focus()");
    browser.run("document.getElementById('filter').value = 'half a na'");
    let shown = "return document.getElementById('rules').innerText";
    for round in 0..2 {
        let before = browser.run(shown);
        send_checks(server, "api", &format!("k{round}"), 30);
        browser.wait_for(&format!("{shown} !== {before}"));
    }
    assert_eq!(browser.run("return document.activeElement.id"), "to-api");
    assert_eq!(browser.run("return document.getElementById('filter').value"), "half a na");
    browser.run("document.getElementById('pause').click()");
    browser.wait_for("return document.getElementById('following').textContent === 'paused'");
    browser.run("document.getElementById('pause').click()");
    browser.wait_for("return document.getElementById('following').textContent === 'live'");
}

fn rules_are_looked_at_while_typing(browser: &Browser, url: &str) {
    browser.open(url);
    let typed = |text: &str| {
        let text = json!(text);
        browser.run(&format!(
            "const area = document.getElementById('text'); area.value = {text}; \
             area.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ));
    };
    typed("rules: [{ name: api, limits: [5/parsec] }]");
    browser.wait_for("return document.getElementById('verdict').innerText.includes('1:33')");
    typed("rules: [{ name: api, limits: [5/min] }]");
    browser
        .wait_for("return document.getElementById('verdict').innerText.includes('Valid: 1 rule.')");
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

fn a_hostile_key_is_drawn_as_text(browser: &Browser, server: &ServerProcess, url: &str) {
    send_checks(server, "login", HOSTILE, 1);
    browser.open(&format!("{url}{}", "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E"));
    let text = browser.run("return document.getElementById('main').innerText");
    assert!(text.as_str().unwrap().contains(HOSTILE), "{text}");
    assert_eq!(browser.run("return document.querySelectorAll('img').length"), 0);
    assert_eq!(browser.run("return document.querySelectorAll('.charts svg').length > 0"), true);
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

/// The chart and the address follow the input, and an error keeps the typed text.
fn the_playground_draws_while_typing(browser: &Browser, url: &str) {
    browser.open(url);
    assert_eq!(browser.run("return document.querySelectorAll('#outcome svg').length"), 1);
    let typed = |text: &str| {
        let text = json!(text);
        browser.run(&format!(
            "const limit = document.querySelector('input[name=limit]'); limit.value = {text}; \
             limit.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        ));
    };
    typed("sliding-log 7/10s");
    browser.wait_for(
        "return document.getElementById('outcome').innerText.includes('sliding-log 7/10s')",
    );
    browser.wait_for("return location.search.includes('sliding-log+7')");
    typed("7/parsec");
    browser.wait_for("return document.getElementById('main').innerText.includes('unknown unit')");
    let kept = "return document.querySelector('input[name=limit]').value";
    assert_eq!(browser.run(kept), "7/parsec");
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

fn night_is_dark(browser: &Browser, url: &str) {
    let paper = |scheme: &str| {
        browser.prefer(scheme);
        browser.open(url);
        let colour = browser.run("return getComputedStyle(document.body).backgroundColor");
        let numbers =
            colour.as_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).to_string();
        numbers.split(", ").filter_map(|n| n.parse::<u32>().ok()).sum::<u32>()
    };
    let (night, day) = (paper("dark"), paper("light"));
    assert!(night < 150 && day > 600, "{night} and {day}");
}

fn narrow_screens_need_no_scrolling_sideways(browser: &Browser, urls: &[String]) {
    browser.resize(360, 700);
    for url in urls {
        browser.open(url);
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= 360, "{url} is {wide} wide");
    }
}
