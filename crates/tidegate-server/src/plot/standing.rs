//! How a key stands under one limit, for a page: beside each other, what is there now and how it recovers.

use tidegate::{Algorithm, Limit, Micros, Standing, Wait};

use super::canvas::{Canvas, escaped};
use super::form::Form;
use super::words::{number, span};
use super::{recovery, vessel};
use crate::service::{Outlook, Recovered};

/// A key under one limit, as it is drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    pub(super) limit: &'a Limit,
    pub(super) standing: Standing,
    pub(super) capacity: u64,
    pub(super) recovery: &'a [Recovered],
    /// How long ago the present window began and how long it still lasts, where that is known.
    pub(super) window: Option<(Micros, Micros)>,
}

impl<'a> Sight<'a> {
    /// What is known at `now`.
    pub(crate) fn new(outlook: &'a Outlook, now: Micros) -> Self {
        Self {
            limit: outlook.limit.limit(),
            standing: outlook.found.standing,
            capacity: outlook.found.limit,
            recovery: &outlook.recovery,
            window: window(outlook, now),
        }
    }

    /// What is there now.
    pub(crate) fn vessel(&self) -> String {
        let mut canvas = Canvas::default();
        vessel::draw(&mut canvas, self);
        framed("vessel", (vessel::WIDTH, vessel::HEIGHT), &self.now_in_words(), canvas)
    }

    /// What will be there if nobody asks; nothing if all of it is there already.
    pub(crate) fn recovery(&self) -> Option<String> {
        let mut canvas = Canvas::default();
        recovery::draw(&mut canvas, self)?;
        let title = self.later_in_words();
        Some(framed("recovery", (recovery::WIDTH, recovery::HEIGHT), &title, canvas))
    }

    pub(super) fn form(&self) -> Form {
        Form::of(self.limit)
    }

    /// Does the picture show what is used, and not what is left?
    pub(super) fn shows_used(&self) -> bool {
        self.limit.algorithm() != Algorithm::TokenBucket
    }

    /// What is used beyond the limit.
    pub(super) fn debt(&self) -> u64 {
        self.standing.used.saturating_sub(self.capacity)
    }

    /// The last of what comes back by itself.
    pub(super) fn last(&self) -> Option<(Micros, u64)> {
        let known = self.recovery.iter().rev();
        known.filter_map(|known| Some((known.after.span()?, known.fits))).next()
    }

    fn now_in_words(&self) -> String {
        let Standing { used, held, remaining, .. } = self.standing;
        let held = match held {
            0 => String::new(),
            held => format!(", {} held", number(held)),
        };
        let (used, left, all) = (number(used), number(remaining), number(self.capacity));
        format!("{used} used{held}, {left} of {all} left")
    }

    fn later_in_words(&self) -> String {
        let Some((after, fits)) = self.last() else { return self.now_in_words() };
        let (fits, all) = (number(fits), number(self.capacity));
        format!("If nobody asks, {fits} of {all} are left in {}", span(after))
    }
}

/// Where the present window of a fixed window lies. One that begins with a request is known by its end alone.
fn window(outlook: &Outlook, now: Micros) -> Option<(Micros, Micros)> {
    let (3, numbers) = outlook.limit.limit().numbers() else { return None };
    let (begins, ends) = match *numbers {
        [0, _, length] if length > 0 => {
            let begins = now.get() - now.get() % length;
            (Micros::new(begins), Micros::new(begins + length))
        }
        [2, _, length] => {
            let first = outlook.recovery.first()?.after;
            let Wait::For(left) = first else { return None };
            let ends = now.saturating_add(left);
            (ends.saturating_sub(Micros::new(length)), ends)
        }
        _ => {
            let boundaries = outlook.limit.boundaries(now);
            let ends = boundaries.iter().copied().find(|at| *at > now)?;
            (boundaries.into_iter().rfind(|at| *at <= now)?, ends)
        }
    };
    Some((now.saturating_sub(begins), ends.saturating_sub(now)))
}

fn framed(class: &str, (width, height): (f64, f64), title: &str, body: Canvas) -> String {
    let mut page = Canvas::default();
    page.write(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         class=\"plot {class}\" role=\"img\">\n<title>{}</title>\n",
        escaped(title)
    ));
    page.finish() + &body.finish() + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate::{Clock, Key, ManualClock, Memory, Policy, PolicyRule};

    use super::*;
    use crate::active::{Active, Adhoc};
    use crate::metrics::Metrics;
    use crate::service::{Ask, Service, Target, Verb};

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

    fn service(clock: &ManualClock) -> Service {
        let engine = Memory::builder().clock(clock.clone()).build();
        let metrics = Arc::new(Metrics::default());
        let policy = Policy::new(Vec::<PolicyRule>::new()).unwrap();
        let active = Active::new(policy, [].into_iter().collect(), Adhoc::Allow, &metrics);
        Service::new(Arc::new(engine), active, metrics)
    }

    /// No number of a picture is none, and none lies far outside.
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
            for (key, verb, cost) in [
                ("unused", Verb::Peek, 0),
                ("some", Verb::Check, 1),
                ("most", Verb::Check, capacity.saturating_sub(1).max(1)),
                ("debt", Verb::Record, capacity.saturating_mul(2).max(1)),
                ("held", Verb::Reserve(Some(Duration::from_secs(5))), 1),
            ] {
                let ask = |cost| Ask { target: Target::Limit(text), key: Key::from(key), cost };
                // Not every limit takes every call; what it refuses changes nothing.
                let _ = service.ask(verb, &[ask(cost)], None).await;
                for _ in 0..3 {
                    let _ = service.ask(Verb::Check, &[ask(1)], None).await;
                    clock.advance(Duration::from_millis(700));
                    let outlook = service.outlook(ask(0)).await.unwrap().remove(0);
                    let sight = Sight::new(&outlook, clock.now());
                    let of = format!("{text} {key}");
                    assert_is_drawn(&sight.vessel(), &of);
                    sight.recovery().iter().for_each(|drawn| assert_is_drawn(drawn, &of));
                }
            }
        }
    }
}
