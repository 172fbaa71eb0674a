//! Short numbers and sparklines.

use tidegate::Micros;

use crate::table::blocks;
use tidegate_server::internal::observe::traffic::TrafficSnapshot;
pub(crate) use tidegate_server::internal::text::format::number as count;

/// A snapshot on one line.
pub(crate) fn line(snapshot: &TrafficSnapshot) -> String {
    let rates = &snapshot.requests.rates;
    let mut line = format!(
        "allowed={}/s denied={}/s would_deny={}/s errors={}/s p50={} p99={} store={} memory={}",
        rate(rates.allowed),
        rate(rates.denied),
        rate(snapshot.total.rates.would_deny),
        rate(rates.errors),
        latency(snapshot.latency.p50_us),
        latency(snapshot.latency.p99_us),
        if snapshot.store.up { "up" } else { "down" },
        snapshot.store.memory_bytes,
    );
    if let Some(keys) = snapshot.store.tracked_keys {
        line.push_str(&format!(" keys={keys}"));
    }
    let worst = snapshot.rules.iter().max_by(|a, b| {
        let denied = |rule: &tidegate_server::internal::observe::traffic::snapshot::RuleTraffic| {
            rule.traffic.rates.denied
        };
        denied(a).total_cmp(&denied(b))
    });
    if let Some(worst) = worst.filter(|rule| rule.traffic.rates.denied > 0.0) {
        line.push_str(&format!(" most_denied={}", worst.name));
    }
    line
}

/// A rate per second, without the unit.
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..100.0 => format!("{rate:.1}"),
        ..1e6 => count(rate.round() as u64),
        ..1e9 => format!("{:.1}M", rate / 1e6),
        _ => format!("{:.1}G", rate / 1e9),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        ..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Latency of a check; `-` if there was none.
pub(crate) fn latency(micros: Option<u64>) -> String {
    micros.map_or("-".into(), |micros| Micros::new(micros).to_string())
}

/// One block per column, scaled to the maximum of the series; 0 is blank. If the series is longer
/// than `width`, a column shows the maximum of its values.
pub(crate) fn sparkline(series: &[u32], width: usize) -> String {
    let most_in = |column: usize| {
        let at = |column: usize| column * series.len() / width;
        let bin = &series[at(column)..at(column + 1).max(at(column) + 1).min(series.len())];
        bin.iter().copied().max().unwrap_or(0).into()
    };
    if series.is_empty() {
        return " ".repeat(width);
    }
    blocks(&(0..width).map(most_in).collect::<Vec<u64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let rates = [
            (0.0, "0"),
            (0.1, "0.1"),
            (99.9, "99.9"),
            (1_234.4, "1,234"),
            (1.25e6, "1.2M"),
            (3e9, "3.0G"),
        ];
        for (value, text) in rates {
            assert_eq!(rate(value), text);
        }
        for (value, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(value), text);
        }
        for (value, text) in [(999, "999 B"), (4_096, "4.1 KB"), (2_500_000, "2.5 MB")] {
            assert_eq!(bytes(value), text);
        }
    }

    #[test]
    fn a_series_is_drawn_as_blocks() {
        for (series, width, drawn) in [
            (&[0, 1, 4, 8][..], 4, " ▁▄█"),
            (&[0, 0], 2, "  "),
            (&[], 3, "   "),
            (&[1, 1_000_000], 2, "▁█"),
            (&[0, 8, 0, 0, 4, 4], 3, "█ ▄"),
            (&[u32::MAX, 0], 2, "█ "),
            (&[8, 4], 4, "██▄▄"),
        ] {
            assert_eq!(sparkline(series, width), drawn, "{series:?}");
        }
    }
}
