//! The screen: totals, rules, hot keys, denials.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use tidegate::Micros;

use super::format::{bytes, count, latency, rate, sparkline};
use crate::output::escape_control;
use tidegate_server::internal::observe::traffic::TrafficSnapshot;
use tidegate_server::internal::observe::traffic::snapshot::{
    DenialKind, DeniedBy, HotKey, HotKeyState, RecentDenial, RuleTraffic,
};

#[derive(Debug)]
pub(crate) struct Screen {
    server: String,
    has_colours: bool,
    snapshot: Option<TrafficSnapshot>,
    /// Why the connection is lost.
    lost: Option<String>,
    order: RowOrder,
    /// Rules scrolled off the top.
    above: usize,
    /// Rules that fit on the screen as last drawn.
    page: usize,
    is_paused: bool,
    has_help: bool,
}

/// A key with a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeyPress {
    Quit,
    Up,
    Down,
    Sort,
    Pause,
    Help,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowOrder {
    Denied,
    Allowed,
    Name,
}

impl RowOrder {
    const fn next(self) -> Self {
        match self {
            Self::Denied => Self::Allowed,
            Self::Allowed => Self::Name,
            Self::Name => Self::Denied,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Allowed => "allowed",
            Self::Name => "name",
        }
    }
}

const HELP: &str = "
  q, Esc, Ctrl-C    quit
  j, k, arrows      scroll the rules
  s                 sort the rules by denied, allowed or name
  p                 pause or resume
  ?                 toggle this help

  Rates are averages of the last ten seconds. Sparklines show the last minute, scaled per row.
  WOULD/S: denials by shadow limits. Hot keys are weighted with a half-life of 30 s.
  LEFT: remaining permits of the most restrictive limit, for the hottest keys that can be
  inspected. Only the 512 busiest rules have a row.

  The same as JSON: tidegate top --json, or GET /v1/live

  Press ? to go back.";

const PLAIN: Style = Style::new();
const DIM: Style = Style::new().dim();
const BOLD: Style = Style::new().bold();
const GOOD: Style = Style::new().green();
const WARN: Style = Style::new().yellow();
const BAD: Style = Style::new().red();

