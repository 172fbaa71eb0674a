//! Charts of a key under one limit: its state and its recovery. Imports: nothing.

mod gauge;
mod key_chart;
mod recovery;
mod shape;

pub(super) use self::gauge::gauge;
pub(super) use self::key_chart::KeyChart;
pub(super) use self::recovery::recovery;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate::{Clock, Limit, ManualClock, Memory, Micros, Policy, PolicyRule, RuleCheck};

    use super::{KeyChart, gauge, recovery};
    use crate::check::{ActivePolicy, AdhocLimits};
    use crate::check::{CheckService, Operation};
    use crate::observe::metrics::Metrics;

    const LIMITS: [&str; 14] = [
        "0/s",
        "1/s",
        "10/s burst 50 every 1s",
        "9000000/d burst 1000000",
        "leaky-bucket 10/m capacity 30 queue",
        "fixed-window 100/1h",
        "fixed-window 100/1month tz Europe/Berlin",
        "fixed-window 100/1h first-hit",
        "sliding-log 5/1m",
        "sliding-window 60/1m",
        "sliding-window 60/1m approximate",
        "concurrency 3 lease 1m",
        "concurrency 1000",
        "sliding-log 1000000/365d",
    ];

    fn service(clock: &ManualClock) -> CheckService {
        let engine = Memory::builder().clock(clock.clone()).build();
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new(Vec::<PolicyRule>::new()).unwrap();
        let active =
            ActivePolicy::new(policy, [].into_iter().collect(), AdhocLimits::Allow, &metrics);
        CheckService::new(Arc::new(engine), active, metrics)
    }

    /// All numbers are finite and within the chart.
    fn assert_is_drawn(drawn: &str, of: &str) {
        assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"), "{of}: {drawn}");
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{of}: {drawn}");
        assert!(!drawn.contains("width=\"-") && !drawn.contains("height=\"-"), "{of}: {drawn}");
        let attributes = drawn.split('"').skip(1).step_by(2);
        for part in attributes.flat_map(|value| value.split([' ', 'L', 'H', 'V', 'M', 'q', 't'])) {
            let number: f64 = part.parse().unwrap_or(0.0);
            assert!((-60.0..=600.0).contains(&number), "{of}: {number} in {drawn}");
        }
    }

    #[tokio::test]
    async fn every_limit_is_drawn_in_every_state() {
        let clock = ManualClock::new(Micros::from_secs(1_700_000_000));
        let service = service(&clock);
        for text in LIMITS {
            let capacity = text.parse::<Limit>().unwrap().capacity();
            for (key, operation, cost) in [
                ("unused", Operation::Peek, 0),
                ("some", Operation::Check, 1),
                ("most", Operation::Check, capacity.saturating_sub(1).max(1)),
                ("debt", Operation::Record, capacity.saturating_mul(2).max(1)),
                ("held", Operation::Reserve(Some(Duration::from_secs(5)).into()), 1),
            ] {
                let target = service.adhoc_limit(text).unwrap();
                let request = |cost| RuleCheck::of(target.clone(), key, cost);
                // Not every limit takes every call; what it refuses changes nothing.
                let _ = service.run(operation, &[request(cost)], None).await;
                for _ in 0..3 {
                    let _ = service.run(Operation::Check, &[request(1)], None).await;
                    clock.advance(Duration::from_millis(700));
                    let found = service.inspect(request(0)).await.unwrap();
                    let chart = KeyChart::new(&found[0].0, &found[0].1, clock.now());
                    let of = format!("{text} {key}");
                    assert_is_drawn(&gauge(&chart), &of);
                    recovery(&chart).iter().for_each(|drawn| assert_is_drawn(drawn, &of));
                }
            }
        }
    }
}
