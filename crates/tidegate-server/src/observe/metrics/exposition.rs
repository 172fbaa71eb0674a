//! The text format of Prometheus, version 0.0.4.

use std::fmt::{self, Display, Write};

/// Collects the text, family by family.
#[derive(Default)]
pub(crate) struct Exposition(String);

#[derive(Clone, Copy)]
pub(crate) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

impl Exposition {
    /// Starts a family. A name may be used once, and its samples have to follow directly.
    pub(crate) fn family(
        &mut self,
        name: &'static str,
        kind: MetricType,
        help: &str,
    ) -> MetricFamily<'_> {
        let kind = match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
        };
        self.write(format_args!("# HELP {name} "));
        self.escape(help, "\\\n");
        self.write(format_args!("\n# TYPE {name} {kind}\n"));
        MetricFamily { out: self, name }
    }

    /// A gauge without labels.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, MetricType::Gauge, help).sample("", &[], value);
    }

    /// A counter without labels.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str, value: u64) {
        self.family(name, MetricType::Counter, help).sample("", &[], value);
    }

    pub(crate) fn finish(self) -> String {
        self.0
    }

    fn write(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a string fails only if the `Display` of a value fails; numbers never do.
        let _ = self.0.write_fmt(arguments);
    }

    /// Puts a backslash before each of `special`; a line feed becomes `\n`.
    fn escape(&mut self, text: &str, special: &str) {
        for c in text.chars() {
            if special.contains(c) {
                self.0.push('\\');
            }
            self.0.push(if c == '\n' { 'n' } else { c });
        }
    }
}

/// The samples of one name.
pub(crate) struct MetricFamily<'a> {
    out: &'a mut Exposition,
    name: &'static str,
}

impl MetricFamily<'_> {
    /// One line. The suffix is empty except for the parts of a histogram.
    pub(crate) fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.out.write(format_args!("{}{suffix}", self.name));
        for (i, (name, text)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            self.out.write(format_args!("{before}{name}=\""));
            self.out.escape(text, "\\\"\n");
            self.out.write(format_args!("\""));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        self.out.write(format_args!("{after} {value}\n"));
    }
}
