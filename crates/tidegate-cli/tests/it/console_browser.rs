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
    let pages =
        ["/", "/rules", "/rule?name=login", "/keys?rule=login&key=k", "/playground"].map(at);
    the_chart_reads_its_values_with_the_arrow_keys(&browser, &at("/"));
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

/// Presses a key with a name like `Enter`.
fn press(browser: &Browser, key: &str, code: u32) {
    for kind in ["rawKeyDown", "char", "keyUp"] {
        let text = if key == "Enter" && kind == "char" { "\r" } else { "" };
        if kind == "char" && text.is_empty() {
            continue;
        }
        let event =
            json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text });
        browser.devtools("Input.dispatchKeyEvent", &event);
    }
}

/// The values stay while the page is updated.
fn the_chart_reads_its_values_with_the_arrow_keys(browser: &Browser, url: &str) {
    browser.open(url);
    browser.wait_for("return document.getElementById('following').textContent === 'live'");
    browser.run("document.getElementById('flow-chart').focus()");
    let shown = "return document.querySelector('#flow output').textContent";
    press(browser, "ArrowLeft", 37);
    browser.wait_for(&format!("{shown}.startsWith('3 s ago: ')"));
    press(browser, "ArrowLeft", 37);
    browser.wait_for(&format!("{shown}.startsWith('6 s ago: ')"));
    press(browser, "Home", 36);
    browser.wait_for(&format!("{shown} === '15 min 0 s ago: 0/s allowed, 0/s denied'"));
    browser.run("document.querySelector('#flow .big').textContent = 'old'");
    browser.wait_for("return document.querySelector('#flow .big').textContent !== 'old'");
    assert_eq!(browser.run(shown), "15 min 0 s ago: 0/s allowed, 0/s denied");
    press(browser, "Escape", 27);
    browser.wait_for(&format!("{shown} === ''"));
}

#[test]
fn reset_asks_and_an_override_is_set_with_the_keyboard_alone() {
    let Some(browser) = Browser::start() else { return };
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let tokens = [("TIDEGATE_ADMIN_TOKEN", "admin-me")];
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &tokens);
    send_checks(&server, "login", "k", 3);
    let url = format!("http://{}/keys?rule=login&key=k", server.http);
    browser.open(&url);
    let is_asking = "return !!document.querySelector('details.confirm[open]')";
    assert_eq!(browser.run(is_asking), false);
    browser.run("document.getElementById('ask-reset').focus()");
    press(&browser, "Enter", 13);
    browser.wait_for(is_asking);
    press(&browser, "Tab", 9);
    browser.devtools("Input.insertText", &json!({ "text": "admin-me" }));
    press(&browser, "Enter", 13);
    browser.wait_for("return document.body.innerText.includes('The key was reset.')");
    browser.open(&url);
    browser.run("document.querySelector('input[name=limits]').focus()");
    browser.devtools("Input.insertText", &json!({ "text": "7/h" }));
    press(&browser, "Tab", 9);
    press(&browser, "Tab", 9);
    browser.devtools("Input.insertText", &json!({ "text": "admin-me" }));
    press(&browser, "Enter", 13);
    browser.wait_for("return document.body.innerText.includes('The override is active.')");
}

/// Without calls the page lists rules to try; below 600 pixels the rows of tables are cards.
#[test]
fn an_idle_server_shows_its_rules_and_a_narrow_one_cards() {
    let Some(browser) = Browser::start() else { return };
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(&["--config", file.to_str().unwrap()], &[]);
    let at = |path: &str| format!("http://{}{path}", server.http);
    browser.resize(390, 844);
    browser.open(&at("/"));
    let shown = "return document.getElementById('rules').innerText";
    assert!(browser.run(shown).as_str().unwrap().contains("tidegate check login 192.0.2.1"));
    let tiles = browser.run("return document.getElementById('state').innerText");
    let tiles = tiles.as_str().unwrap();
    assert!(tiles.contains("memory") && !tiles.contains("breaker"), "{tiles}");
    send_checks(&server, "login", "k", 9);
    browser.wait_for("return !!document.querySelector('#denials td')");
    let display = "return getComputedStyle(document.querySelector('#denials td')).display";
    assert_eq!(browser.run(display), "flow-root");
    browser.resize(1_400, 900);
    assert_eq!(browser.run(display), "table-cell");
    browser.run("document.querySelector('#denials td.name a').click()");
    browser.wait_for("return location.search === '?name=login'");
    browser.run("document.querySelector('#keys th a').click()");
    browser.wait_for("return location.search === '?rule=login&key=k'");
    assert_eq!(browser.console_log(), Vec::<Value>::new());
}

fn narrow_screens_need_no_scrolling_sideways(browser: &Browser, urls: &[String]) {
    browser.resize(360, 700);
    for url in urls {
        browser.open(url);
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= 360, "{url} is {wide} wide");
    }
}
