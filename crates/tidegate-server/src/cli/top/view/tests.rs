use super::*;
use crate::live::snapshot::{Series, Totals, Traffic};

/// A snapshot as the document shows it.
pub(in crate::cli::top) fn snapshot() -> Snapshot {
    serde_json::from_value(crate::http::live_example()).unwrap()
}

fn rule(name: &str, allowed: f64, denied: f64) -> RuleTraffic {
    let rates = crate::live::snapshot::Rates { allowed, denied, ..Default::default() };
    let series = Series { allowed: vec![0, 4, 8], denied: vec![1, 0, 0], ..Default::default() };
    RuleTraffic {
        name: name.into(),
        lent: 0,
        traffic: Traffic { totals: Totals::default(), rates, series },
    }
}

fn many() -> Snapshot {
    let mut seen = snapshot();
    seen.rules = (0..30).map(|i| rule(&format!("rule-{i:02}"), f64::from(i), 1.0)).collect();
    seen.rules[7] = rule("noisy", 0.5, 99.0);
    seen
}

fn drawn(view: &mut View, columns: usize, rows: usize) -> Vec<String> {
    view.lines(Size { columns, rows }).iter().map(Line::text).collect()
}

/// What stands first in the rows of rules.
fn rules(lines: &[String]) -> Vec<String> {
    let rows = lines.iter().skip_while(|line| !line.starts_with("RULE")).skip(1);
    let rows = rows.take_while(|line| !line.is_empty());
    rows.map(|line| line.split(' ').next().unwrap_or_default().to_string()).collect()
}

#[test]
fn everything_is_on_a_large_screen() {
    let mut view = View::new("127.0.0.1:8080");
    view.show(snapshot());
    view.know(Left::with("login", "1.2.3.4", 0, 5));
    let lines = drawn(&mut view, 140, 40);
    let text = lines.join("\n");
    assert_eq!(lines.len(), 40);
    for part in [
        "tidegate top  127.0.0.1:8080",
        "up 2s",
        "store up  keys 3  memory 4.1 KB  clients http 1 resp 0 grpc 0",
        "allowed 2.5/s  denied 0.5/s  would deny 0/s  errors 0/s  p50 3us  p99 5us",
        "RULE (1)",
        "login",
        "0 of 5",
        "login.1",
        "sliding-log 5/min, again in 58s",
        "q quit",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(lines.iter().any(|line| line.contains('█')), "{text}");
}

#[test]
fn every_size_is_filled_and_never_exceeded() {
    for columns in [1, 2, 10, 20, 39, 40, 59, 60, 80, 120, 300] {
        for rows in [1, 2, 3, 5, 8, 12, 24, 60] {
            let mut view = View::new("127.0.0.1:8080");
            view.show(many());
            let lines = drawn(&mut view, columns, rows);
            assert_eq!(lines.len(), rows, "{columns} x {rows}");
            for line in &lines {
                let width = unicode_width::UnicodeWidthStr::width(&**line);
                assert!(width <= columns, "{columns} x {rows}: {line:?}");
            }
        }
    }
}

#[test]
fn narrow_screens_lose_columns_and_keep_the_numbers() {
    let head = |columns| {
        let mut view = View::new("s");
        view.show(many());
        let lines = drawn(&mut view, columns, 30);
        lines.into_iter().find(|line| line.starts_with("RULE")).unwrap()
    };
    for (columns, has, has_not) in [
        (140, &["ALLOWED/S", "DENIED/S", "WOULD/S", "ERRORS/S", "  DENIED "][..], &[][..]),
        (60, &["ALLOWED/S", "DENIED/S", "WOULD/S"], &["ERRORS/S"]),
        (40, &["ALLOWED/S", "DENIED/S"], &["WOULD/S", "ERRORS/S"]),
    ] {
        let head = head(columns);
        assert!(has.iter().all(|name| head.contains(name)), "{columns}: {head}");
        assert!(!has_not.iter().any(|name| head.contains(name)), "{columns}: {head}");
    }
}

#[test]
fn rules_are_sorted_and_scrolled() {
    let mut view = View::new("s");
    view.show(many());
    let first = |view: &mut View| rules(&drawn(view, 100, 24)).remove(0);
    assert_eq!(first(&mut view), "noisy");
    view.press(Key::Sort);
    assert_eq!(first(&mut view), "rule-29");
    view.press(Key::Sort);
    assert_eq!(first(&mut view), "noisy");
    view.press(Key::Down);
    assert_eq!(first(&mut view), "rule-00");
    view.press(Key::Up);
    view.press(Key::Up);
    assert_eq!(first(&mut view), "noisy");
    (0..100).for_each(|_| view.press(Key::Down));
    assert_eq!(
        rules(&drawn(&mut view, 100, 24)).last().unwrap(),
        "rule-29",
        "the last page is full"
    );
    // A larger screen shows more of them, and never rows of nothing.
    assert_eq!(rules(&drawn(&mut view, 100, 80)).len(), 30);
    view.press(Key::Sort);
    assert_eq!(first(&mut view), "noisy");
}

#[test]
fn a_server_that_is_gone_is_told_and_what_was_seen_stays() {
    let mut view = View::new("s");
    view.lose("cannot reach it".into());
    assert!(drawn(&mut view, 80, 24).join("\n").contains("cannot reach it; trying again"));
    view.find();
    assert!(!drawn(&mut view, 80, 24).join("\n").contains("no connection"));
    view.show(snapshot());
    view.lose("the server has ended".into());
    let text = drawn(&mut view, 80, 24).join("\n");
    assert!(text.contains("no connection") && text.contains("login"), "{text}");
    let mut seen = snapshot();
    (seen.store.up, seen.store.circuit) = (false, Some("open".into()));
    seen.policy.error = Some("policy.yaml:3: wrong".into());
    view.show(seen);
    let text = drawn(&mut view, 80, 24).join("\n");
    for part in ["store does not answer", "breaker open", "policy not in force: policy.yaml:3"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn pause_and_help_come_and_go() {
    let mut view = View::new("s");
    view.show(snapshot());
    view.press(Key::Pause);
    assert!(view.is_paused() && drawn(&mut view, 80, 24)[0].contains("paused"));
    view.press(Key::Pause);
    view.press(Key::Help);
    assert!(
        !view.is_paused() && drawn(&mut view, 100, 24).join("\n").contains("Press ? to go back")
    );
    view.press(Key::Help);
    assert!(drawn(&mut view, 80, 24).join("\n").contains("RULE (1)"));
}

#[test]
fn what_a_server_says_stays_text() {
    let hostile = "\u{1b}[2J\u{1b}]0;gone\u{7}\n\u{202e}";
    let mut seen = snapshot();
    seen.version = hostile.into();
    seen.rules[0].name = hostile.into();
    seen.hottest[0].key = hostile.into();
    seen.hottest[0].rule = hostile.into();
    seen.denials[0].key = Some(hostile.into());
    seen.denials[0].limit = Some(hostile.into());
    (seen.store.warning, seen.store.circuit) = (Some(hostile.into()), Some(hostile.into()));
    seen.policy.error = Some(hostile.into());
    let mut view = View::new("s");
    view.show(seen);
    view.lose(hostile.into());
    let lines = view.lines(Size { columns: 200, rows: 40 });
    for line in &lines {
        assert!(!line.text().chars().any(crate::logs::is_hidden), "{line:?}");
    }
    let text: String = lines.iter().map(Line::text).collect();
    assert!(text.matches(r"\u{1b}[2J").count() >= 7, "{text}");
}
