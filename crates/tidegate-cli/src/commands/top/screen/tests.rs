use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;
use tidegate_server::internal::observe::traffic::snapshot::{CallSeries, CallStats, CallTotals};

/// The example snapshot of the OpenAPI document.
pub(crate) fn snapshot() -> TrafficSnapshot {
    serde_json::from_value(tidegate_server::internal::transport::http::live_example()).unwrap()
}

fn rule(name: &str, allowed: f64, denied: f64) -> RuleTraffic {
    let rates = tidegate_server::internal::observe::traffic::snapshot::CallRates {
        allowed,
        denied,
        ..Default::default()
    };
    let series = CallSeries { allowed: vec![0, 4, 8], denied: vec![1, 0, 0], ..Default::default() };
    RuleTraffic {
        name: name.into(),
        lent: 0,
        traffic: CallStats { totals: CallTotals::default(), rates, series },
    }
}

fn many() -> TrafficSnapshot {
    let mut snapshot = snapshot();
    snapshot.rules = (0..30).map(|i| rule(&format!("rule-{i:02}"), f64::from(i), 1.0)).collect();
    snapshot.rules[7] = rule("noisy", 0.5, 99.0);
    snapshot
}

fn drawn(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let cells = terminal.backend().buffer().content();
    let line =
        |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
    cells.chunks(columns.into()).map(|row| line(row).trim_end().to_string()).collect()
}

/// First words of the rule rows.
fn rules(lines: &[String]) -> Vec<String> {
    let rows = lines.iter().skip_while(|line| !line.starts_with("RULE")).skip(1);
    let rows = rows.take_while(|line| !line.is_empty());
    rows.map(|line| line.split(' ').next().unwrap_or_default().to_string()).collect()
}

#[test]
fn a_large_screen_shows_all_sections() {
    let mut screen = Screen::new("127.0.0.1:8080", true);
    screen.show(snapshot());
    let lines = drawn(&mut screen, 140, 40);
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
        "sliding-log 5/min, retry after 58s",
        "q quit",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(lines.iter().any(|line| line.contains('█')), "{text}");
}

#[test]
fn every_size_can_be_drawn() {
    for columns in [1, 2, 10, 20, 39, 40, 59, 60, 80, 120, 300] {
        for rows in [1, 2, 3, 5, 8, 12, 24, 60] {
            let mut screen = Screen::new("127.0.0.1:8080", true);
            screen.show(many());
            let lines = drawn(&mut screen, columns, rows);
            assert!(lines.iter().any(|line| !line.is_empty()), "{columns} x {rows}");
        }
    }
}

#[test]
fn narrow_screens_lose_columns_and_keep_the_numbers() {
    let head = |columns| {
        let mut screen = Screen::new("s", true);
        screen.show(many());
        let lines = drawn(&mut screen, columns, 30);
        lines.into_iter().find(|line| line.starts_with("RULE")).unwrap()
    };
    for (columns, has, has_not) in [
        (140, &["ALLOWED/S", "DENIED/S", "WOULD/S", "ERRORS/S", "ALLOWED  "][..], &[][..]),
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
    let mut screen = Screen::new("s", true);
    screen.show(many());
    let first = |screen: &mut Screen| rules(&drawn(screen, 100, 24)).remove(0);
    assert_eq!(first(&mut screen), "noisy");
    screen.press(KeyPress::Sort);
    assert_eq!(first(&mut screen), "rule-29");
    screen.press(KeyPress::Sort);
    assert_eq!(first(&mut screen), "noisy");
    screen.press(KeyPress::Down);
    assert_eq!(first(&mut screen), "rule-00");
    screen.press(KeyPress::Up);
    screen.press(KeyPress::Up);
    assert_eq!(first(&mut screen), "noisy");
    (0..100).for_each(|_| screen.press(KeyPress::Down));
    assert_eq!(
        rules(&drawn(&mut screen, 100, 24)).last().unwrap(),
        "rule-29",
        "the last page is full"
    );
    // A larger screen shows more rules and no empty rows.
    assert_eq!(rules(&drawn(&mut screen, 100, 80)).len(), 30);
    screen.press(KeyPress::Sort);
    assert_eq!(first(&mut screen), "noisy");
}

#[test]
fn a_lost_connection_is_shown_and_the_last_snapshot_stays() {
    let mut screen = Screen::new("s", true);
    screen.set_lost("cannot reach it".into());
    assert!(drawn(&mut screen, 80, 24).join("\n").contains("cannot reach it; reconnecting"));
    screen.set_connected();
    assert!(!drawn(&mut screen, 80, 24).join("\n").contains("no connection"));
    screen.show(snapshot());
    screen.set_lost("the server closed the stream".into());
    let text = drawn(&mut screen, 80, 24).join("\n");
    assert!(text.contains("no connection") && text.contains("login"), "{text}");
    let mut snapshot = snapshot();
    (snapshot.store.up, snapshot.store.circuit) = (false, Some("open".into()));
    snapshot.policy.error = Some("policy.yaml:3: wrong".into());
    screen.show(snapshot);
    let text = drawn(&mut screen, 80, 24).join("\n");
    for part in ["store unavailable", "breaker open", "policy reload failed: policy.yaml:3"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn pause_and_help_are_toggled() {
    let mut screen = Screen::new("s", true);
    screen.show(snapshot());
    screen.press(KeyPress::Pause);
    assert!(screen.is_paused() && drawn(&mut screen, 80, 24)[0].contains("paused"));
    screen.press(KeyPress::Pause);
    screen.press(KeyPress::Help);
    assert!(
        !screen.is_paused()
            && drawn(&mut screen, 100, 24).join("\n").contains("Press ? to go back")
    );
    screen.press(KeyPress::Help);
    assert!(drawn(&mut screen, 80, 24).join("\n").contains("RULE (1)"));
}

#[test]
fn control_characters_from_a_server_are_escaped() {
    let hostile = "\u{1b}[2J\u{1b}]0;gone\u{7}\n\u{202e}";
    let mut snapshot = snapshot();
    snapshot.version = hostile.into();
    snapshot.rules[0].name = hostile.into();
    snapshot.hottest[0].key = hostile.into();
    snapshot.hottest[0].rule = hostile.into();
    snapshot.denials[0].key = Some(hostile.into());
    snapshot.denials[0].limit = Some(hostile.into());
    (snapshot.store.warning, snapshot.store.circuit) = (Some(hostile.into()), Some(hostile.into()));
    snapshot.policy.error = Some(hostile.into());
    let mut screen = Screen::new("s", true);
    screen.show(snapshot);
    screen.set_lost(hostile.into());
    let lines = drawn(&mut screen, 200, 40);
    for line in &lines {
        assert!(!line.chars().any(tidegate_server::internal::text::escape::is_hidden), "{line:?}");
    }
    let text = lines.join("\n");
    assert!(text.matches(r"\u001b[2J").count() >= 7, "{text}");
}