impl Screen {
    pub(crate) fn new(server: &str, has_colours: bool) -> Self {
        Self {
            server: server.into(),
            has_colours,
            snapshot: None,
            lost: None,
            order: RowOrder::Denied,
            above: 0,
            page: 1,
            is_paused: false,
            has_help: false,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn show(&mut self, snapshot: TrafficSnapshot) {
        self.snapshot = Some(snapshot);
    }

    pub(crate) fn set_connected(&mut self) {
        self.lost = None;
    }

    pub(crate) fn set_lost(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(crate) fn press(&mut self, key: KeyPress) {
        let rules = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.rules.len());
        match key {
            KeyPress::Quit => {}
            KeyPress::Up => self.above = self.above.saturating_sub(1),
            KeyPress::Down => self.above = (self.above + 1).min(rules.saturating_sub(self.page)),
            KeyPress::Sort => (self.order, self.above) = (self.order.next(), 0),
            KeyPress::Pause => self.is_paused = !self.is_paused,
            KeyPress::Help => self.has_help = !self.has_help,
        }
    }

    pub(crate) fn draw(&mut self, frame: &mut Frame<'_>) {
        let head = self.head();
        let parts =
            [Constraint::Length(head.len() as u16), Constraint::Fill(1), Constraint::Max(1)];
        let [top, body, bottom] = Layout::vertical(parts).areas(frame.area());
        frame.render_widget(Paragraph::new(head), top);
        let keys = [("q", "quit"), ("s", self.order.name()), ("j/k", "scroll"), ("p", "pause")];
        let keys = keys.into_iter().chain([("?", "help")]);
        let keys =
            keys.flat_map(|(key, does)| [styled(BOLD, key), styled(DIM, format!(" {does}   "))]);
        frame.render_widget(Line::from_iter(keys), bottom);
        match &self.snapshot {
            _ if self.has_help => frame.render_widget(Paragraph::new(HELP), body),
            None => {
                let text = Paragraph::new("\nwaiting for the first snapshot").style(DIM);
                frame.render_widget(text, body);
            }
            Some(snapshot) => {
                let mut rules: Vec<&RuleTraffic> = snapshot.rules.iter().collect();
                sort(&mut rules, self.order);
                let budget = RowBudget::of(body.height.into(), snapshot);
                self.page = budget.rules.max(1);
                self.above = self.above.min(rules.len().saturating_sub(self.page));
                let shown = &rules[self.above..][..budget.rules.min(rules.len() - self.above)];
                let [first, second, third] = Layout::vertical(budget.heights()).areas(body);
                frame.render_widget(rule_table(shown, rules.len(), first), first);
                frame.render_widget(hot_table(snapshot, second), second);
                frame.render_widget(denial_table(snapshot, third), third);
            }
        }
        if !self.has_colours {
            let area = frame.area();
            frame.buffer_mut().set_style(area, Style::reset());
        }
    }

    fn head(&self) -> Vec<Line<'static>> {
        let mut title =
            vec![styled(BOLD, "tidegate top"), styled(PLAIN, format!("  {}", self.server))];
        match (&self.lost, self.is_paused) {
            (Some(_), _) => title.push(styled(BAD, "  no connection")),
            (None, true) => title.push(styled(WARN, "  paused")),
            (None, false) => {}
        }
        let lost = self.lost.as_ref().map(|why| styled(BAD, format!("{why}; reconnecting")).into());
        let Some(snapshot) = &self.snapshot else {
            return [title.into()].into_iter().chain(lost).collect();
        };
        let up = Micros::from_secs(snapshot.uptime_s);
        title.push(styled(DIM, format!("  {}  up {up}", snapshot.version)));
        let store = &snapshot.store;
        let is_good = |is: bool| if is { GOOD } else { BAD };
        let up = if store.up { "up" } else { "unavailable" };
        let mut state = vec![styled(PLAIN, "store "), styled(is_good(store.up), up)];
        if let Some(circuit) = &store.circuit {
            state.push(styled(PLAIN, "  breaker "));
            state.push(styled(is_good(circuit == "closed"), circuit));
        }
        if let Some(keys) = store.tracked_keys {
            state.push(styled(PLAIN, format!("  keys {}", count(keys))));
        }
        let open = &snapshot.connections;
        state.push(styled(PLAIN, format!("  memory {}", bytes(store.memory_bytes))));
        let clients = format!("  clients http {} resp {} grpc {}", open.http, open.resp, open.grpc);
        state.push(styled(DIM, clients));
        let rates = &snapshot.requests.rates;
        let mut totals = Vec::new();
        for (name, style, value) in [
            ("allowed ", GOOD, rates.allowed),
            ("  denied ", BAD, rates.denied),
            ("  would deny ", WARN, snapshot.total.rates.would_deny),
            ("  errors ", BAD, rates.errors),
        ] {
            let style = if value > 0.0 { style } else { PLAIN };
            totals.extend([styled(PLAIN, name), styled(style, format!("{}/s", rate(value)))]);
        }
        let [p50, p99] = [snapshot.latency.p50_us, snapshot.latency.p99_us].map(latency);
        totals.push(styled(PLAIN, format!("  p50 {p50}  p99 {p99}")));
        let warn = |title: &str, text: &String| styled(WARN, format!("{title}: {text}")).into();
        let store = store.error.iter().chain(&store.warning).map(|text| warn("store", text));
        let policy = &snapshot.policy.error;
        let policy = policy.as_ref().map(|text| warn("policy reload failed", text));
        let control_plane = snapshot.policy.control_plane.as_ref();
        let control_plane = control_plane.map(|text| styled(WARN, text).into());
        let lines = [title.into(), state.into(), totals.into()];
        lines.into_iter().chain(lost).chain(store).chain(policy).chain(control_plane).collect()
    }
}

/// Text of a server, with control characters escaped.
fn styled(style: Style, text: impl AsRef<str>) -> Span<'static> {
    Span::styled(escape_control(text.as_ref()).replace('\n', "\\n"), style)
}

