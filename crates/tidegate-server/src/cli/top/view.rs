//! What is to be seen, as lines.

use super::left::Left;
use super::line::{Line, Style};
use super::terminal::{Key, Size};
use super::words::{bytes, count, latency, rate, span, sparkline};
use crate::live::Snapshot;
use crate::live::snapshot::{Because, Denial, HotKey, Kind, RuleTraffic};

/// What somebody looks at.
#[derive(Debug)]
pub(super) struct View {
    server: String,
    snapshot: Option<Snapshot>,
    left: Left,
    /// Why there is nothing new.
    lost: Option<String>,
    sort: Sort,
    /// Rules that are above the screen.
    above: usize,
    /// How many rules there is room for, as it was drawn last.
    page: usize,
    is_paused: bool,
    has_help: bool,
}

/// What rules are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sort {
    Denied,
    Allowed,
    Name,
}

impl Sort {
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

const HELP: [&str; 15] = [
    "",
    "  q, Esc, Ctrl-C    quit",
    "  j, k, arrows      scroll the rules",
    "  s                 sort the rules by denied, allowed or name",
    "  p                 pause, and go on",
    "  ?                 this, and back",
    "",
    "  Rates are those of the last ten seconds. Blocks are the last minute, each row by its own",
    "  greatest second. WOULD/S is what shadow limits would have denied. Hottest keys count half",
    "  after 30 s; LEFT is what the tightest limit has left, for the few hottest keys that can be",
    "  asked about. Rules beyond the 512 busiest are in no row.",
    "",
    "  The same as JSON: tidegate top --json, or GET /v1/live",
    "",
    "  Press ? to go back.",
];

impl View {
    pub(super) fn new(server: &str) -> Self {
        Self {
            server: server.into(),
            snapshot: None,
            left: Left::default(),
            lost: None,
            sort: Sort::Denied,
            above: 0,
            page: 1,
            is_paused: false,
            has_help: false,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// There is something new.
    pub(super) fn show(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }

    /// The server is there.
    pub(super) fn find(&mut self) {
        self.lost = None;
    }

    /// The server is not there.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    /// This is what is left to keys.
    pub(super) fn know(&mut self, left: Left) {
        self.left = left;
    }

    pub(super) fn press(&mut self, key: Key) {
        let rules = self.snapshot.as_ref().map_or(0, |seen| seen.rules.len());
        match key {
            Key::Quit => {}
            Key::Up => self.above = self.above.saturating_sub(1),
            Key::Down => self.above = (self.above + 1).min(rules.saturating_sub(self.page)),
            Key::Sort => (self.sort, self.above) = (self.sort.next(), 0),
            Key::Pause => self.is_paused = !self.is_paused,
            Key::Help => self.has_help = !self.has_help,
        }
    }

    /// All of it, on a screen of this size.
    pub(super) fn lines(&mut self, size: Size) -> Vec<Line> {
        let new = || Line::new(size.columns);
        let mut lines = self.head(size.columns);
        let mut foot = new();
        let keys = [
            ("q", "quit"),
            ("s", self.sort.name()),
            ("j/k", "scroll"),
            ("p", "pause"),
            ("?", "help"),
        ];
        for (key, does) in keys {
            foot = foot.and(Style::Bold, key).and(Style::Dim, format!(" {does}   "));
        }
        let room = size.rows.saturating_sub(lines.len() + 1);
        let body = match &self.snapshot {
            _ if self.has_help => HELP.iter().map(|text| new().and(Style::Plain, text)).collect(),
            None => vec![new(), new().and(Style::Dim, "waiting for the first second")],
            Some(seen) => {
                let mut rules: Vec<&RuleTraffic> = seen.rules.iter().collect();
                sort(&mut rules, self.sort);
                let shares = Shares::of(room, seen);
                self.page = shares.rules.max(1);
                self.above = self.above.min(rules.len().saturating_sub(self.page));
                let shown = rules.iter().skip(self.above).take(shares.rules);
                let mut body = rule_lines(shown, rules.len(), size.columns);
                body.extend(hot_lines(seen, &self.left, shares.hottest, size.columns));
                body.extend(denial_lines(seen, shares.denials, size.columns));
                body
            }
        };
        lines.extend(body.into_iter().chain(std::iter::repeat_with(new)).take(room));
        lines.push(foot);
        lines.truncate(size.rows);
        lines
    }

    fn head(&self, columns: usize) -> Vec<Line> {
        let title = Line::new(columns).and(Style::Bold, "tidegate top").and(Style::Plain, "  ");
        let title = title.and(Style::Plain, &self.server);
        let title = match (&self.lost, self.is_paused) {
            (Some(_), _) => title.and(Style::Bad, "  no connection"),
            (None, true) => title.and(Style::Warn, "  paused"),
            (None, false) => title,
        };
        let Some(seen) = &self.snapshot else {
            return [Some(title), self.lost_line(columns)].into_iter().flatten().collect();
        };
        let title =
            title.and(Style::Dim, format!("  {}  up {}", seen.version, span(seen.uptime_s)));
        let store = &seen.store;
        let (style, up) =
            if store.up { (Style::Good, "up") } else { (Style::Bad, "does not answer") };
        let mut state = Line::new(columns).and(Style::Plain, "store ").and(style, up);
        if let Some(circuit) = &store.circuit {
            let style = if circuit == "closed" { Style::Good } else { Style::Bad };
            state = state.and(Style::Plain, "  breaker ").and(style, circuit);
        }
        if let Some(keys) = store.tracked_keys {
            state = state.and(Style::Plain, format!("  keys {}", count(keys)));
        }
        let open = &seen.connections;
        let state = state.and(Style::Plain, format!("  memory {}", bytes(store.memory_bytes)));
        let doors = format!("  clients http {} resp {} grpc {}", open.http, open.resp, open.grpc);
        let state = state.and(Style::Dim, doors);
        let rates = &seen.total.rates;
        let bad = |rate: f64, style| if rate > 0.0 { style } else { Style::Plain };
        let totals = Line::new(columns)
            .and(Style::Plain, "allowed ")
            .and(Style::Good, format!("{}/s", rate(rates.allowed)))
            .and(Style::Plain, "  denied ")
            .and(bad(rates.denied, Style::Bad), format!("{}/s", rate(rates.denied)))
            .and(Style::Plain, "  would deny ")
            .and(bad(rates.would_deny, Style::Warn), format!("{}/s", rate(rates.would_deny)))
            .and(Style::Plain, "  errors ")
            .and(bad(rates.errors, Style::Bad), format!("{}/s", rate(rates.errors)))
            .and(Style::Plain, format!("  p50 {}", latency(seen.latency.p50_us)))
            .and(Style::Plain, format!("  p99 {}", latency(seen.latency.p99_us)));
        let warn = |text: String| Line::new(columns).and(Style::Warn, text);
        let warnings = [
            self.lost_line(columns),
            store.warning.as_ref().map(|text| warn(format!("store: {text}"))),
            seen.policy.error.as_ref().map(|text| warn(format!("policy not in force: {text}"))),
        ];
        [title, state, totals].into_iter().chain(warnings.into_iter().flatten()).collect()
    }

    fn lost_line(&self, columns: usize) -> Option<Line> {
        let why = self.lost.as_ref()?;
        Some(Line::new(columns).and(Style::Bad, format!("{why}; trying again")))
    }
}

fn sort(rules: &mut [&RuleTraffic], by: Sort) {
    let rates = |rule: &RuleTraffic| (rule.traffic.rates.denied, rule.traffic.rates.allowed);
    rules.sort_by(|a, b| {
        let ((a_denied, a_allowed), (b_denied, b_allowed)) = (rates(a), rates(b));
        let (denied, allowed) = (b_denied.total_cmp(&a_denied), b_allowed.total_cmp(&a_allowed));
        let name = a.name.cmp(&b.name);
        match by {
            Sort::Denied => denied.then(allowed).then(name),
            Sort::Allowed => allowed.then(denied).then(name),
            Sort::Name => name,
        }
    });
}

/// How many rows there are for what.
struct Shares {
    rules: usize,
    hottest: usize,
    denials: usize,
}

impl Shares {
    /// Rules have half of the room at least. Every table has two lines above it.
    fn of(room: usize, seen: &Snapshot) -> Self {
        const ABOVE: usize = 2;
        let least = |have: usize, share: usize| have.min(share.saturating_sub(ABOVE));
        let hottest = least(seen.hottest.len().min(10), room / 4);
        let denials = least(seen.denials.len(), room / 4);
        let taken = |rows: usize| if rows == 0 { 0 } else { rows + ABOVE };
        let rest = room.saturating_sub(ABOVE + taken(hottest) + taken(denials));
        let rules = rest.min(seen.rules.len());
        // What rules leave over goes to denials.
        let over = if denials == 0 { 0 } else { rest - rules };
        Self { rules, hottest, denials: (denials + over).min(seen.denials.len()) }
    }
}

/// A blank line and the names of columns.
fn titled(columns: usize, head: Line) -> [Line; 2] {
    [Line::new(columns), head]
}

fn rule_lines<'a>(
    rules: impl Iterator<Item = &'a &'a RuleTraffic>,
    count: usize,
    columns: usize,
) -> Vec<Line> {
    let rules: Vec<_> = rules.collect();
    let longest = rules.iter().map(|rule| rule.name.chars().count()).max().unwrap_or(0);
    let name = longest.clamp(12, 28).min(columns / 3);
    const NUMBER: usize = 11;
    let has_would = columns >= name + 3 * NUMBER;
    let has_errors = columns >= name + 4 * NUMBER + 24;
    let numbers = 2 + usize::from(has_would) + usize::from(has_errors);
    let room = columns.saturating_sub(name + numbers * NUMBER);
    // Two columns of blocks with two blanks before each, or one, or none.
    let (sparks, width) = match room {
        24.. => (2, (room / 2 - 2).min(60)),
        10.. => (1, room - 2),
        _ => (0, 0),
    };
    let title = format!("RULE ({count})");
    let mut head = Line::new(columns).column(Style::Bold, &title, name);
    let mut names = vec!["ALLOWED/S", "DENIED/S"];
    names.extend(has_would.then_some("WOULD/S"));
    names.extend(has_errors.then_some("ERRORS/S"));
    for title in names {
        head = head.number(Style::Bold, title, NUMBER);
    }
    for title in ["ALLOWED", "DENIED"].into_iter().take(sparks) {
        head = head.and(Style::Plain, "  ").column(Style::Bold, title, width);
    }
    let row = |rule: &&&RuleTraffic| {
        let (rates, series) = (&rule.traffic.rates, &rule.traffic.series);
        let style = |rate: f64, style| if rate > 0.0 { style } else { Style::Dim };
        let mut line = Line::new(columns)
            .column(Style::Plain, &rule.name, name)
            .number(style(rates.allowed, Style::Good), &rate(rates.allowed), NUMBER)
            .number(style(rates.denied, Style::Bad), &rate(rates.denied), NUMBER);
        if has_would {
            let would = rates.would_deny;
            line = line.number(style(would, Style::Warn), &rate(would), NUMBER);
        }
        if has_errors {
            line = line.number(style(rates.errors, Style::Bad), &rate(rates.errors), NUMBER);
        }
        let sparklines = [(Style::Good, &series.allowed), (Style::Bad, &series.denied)];
        for (style, series) in sparklines.into_iter().take(sparks) {
            line = line.and(Style::Plain, "  ").and(style, sparkline(series, width));
        }
        line
    };
    let mut lines = Vec::from(titled(columns, head));
    lines.extend(rules.iter().map(row));
    lines
}

fn hot_lines(seen: &Snapshot, left: &Left, rows: usize, columns: usize) -> Vec<Line> {
    if rows == 0 {
        return Vec::new();
    }
    const NUMBER: usize = 10;
    let rule = 16.min(columns / 4);
    let has_left = columns >= 60;
    let numbers = 2 * NUMBER + if has_left { 18 } else { 0 };
    let key = columns.saturating_sub(rule + 1 + numbers).clamp(8, 48);
    let head = |line: Line, texts: [&str; 5], styles: [Style; 5]| {
        let line = line.column(styles[0], texts[0], rule).and(Style::Plain, " ");
        let line = line.column(styles[1], texts[1], key).number(styles[2], texts[2], NUMBER);
        let line = line.number(styles[3], texts[3], NUMBER);
        if has_left { line.number(styles[4], texts[4], 18) } else { line }
    };
    let titles = ["HOTTEST", "KEY", "ALLOWED", "DENIED", "LEFT"];
    let mut lines = Vec::from(titled(columns, head(Line::new(columns), titles, [Style::Bold; 5])));
    let row = |hot: &HotKey| {
        let left = left.of(hot).map(|(left, of)| format!("{} of {}", count(left), count(of)));
        let left = left.unwrap_or_else(|| "-".into());
        let denied = if hot.denied > 0 { Style::Bad } else { Style::Dim };
        let styles = [Style::Plain, Style::Plain, Style::Good, denied, Style::Plain];
        let numbers = [count(hot.allowed), count(hot.denied)];
        head(Line::new(columns), [&hot.rule, &hot.key, &numbers[0], &numbers[1], &left], styles)
    };
    lines.extend(seen.hottest.iter().take(rows).map(row));
    lines
}

fn denial_lines(seen: &Snapshot, rows: usize, columns: usize) -> Vec<Line> {
    if rows == 0 {
        return Vec::new();
    }
    let policy = 16.min(columns / 4);
    let key = columns.saturating_sub(8 + policy + 1 + 38).clamp(8, 48);
    let new = || Line::new(columns);
    let head = new().column(Style::Bold, "DENIED", 8).column(Style::Bold, "LIMIT", policy);
    let head = head.and(Style::Plain, " ").column(Style::Bold, "KEY", key);
    let mut lines = Vec::from(titled(columns, head.and(Style::Bold, "  WHY")));
    let row = |denial: &Denial| {
        let ago = span(seen.at_ms.saturating_sub(denial.at_ms) / 1_000);
        let by = denial.policy.as_deref().unwrap_or(&denial.rule);
        let style = match denial.kind {
            Kind::Deny => Style::Bad,
            Kind::WouldDeny => Style::Warn,
        };
        new()
            .column(Style::Dim, &ago, 8)
            .column(Style::Plain, by, policy)
            .and(Style::Plain, " ")
            .column(Style::Plain, denial.key.as_deref().unwrap_or("-"), key)
            .and(style, format!("  {}", why(denial)))
    };
    lines.extend(seen.denials.iter().take(rows).map(row));
    lines
}

fn why(denial: &Denial) -> String {
    let would = if denial.kind == Kind::WouldDeny { "only looks on: " } else { "" };
    let limit = denial.limit.as_deref().unwrap_or_default();
    match (denial.because, denial.retry_after_ms) {
        (Because::List, _) => format!("{would}on its list, or no key"),
        (Because::Never, _) => format!("{would}{limit}, costs more than all of it"),
        (Because::Limit, Some(ms @ ..1_000)) => format!("{would}{limit}, again in {ms}ms"),
        (Because::Limit, Some(ms)) => {
            format!("{would}{limit}, again in {}", span(ms.div_ceil(1_000)))
        }
        (Because::Limit, None) => format!("{would}{limit}"),
    }
}

#[cfg(test)]
pub(super) mod tests;
