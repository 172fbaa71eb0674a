//! Chart of a simulation report.

use tidegate::simulate::Report;

use super::canvas::{self, Canvas, Rect, TextAnchor};
use super::panel;
use crate::text::format::{number, shortened};

/// In pixels, as all lengths here.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 66.0;
const CHART_WIDTH: f64 = WIDTH - LEFT - 24.0;
const HEADER: f64 = 92.0;
/// The maximum length of the traffic in the title.
const MAX_CHARS: usize = 100;

/// The style sheet of charts, light and dark.
pub(crate) const STYLE: &str = include_str!("style.css");

/// An SVG file with one panel for each candidate: offered and admitted requests over time, and
/// below them the use of each limit with its guaranteed bound.
///
/// The same report gives the same bytes. The file loads nothing and follows the color scheme of the
/// reader.
pub fn svg(report: &Report) -> String {
    let size = |height| format!("width=\"{WIDTH:.0}\" height=\"{height:.0}\"");
    to_svg(report, size, &format!("<style>{}</style>\n", STYLE.trim_end()))
}

/// The same as a part of a page, which applies [`STYLE`] to the class `plot`.
pub(crate) fn svg_for_page(report: &Report) -> String {
    to_svg(report, |_| "class=\"plot\"".into(), "")
}

/// `attributes` takes the height.
fn to_svg(report: &Report, attributes: impl Fn(f64) -> String, style: &str) -> String {
    let mut body = Canvas::default();
    header(&mut body, report);
    // All panels share one scale, so that they can be compared.
    let most =
        report.runs.iter().flat_map(|run| &run.passed_series).chain(&report.offered_series).max();
    let most = most.copied().unwrap_or(0);
    let mut y = HEADER;
    for run in &report.runs {
        y = panel::draw(
            &mut body,
            report,
            run,
            most,
            Rect { x: LEFT, y, width: CHART_WIDTH, height: 0.0 },
        );
    }
    let mut page = Canvas::default();
    page.rectangle("paper", Rect { x: 0.0, y: 0.0, width: WIDTH, height: y });
    let attributes = format!("{} role=\"img\"", attributes(y));
    let head = canvas::title(&title(report)) + style;
    page.and(body).into_svg((WIDTH, y), &attributes, &head)
}

fn title(report: &Report) -> String {
    let limits: Vec<String> = report.runs.iter().map(|run| run.candidate.to_string()).collect();
    format!("{} under {}", report.traffic, limits.join("; "))
}

fn header(canvas: &mut Canvas, report: &Report) {
    canvas.text(
        24.0,
        34.0,
        TextAnchor::Start,
        "title",
        &shortened(&report.traffic.to_string(), MAX_CHARS),
    );
    let keys = if report.keys == 1 { "key" } else { "keys" };
    let about = format!(
        "{} requests of {} {keys} in {}, seed {}; a column is {}",
        number(report.offered),
        number(report.keys),
        report.axis.span,
        report.seed,
        report.axis.step,
    );
    canvas.text(24.0, 54.0, TextAnchor::Start, "muted", &about);
    let mut x = 24.0;
    for (class, text, width) in [
        ("passed", "admitted", 82.0),
        ("offered", "offered, not admitted in this step", 218.0),
        ("denied", "denied", 70.0),
        ("window", "admitted in the last window, busiest key", 252.0),
        ("used", "used of the limit, busiest key", 196.0),
        ("promise", "guaranteed", 0.0),
    ] {
        match class {
            "used" | "promise" => canvas.line(class, (x, 74.0), (x + 14.0, 74.0)),
            _ => canvas.rectangle(class, Rect { x, y: 69.0, width: 10.0, height: 10.0 }),
        }
        canvas.text(x + 18.0, 78.0, TextAnchor::Start, "small muted", text);
        x += width + 4.0;
    }
}
