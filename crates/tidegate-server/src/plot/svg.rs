//! The picture of a simulation.

use tidegate::simulate::Report;

use super::canvas::{Anchor, Area, Canvas, escaped};
use super::panel;
use super::words::{number, shortened, span};

/// How wide the picture is.
const WIDTH: f64 = 960.0;
/// Where charts begin and how wide they are.
const LEFT: f64 = 66.0;
const CHART_WIDTH: f64 = WIDTH - LEFT - 24.0;
const HEADER: f64 = 92.0;
/// How long the traffic may be written.
const MOST_LETTERS: usize = 100;

/// The colours of pictures, by day and by night.
pub const STYLE: &str = include_str!("style.css");

/// A picture: offered and admitted over time, one panel for each candidate, and below it how much of
/// each limit was used, with the bound that it promises.
///
/// The same report gives the same bytes. It loads nothing, and follows the reader's choice of light or dark.
pub fn svg(report: &Report) -> String {
    picture(report, &Place::File)
}

/// The same as a part of a page, which has [`STYLE`] for everything of the class `plot`.
pub fn svg_for_page(report: &Report) -> String {
    picture(report, &Place::Page)
}

/// Where a picture is shown.
enum Place {
    /// By itself, so that it has its size and its colours with it.
    File,
    /// On a page, which gives it both.
    Page,
}

fn picture(report: &Report, place: &Place) -> String {
    let mut body = Canvas::default();
    header(&mut body, report);
    // One scale for all, or they could not be compared.
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
            Area { x: LEFT, y, width: CHART_WIDTH, height: 0.0 },
        );
    }
    let height = y;
    let mut page = Canvas::default();
    let (attributes, style) = match place {
        Place::File => {
            let size = format!("width=\"{WIDTH:.0}\" height=\"{height:.0}\"");
            (size, format!("<style>{}</style>\n", STYLE.trim_end()))
        }
        Place::Page => ("class=\"plot\"".into(), String::new()),
    };
    page.write(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" {attributes} \
         role=\"img\">\n<title>{}</title>\n{style}",
        escaped(&title(report)),
    ));
    page.rectangle("paper", Area { x: 0.0, y: 0.0, width: WIDTH, height });
    page.finish() + &body.finish() + "</svg>\n"
}

fn title(report: &Report) -> String {
    let limits: Vec<String> = report.runs.iter().map(|run| run.candidate.to_string()).collect();
    format!("{} under {}", report.traffic, limits.join("; "))
}

fn header(canvas: &mut Canvas, report: &Report) {
    canvas.text(
        24.0,
        34.0,
        Anchor::Start,
        "title",
        &shortened(&report.traffic.to_string(), MOST_LETTERS),
    );
    let keys = if report.keys == 1 { "key" } else { "keys" };
    let about = format!(
        "{} requests of {} {keys} in {}, seed {}; a column is {}",
        number(report.offered),
        number(report.keys),
        span(report.axis.span),
        report.seed,
        span(report.axis.step),
    );
    canvas.text(24.0, 54.0, Anchor::Start, "muted", &about);
    let mut x = 24.0;
    for (class, says, width) in [
        ("passed", "admitted", 82.0),
        ("offered", "offered, not admitted then", 178.0),
        ("denied", "denied", 70.0),
        ("window", "admitted in the last window, busiest key", 252.0),
        ("used", "used of the limit, busiest key", 196.0),
        ("promise", "promised", 0.0),
    ] {
        match class {
            "used" | "promise" => canvas.line(class, (x, 74.0), (x + 14.0, 74.0)),
            _ => canvas.rectangle(class, Area { x, y: 69.0, width: 10.0, height: 10.0 }),
        }
        canvas.text(x + 18.0, 78.0, Anchor::Start, "small muted", says);
        x += width + 4.0;
    }
}