fn cell(style: Style, text: impl AsRef<str>) -> Cell<'static> {
    Cell::from(styled(style, text))
}

fn number(style: Style, text: impl AsRef<str>) -> Cell<'static> {
    Cell::from(Text::from(styled(style, text)).right_aligned())
}

fn sort(rules: &mut [&RuleTraffic], by: RowOrder) {
    let rates = |rule: &RuleTraffic| (rule.traffic.rates.denied, rule.traffic.rates.allowed);
    rules.sort_by(|a, b| {
        let ((a_denied, a_allowed), (b_denied, b_allowed)) = (rates(a), rates(b));
        let (denied, allowed) = (b_denied.total_cmp(&a_denied), b_allowed.total_cmp(&a_allowed));
        let name = a.name.cmp(&b.name);
        match by {
            RowOrder::Denied => denied.then(allowed).then(name),
            RowOrder::Allowed => allowed.then(denied).then(name),
            RowOrder::Name => name,
        }
    });
}

struct RowBudget {
    rules: usize,
    hottest: usize,
    denials: usize,
}

impl RowBudget {
    /// A blank line and the column names above each table.
    const ABOVE: usize = 2;

    /// Rules get at least half of the rows.
    fn of(rows: usize, snapshot: &TrafficSnapshot) -> Self {
        let least = |have: usize, share: usize| have.min(share.saturating_sub(Self::ABOVE));
        let hottest = least(snapshot.hottest.len().min(10), rows / 4);
        let denials = least(snapshot.denials.len(), rows / 4);
        let taken = |rows: usize| if rows == 0 { 0 } else { rows + Self::ABOVE };
        let rest = rows.saturating_sub(Self::ABOVE + taken(hottest) + taken(denials));
        let rules = rest.min(snapshot.rules.len());
        // Rows that rules do not need go to denials.
        let over = if denials == 0 { 0 } else { rest - rules };
        Self { rules, hottest, denials: (denials + over).min(snapshot.denials.len()) }
    }

    /// Of the three tables, one below the other.
    fn heights(&self) -> [Constraint; 3] {
        let height = |rows: usize| if rows == 0 { 0 } else { (rows + Self::ABOVE) as u16 };
        [self.rules.max(1), self.hottest, self.denials].map(|rows| Constraint::Length(height(rows)))
    }
}

fn table(
    names: impl IntoIterator<Item = Cell<'static>>,
    rows: Vec<Row<'static>>,
    widths: impl IntoIterator<Item = usize>,
) -> Table<'static> {
    let widths = widths.into_iter().map(|width| Constraint::Length(width as u16));
    Table::new(rows, widths).header(Row::new(names).top_margin(1)).column_spacing(1)
}

fn rule_table(rules: &[&RuleTraffic], all: usize, area: Rect) -> Table<'static> {
    const NUMBER: usize = 10;
    let columns = usize::from(area.width);
    let longest = rules.iter().map(|rule| rule.name.chars().count()).max().unwrap_or(0);
    let name = longest.clamp(12, 28).min(columns / 3);
    let fits = |numbers: usize, sparks: usize| columns >= name + numbers * (NUMBER + 1) + sparks;
    let numbers = if fits(4, 24) {
        4
    } else if fits(3, 0) {
        3
    } else {
        2
    };
    // Two sparklines, or one, or none.
    let spare = columns.saturating_sub(name + numbers * (NUMBER + 1));
    let (sparks, width) = match spare {
        24.. => (2, (spare / 2 - 1).min(60)),
        10.. => (1, spare - 1),
        _ => (0, 0),
    };
    let titles = ["ALLOWED/S", "DENIED/S", "WOULD/S", "ERRORS/S"].map(|title| number(BOLD, title));
    let names = [cell(BOLD, format!("RULE ({all})"))].into_iter();
    let names = names.chain(titles.into_iter().take(numbers));
    let names =
        names.chain(["ALLOWED", "DENIED"].map(|title| cell(BOLD, title)).into_iter().take(sparks));
    let row = |rule: &&RuleTraffic| {
        let (rates, series) = (&rule.traffic.rates, &rule.traffic.series);
        let values = [
            (rates.allowed, GOOD),
            (rates.denied, BAD),
            (rates.would_deny, WARN),
            (rates.errors, BAD),
        ];
        let values =
            values.map(|(value, style)| number(if value > 0.0 { style } else { DIM }, rate(value)));
        let lines = [(GOOD, &series.allowed), (BAD, &series.denied)];
        let lines = lines.map(|(style, series)| cell(style, sparkline(series, width)));
        let cells = [cell(PLAIN, &rule.name)].into_iter();
        Row::new(
            cells.chain(values.into_iter().take(numbers)).chain(lines.into_iter().take(sparks)),
        )
    };
    let widths = [name].into_iter().chain([NUMBER].repeat(numbers)).chain([width].repeat(sparks));
    table(names, rules.iter().map(row).collect(), widths)
}

