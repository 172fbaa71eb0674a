//! Numbers and spans, short enough for a column.

use crate::live::Snapshot;
pub(super) use crate::plot::words::number as count;

/// Everything in one line.
pub(super) fn line(seen: &Snapshot) -> String {
    let rates = &seen.total.rates;
    let mut line = format!(
        "allowed={}/s denied={}/s would_deny={}/s errors={}/s p50={} p99={} store={} memory={}",
        rate(rates.allowed),
        rate(rates.denied),
        rate(rates.would_deny),
        rate(rates.errors),
        latency(seen.latency.p50_us),
        latency(seen.latency.p99_us),
        if seen.store.up { "up" } else { "down" },
        seen.store.memory_bytes,
    );
    if let Some(keys) = seen.store.tracked_keys {
        line.push_str(&format!(" keys={keys}"));
    }
    let worst = seen.rules.iter().max_by(|a, b| {
        let denied = |rule: &crate::live::snapshot::RuleTraffic| rule.traffic.rates.denied;
        denied(a).total_cmp(&denied(b))
    });
    if let Some(worst) = worst.filter(|rule| rule.traffic.rates.denied > 0.0) {
        line.push_str(&format!(" most_denied={}", worst.name));
    }
    line
}

/// So many a second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        ..100.0 => format!("{rate:.1}"),
        ..1e6 => count(rate.round() as u64),
        ..1e9 => format!("{:.1}M", rate / 1e6),
        _ => format!("{:.1}G", rate / 1e9),
    }
}

pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        ..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} KB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A duration of a check.
pub(super) fn latency(micros: Option<u64>) -> String {
    match micros {
        None => "-".into(),
        Some(micros @ ..1_000) => format!("{micros}us"),
        Some(micros @ ..1_000_000) => format!("{:.1}ms", micros as f64 / 1e3),
        Some(micros) => format!("{:.1}s", micros as f64 / 1e6),
    }
}

/// A span, by its two greatest units.
pub(super) fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3_600 => format!("{minutes}m{}s", seconds % 60),
        3_600..86_400 => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// The last so many of a series as blocks: the greatest is full, and nothing is blank. A longer series is put together.
pub(super) fn sparkline(series: &[u32], width: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = series.iter().copied().max().unwrap_or(0);
    let block = |column: usize| {
        let at = |column: usize| column * series.len() / width;
        let bin = &series[at(column)..at(column + 1).max(at(column) + 1).min(series.len())];
        match bin.iter().copied().max().unwrap_or(0) {
            0 => ' ',
            // Rounded up, so that the least is seen.
            value => BLOCKS[(u64::from(value) * 8).div_ceil(u64::from(most)) as usize - 1],
        }
    };
    if series.is_empty() { " ".repeat(width) } else { (0..width).map(block).collect() }
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
        for (value, text) in [(None, "-"), (Some(3), "3us"), (Some(2_500), "2.5ms")] {
            assert_eq!(latency(value), text);
        }
        for (value, text) in [(59, "59s"), (61, "1m1s"), (3_660, "1h1m"), (90_000, "1d1h")] {
            assert_eq!(span(value), text);
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
