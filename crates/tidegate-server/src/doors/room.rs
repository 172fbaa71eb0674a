//! How many clients are let in.
//!
//! An eighth of the room is each door's own and the rest is for whoever comes first. So one door can have three
//! quarters of it, and cannot shut another.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Door;

/// The room for clients, over all doors.
#[derive(Debug)]
pub struct Room {
    own: [Arc<Semaphore>; Door::ALL.len()],
    common: Arc<Semaphore>,
}

/// One client's place; dropped, it is free again.
#[derive(Debug)]
#[must_use = "the place is free again once this is dropped"]
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Room {
    /// Room for so many.
    pub fn new(max_connections: usize) -> Self {
        let most = max_connections.min(Semaphore::MAX_PERMITS);
        let own = most / 8;
        Self {
            own: Door::ALL.map(|_| Arc::new(Semaphore::new(own))),
            common: Arc::new(Semaphore::new(most - Door::ALL.len() * own)),
        }
    }

    /// A place for a client of this door, if there is one.
    pub fn enter(&self, door: Door) -> Option<Place> {
        let own = Door::ALL.iter().zip(&self.own).find(|(other, _)| **other == door)?.1;
        let permit = own.clone().try_acquire_owned();
        let permit = permit.or_else(|_| self.common.clone().try_acquire_owned());
        permit.ok().map(|permit| Place { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_door_cannot_shut_another() {
        for most in [1, 2, 7, 8, 24, 100, 10_000] {
            let room = Room::new(most);
            let fill = |door| std::iter::from_fn(|| room.enter(door)).collect::<Vec<_>>();
            let resp = fill(Door::Resp);
            assert_eq!(resp.len(), most - 2 * (most / 8), "{most}");
            let others = [fill(Door::Http), fill(Door::Grpc)];
            assert!(others.iter().all(|places| places.len() == most / 8), "{most}");
            drop(resp);
            assert!(room.enter(Door::Grpc).is_some(), "whoever goes makes room");
        }
    }
}