fn hot_table(snapshot: &TrafficSnapshot, area: Rect) -> Table<'static> {
    const NUMBER: usize = 9;
    const LEFT: usize = 17;
    let columns = usize::from(area.width);
    let rule = 16.min(columns / 4);
    let left = if columns >= 60 { LEFT } else { 0 };
    let key = columns.saturating_sub(rule + 2 * NUMBER + left + 4).clamp(8, 48);
    let row = |hot: &HotKey| {
        let left = hot.state.map_or("-".into(), |HotKeyState { remaining, limit, .. }| {
            format!("{} of {}", count(remaining), count(limit))
        });
        Row::new([
            cell(PLAIN, &hot.rule),
            cell(PLAIN, &hot.key),
            number(GOOD, count(hot.allowed)),
            number(if hot.denied > 0 { BAD } else { DIM }, count(hot.denied)),
            number(PLAIN, left),
        ])
    };
    let names = ["HOTTEST", "KEY"].map(|name| cell(BOLD, name)).into_iter();
    let names = names.chain(["ALLOWED", "DENIED", "LEFT"].map(|name| number(BOLD, name)));
    let rows = snapshot.hottest.iter().map(row).collect();
    table(names, rows, [rule, key, NUMBER, NUMBER, left])
}

fn denial_table(snapshot: &TrafficSnapshot, area: Rect) -> Table<'static> {
    let columns = usize::from(area.width);
    let limit = 16.min(columns / 4);
    let key = columns.saturating_sub(8 + limit + 40).clamp(8, 48);
    let row = |denial: &RecentDenial| {
        let ago = snapshot.at_ms.saturating_sub(denial.at_ms) / 1_000;
        let by = denial.policy.as_deref().unwrap_or(&denial.rule);
        let style = match denial.kind {
            DenialKind::Deny => BAD,
            DenialKind::WouldDeny => WARN,
        };
        Row::new([
            cell(DIM, Micros::from_secs(ago).to_string()),
            cell(PLAIN, by),
            cell(PLAIN, denial.key.as_deref().unwrap_or("-")),
            cell(style, why(denial)),
        ])
    };
    let names = ["DENIED", "LIMIT", "KEY", "WHY"].map(|name| cell(BOLD, name));
    let rows = snapshot.denials.iter().map(row).collect();
    table(names, rows, [8, limit, key, columns.saturating_sub(8 + limit + key + 3)])
}

fn why(denial: &RecentDenial) -> String {
    let would = if denial.kind == DenialKind::WouldDeny { "shadow: " } else { "" };
    let limit = denial.limit.as_deref().unwrap_or_default();
    match (denial.because, denial.retry_after_ms) {
        (DeniedBy::List, _) => format!("{would}deny list, or missing key"),
        (DeniedBy::Never, _) => format!("{would}{limit}, cost exceeds the limit"),
        (DeniedBy::Limit, Some(ms)) => {
            format!("{would}{limit}, retry after {}", Micros::from_millis(ms))
        }
        (DeniedBy::Limit, None) => format!("{would}{limit}"),
    }
}

#[cfg(test)]
pub(crate) mod tests;
