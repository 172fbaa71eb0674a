//! Made once a second for everybody who wants to see the same, and never while nobody looks.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::columns::Columns;
use super::left::{self, Left};
use super::sections;
use super::view::View;
use crate::http::Door;
use crate::live::{MAX_SECONDS, Present, Seconds, Snapshot};

/// The sections of a page, each with its id.
pub(super) type Sections = Arc<[(&'static str, Arc<str>)]>;

/// What was made in this second.
#[derive(Default, Debug)]
pub(crate) struct Shared(Mutex<Made>);

#[derive(Default, Debug)]
struct Made {
    tick: u64,
    seen: Option<Arc<Seen>>,
    views: Vec<(View, Sections)>,
}

/// All that there is to show.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) snapshot: Snapshot,
    /// What is left of the keys that are asked about most, in their order.
    pub(super) left: Vec<Option<Left>>,
    /// The instant on the clock, in microseconds since 1970.
    pub(super) now: tidegate::Micros,
}

impl Seen {
    /// Seconds as they are drawn, so many in a column.
    pub(super) fn columns(&self, each: usize) -> Columns {
        Columns { each, end: self.snapshot.at_ms / 1_000 }
    }
}

impl Shared {
    /// The most views that are kept; whoever wants yet another has it made anew.
    const MOST_VIEWS: usize = 32;

    /// A view as it was after the last second. The store is asked by the first who looks, and the others wait for it.
    pub(super) async fn sections(&self, door: &Door, view: &View) -> Sections {
        let mut made = self.0.lock().await;
        let tick = *door.service.live().ticks().borrow();
        if made.tick != tick || tick == 0 {
            *made = Made { tick, ..Made::default() };
        }
        if let Some((_, sections)) = made.views.iter().find(|(known, _)| known == view) {
            return sections.clone();
        }
        let seen = match &made.seen {
            Some(seen) => seen.clone(),
            None => made.seen.insert(Arc::new(look(door).await)).clone(),
        };
        let sections = sections::all(&seen, view);
        if made.views.len() < Self::MOST_VIEWS {
            made.views.push((view.clone(), sections.clone()));
        }
        sections
    }
}

async fn look(door: &Door) -> Seen {
    let present = Present::of(&door.service, &door.policies);
    let now = present.now;
    let seconds = Seconds::new(MAX_SECONDS).unwrap_or(Seconds::DEFAULT);
    let snapshot = door.service.live().snapshot(seconds, present);
    let left = match snapshot.store.up {
        true => left::of(door, &snapshot.hottest).await,
        false => vec![None; snapshot.hottest.len()],
    };
    Seen { snapshot, left, now }
}
