//! The panel of one candidate.

use tidegate::Micros;
use tidegate::simulate::{CandidateReport, LimitReport, Report};

use super::canvas::{Canvas, Rect, TextAnchor};
use super::scale::{Scale, instants};
use crate::text::format::{number, percent, shortened};

const FLOW_HEIGHT: f64 = 116.0;
const LIMIT_HEIGHT: f64 = 64.0;
/// The strip below the chart in which denials are marked.
const MARKS_HEIGHT: f64 = 7.0;
const MAX_CHARS: usize = 56;

/// Draws a panel from `area.y` down, and returns the y of the next one. `most` is the top of the
/// scale that all panels share.
pub(crate) fn draw(
    canvas: &mut Canvas,
    report: &Report,
    run: &CandidateReport,
    most: u64,
    area: Rect,
) -> f64 {
    let name = run.candidate.to_string();
    canvas.text(24.0, area.y + 22.0, TextAnchor::Start, "limit", &shortened(&name, MAX_CHARS));
    canvas.text(area.right(), area.y + 22.0, TextAnchor::End, "", &summary(report, run));
    let flow = Rect { y: area.y + 34.0, height: FLOW_HEIGHT, ..area };
    draw_flow(canvas, report, run, Scale::holding(most), flow);
    let mut y = flow.bottom() + MARKS_HEIGHT;
    for limit in &run.limits {
        let chart = Rect { y: y + 26.0, height: LIMIT_HEIGHT, ..area };
        draw_limit(canvas, report, limit, chart, run.limits.len());
        y = chart.bottom();
    }
    for instant in instants(&report.axis) {
        let x = x_of(report, instant, area);
        canvas.text(x, y + 15.0, TextAnchor::Middle, "small muted", &span_from_start(instant));
    }
    y + 38.0
}

fn summary(report: &Report, run: &CandidateReport) -> String {
    let mut parts = vec![
        format!("admitted {} ({})", number(run.admitted), percent(run.admitted, report.offered)),
        format!("denied {}", number(run.denied)),
    ];
    parts.extend(run.longest_wait.map(|longest| format!("longest wait {longest}")));
    if run.longest_delay > Micros::ZERO {
        parts.push(format!("longest delay {}", run.longest_delay));
    }
    parts.join(" \u{b7} ")
}

fn draw_flow(
    canvas: &mut Canvas,
    report: &Report,
    run: &CandidateReport,
    scale: Scale,
    area: Rect,
) {
    draw_grid(canvas, report, scale, area);
    let height = |count: &u64| scale.height(*count, area.height);
    canvas.filled_steps("offered", area, report.offered_series.iter().map(height));
    canvas.filled_steps("passed", area, run.passed_series.iter().map(height));
    canvas.steps("outline", area, report.offered_series.iter().map(height));
    canvas.line("base", (area.x, area.bottom()), (area.right(), area.bottom()));
    draw_marks(canvas, run, Rect { y: area.bottom() + 2.0, height: MARKS_HEIGHT - 2.0, ..area });
}

/// Marks the steps with denials; adjacent steps share one mark.
fn draw_marks(canvas: &mut Canvas, run: &CandidateReport, area: Rect) {
    let width = area.width / run.denied_series.len().max(1) as f64;
    let mut step = 0;
    for marks in run.denied_series.chunk_by(|a, b| (*a > 0) == (*b > 0)) {
        if marks[0] > 0 {
            let (x, width) = (area.x + step as f64 * width, marks.len() as f64 * width);
            canvas.rectangle("denied", Rect { x, width: width.max(1.0), ..area });
        }
        step += marks.len();
    }
}

fn draw_limit(canvas: &mut Canvas, report: &Report, run: &LimitReport, area: Rect, limits: usize) {
    let (guarantee, worst) = (run.promise, run.worst);
    let most = run.window_series.iter().chain(&run.used_series).copied().max().unwrap_or(0);
    let scale = Scale::holding(most.max(guarantee.at_most));
    draw_grid(canvas, report, scale, area);
    let height = |count: &u64| scale.height(*count, area.height);
    canvas.filled_steps("window", area, run.window_series.iter().map(height));
    if worst.admitted > 0 && worst.key == report.busiest.0 {
        let (from, to) = (worst.begins, worst.begins.saturating_add(guarantee.window));
        let (x, end) = (x_of(report, from, area), x_of(report, to, area));
        canvas.rectangle("worst", Rect { x, width: (end - x).max(1.0), ..area });
    }
    canvas.steps("used", area, run.used_series.iter().map(height));
    let y = area.bottom() - scale.height(guarantee.at_most, area.height);
    canvas.line("promise", (area.x, y), (area.right(), y));
    canvas.line("base", (area.x, area.bottom()), (area.right(), area.bottom()));
    let window = guarantee.window;
    let of = if limits > 1 {
        format!("{}: denied {}; ", run.limit, number(run.denied))
    } else {
        String::new()
    };
    let title = format!("{of}admitted in any {window}, busiest key");
    canvas.text(area.x, area.y - 7.0, TextAnchor::Start, "small muted", &title);
    let (class, prefix) = match run.within_guarantee() {
        true => ("small muted", ""),
        false => ("small bad", "GUARANTEE VIOLATED: "),
    };
    let worst = number(worst.admitted);
    let verdict =
        format!("{prefix}worst {worst}, guaranteed at most {}", number(guarantee.at_most));
    canvas.text(area.right(), area.y - 7.0, TextAnchor::End, class, &verdict);
}

fn draw_grid(canvas: &mut Canvas, report: &Report, scale: Scale, area: Rect) {
    for mark in scale.marks() {
        let y = area.bottom() - scale.height(mark, area.height);
        canvas.line("grid", (area.x, y), (area.right(), y));
        canvas.text(area.x - 8.0, y + 4.0, TextAnchor::End, "small muted", &number(mark));
    }
    for instant in instants(&report.axis) {
        let x = x_of(report, instant, area);
        canvas.line("grid", (x, area.y), (x, area.bottom()));
    }
}

/// The x of an instant, at most that of the end.
fn x_of(report: &Report, instant: Micros, area: Rect) -> f64 {
    let end = report.axis.begins(report.axis.steps).max(Micros::new(1));
    area.x + instant.min(end).get() as f64 / end.get() as f64 * area.width
}

fn span_from_start(instant: Micros) -> String {
    if instant == Micros::ZERO { "0".into() } else { instant.to_string() }
}
