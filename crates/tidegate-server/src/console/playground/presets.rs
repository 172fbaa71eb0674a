//! Examples and suggestions.

use maud::{Markup, html};

use super::input::PlaygroundInput;

struct Preset {
    name: &'static str,
    limits: &'static [&'static str],
    traffic: &'static str,
    hold: &'static str,
    calls: &'static str,
}

/// The examples; the first one is the default.
const PRESETS: &[Preset] = &[
    Preset {
        name: "Burst at a window boundary",
        limits: &["fixed-window 100/10s", "sliding-log 100/10s"],
        traffic: "burst 100 every 7s for 1m",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Effect of burst",
        limits: &["10/s burst 2", "10/s", "10/s burst 50"],
        traffic: "steady 4/s for 1m + burst 40 every 10s",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Log and sub-windows",
        limits: &[
            "sliding-log 100/10s",
            "sliding-window 100/10s precision 1s",
            "sliding-window 100/10s approximate",
        ],
        traffic: "poisson 8/s for 2m + burst 60 every 25s",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Queue and meter",
        limits: &["leaky-bucket 10/s capacity 30 queue", "leaky-bucket 10/s capacity 30"],
        traffic: "burst 40 every 6s for 1m",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Combined limits",
        limits: &["20/s", "fixed-window 600/1m", "20/s + fixed-window 600/1m"],
        traffic: "ramp 0/s to 40/s for 3m",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Many keys",
        limits: &["2/s burst 10", "sliding-window 120/1m"],
        traffic: "poisson 60/s keys 50 zipf 1.1 for 2m",
        hold: "",
        calls: "",
    },
    Preset {
        name: "Concurrency",
        limits: &["concurrency 20", "concurrency 30"],
        traffic: "poisson 120/s for 30s",
        hold: "200ms",
        calls: "",
    },
    Preset {
        name: "Token budget",
        limits: &["fixed-window 10000/1m", "sliding-window 10000/1m"],
        traffic: "poisson 1/s for 20m",
        hold: "",
        calls: "estimate 800 cost 100..800 takes 2s..90s",
    },
];

pub(super) const LIMITS: &[&str] = &[
    "10/s burst 20",
    "10/s burst 50 every 1s",
    "leaky-bucket 10/s capacity 30",
    "leaky-bucket 10/s capacity 30 queue",
    "fixed-window 100/10s",
    "fixed-window 100/10s first-hit",
    "sliding-log 100/10s",
    "sliding-window 100/10s",
    "sliding-window 100/10s approximate",
    "concurrency 20",
    "20/s + fixed-window 600/1m",
];

pub(super) const TRAFFIC: &[&str] = &[
    "steady 12/s for 1m",
    "poisson 12/s for 1m",
    "burst 100 every 7s for 1m",
    "ramp 0/s to 50/s for 2m",
    "steady 4/s for 1m + burst 40 every 10s",
    "poisson 60/s keys 50 zipf 1.1 for 2m",
];

impl Preset {
    fn input(&self) -> PlaygroundInput {
        PlaygroundInput {
            limits: self.limits.iter().map(|limit| (*limit).into()).collect(),
            traffic: self.traffic.into(),
            seed: String::new(),
            hold: self.hold.into(),
            calls: self.calls.into(),
        }
    }
}

/// The default example.
pub(super) fn first() -> PlaygroundInput {
    PRESETS.first().map(Preset::input).unwrap_or_default()
}

/// Links to the examples; marks the one that is shown.
pub(super) fn links(shown: &PlaygroundInput) -> Markup {
    html! {
        nav.presets aria-label="Examples" {
            ul {
                @for preset in PRESETS {
                    @let input = preset.input();
                    li { a href=(input.link()) aria-current=[(input == *shown).then_some("true")] { (preset.name) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::simulate::{Candidate, Traffic};

    use super::*;

    #[test]
    fn all_examples_and_suggestions_are_valid() {
        for preset in PRESETS {
            assert!(preset.input().task().is_ok(), "{}", preset.name);
        }
        for limit in LIMITS {
            assert!(limit.parse::<Candidate>().is_ok(), "{limit}");
        }
        for traffic in TRAFFIC {
            assert!(traffic.parse::<Traffic>().is_ok(), "{traffic}");
        }
    }
}
