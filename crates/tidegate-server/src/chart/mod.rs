//! SVG charts of simulations and rates. Imports: text.

pub(crate) mod canvas;
mod panel;
pub(crate) mod rate_chart;
pub(crate) mod scale;
pub(crate) mod simulation;

pub(crate) use self::rate_chart::RateChart;
pub use self::simulation::svg;
pub(crate) use self::simulation::{STYLE, svg_for_page};
