//! The console over real sockets: access, changes and contents.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde_json::json;

use testkit::server::{
    RawHttpConnection, ServerProcess, ServerResponse, TEST_TIMEOUT, TempFolder, wait_until,
};

const POLICY: &str = "
rules:
  - name: login
    match: { method: POST, path: /login }
    key: [client_ip]
    limits: [\"sliding-log 5/1m\"]
  - name: api
    limits: [\"100/s\"]
    shadow_limits: [\"1/min\"]
";
const HOSTILE: &str = "<img src=x onerror=alert(1)>";
const PAGES: [&str; 4] = ["/", "/rules", "/login", "/rules?filter=%3Cimg%20src%3Dx%3E"];
/// The test client sends the host name `test`.
const NAMED: [&str; 2] = ["--console-host", "test"];

fn server(variables: &[(&str, &str)]) -> ServerProcess {
    let file = TempFolder::new().write("policy.yaml", POLICY);
    let [flag, name] = NAMED;
    ServerProcess::start(&["--config", file.to_str().unwrap(), flag, name], variables)
}

const TOKENS: [(&str, &str); 2] =
    [("TIDEGATE_TOKEN", "check-me"), ("TIDEGATE_ADMIN_TOKEN", "admin-me")];
const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded");
const FROM_HERE: (&str, &str) = ("origin", "http://localhost");

fn send(
    server: &ServerProcess,
    path: &str,
    headers: &[(&str, &str)],
    form: &str,
) -> ServerResponse {
    server.request("POST", path, &[headers, &[FORM]].concat(), form)
}

/// Signs in and returns the session cookie.
fn sign_in(server: &ServerProcess, token: &str) -> String {
    let response = send(server, "/login", &[FROM_HERE], &format!("token={token}"));
    assert_eq!((response.status, response.header("location")), (303, Some("/")));
    let cookie = response.header("set-cookie").expect("a cookie");
    for part in ["; HttpOnly", "; SameSite=Strict", "; Path=/", "; Max-Age=43200"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_string()
}

#[test]
fn every_response_has_security_headers() {
    let server = server(&[]);
    for path in [&PAGES[..], &["/console/style.css", "/console/console.js"]].concat() {
        let response = server.get(path);
        for (name, expected) in [
            (
                "content-security-policy",
                "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
            ),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "same-origin"),
        ] {
            assert_eq!(response.header(name), Some(expected), "{path}");
        }
        let cached = if path.starts_with("/console/") { "no-cache" } else { "no-store" };
        assert_eq!(response.header("cache-control"), Some(cached), "{path}");
    }
    let style = server.get("/console/style.css");
    let tag = style.header("etag").expect("a tag").to_string();
    let again = server.request("GET", "/console/style.css", &[("if-none-match", &tag)], "");
    assert_eq!((again.status, again.body.as_str()), (304, ""));
}

#[test]
fn pages_have_neither_scripts_nor_styles_in_them_and_load_nothing_from_elsewhere() {
    // With only an admin token there is a login page, and reading is open.
    let server = server(&TOKENS[1..]);
    server.post("/v1/check", &json!({ "rule": "api", "key": "k" }));
    for path in PAGES {
        let body = server.get(path).body;
        for bad in
            ["<style", " style=", " onclick=", " onload=", "javascript:", "//cdn", "https://"]
        {
            assert!(!body.contains(bad), "{path} has {bad}");
        }
        assert_eq!(body.matches("<script").count(), 1, "{path}");
        assert_eq!(body.matches("<script src=\"/console/console.js\" defer></script>").count(), 1);
    }
}

#[test]
fn the_console_responds_only_to_its_own_host_names() {
    let policy = TempFolder::new().write("policy.yaml", POLICY);
    let server = ServerProcess::start(
        &["--config", policy.to_str().unwrap(), "--console-host", "limits.example"],
        &[],
    );
    let get = |host: &str, path: &str| {
        let mut client = RawHttpConnection::connect(server.http);
        client
            .try_write(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes())
            .unwrap();
        client.receive()
    };
    let port = server.http.port();
    for host in [
        "127.0.0.1",
        &format!("localhost:{port}"),
        "[::1]:1",
        "limits.example",
        "LIMITS.example:443",
    ] {
        assert_eq!(get(host, "/rules").status, 200, "{host}");
    }
    for host in
        ["evil.example", "127.0.0.1.evil.example", "limits.example.evil.example", "10.0.0.1"]
    {
        for path in ["/", "/rules", "/console/live", "/console/style.css"] {
            let response = get(host, path);
            assert_eq!(response.status, 421, "{host}{path}");
            assert!(response.body.contains("--console-host"), "{}", response.body);
            assert!(!response.body.contains("login"), "{}", response.body);
        }
    }
}

#[test]
fn who_signs_in_may_look_until_they_sign_out() {
    let server = server(&TOKENS);
    let response = server.get("/rules?page=2");
    assert_eq!(
        (response.status, response.header("location")),
        (303, Some("/login?next=%2Frules%3Fpage%3D2"))
    );
    assert_eq!(
        server.request("GET", "/console/live", &[("accept", "text/event-stream")], "").status,
        401
    );
    let form = server.get("/login?next=%2Frules").body;
    assert!(form.contains("value=\"/rules\""), "{form}");
    let wrong = send(&server, "/login", &[FROM_HERE], "token=wrong");
    assert_eq!((wrong.status, wrong.header("set-cookie")), (403, None));
    let cookie = sign_in(&server, "check-me");
    let look = |cookie: &str| server.request("GET", "/rules", &[("cookie", cookie)], "").status;
    assert_eq!(look(&cookie), 200);
    let last = if cookie.ends_with('0') { '1' } else { '0' };
    let guessed = format!("{}{last}", &cookie[..cookie.len() - 1]);
    assert_eq!([look(&guessed), look("")], [303, 303]);
    let bearer = [("authorization", "Bearer check-me")];
    assert_eq!(server.request("GET", "/rules", &bearer, "").status, 200);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!(
        "GET /console/live HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut events = BufReader::new(stream).lines();
    assert!(events.any(|line| line.unwrap().starts_with("event: sections")));
    let out = send(&server, "/logout", &[FROM_HERE, ("cookie", &cookie)], "");
    assert_eq!(out.status, 303);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    assert_eq!(look(&cookie), 303);
    // Open streams end with the session.
    assert!(events.all(|line| line.is_ok()));
}

#[test]
fn tokens_cannot_be_tried_for_long() {
    let server = server(&TOKENS);
    let tried: Vec<u16> = (0..15)
        .map(|nth| send(&server, "/login", &[FROM_HERE], &format!("token=wrong-{nth}")).status)
        .collect();
    assert_eq!(tried[..10], [403; 10]);
    assert!(tried[10..].contains(&429), "{tried:?}");
    // The client behind a proxy is another client.
    let other = [FROM_HERE, ("x-forwarded-for", "203.0.113.9")];
    assert_eq!(send(&server, "/login", &other, "token=check-me").status, 303);
}

#[test]
fn changes_need_the_admin_token_and_a_form_of_the_console() {
    let server = server(&TOKENS);
    let put = || {
        let admin = [("authorization", "Bearer admin-me"), ("content-type", "application/json")];
        let body = json!({ "limits": ["5/s"] }).to_string();
        assert_eq!(server.request("PUT", "/v1/rules/extra", &admin, &body).status, 201);
    };
    put();
    let (admin, check) = (sign_in(&server, "admin-me"), sign_in(&server, "check-me"));
    let delete = |headers: &[(&str, &str)], form: &str| {
        send(&server, "/rules/delete", headers, &format!("name=extra{form}")).status
    };
    let (as_admin, as_check) = (("cookie", &*admin), ("cookie", &*check));
    for (headers, form, expected) in [
        (&[as_admin][..], "", 403),
        (&[as_admin, ("origin", "http://evil.example")], "", 403),
        (&[as_admin, ("origin", "null")], "", 403),
        (&[as_admin, FROM_HERE, ("sec-fetch-site", "cross-site")], "", 403),
        (&[as_admin, FROM_HERE, ("sec-fetch-site", "same-site")], "", 403),
        (&[as_check, FROM_HERE], "", 401),
        (&[as_check, FROM_HERE], "&token=check-me", 403),
        (&[as_check, FROM_HERE], "&token=wrong", 403),
        (&[FROM_HERE], "", 401),
        (&[("authorization", "Bearer check-me")], "", 401),
    ] {
        assert_eq!(delete(headers, form), expected, "{headers:?} {form}");
        assert_eq!(
            server
                .request("GET", "/v1/rules/extra", &[("authorization", "Bearer check-me")], "")
                .status,
            200
        );
    }
    assert_eq!(delete(&[as_admin, FROM_HERE], ""), 303);
    assert_eq!(delete(&[as_admin, FROM_HERE], ""), 404);
    put();
    assert_eq!(delete(&[as_admin, ("sec-fetch-site", "same-origin")], ""), 303);
    put();
    assert_eq!(delete(&[FROM_HERE], "&token=admin-me"), 303);
    put();
    assert_eq!(delete(&[("authorization", "Bearer admin-me")], ""), 303);
    assert_eq!(send(&server, "/rules/delete", &[as_admin, FROM_HERE], "name=api").status, 409);
}

#[test]
fn without_an_admin_token_no_change_is_possible() {
    let server = server(&[]);
    let response = send(&server, "/rules/delete", &[FROM_HERE], "name=api&token=");
    assert_eq!(response.status, 403);
    assert!(response.body.contains("TIDEGATE_ADMIN_TOKEN"), "{}", response.body);
}

#[test]
fn a_hostile_key_is_text_everywhere() {
    let server = server(&[]);
    for rule in ["login", "api"] {
        for _ in 0..8 {
            server.post("/v1/check", &json!({ "rule": rule, "key": HOSTILE }));
        }
    }
    let written = "&lt;img src=x onerror=alert(1)&gt;";
    let live = wait_until(|| {
        let page = server.get("/").body;
        page.contains("exhausted").then_some(page)
    });
    let live = live.expect("the denials are shown");
    assert!(live.contains(written) && live.contains("shadow"), "{live}");
    let encoded = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E";
    let text =
        format!("text=rules%3A+%5B%7B+name%3A+%22{encoded}%22+%7D%5D%0A%23+%3C%2Ftextarea%3E");
    let validated = send(&server, "/rules/validate", &[FROM_HERE], &text).body;
    assert!(validated.contains(written) && validated.contains("&lt;/textarea&gt;"), "{validated}");
    let pages = [
        live,
        validated,
        server.get(&format!("/?filter={encoded}&sort={encoded}")).body,
        server.get(&format!("/rules?filter={encoded}")).body,
        server.get(&format!("/login?next={encoded}")).body,
        server.get(&format!("/console/nothing{encoded}")).body,
    ];
    for page in pages {
        assert!(!page.contains("<img"), "{page}");
    }
}

/// Two parts print like one part with a bar, which is another key.
#[test]
fn remaining_permits_are_reported_only_for_the_key_itself() {
    let server = server(&[]);
    for key in [json!("one"), json!(["one", "two"])] {
        server.post("/v1/check", &json!({ "rule": "login", "key": key }));
    }
    let keys = wait_until(|| {
        let page = server.get("/").body;
        let section = page.split("id=\"keys\"").nth(1)?.split("</section>").next()?.to_string();
        (section.contains("one|two") && section.contains("of 5")).then_some(section)
    });
    let keys = keys.expect("both keys");
    let row = keys.split("<tr").find(|row| row.contains("one|two")).unwrap();
    assert!(!row.contains("of 5"), "{row}");
}

#[test]
fn numbers_update_while_a_page_is_open() {
    let server = server(&[]);
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(b"GET /console/live HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    assert!(
        head[0].contains("200") && head.iter().any(|line| line.contains("text/event-stream")),
        "{head:?}"
    );
    let mut events = 0;
    let found = lines.by_ref().find(|line| {
        events += usize::from(line.starts_with("event: sections"));
        server.post("/v1/check", &json!({ "rule": "login", "key": "k" }));
        line.contains("id=\"to-login\"") && line.contains("denied")
    });
    assert!(found.is_some() && events >= 1, "after {events} events");
}

#[test]
fn a_policy_is_looked_at_without_reading_anything_of_this_machine() {
    let server = server(&[("SECRET_OF_SERVER", "do-not-tell")]);
    let folder = TempFolder::new();
    let other = folder.write("other.yaml", "rules: [{ name: stolen-rule, limits: [5/parsec] }]");
    let validate = |text: &str| {
        let text: String = text.bytes().map(|b| format!("%{b:02X}")).collect();
        let response = send(&server, "/rules/validate?part", &[FROM_HERE], &format!("text={text}"));
        assert_eq!(response.status, 200, "{}", response.body);
        response.body
    };
    let faulty = validate("rules:\r\n  - name: api\r\n    limits: [5/parsec]\r\n");
    assert!(faulty.contains("1 error") && faulty.contains(">3:16<"), "{faulty}");
    assert!(faulty.contains("unknown unit") && faulty.contains("^^^^^^"), "{faulty}");
    assert!(validate(POLICY).contains("Valid: 2 rules."));
    let included = validate(&format!("include: [\"{}\"]\nrules: []", other.display()));
    assert!(
        !included.contains("stolen-rule") && included.contains("other files cannot be read"),
        "{included}"
    );
    let filled = validate("secret: ${SECRET_OF_SERVER}\nrules: []");
    assert!(!filled.contains("do-not-tell") && filled.contains("1 error"), "{filled}");
    let long = format!("text={}", "a".repeat(70_000));
    assert_eq!(send(&server, "/rules/validate", &[FROM_HERE], &long).status, 413);
    assert_eq!(send(&server, "/rules/validate", &[], "text=a").status, 403);
}

#[test]
fn what_a_reload_has_changed_is_shown() {
    let folder = TempFolder::new();
    let file = folder.write("policy.yaml", POLICY);
    let server =
        ServerProcess::start(&["--config", file.to_str().unwrap(), NAMED[0], NAMED[1]], &[]);
    assert!(server.get("/rules").body.contains("No reload since the policy was loaded"));
    let changed = POLICY.replace("5/1m", "6/1m").replace("name: api", "name: web");
    folder.write("policy.yaml", &changed);
    server.signal("HUP");
    let page = wait_until(|| {
        let page = server.get("/rules").body;
        page.contains("Reloaded ").then_some(page)
    });
    let page = page.expect("the reload is shown");
    for part in ["<dt>Added</dt><dd><code>web</code>", "<dt>Removed</dt><dd><code>api</code>"] {
        assert!(page.contains(part), "{page}");
    }
    let (before, after) = ("sliding-log 5/m", "sliding-log 6/m");
    let quoted = |limit: &str| format!("<code>[&quot;{limit}&quot;]</code>");
    assert!(
        page.contains(&format!("<del>{}</del> <ins>{}</ins>", quoted(before), quoted(after))),
        "{page}"
    );
    folder.write("policy.yaml", "rules: [");
    server.signal("HUP");
    let faulty = wait_until(|| {
        let page = server.get("/rules").body;
        page.contains("was not loaded").then_some(page)
    });
    assert!(faulty.expect("the mistake is shown").contains("policy.yaml:1:"));
}

#[test]
fn ten_thousand_rules_are_shown_a_page_at_a_time() {
    let rule = |nth| format!("  - {{ name: rule-{nth:05}, limits: [\"100/s\"] }}\n");
    let policy = format!("rules:\n{}", (0..10_000).map(rule).collect::<String>());
    let file = TempFolder::new().write("policy.yaml", &policy);
    let server =
        ServerProcess::start(&["--config", file.to_str().unwrap(), NAMED[0], NAMED[1]], &[]);
    let page = server.get("/rules").body;
    assert!(page.contains("10,000 rules") && page.contains("Page 1 of 100"), "{}", page.len());
    assert!(page.contains("rule-00099") && !page.contains("rule-00100") && page.len() < 200_000);
    let last = server.get("/rules?page=100").body;
    assert!(last.contains("rule-09999") && !last.contains("rule-09899"));
    let some = server.get("/rules?filter=rule-0123").body;
    assert!(some.contains("10 of 10,000 rules") && some.contains("rule-01239"), "{some}");
    for nth in 0..600 {
        server.post("/v1/check", &json!({ "rule": format!("rule-{nth:05}"), "key": "k" }));
    }
    let live = wait_until(|| {
        let page = server.get("/?sort=name").body;
        page.contains("Page 1 of 26").then_some(page)
    });
    let live = live.expect("512 rules have their own series");
    assert!(live.len() < 300_000, "{}", live.len());
}
