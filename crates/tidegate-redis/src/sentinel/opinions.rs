//! What each sentinel said last, and what follows from it when they disagree.

use std::time::Duration;

use tokio::time::Instant;

use crate::address::{Place, Sentinels};
use crate::link::Fault;

/// What was said longer ago does not count: a sentinel is asked every second.
const RECENT: Duration = Duration::from_secs(3);

/// The latest word of every sentinel.
pub(super) struct Opinions {
    latest: Vec<Option<(Word, Instant)>>,
    /// Where the primary is not, and until when those who say so are not believed.
    disowned: Option<(Place, Instant)>,
}

/// What a sentinel says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// The primary is there.
    At(Place),
    /// It knows no master of this name.
    Unknown,
    /// It does not answer, because of this.
    Nothing(String),
}

impl Opinions {
    /// Nothing yet, of so many sentinels.
    pub(super) fn new(count: usize) -> Self {
        Self { latest: vec![None; count], disowned: None }
    }

    pub(super) fn hear(&mut self, sentinel: usize, word: Word, now: Instant) {
        if let Some(latest) = self.latest.get_mut(sentinel) {
            *latest = Some((word, now));
        }
    }

    /// Those who name `place` before `until` have not heard the news. There is one such place at a
    /// time: whatever was believed of the one before, it has led here.
    pub(super) fn disown(&mut self, place: Place, until: Instant) {
        self.disowned = Some((place, until));
    }

    pub(super) fn is_disowned(&self, place: &Place, now: Instant) -> bool {
        self.disowned.as_ref().is_some_and(|(other, until)| other == place && now < *until)
    }

    /// Where more than a half of those say that the primary is who have an opinion that counts. If
    /// nothing is known yet, the most, or the first of as many. None if it stays where it is.
    pub(super) fn majority(&self, present: Option<&Place>, now: Instant) -> Option<&Place> {
        let named: Vec<&Place> =
            self.latest.iter().flatten().filter_map(|l| self.counts(l, now)).collect();
        let votes = |place: &Place| named.iter().filter(|other| **other == place).count();
        let mut most: Option<&Place> = None;
        for place in &named {
            if most.is_none_or(|most| votes(place) > votes(most)) {
                most = Some(place);
            }
        }
        most.filter(|most| match present {
            Some(present) => present != *most && 2 * votes(most) > named.len(),
            None => true,
        })
    }

    fn counts<'a>(&self, (word, said): &'a (Word, Instant), now: Instant) -> Option<&'a Place> {
        let Word::At(place) = word else { return None };
        let counts = now.duration_since(*said) < RECENT && !self.is_disowned(place, now);
        counts.then_some(place)
    }

    /// Why nobody knows where the primary is.
    pub(super) fn fault(&self, sentinels: &Sentinels) -> Fault {
        let master = &sentinels.master;
        let words = || self.latest.iter().map(|latest| latest.as_ref().map(|(word, _)| word));
        if words().flatten().any(|word| *word == Word::Unknown) {
            let what = format!("sentinels do not know a master named {master:?}");
            return Fault(what + "; use the name that they monitor it by");
        }
        let why = |(place, word): (&Place, Option<&Word>)| match word {
            Some(Word::Nothing(why)) => Some(format!("{place}: {why}")),
            _ => None,
        };
        let why: Vec<String> = sentinels.places.iter().zip(words()).filter_map(why).collect();
        let why = why.join(", ");
        Fault(format!("no sentinel of {master:?} answers ({why}); check that they run"))
    }
}
