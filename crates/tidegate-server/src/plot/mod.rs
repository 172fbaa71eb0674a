//! Pictures of a simulation and of what goes on: for files and browsers, and for the terminal.
//!
//! # Layout
//!
//! - [`svg`]: the picture. `panel` draws what became of one candidate, `scale` says where numbers go, `canvas`
//!   writes the elements and escapes what others have written, `style.css` has the colours of day and night.
//! - [`Flow`]: what passes and what does not, as it happens.
//! - `standing`: how a key stands under one limit, and how it recovers: `vessel`, `recovery`. `form`: what a limit
//!   looks like.
//! - [`in_words`]: a table and charts of characters: `table`, `chart`. `words` writes numbers and spans.

mod canvas;
mod chart;
mod flow;
mod form;
mod panel;
mod recovery;
mod scale;
mod standing;
mod svg;
mod table;
mod vessel;
pub(crate) mod words;

pub use chart::{Colours, Terminal};
pub use flow::Flow;
pub(crate) use form::Form;
pub(crate) use standing::Sight;
pub use svg::{STYLE, svg, svg_for_page};
pub(crate) use words::{fraction, number, percent, span, wait};

use tidegate::simulate::Report;

/// The numbers as a table, and a chart for each candidate.
pub fn in_words(report: &Report, terminal: &Terminal) -> String {
    let mut text = table::table(report);
    for run in &report.runs {
        text.push('\n');
        text.push_str(&chart::chart(report, run, terminal));
    }
    text
}
