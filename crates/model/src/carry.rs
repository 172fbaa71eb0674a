//! Consumption after a change of the limit: the section "The limit changes" of
//! `docs/understand/algorithms.md`.

use crate::consumption::{Consumption, ModelEntry, Terms};
use crate::spec::{Spec, WindowKind, ceil};

impl Terms {
    /// The consumption of `old` under this limit.
    pub(crate) fn carry(
        &self,
        old: &Self,
        consumption: Option<Consumption>,
        now: i128,
    ) -> Option<Consumption> {
        let capacity = self.spec.capacity();
        let used = old.used(consumption.as_ref(), now).min(capacity);
        if used == 0 {
            return None;
        }
        match (old.spec, self.spec, consumption?) {
            (Spec::Bucket { .. }, Spec::Bucket { .. }, Consumption::Bucket { level, from, .. }) => {
                let units = |units| {
                    let (old_unit, unit) = (old.spec.unit(old.tick), self.spec.unit(self.tick));
                    let (old_permit, permit) = (old.permit() / old_unit, self.permit() / unit);
                    ceil(units / old_unit * permit, old_permit).min(capacity * permit) * unit
                };
                let level = units(old.level_at(level, from, now / old.tick));
                let drains_from = (from.max(now / old.tick) * old.tick).min(now);
                // The latest charge is not carried over.
                Some(Consumption::Bucket { level, from: ceil(drains_from, self.tick), latest: 0 })
            }
            (
                _,
                Spec::Log { .. } | Spec::SubWindows { .. },
                Consumption::Log { entries, offset },
            ) => Some(self.carry_log(old, &entries, offset, now)),
            (
                Spec::Fixed { window: WindowKind::FirstHit(_), .. },
                Spec::Fixed { window: WindowKind::FirstHit(length), .. },
                Consumption::Fixed { start, .. },
            ) => {
                let runs = now < start + i128::from(length);
                Some(Consumption::Fixed { count: used, start: if runs { start } else { now } })
            }
            (
                Spec::Approximate { window: old_window, .. },
                Spec::Approximate { window: new_window, .. },
                Consumption::Approximate { present, previous, window },
            ) if (old_window, old.tick) == (new_window, self.tick) => {
                let (present, previous) = self.pair(present, previous, window, now);
                let present = present.min(capacity);
                let mut previous = previous.min(2 * capacity);
                // The largest count that fits, by bisection: share() grows with it.
                let mut too_many = previous + 1;
                let mut fits = 0;
                while too_many - fits > 1 {
                    let middle = (too_many + fits) / 2;
                    if present + self.share(middle, now) <= capacity {
                        fits = middle;
                    } else {
                        too_many = middle;
                    }
                }
                previous = previous.min(fits);
                Some(Consumption::Approximate { present, previous, window: now / self.length() })
            }
            _ => {
                let mut fresh = None;
                self.charge(&mut fresh, now, used);
                fresh
            }
        }
    }

    fn carry_log(
        &self,
        old: &Self,
        entries: &[ModelEntry],
        offset: i128,
        now: i128,
    ) -> Consumption {
        let time = now + offset;
        let mut kept: Vec<ModelEntry> = old.counted(entries, time).copied().collect();
        let total: i128 = kept.iter().map(|entry| entry.permits).sum();
        let mut excess = (total - self.spec.capacity()).max(0);
        for entry in &mut kept {
            let taken = excess.min(entry.permits);
            entry.permits -= taken;
            excess -= taken;
        }
        kept.retain(|entry| entry.permits > 0 && self.counts(entry, time));
        let mut log = Consumption::Log { entries: kept, offset };
        // The newest may be after now by a finer precision.
        if self.is_ahead(&log, now) {
            self.rebase(&mut log, now);
        }
        log
    }
}
